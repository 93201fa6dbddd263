package apply

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
)

// The classes of trouble: words of logs, of the metric's label, and of doubts.
const (
	classMissing     = "missing"     // there is no log
	classInterrupted = "interrupted" // log or group went away while it was read
	classTorn        = "torn"        // something else stands in the log's place
	classGap         = "gap"         // the next entry is not in the log
	classAhead       = "ahead"       // the log is in an epoch that the ledger does not know
	classHalted      = "halted"      // the ledger halted the shard on an entry
	classHeld        = "held"        // another session sits on the shard's row
	classBus         = "redis"       // any other error of the bus
	classLedger      = "postgres"    // any other error of the ledger
)

// classes is every value of the label.
var classes = []string{
	classMissing, classInterrupted, classTorn, classGap, classAhead, classHalted, classHeld, classBus, classLedger,
}

// doubtful are the classes that who repairs should look at.
var doubtful = map[string]bool{classMissing: true, classTorn: true, classGap: true, classAhead: true}

// A busError came from the source, a ledgerError from the ledger, so that drivers' errors keep their origin.
type (
	busError    struct{ error }
	ledgerError struct{ error }
	// A closedError is no trouble: the ledger says that nothing is to be applied now.
	closedError struct{ state string }
)

func (e *busError) Unwrap() error    { return e.error }
func (e *ledgerError) Unwrap() error { return e.error }
func (e *closedError) Error() string { return "the shard is " + e.state }

func classify(err error) string {
	var gap *ledger.GapError
	var ahead *ledger.AheadError
	var halted *ledger.HaltedError
	var held *ledger.HeldError
	var own *ledgerError
	switch {
	case errors.Is(err, bus.ErrMissing):
		return classMissing
	case errors.Is(err, bus.ErrTorn):
		return classTorn
	case errors.Is(err, bus.ErrInterrupted):
		return classInterrupted
	case errors.As(err, &gap):
		return classGap
	case errors.As(err, &ahead):
		return classAhead
	case errors.As(err, &halted):
		return classHalted
	case errors.As(err, &held):
		return classHeld
	case errors.As(err, &own):
		return classLedger
	}
	return classBus
}

// handle does what a failed round asks for, and returns how long to pause.
func (l *Loop) handle(ctx context.Context, err error) time.Duration {
	var closed *closedError
	if errors.As(err, &closed) {
		l.pauses.reset()
		return pollTime
	}
	class := classify(err)
	l.Metrics.failed(class)
	l.Tell(l.shard, class, err)
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if doubtful[class] {
		if failed := l.Doubt(asking, l.shard, class); failed != nil {
			l.Tell(l.shard, classLedger, failed)
		}
	}
	switch class {
	case classHalted:
		l.fence(asking, err)
		return pollTime
	case classHeld:
		l.endHolder(asking)
	}
	return l.pauses.next()
}

// fence closes Redis behind an entry that this very loop halted on.
func (l *Loop) fence(ctx context.Context, err error) {
	var halted *ledger.HaltedError
	if !errors.As(err, &halted) || halted.Claim.Epoch == 0 {
		return
	}
	failpoint.Hit(failpoint.ConsumerHalted)
	if failed := l.Fence(ctx, l.shard, halted.Claim); failed != nil {
		l.Tell(l.shard, "unfenced", failed)
	}
}

// endHolder ends a session that waits for a client which was stopped, and goes on with half the batch: it may be
// the size that made it slow.
func (l *Loop) endHolder(ctx context.Context) {
	ended, err := l.Ledger.EndStalledHolder(ctx, l.shard)
	switch {
	case err != nil:
		l.Tell(l.shard, classLedger, err)
	case ended:
		l.Tell(l.shard, "ended a stalled holder", nil)
		l.batch = max(l.batch/2, 1)
	}
}

// Bounds of the pauses after troubles.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// backoff is a growing pause, half of it jitter so that consumers do not come back in step, half of it certain so
// that no luck of the dice makes a hot loop.
type backoff struct{ pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	return b.pause/2 + rand.N(b.pause/2)
}

func (b *backoff) reset() { b.pause = 0 }
