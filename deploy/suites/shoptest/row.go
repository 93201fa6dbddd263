package shoptest

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Main is for the TestMain of a suite: it runs the rows and prints their table, as they end in the full size, and of
// rows that were played several times one line for all.
func Main(m *testing.M) {
	flag.Parse()
	// Most of a row is waiting: for a fault to be noticed, for a time to pass.
	if err := flag.Set("test.parallel", Size("4", "2")); err != nil {
		panic(err)
	}
	if Full {
		fmt.Printf(form, "ROW", "CLASS", "VERDICT", "TIME", "OPEN", "FIGURES")
	}
	sandboxtest.Main(summed{m})
}

// summed is a run of tests with the table of repeated rows at its end.
type summed struct{ *testing.M }

func (s summed) Run() int {
	code := s.M.Run()
	table.print()
	return code
}

const form = "%-52s %-12s %-7s %6s %6s  %s\n"

// A Row is one line of the table: a promise, what was seen, and whether it held.
type Row struct {
	T       *testing.T
	Name    string
	Class   string // of drift that a fault must end in; empty: none
	Began   time.Time
	Figures []string
	open    time.Duration // the slowest recovery
}

// Smoke is empty, or has the rows of the small size, by the beginning of their names; the others then run in
// the full size only.
var Smoke []string

// Begin makes a row of this test, which may run beside others.
func Begin(t *testing.T, name string) *Row {
	t.Helper()
	if !Full && Smoke != nil && !slices.ContainsFunc(Smoke, func(row string) bool { return strings.HasPrefix(name, row) }) {
		t.Skipf("%q is a row of the full size: make test-faults plays it", name)
	}
	t.Parallel()
	return Part(t, name)
}

// Alone is Begin for a row whose times are promised or compared: in the full size nothing runs beside it.
func Alone(t *testing.T, name string) *Row {
	t.Helper()
	if Full {
		return Part(t, name)
	}
	return Begin(t, name)
}

// Part is Begin for a test that waits its turn, because it shares a shop with others.
func Part(t *testing.T, name string) *Row {
	t.Helper()
	r := &Row{T: t, Name: name, Began: time.Now()}
	t.Cleanup(r.end) // comes last: everything is taken down by then
	return r
}

// Note adds a figure.
func (r *Row) Note(format string, arguments ...any) {
	r.Figures = append(r.Figures, fmt.Sprintf(format, arguments...))
}

// Opened says how long after its fault the shop sold again.
func (r *Row) Opened(after time.Duration) { r.open = max(r.open, after) }

func (r *Row) end() {
	verdict := "holds"
	switch {
	case r.T.Failed():
		verdict = "BROKEN"
	case r.T.Skipped():
		verdict = "skipped"
	}
	took := time.Since(r.Began)
	table.add(r, verdict, took)
	line := fmt.Sprintf(form, r.Name, r.Class, verdict, tenths(took), tenths(r.open), strings.Join(r.Figures, "; "))
	if Full {
		fmt.Print(line)
		return
	}
	r.T.Log(strings.TrimSpace(line))
}

// tenths prints a time; none is empty.
func tenths(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.Round(100 * time.Millisecond).String()
}

// table sums up rows that were played more than once.
var table results

type results struct {
	mu    sync.Mutex
	names []string
	rows  map[string]*result
}

type result struct {
	class, verdict string
	times          int
	slowest        time.Duration
}

func (t *results) add(r *Row, verdict string, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[string]*result{}
	}
	sum := t.rows[r.Name]
	if sum == nil {
		sum = &result{class: r.Class, verdict: verdict}
		t.rows[r.Name] = sum
		t.names = append(t.names, r.Name)
	}
	sum.times++
	sum.slowest = max(sum.slowest, r.open)
	if verdict == "BROKEN" {
		sum.verdict = verdict
	}
}

// print writes the table: row, class, times run, slowest recovery, verdict.
func (t *results) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !Full || len(t.names) == 0 {
		return
	}
	slices.Sort(t.names)
	const line = "%-52s %-12s %5s %8s  %s\n"
	fmt.Printf("\n"+line, "ROW", "CLASS", "TIMES", "SLOWEST", "VERDICT")
	for _, name := range t.names {
		r := t.rows[name]
		fmt.Printf(line, name, r.class, fmt.Sprint(r.times), tenths(r.slowest), r.verdict)
	}
}
