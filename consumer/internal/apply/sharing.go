package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// An assigner deals the shards out among the living consumers.
type assigner interface {
	Assign(ctx context.Context, consumer string, ttl time.Duration) (shards []int, err error)
	Leave(ctx context.Context, consumer string) error
}

// SharingConfig is how a consumer takes its share.
type SharingConfig struct {
	Consumer string // its name, the same while the process lives and nobody else's
	// Assigner should not wait behind the batches: a late heartbeat gives the shards away.
	Assigner  assigner
	Heartbeat time.Duration // between two calls of Assign
	TTL       time.Duration // how long the others wait for a consumer that is silent
	Loops     Config
	// Changed hears which shards are followed, in order, each time that this changes.
	Changed func(shards []int)
}

// Sharing keeps one Loop running for each shard that is assigned to this consumer. A consumer that ends well gives
// its shards up at once; one that dies or is stopped is replaced after TTL and a heartbeat. It may go on for a while
// beside its successor, which is harmless.
type Sharing struct {
	SharingConfig
	ready  chan struct{} // closed after the first assignment
	wanted []int         // the last assignment; only Run's goroutine looks at it

	mu      sync.Mutex
	loops   map[int]*follower
	last    time.Time // of the last successful heartbeat, by the monotonic clock
	trouble error     // why the last heartbeat failed, nil when it did not
}

// follower is a running loop.
type follower struct {
	loop *Loop
	stop context.CancelFunc
	over chan struct{}
}

// NewSharing makes it; Run starts it.
func NewSharing(c SharingConfig) *Sharing {
	return &Sharing{SharingConfig: c, ready: make(chan struct{}), loops: map[int]*follower{}}
}

// Ready is closed after the first heartbeat that succeeded.
func (s *Sharing) Ready() <-chan struct{} { return s.ready }

// Run follows the assigned shards until ctx ends; then it lets every loop finish what it has in hand, gives the
// assignments up, and returns nil. Call it once.
func (s *Sharing) Run(ctx context.Context) error {
	defer s.leave(ctx)
	defer s.keep(ctx, nil, true)
	beat := time.NewTicker(s.Heartbeat)
	defer beat.Stop()
	for ctx.Err() == nil {
		s.heartbeat(ctx)
		select {
		case <-beat.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func (s *Sharing) heartbeat(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, max(s.TTL-s.Heartbeat, s.Heartbeat))
	shards, err := s.Assigner.Assign(asking, s.Consumer, s.TTL)
	cancel()
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	first := s.last.IsZero() && err == nil
	s.trouble = err
	if err == nil {
		s.last = time.Now()
	}
	silent := time.Since(s.last) > s.TTL
	s.mu.Unlock()
	switch {
	case err == nil:
		s.keep(ctx, shards, false)
	case silent: // somebody else has them by now
		s.keep(ctx, nil, false)
	}
	if err != nil {
		s.Loops.Metrics.failed(classLedger)
		s.Loops.Tell(-1, classLedger, fmt.Errorf("heartbeat: %w", err))
	}
	if first {
		close(s.ready)
	}
}

// keep starts the loops that are missing and stops those that are not wanted. A loop that is still finishing when
// its shard comes back is started again by a later heartbeat.
func (s *Sharing) keep(ctx context.Context, shards []int, wait bool) {
	s.mu.Lock()
	var ending []*follower
	for shard, f := range s.loops {
		switch {
		case f.isOver():
			delete(s.loops, shard)
		case !slices.Contains(shards, shard):
			f.stop()
			ending = append(ending, f)
		}
	}
	for _, shard := range shards {
		if s.loops[shard] == nil && ctx.Err() == nil {
			s.loops[shard] = s.start(ctx, shard)
		}
	}
	s.mu.Unlock()
	s.Loops.Metrics.assigned.Set(float64(len(shards)))
	if !slices.Equal(shards, s.wanted) {
		s.wanted = slices.Clone(shards)
		s.Changed(s.wanted)
	}
	for _, f := range ending {
		if wait {
			<-f.over
		}
	}
}

func (s *Sharing) start(ctx context.Context, shard int) *follower {
	own, stop := context.WithCancel(ctx)
	f := &follower{loop: newLoop(s.Loops, shard), stop: stop, over: make(chan struct{})}
	go func() { // keep waits on over before Run returns
		defer close(f.over)
		defer stop()
		f.loop.run(own)
	}()
	return f
}

func (f *follower) isOver() bool {
	select {
	case <-f.over:
		return true
	default:
		return false
	}
}

func (s *Sharing) leave(ctx context.Context) {
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if err := s.Assigner.Leave(leaving, s.Consumer); err != nil {
		s.Loops.Tell(-1, classLedger, fmt.Errorf("give up the shards: %w: the others take them after %v", err, s.TTL))
	}
}

// Notice wakes the loop of a shard whose row changed, or all loops for a negative number.
func (s *Sharing) Notice(shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, f := range s.loops {
		if shard < 0 || shard == number {
			f.loop.wake()
		}
	}
}

// Owned is which shards are followed now, in order.
func (s *Sharing) Owned() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owned []int
	for shard, f := range s.loops {
		if !f.isOver() {
			owned = append(owned, shard)
		}
	}
	slices.Sort(owned)
	return owned
}

// Check says why this consumer does not hold assignments (of none, where there are more consumers than shards), nil
// when it does.
func (s *Sharing) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.last.IsZero():
		return errors.Join(errors.New("no assignment yet"), s.trouble)
	case time.Since(s.last) > s.TTL:
		return errors.Join(fmt.Errorf("no heartbeat for %v", time.Since(s.last).Round(time.Second)), s.trouble)
	}
	return nil
}
