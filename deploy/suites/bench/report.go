package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A report is everything that a run found.
type report struct {
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"`
	CPUs     int       `json:"cpus"`
	Go       string    `json:"go"`
	Rounds   int       `json:"rounds"`
	AOF      string    `json:"aof"`
	Tiny     bool      `json:"tiny"` // -short: the figures mean nothing
	Lines    []line    `json:"figures"`
	Failed   []string  `json:"failed,omitempty"` // measurements without a figure, and why
	Remarked []string  `json:"remarks,omitempty"`
}

// A line is one figure with what it was to be.
type line struct {
	Figure string  `json:"figure"` // hot/256
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Rounds figure  `json:"rounds"`
	Median float64 `json:"median"`
	Goal   *goal   `json:"goal,omitempty"`
	Met    *bool   `json:"met,omitempty"`
}

// A goal bounds the median.
type goal struct {
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
}

func atLeast(bound float64) *goal { return &goal{AtLeast: bound} }
func atMost(bound float64) *goal  { return &goal{AtMost: bound} }

func (g *goal) met(by float64) bool {
	if g.AtLeast > 0 {
		return by >= g.AtLeast
	}
	return by <= g.AtMost
}

func (r *report) add(name, what, unit string, rounds figure, g *goal) {
	l := line{Figure: name, What: what, Unit: unit, Rounds: rounds, Median: rounds.median(), Goal: g}
	if g != nil {
		met := g.met(l.Median)
		l.Met = &met
	}
	r.Lines = append(r.Lines, l)
}

// remark is a sentence that belongs under the table.
func (r *report) remark(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.Remarked, text) {
		r.Remarked = append(r.Remarked, text)
	}
}

func (r *report) describe(o options) {
	r.At, r.CPUs, r.Go, r.Rounds, r.AOF, r.Tiny = time.Now().UTC(), runtime.NumCPU(), runtime.Version(), o.rounds, o.aof, o.size.orders == tiny.orders
}

func (r *report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// tableForm keeps a row within 110 columns.
const tableForm = "%-15s  %-38s  %12s  %19s  %10s  %s\n"

func (r *report) writeTable(w io.Writer) {
	fmt.Fprintf(w, "%d processors, %s, AOF %s, %d rounds, %.0f s", r.CPUs, r.Go, r.AOF, r.Rounds, r.Seconds)
	if r.Tiny {
		fmt.Fprint(w, "; tiny sizes, the figures mean nothing")
	}
	fmt.Fprintf(w, "\n\n"+tableForm, "figure", "what", "median", "spread", "goal", "")
	last := ""
	for _, l := range r.Lines {
		name := l.Figure
		if name == last {
			name = ""
		}
		last = l.Figure
		wanted, verdict := "", ""
		if l.Goal != nil {
			wanted, verdict = l.Goal.in(l.Unit), "missed"
			if *l.Met {
				verdict = "met"
			}
		}
		fmt.Fprintf(w, tableForm, name, l.What, written(l.Median)+" "+l.Unit, written(slices.Min(l.Rounds))+" … "+written(slices.Max(l.Rounds)), wanted, verdict)
	}
	for _, text := range r.Remarked {
		fmt.Fprintf(w, "\n%s", text)
	}
	for _, text := range r.Failed {
		fmt.Fprintf(w, "\nFAILED %s", text)
	}
	fmt.Fprintln(w)
}

func (g *goal) in(unit string) string {
	if g.AtLeast > 0 {
		return "≥ " + strings.TrimSuffix(written(g.AtLeast), ".00") + " " + unit
	}
	return "≤ " + strings.TrimSuffix(written(g.AtMost), ".00") + " " + unit
}

// written is a number with three figures that count, and whole from 100 on.
func written(n float64) string {
	switch size := math.Abs(n); {
	case size >= 100:
		return grouped(strconv.FormatFloat(n, 'f', 0, 64))
	case size >= 10:
		return strconv.FormatFloat(n, 'f', 1, 64)
	default:
		return strconv.FormatFloat(n, 'f', 2, 64)
	}
}

// grouped sets a comma before every three digits.
func grouped(digits string) string {
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
