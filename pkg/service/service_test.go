package service

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary keeps what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) part(name string) Part {
	ready := make(chan struct{})
	return Part{Name: name, Ready: ready, Run: func(ctx context.Context) error {
		d.write(name + " starts")
		close(ready)
		<-ctx.Done()
		d.write(name + " stops")
		return ctx.Err()
	}}
}

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var d diary
	last := Part{Name: "last", Run: func(ctx context.Context) error { cancel(); <-ctx.Done(); d.write("last stops"); return nil }}
	if err := Run(ctx, d.part("a"), d.part("b"), last); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a starts", "b starts", "last stops", "b stops", "a stops"}, d.lines); diff != "" {
		t.Error(diff)
	}
}

func TestAFailureStopsTheOthersAndNamesThePart(t *testing.T) {
	t.Parallel()
	var d diary
	broken := errors.New("broken")
	err := Run(t.Context(), d.part("a"), Part{Name: "b", Run: func(context.Context) error { return broken }})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "part b: broken") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a starts", "a stops"}, d.lines); diff != "" {
		t.Error(diff)
	}
}

func TestAPartThatFailsBeforeItIsReadyStopsTheStart(t *testing.T) {
	t.Parallel()
	var d diary
	never := Part{Name: "never", Ready: make(chan struct{}), Run: func(context.Context) error { return errors.New("no server") }}
	err := Run(t.Context(), d.part("a"), never, d.part("c"))
	if err == nil || !strings.Contains(err.Error(), "part never: no server") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a starts", "a stops"}, d.lines); diff != "" {
		t.Error(diff)
	}
}

func TestAPartThatIsDoneEndsTheRest(t *testing.T) {
	t.Parallel()
	var d diary
	if err := Run(t.Context(), d.part("a"), Part{Name: "once", Run: func(context.Context) error { return nil }}); err != nil {
		t.Error(err)
	}
}

func TestAnEndWhileStartingStopsWhatRuns(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var d diary
	waits := Part{Name: "waits", Ready: make(chan struct{}), Run: func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }}
	if err := Run(ctx, d.part("a"), waits, d.part("c")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"a starts", "a stops"}, d.lines); diff != "" {
		t.Error(diff)
	}
}

func TestAPartBeyondItsGraceIsNamedAndTheOthersStillStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var d diary
	release := make(chan struct{})
	stuck := Part{Name: "stuck", Grace: 20 * time.Millisecond, Run: func(context.Context) error { cancel(); <-release; return nil }}
	err := Run(ctx, d.part("a"), stuck)
	close(release)
	if err == nil || !strings.Contains(err.Error(), "part stuck: still running 20ms") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a starts", "a stops"}, d.lines); diff != "" {
		t.Error(diff)
	}
}

func TestASignalEndsTheContext(t *testing.T) {
	ctx, stop := WithSignals(t.Context())
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Error("the context goes on")
	}
}
