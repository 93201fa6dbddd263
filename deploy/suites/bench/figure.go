package main

import (
	"slices"
	"time"
)

// A figure is one measured quantity over the rounds.
type figure []float64

func (f figure) median() float64 {
	s := slices.Sorted(slices.Values(f))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}

// over divides pair by pair, so that a machine whose speed drifts does not matter.
func (f figure) over(reference figure) figure {
	out := make(figure, len(f))
	for i := range f {
		out[i] = f[i] / reference[i]
	}
	return out
}

// percentile is the smallest of the values that so many of a hundred do not exceed; the values get sorted.
func percentile(of int, values []float64) float64 {
	slices.Sort(values)
	return values[max(0, (len(values)*of+99)/100-1)]
}

func since(began time.Time) float64 { return time.Since(began).Seconds() }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed is how many seconds a piece of work takes.
func timed(work func() error) (seconds float64, err error) {
	began := time.Now()
	err = work()
	return since(began), err
}
