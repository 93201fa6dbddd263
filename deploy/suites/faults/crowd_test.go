package faults

import (
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

// TestCrowdForFewUnits: far more callers than units come at once, each over a connection of its own. As many as there
// are units are told so, and all others that it is sold out; nobody is told anything else.
func TestCrowdForFewUnits(t *testing.T) {
	callers, units := shoptest.Size(1_000, 20_000), shoptest.Size(50, 1_000)
	r := shoptest.Begin(t, fmt.Sprintf("%d callers for %d units", callers, units))
	abreast := connections(t, callers)
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
	s.KeepConnections(abreast)
	s.Supply(int64(units), "tea")

	answers := make([]shoptest.Answer, callers)
	took := make([]time.Duration, callers)
	began := time.Now()
	shoptest.Crowd(callers, abreast, func(i int) {
		// Whoever is asked to come again does so: the question is what everybody is told in the end.
		for try := i; ; try++ {
			answers[i] = shoptest.Reserve(t.Context(), s.Client(try), fmt.Sprintf("caller-%d", i), "tea", 1, 3600)
			if answers[i].Settled() || try == i+100 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		took[i] = answers[i].Ended.Sub(answers[i].Began)
	})
	whole := time.Since(began)

	told := shoptest.Counts(answers)
	if sold := told[http.StatusCreated] + told[http.StatusOK]; sold != units || told[http.StatusConflict] != callers-units {
		t.Errorf("told %v, want %d sold and %d refused", told, units, callers-units)
	}
	persisted, lost := s.Standings(answers)
	if len(persisted) != units || len(lost) != 0 {
		t.Errorf("%d persisted, %d lost", len(persisted), len(lost))
	}
	s.Drain()
	s.Shelf("tea", fmt.Sprintf("0|%d|0", units))
	slices.Sort(took)
	r.Note("%d told 201, %d told 409, 0 oversold; %d connections, %.1f s in all, answers p50 %v p99 %v", told[http.StatusCreated], told[http.StatusConflict],
		abreast, whole.Seconds(), took[callers/2].Round(time.Millisecond), took[callers*99/100].Round(time.Millisecond))
	s.Finish()
}

// connections is how many callers come at once: all, if this process may have so many files open. Half of the
// connections are a producer's, each of which has the same bound.
func connections(t *testing.T, callers int) int {
	t.Helper()
	var bound syscall.Rlimit
	shoptest.Need(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &bound))
	const others = 1_000 // of the other rows, which run beside this one
	most := int(min(bound.Cur, 1<<20)) - others
	if most < callers/4 {
		t.Skipf("NOT TESTED: a process may have %d files open here: ulimit -n 8192", bound.Cur)
	}
	return min(callers, most)
}
