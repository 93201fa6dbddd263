// Package apply moves the logs of shards into the ledger: a Loop for each shard that this consumer was given
// (Sharing deals them out), from the ledger's position, in order, one Ledger.Apply after the other.
//
// What makes it correct is not here: the ledger takes the contiguous prefix only, under the lock of the shard's row.
// Two loops on one shard, a loop that was stopped for an hour, entries that come twice or late: the ledger refuses
// them, and the loop begins again from where the ledger stands.
package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of a loop.
const (
	// maxChunkOps is how many operations one call of Apply gets (one entry has up to 256): it bounds the memory of
	// a batch, and how long a stop waits for the one in hand.
	maxChunkOps = 10_000
	// applyTime is how long one call of Apply may take; finishTime how long after the loop was told to stop.
	applyTime  = 30 * time.Second
	finishTime = 5 * time.Second
	// askTime bounds the small calls: the shard's row, a doubt, a fence, the goodbye to the bus.
	askTime = 2 * time.Second
	// pollTime is the floor under the notices about a shard that is not open.
	pollTime = time.Second
	// lagTime is the least time between two looks at the end of the log while entries arrive.
	lagTime = time.Second
)

// A store is the ledger as a loop needs it.
type store interface {
	Shard(ctx context.Context, number int) (ledger.Shard, error)
	Apply(ctx context.Context, shard int, batch []event.Raw) (ledger.Applied, error)
	EndStalledHolder(ctx context.Context, shard int) (ended bool, err error)
}

// A Reader is a bus.Source that can also be asked for its end, trimmed, and left.
type Reader interface {
	bus.Source
	bus.Trimmer
	// Last is the id of the newest entry, empty when there is none.
	Last(ctx context.Context) (string, error)
	// Leave takes this reader's name off the bus.
	Leave(ctx context.Context) error
}

// Config is what all loops of a consumer share.
type Config struct {
	Ledger store
	// Open makes the reader of one shard; it does not talk to anybody yet.
	Open func(shard int) Reader
	// Doubt tells who repairs that a shard's log is not as it should be. It is a hint: errors are not retried.
	Doubt func(ctx context.Context, shard int, what string) error
	// Fence closes Redis behind a shard that was halted just now. The prober does the same when this fails.
	Fence func(ctx context.Context, shard int, claim ledger.Claim) error
	// Owns tells whether the Redis that holds a shard's log is of this ledger and in this epoch.
	Owns func(ctx context.Context, shard int, epoch int64) (bool, error)
	// Batch is how many entries one call of Apply gets at most.
	Batch int
	// LogKeep is how long entries stay in the log after they were written, if the ledger has them; 0 never trims.
	LogKeep time.Duration
	// LogShare is the part of what Redis may use that one log may take before entries go earlier, 0 to 1.
	LogShare float64
	Metrics  *Metrics
	// Tell hears what is worth a line in the log: a word and, for troubles, their error. It may be called often and
	// from several goroutines.
	Tell func(shard int, word string, err error)
}

// A Loop follows one shard. It is a state machine:
//
//	assigned → look ── not open (new, rebuilding, halted, another writer) → wait for a notice or 1 s → look
//	             └─ open → catch up (From) → follow (Next) ── a gap, a lost place → look
//	                                                       └─ any error → tell, pause, half of it jitter → look
//
// In every state the end of its context leads out: the batch in hand is finished first.
type Loop struct {
	Config
	shard  int
	source Reader
	notice chan struct{} // the shard's row changed
	at     stock.Position
	batch  int // entries a call: Config.Batch, less after the shard's row was held
	pauses backoff
	lagged time.Time

	marks   marks          // when what the ledger has was written
	cut     stock.Position // up to which the log was trimmed last
	trimmed time.Time      // when trimming was last thought of
}

// newLoop makes the loop of one shard.
func newLoop(c Config, shard int) *Loop {
	return &Loop{Config: c, shard: shard, source: c.Open(shard), notice: make(chan struct{}, 1), batch: c.Batch,
		marks: marks{apart: 2 * c.LogKeep.Milliseconds() / maxMarks}}
}

// wake ends a wait: the shard's row changed.
func (l *Loop) wake() {
	select {
	case l.notice <- struct{}{}:
	default:
	}
}

// run follows the shard until ctx ends.
func (l *Loop) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.round(ctx)
		if err == nil || ctx.Err() != nil && classify(err) != classHalted {
			continue // a gap or a lost place that reading again may mend; or the end, which a fence does not wait for
		}
		l.rest(ctx, l.handle(ctx, err))
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if err := l.source.Leave(leaving); err != nil {
		l.Tell(l.shard, "leave", err)
	}
	l.Metrics.forget(l.shard)
}

