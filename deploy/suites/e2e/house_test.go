package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// full is the size of the promises; otherwise the rows run at a size that fits into every run of the tests.
var full = os.Getenv("STOCKPIPE_E2E") == "full"

// size chooses between the two.
func size[T any](smoke, whole T) T {
	if full {
		return whole
	}
	return smoke
}

const (
	patience = 30 * time.Second // for what has to come about and has no bound of its own
	form     = "%-46s %-7s %6s  %s\n"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of a row is waiting: for a fault to be noticed, for a time to pass.
	if err := flag.Set("test.parallel", size("6", "2")); err != nil {
		panic(err)
	}
	if full {
		fmt.Printf(form, "ROW", "VERDICT", "TIME", "FIGURES")
	}
	sandboxtest.Main(m)
}

// A row is one line of the table: a promise, what was seen, and whether it held.
type row struct {
	t       *testing.T
	name    string
	began   time.Time
	figures []string
}

// begin makes a row of this test, which may run beside others.
func begin(t *testing.T, name string) *row {
	t.Helper()
	t.Parallel()
	return part(t, name)
}

// part is begin for a test that waits its turn, because it shares a shop with others.
func part(t *testing.T, name string) *row {
	t.Helper()
	r := &row{t: t, name: name, began: time.Now()}
	t.Cleanup(r.print) // comes last: everything is taken down by then
	return r
}

// note adds a figure.
func (r *row) note(format string, arguments ...any) {
	r.figures = append(r.figures, fmt.Sprintf(format, arguments...))
}

func (r *row) print() {
	verdict := "holds"
	if r.t.Failed() {
		verdict = "BROKEN"
	}
	took := time.Since(r.began).Round(100 * time.Millisecond).String()
	line := fmt.Sprintf(form, r.name, verdict, took, strings.Join(r.figures, "; "))
	if full {
		fmt.Print(line)
		return
	}
	r.t.Log(strings.TrimSpace(line))
}

var build struct {
	sync.Once
	dir string
	err error
}

// programs is the folder of the three programs, built once from the sources beside this suite.
func programs(t *testing.T) string {
	t.Helper()
	build.Do(func() {
		build.dir = filepath.Join(sandboxtest.Stack(t).Dir(), "bin")
		if build.err = os.MkdirAll(build.dir, 0o755); build.err != nil {
			return
		}
		command := exec.CommandContext(context.Background(), "go", "build", "-o", build.dir+string(filepath.Separator),
			"./producer", "./consumer", "./reconciler")
		command.Dir = filepath.Join("..", "..", "..")
		if out, err := command.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("build the programs: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.dir
}

// need ends the test when something failed that no row is about.
func need(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// crowd does n things, at most so many at once.
func crowd(n, callers int, do func(i int)) {
	next := make(chan int)
	var wait sync.WaitGroup
	for range min(n, callers) {
		wait.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wait.Wait()
}
