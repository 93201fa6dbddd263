package main

import (
	"strings"
	"testing"
)

func TestAGoalIsJudgedByTheMedian(t *testing.T) {
	t.Parallel()
	var r report
	r.add("a", "", "×", figure{1, 3, 9}, atLeast(3))
	r.add("a", "", "×", figure{1, 2.9, 9}, atLeast(3))
	r.add("a", "", "ms", figure{1, 300}, atMost(150))
	r.add("a", "", "ms", figure{300}, atMost(300))
	r.add("a", "", "ms", figure{300}, nil)
	var met []string
	for _, l := range r.Lines {
		switch {
		case l.Met == nil:
			met = append(met, "-")
		case *l.Met:
			met = append(met, "met")
		default:
			met = append(met, "missed")
		}
	}
	if got := strings.Join(met, " "); got != "met missed missed met -" {
		t.Error(got)
	}
}

func TestNumbersAreWrittenForPeople(t *testing.T) {
	t.Parallel()
	for number, want := range map[float64]string{0: "0.00", 0.294: "0.29", 12.34: "12.3", 100: "100", 1234.4: "1,234", 1_234_567: "1,234,567", -0.5: "-0.50", -1234: "-1,234"} {
		if got := written(number); got != want {
			t.Errorf("%v: %s, want %s", number, got, want)
		}
	}
}

func TestAPercentileIsOneOfTheValues(t *testing.T) {
	t.Parallel()
	values := figure{}
	for n := 200.0; n > 0; n-- {
		values = append(values, n)
	}
	if p50, p99, one := percentile(50, values), percentile(99, values), percentile(99, []float64{7}); p50 != 100 || p99 != 198 || one != 7 {
		t.Error(p50, p99, one)
	}
}