// round is one way through the states, from the ledger's position.
func (l *Loop) round(ctx context.Context) error {
	if err := l.look(ctx); err != nil {
		return err
	}
	if err := l.catchUp(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	return l.follow(ctx)
}

// look takes the position from the ledger, never from the bus.
func (l *Loop) look(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	row, err := l.Ledger.Shard(asking, l.shard)
	switch {
	case err != nil:
		return &ledgerError{err}
	case row.Writer != "redis":
		return &closedError{"written by " + row.Writer}
	case row.State != ledger.StateOpen:
		return &closedError{row.State}
	}
	l.at = row.Position()
	l.marks.back(l.at)
	return nil
}

// catchUp reads from the ledger's position to the end of the log, the next page while the last one is applied.
func (l *Loop) catchUp(ctx context.Context) error {
	page, err := l.source.From(ctx, l.at)
	for err == nil && len(page) > 0 && ctx.Err() == nil {
		end, parsed := stock.ParsePosition(page[len(page)-1].ID)
		ahead := make(chan read, 1)
		if parsed == nil {
			go func() { page, err := l.source.From(ctx, end); ahead <- read{page, err} }() // received below
		}
		failed := l.applyPage(ctx, page)
		var next read
		if parsed == nil {
			next = <-ahead
		}
		if failed != nil || ctx.Err() != nil {
			return failed
		}
		l.measure(ctx)
		l.trim(ctx)
		if l.at == end {
			page, err = next.page, next.err
		} else { // something of the page was not taken: read on from where the ledger stands
			page, err = l.source.From(ctx, l.at)
		}
	}
	if err != nil {
		return &busError{err}
	}
	return nil
}

// read is what a read-ahead brought.
type read struct {
	page []event.Raw
	err  error
}

// follow takes what arrives. It ends with nil when the log must be read again from the ledger's position.
func (l *Loop) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		page, err := l.source.Next(ctx, l.at)
		if err != nil {
			return &busError{err}
		}
		if len(page) == 0 {
			behind, err := l.isBehind(ctx)
			if err != nil {
				return &busError{err}
			}
			if behind {
				return nil // the group gave the next entry to somebody who did not apply it
			}
			l.trim(ctx)
			continue
		}
		err = l.applyPage(ctx, page)
		var gap *ledger.GapError
		if errors.As(err, &gap) {
			return nil // the entry between went to another reader, or is gone: catchUp tells
		}
		if err != nil {
			return err
		}
		l.measure(ctx)
		l.trim(ctx)
	}
	return nil
}

// isBehind compares with the end of the log after a wait that brought nothing.
func (l *Loop) isBehind(ctx context.Context) (bool, error) {
	last, err := l.source.Last(ctx)
	if err != nil {
		return false, err
	}
	lag := distance(l.at, last)
	l.Metrics.lag(l.shard, lag)
	return lag > 0, nil
}

// measure looks at the end of the log at most once in lagTime; an error shows with the next read.
func (l *Loop) measure(ctx context.Context) {
	if time.Since(l.lagged) < lagTime {
		return
	}
	l.lagged = time.Now()
	if last, err := l.source.Last(ctx); err == nil {
		l.Metrics.lag(l.shard, distance(l.at, last))
	}
}

// distance is how many entries lie beyond a position; across epochs it is the least that there can be, and a log
// that ends in an older epoch is not beyond.
func distance(at stock.Position, last string) int64 {
	end, err := stock.ParsePosition(last)
	switch {
	case last == "":
		return 0
	case err != nil: // not written by the library: certainly something to look at
		return 1
	case end.Epoch == at.Epoch:
		return max(end.Seq-at.Seq, 0)
	case end.Epoch > at.Epoch:
		return max(end.Seq, 1)
	}
	return 0
}

// applyPage gives a page to the ledger in chunks and moves the loop's position.
func (l *Loop) applyPage(ctx context.Context, page []event.Raw) error {
	for len(page) > 0 && ctx.Err() == nil {
		n := chunk(page, l.batch)
		if err := l.applyChunk(ctx, page[:n]); err != nil {
			return err
		}
		page = page[n:]
	}
	return nil
}

// chunk is how many entries one call of Apply gets: at least one.
func chunk(page []event.Raw, most int) int {
	ops := 0
	for i, raw := range page {
		ops += strings.Count(raw.Ops, " ") // one before the id of every operation
		if i > 0 && (i >= most || ops > maxChunkOps) {
			return i
		}
	}
	return len(page)
}

func (l *Loop) applyChunk(ctx context.Context, entries []event.Raw) error {
	finishing, cancel := finish(ctx)
	defer cancel()
	began := time.Now()
	failpoint.Hit(failpoint.ConsumerRead)
	applied, err := l.Ledger.Apply(finishing, l.shard, entries)
	if err == nil || applied.Entries > 0 {
		l.Metrics.applied(applied, time.Since(began))
	}
	if len(applied.Mismatches) > 0 {
		l.Tell(l.shard, "tampered", fmt.Errorf("%d SKUs were frozen because Redis disagrees: %v", len(applied.Mismatches), applied.Mismatches[0]))
	}
	if err != nil {
		return &ledgerError{err}
	}
	failpoint.Hit(failpoint.ConsumerCommitted)
	l.at = applied.Position
	l.remember(l.at, entries)
	l.batch = min(2*l.batch, l.Batch)
	l.pauses.reset()
	return nil
}

// finish is a context for what is in hand: the end of ctx leaves it finishTime.
func finish(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyTime)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishTime, cancel) })
	return own, func() { stop(); cancel() }
}

// rest waits for the pause, a notice about the shard, or the end.
func (l *Loop) rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.notice:
	case <-ctx.Done():
	}
}
