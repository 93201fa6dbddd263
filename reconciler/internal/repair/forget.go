package repair

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Forgetter drops records of one shard of Redis, each only while it stands where the ledger knows it. It may be
// repeated: it counts what was there. A shard that is not open under the epoch refuses.
type Forgetter interface {
	Forget(ctx context.Context, e stock.Epoch, endings []stock.Ending) (dropped int, err error)
}

// How records are forgotten. A shop that takes 20,000 orders a second has as many to drop once its first retention is
// over: a round drops up to 50,000, and the next one comes at once where that was not enough. In between each call Redis
// serves others.
const (
	forgetEvery = time.Second            // between two rounds that came to the end
	forgetRest  = 100 * time.Millisecond // behind a round that did not
	forgetPage  = 5000                   // records of one reading
	forgetCall  = 200                    // of one call: about as long as one order of many lines
	forgetYield = time.Millisecond       // between two calls
	maxForgot   = 50_000                 // of one round
)

// Forgotten counts one round.
type Forgotten struct {
	Dropped int  // records that were there
	Listed  int  // of what Postgres says has come to rest longer ago than the retention
	More    bool // the round ended before the list did
}

// forget drops the records of orders and documents that came to rest longer ago than the retention, the oldest first.
// How far it came is kept in Postgres: whoever has the turn next goes on from there.
func (w *ward) forget(ctx context.Context, most int) (sum Forgotten, err error) {
	var at ledger.ForgetCursor
	for {
		var page []stock.Ending
		began := time.Now()
		asking, cancel := context.WithTimeout(ctx, statementTime)
		page, at, err = w.Ledger.ForgetPage(asking, w.number, w.Ledger.Retention(), at, forgetPage)
		cancel()
		if err != nil {
			return sum, err
		}
		dropped, err := w.drop(ctx, page)
		sum.Dropped += dropped
		w.Metrics.forgot(dropped)
		if err != nil {
			return sum, err
		}
		sum.Listed += len(page)
		if len(page) > 0 {
			if err := w.keepForgotten(ctx, at); err != nil {
				return sum, err
			}
		}
		if len(page) < forgetPage {
			w.caughtUp(began)
			return sum, nil
		}
		if sum.Listed >= most {
			sum.More = true
			return sum, w.behind(ctx, at)
		}
	}
}

// drop sends a page in bounded calls, with a breath between two.
func (w *ward) drop(ctx context.Context, page []stock.Ending) (sum int, err error) {
	for len(page) > 0 {
		call := page[:min(forgetCall, len(page))]
		page = page[len(call):]
		asking, cancel := context.WithTimeout(ctx, askTime)
		dropped, err := w.forgetter.Forget(asking, w.Epochs.Epoch(w.number), call)
		cancel()
		if sum += dropped; err != nil {
			return sum, err
		}
		if len(page) > 0 && !pause(ctx, forgetYield) {
			return sum, ctx.Err()
		}
	}
	return sum, nil
}

func (w *ward) keepForgotten(ctx context.Context, at ledger.ForgetCursor) error {
	asking, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return w.Ledger.KeepForgotten(asking, w.number, at)
}

// caughtUp notes that nothing waited at a moment of this process' clock.
func (w *ward) caughtUp(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgotten = at
}

// behind notes how far a round came that did not come to the end.
func (w *ward) behind(ctx context.Context, at ledger.ForgetCursor) error {
	millis, err := within(ctx, statementTime, w.Ledger.Now)
	if err != nil {
		return err
	}
	w.caughtUp(time.Now().Add(w.Ledger.Retention() - time.UnixMilli(millis).Sub(at.Moved)))
	return nil
}

// backlog is how much longer than the retention Redis keeps records; nothing before the first round that got through.
func (w *ward) backlog() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.forgotten), !w.forgotten.IsZero()
}

// keepForgetting is the duty.
func (w *ward) keepForgetting(ctx context.Context) {
	for rest := forgetEvery; pause(ctx, rest); {
		rest = forgetEvery
		if !w.isClosed() {
			did, err := w.forget(ctx, maxForgot)
			var closed *stock.ClosedError
			if err != nil && ctx.Err() == nil && !errors.As(err, &closed) {
				w.Metrics.failed("forget")
				w.Tell(w.number, "forget", nil, err)
			}
			if did.More && err == nil {
				rest = forgetRest
			}
		}
		if age, known := w.backlog(); known {
			w.Metrics.backlog(w.number, age)
		}
	}
}

// forgetAll is the duty of a pass.
func (w *ward) forgetAll(ctx context.Context) (int, error) {
	did, err := w.forget(ctx, math.MaxInt)
	return did.Dropped, err
}
