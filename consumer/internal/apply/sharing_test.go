package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dealer is an assigner in the hand of a test.
type dealer struct {
	mu     sync.Mutex
	shards []int
	err    error
	left   []string
}

func (d *dealer) set(err error, shards ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.shards = err, shards
}

func (d *dealer) Assign(context.Context, string, time.Duration) ([]int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shards, d.err
}

func (d *dealer) Leave(_ context.Context, consumer string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = append(d.left, consumer)
	return nil
}

// share runs a Sharing over a world that every shard sees; the function stops it and waits.
func share(t *testing.T, w *world, d *dealer) (*Sharing, func()) {
	s := NewSharing(SharingConfig{
		Consumer: "me", Assigner: d, Heartbeat: 5 * time.Millisecond, TTL: 200 * time.Millisecond, Loops: w.config(),
		Changed: func(shards []int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = append(w.said, fmt.Sprint("shards ", shards))
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func TestLoopsFollowTheAssignments(t *testing.T) {
	t.Parallel()
	w, d := newWorld(t), &dealer{}
	s, stop := share(t, w, d)
	<-s.Ready()
	d.set(nil, 0, 2)
	w.see("two loops", func() bool { return cmp.Equal(s.Owned(), []int{0, 2}) })
	d.set(nil, 2, 3)
	w.see("another two", func() bool { return cmp.Equal(s.Owned(), []int{2, 3}) && w.left == 1 })
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	stop()
	if len(s.Owned()) != 0 || w.left != 3 || !cmp.Equal(d.left, []string{"me"}) {
		t.Errorf("owns %v, %d loops left, gave up as %v", s.Owned(), w.left, d.left)
	}
	if diff := cmp.Diff([]string{"shards [0 2]", "shards [2 3]", "shards []"}, w.said); diff != "" {
		t.Error(diff)
	}
}

func TestAssignmentsAreKeptThroughAShortTroubleAndGivenUpInALongOne(t *testing.T) {
	t.Parallel()
	w, d := newWorld(t), &dealer{shards: []int{1}}
	s, _ := share(t, w, d)
	w.see("a loop", func() bool { return len(s.Owned()) == 1 })
	d.set(errors.New("no Postgres"))
	w.see("told", func() bool { return len(w.said) > 1 })
	if len(s.Owned()) != 1 {
		t.Error("given up at once")
	}
	w.see("given up", func() bool { return len(s.Owned()) == 0 })
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "no Postgres") {
		t.Errorf("readiness: %v", err)
	}
	d.set(nil, 1)
	w.see("taken again", func() bool { return len(s.Owned()) == 1 && s.Check() == nil })
}

func TestAConsumerIsNotReadyBeforeItsFirstAssignment(t *testing.T) {
	t.Parallel()
	w, d := newWorld(t), &dealer{err: errors.New("no Postgres")}
	s, _ := share(t, w, d)
	w.see("told", func() bool { return len(w.said) > 0 })
	select {
	case <-s.Ready():
		t.Error("ready")
	default:
	}
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "no assignment yet") {
		t.Errorf("readiness: %v", err)
	}
}
