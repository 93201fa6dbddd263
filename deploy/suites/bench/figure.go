package main

import (
	"fmt"
	"slices"
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

// String is the median with the spread.
func (f figure) String() string {
	return fmt.Sprintf("%.2f (%.2f … %.2f)", f.median(), slices.Min(f), slices.Max(f))
}

// over divides pair by pair, so that a machine whose speed drifts does not matter.
func (f figure) over(reference figure) figure {
	out := make(figure, len(f))
	for i := range f {
		out[i] = f[i] / reference[i]
	}
	return out
}
