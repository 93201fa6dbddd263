package repair

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const (
	duePage = 2000 // holds of one reading
	// callers share the desk's calls: with fewer, the calls would be small and Redis busy with them.
	callers = 256
	// maxEnded bounds the holds that one round ends, maxWalked those that it looks at.
	maxEnded  = 20_000
	maxWalked = 100_000
	// maxSent bounds what is remembered of holds that were sent and are not yet persisted; beyond it they are sent
	// again, which is answered by a replay.
	maxSent   = 100_000
	sentFor   = 5 * time.Second
	notDueFor = time.Second
)

// sentHold is a hold that Redis has answered.
type sentHold struct {
	attempt int64
	until   time.Time // when it may be sent again
	ended   bool      // Redis has ended it
}

// Ended counts one round of expiry.
type Ended struct {
	Expired int // ended now
	Already int // Redis had moved them before: a confirm or release was faster, or an earlier round
	NotDue  int // Redis' clock says not yet
	Odd     int // Redis has no such hold, or cannot reckon with its SKU: an audit will tell
	Error   error
}

// expire ends the holds that are due by Postgres' clock, the oldest first. Redis has the last word: it ends a hold
// only when its own clock agrees, and only one that is still held under the attempt that is named, so it does not
// matter how many reconcilers do this at once.
func (w *ward) expire(ctx context.Context, most int) (Ended, error) {
	var sum Ended
	var after *ledger.DueHold
	millis, err := within(ctx, statementTime, w.Ledger.Now)
	if err != nil {
		return sum, err
	}
	clock := clock{millis, time.Now()}
	for walked := 0; walked < maxWalked && sum.Expired < most; walked += duePage {
		page, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.DueHold, error) {
			return w.Ledger.Due(ctx, w.number, duePage, after)
		})
		if err != nil {
			return sum, err
		}
		w.endAll(ctx, w.unsent(page), clock, &sum)
		if sum.Error != nil || ctx.Err() != nil || len(page) < duePage {
			break
		}
		after = &page[len(page)-1]
	}
	w.Metrics.ended(sum)
	return sum, sum.Error
}

// clock is Postgres' clock, carried on by the monotonic one.
type clock struct {
	millis int64
	at     time.Time
}

func (c clock) since(t time.Time) time.Duration {
	return time.UnixMilli(c.millis).Add(time.Since(c.at)).Sub(t)
}

// endAll sends a page, many at once so that they share calls.
func (w *ward) endAll(ctx context.Context, holds []ledger.DueHold, clock clock, sum *Ended) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(callers)
	for _, hold := range holds {
		mu.Lock()
		stop := sum.Error != nil
		mu.Unlock()
		if stop || ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			failpoint.Hit(failpoint.ExpiryRead)
			out, err := w.Desk.Do(ctx, w.number, stock.Operation{Kind: stock.Expire, ID: hold.OrderID, Attempt: hold.Attempt})
			failpoint.Hit(failpoint.ExpiryDecided)
			mu.Lock()
			defer mu.Unlock()
			sum.count(out.Code, err)
			if err == nil {
				w.remembers(hold, out.Code)
			}
			if out.Code == stock.Accepted {
				w.Metrics.late(clock.since(hold.Due))
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nothing
}

func (e *Ended) count(code stock.Code, err error) {
	var closed *stock.ClosedError
	switch {
	case errors.As(err, &closed):
		e.Error = err // nothing more is worth sending
	case err != nil: // unknown: the next round sends it again
	case code == stock.Accepted:
		e.Expired++
	case code == stock.Replayed:
		e.Already++
	case code == stock.NotDue:
		e.NotDue++
	default:
		e.Odd++
	}
}

// unsent leaves out what Redis answered a moment ago and Postgres has not got yet.
func (w *ward) unsent(page []ledger.DueHold) []ledger.DueHold {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	fresh := page[:0:0]
	for _, hold := range page {
		if sent, there := w.sent[hold.OrderID]; there && sent.attempt == hold.Attempt && now.Before(sent.until) {
			continue
		}
		fresh = append(fresh, hold)
	}
	return fresh
}

func (w *ward) remembers(hold ledger.DueHold, code stock.Code) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.sent) >= maxSent {
		return
	}
	now := time.Now()
	sent := sentHold{attempt: hold.Attempt, until: now.Add(sentFor), ended: code == stock.Accepted || code == stock.Replayed}
	if code == stock.NotDue {
		sent.until = now.Add(notDueFor)
	}
	w.sent[hold.OrderID] = sent
}

// sweepSent forgets, every now and then, what may be sent again, and was not: it is persisted by now.
func (w *ward) sweepSent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.swept) < sentFor {
		return
	}
	w.swept = now
	for order, sent := range w.sent {
		if now.After(sent.until.Add(sentFor)) {
			delete(w.sent, order)
		}
	}
}

// endedInRedis reports whether Redis has ended the order's hold already, which Postgres will learn.
func (w *ward) endedInRedis(order string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent[order].ended
}
