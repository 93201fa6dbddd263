package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEveryMutantAppliesToTheCodeOfToday(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range table() {
		if names[m.title()] {
			t.Errorf("%s: the name is taken", m.title())
		}
		names[m.title()] = true
		if m.harm == "" || m.old == m.new || len(m.by) == 0 {
			t.Errorf("%s: it says not whom it harms, breaks nothing, or names no test", m.title())
		}
		text, err := m.broken(root(t))
		if err != nil {
			t.Errorf("%s: %v", m.title(), err)
			continue
		}
		if strings.HasSuffix(m.file, ".go") {
			if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, 0); err != nil {
				t.Errorf("%s: it does not parse: %v", m.title(), err)
			}
		}
	}
}

func TestEveryNamedTestIsThere(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{}
	for _, m := range table() {
		if tests[m.pkg] == nil {
			tests[m.pkg] = testsOf(t, m.pkg)
		}
		for _, name := range m.by {
			if !slices.Contains(tests[m.pkg], name) {
				t.Errorf("%s: %s has no %s", m.title(), m.pkg, name)
			}
		}
	}
}

// testsOf are the test functions of a package.
func testsOf(t *testing.T, pkg string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), pkg, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", pkg, err)
	}
	var names []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// cheap is a mutation of a package whose tests need no server.
func cheap(old, broken string) mutant {
	return mutant{part: "fold", name: "cheap", file: goHold, old: old, new: broken, pkg: events,
		by: []string{"TestNeedsNamesWhatTheEntriesDidNotMake", "TestOperationsMoveUnits"}}
}

// The checker itself is checked by mutants that must not be called killed.
func TestTheCheckerTellsDeadMutantsFromLiving(t *testing.T) {
	t.Parallel()
	r := &runner{root: root(t), limit: time.Minute, parallel: 1}
	const line = "return after, b.shift(op.Lines, -1, 1, 0)"
	for _, c := range []struct {
		fact string
		m    mutant
		want string // how its line begins
	}{
		{"a break that a test sees is killed by it", cheap(line, "return after, b.shift(op.Lines, 1, 1, 0)"), "killed by event.TestOperationsMoveUnits  ("},
		{"a mutation that changes nothing survives", cheap(line, line+" // the same"), "SURVIVED  ("},
		{"what does not compile is no kill", cheap(line, "return nothing"), "NOT JUDGED  ("},
		{"what stands nowhere does not apply", cheap("no such line", ""), "NOT JUDGED  ("},
		{"what stands twice does not apply", cheap("receipt", ""), "NOT JUDGED  ("},
		{"an endless test is no kill", endless(), "NOT JUDGED  ("},
	} {
		if c.m.name == "endless" {
			r.limit = 2 * time.Second
		}
		v := r.try(t.Context(), c.m)
		if got := v.line(c.m); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", c.fact, got)
		}
		var sum summary
		sum.count(v)
		if dead := strings.HasPrefix(c.want, "killed"); dead != (sum.err() == nil) {
			t.Errorf("%s: the summary says %v", c.fact, sum.err())
		}
	}
	if v := r.try(t.Context(), hanging()); v.by == "" {
		t.Errorf("an endless test that the table expects is no kill: %+v", v)
	}
}

// endless is a mutation whose test never ends.
func endless() mutant {
	m := cheap("func (b *Book) document(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {",
		"func (b *Book) document(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {\n\tfor op != nil {\n\t}")
	m.name, m.file = "endless", "pkg/event/document.go"
	return m
}

func hanging() mutant {
	m := endless()
	m.hang = true
	return m
}

func TestATestThatDoesNotPassKillsNothing(t *testing.T) {
	t.Parallel()
	r := &runner{root: root(t), limit: time.Minute, parallel: 1}
	m := cheap("a", "b")
	m.by = []string{"TestThatNobodyWrote"}
	if err := r.baseline(t.Context(), []mutant{m}); err == nil || !strings.Contains(err.Error(), "TestThatNobodyWrote did not pass") {
		t.Errorf("the baseline says %v", err)
	}
}
