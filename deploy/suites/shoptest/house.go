package shoptest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Full is the size of the promises; otherwise the rows run at a size that fits into every run of the tests.
var Full = os.Getenv("STOCKPIPE_SUITE") == "full"

// Size chooses between the two.
func Size[T any](smoke, whole T) T {
	if Full {
		return whole
	}
	return smoke
}

// Seed is what the random part of a row is drawn from: STOCKPIPE_SEED, to play it again, or by chance.
func Seed(t *testing.T) uint64 {
	t.Helper()
	if text := os.Getenv("STOCKPIPE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("STOCKPIPE_SEED is %q: use a whole number", text)
		}
		return seed
	}
	seed := rand.Uint64N(1_000_000)
	t.Logf("drawn from STOCKPIPE_SEED=%d", seed)
	return seed
}

// Patience is for what has to come about and has no bound of its own.
const Patience = 30 * time.Second

// programs are built once in each of their two forms.
var programs [2]struct {
	sync.Once
	folder string
	err    error
}

// Programs is the folder of the three programs, built from the sources beside the suites; failing is the build that
// ends or stops at a failpoint when told to.
func Programs(t *testing.T, failing bool) string {
	t.Helper()
	build, name, tags := &programs[0], "bin", ""
	if failing {
		build, name, tags = &programs[1], "bin-failpoint", "failpoint"
	}
	build.Do(func() {
		build.folder = filepath.Join(sandboxtest.Stack(t).Dir(), name)
		if build.err = os.MkdirAll(build.folder, 0o755); build.err != nil {
			return
		}
		command := exec.CommandContext(context.Background(), "go", "build", "-tags", tags, "-o", build.folder+string(filepath.Separator),
			"./producer", "./consumer", "./reconciler")
		command.Dir = filepath.Join("..", "..", "..")
		if out, err := command.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("build the programs: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.folder
}

// Need ends the test when something failed that no row is about.
func Need(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Crowd does n things, at most so many at once.
func Crowd(n, callers int, do func(i int)) {
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
