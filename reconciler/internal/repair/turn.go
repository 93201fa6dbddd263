package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/ledger"
)

const (
	turnTTL   = ledger.DefaultTurnTTL
	turnRenew = turnTTL / 4
	// turnTry is how often a standby asks for the turn, and so how late it is after a turn that ended.
	turnTry = time.Second
	askTime = 5 * time.Second // one short question to Postgres or Redis
)

// AskTurn is the word by which a person's command asks, on the channel of doubts, for a turn that somebody keeps.
const AskTurn = "turn"

// asideFor is how long who serves leaves a turn that was asked for to the one who asked.
const asideFor = 3 * time.Second

// Yield leaves a shard's turn for a while to a person's command: the duties end as they do at the stop, and the turn
// is given up. Who has no turn does not try to get it meanwhile.
func (w *Warden) Yield(shard int) {
	if shard < 0 || shard >= len(w.wards) {
		return
	}
	one := w.wards[shard]
	one.mu.Lock()
	defer one.mu.Unlock()
	one.aside = time.Now().Add(asideFor)
	if one.leave != nil {
		one.leave()
	}
}

// stayAside is how long the turn is still left to somebody else.
func (w *ward) stayAside() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(w.aside)
}

// leavable is a context that Yield ends.
func (w *ward) leavable(ctx context.Context) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave = cancel
	if time.Now().Before(w.aside) { // it was asked for while the turn was being taken
		cancel()
	}
	return own, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.leave = nil
		cancel()
	}
}

// errTurnLost ends work whose turn is over: another may be at it.
var errTurnLost = errors.New("the turn was lost: another reconciler may be at this shard")

// errBusy means that another has the turn.
var errBusy = errors.New("another reconciler has the turn")

// underTurn runs work while this process has the shard's turn, renewing it. It answers errBusy at once when another
// has it. Work's context ends with ctx and when the turn is lost. The turn is given up at the end, so that the next
// one need not wait it out.
func (w *ward) underTurn(ctx context.Context, work func(context.Context) error) error {
	began := time.Now()
	has, err := w.takeTurn(ctx)
	if err != nil {
		return err
	}
	if !has {
		return errBusy
	}
	w.Metrics.turn(w.number, true)
	defer w.Metrics.turn(w.number, false)
	group, within := errgroup.WithContext(ctx)
	over := make(chan struct{})
	group.Go(func() error { return w.renew(within, began.Add(turnTTL), over) })
	group.Go(func() error {
		defer close(over)
		return work(within)
	})
	err = group.Wait()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	_ = w.Pulse.GiveUpTurn(leaving, w.number, w.Holder) // the turn ends by itself, only later
	return err
}

func (w *ward) takeTurn(ctx context.Context) (bool, error) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return w.Pulse.TakeTurn(asking, w.number, w.Holder, turnTTL)
}

// renew keeps the turn until work is over, also after ctx has ended: work then finishes what it has in hand. The
// turn is lost when Postgres says so, or when it has not answered until the turn's own end.
func (w *ward) renew(ctx context.Context, until time.Time, over <-chan struct{}) error {
	ticker := time.NewTicker(turnRenew)
	defer ticker.Stop()
	for {
		select {
		case <-over:
			return nil
		case <-ticker.C:
		}
		began := time.Now()
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnRenew)
		has, err := w.Pulse.RenewTurn(asking, w.number, w.Holder, turnTTL)
		cancel()
		switch {
		case err == nil && has:
			until = began.Add(turnTTL)
		case err == nil || time.Now().Add(turnRenew).After(until):
			return fmt.Errorf("shard %d: %w", w.number, errTurnLost)
		}
	}
}

// finishing is a context for an act that is in hand: after the end of ctx it has the grace left.
func finishing(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(own, func() { timer.Stop() })
	})
	return own, func() { stop(); cancel() }
}

// pause waits; false means that ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
