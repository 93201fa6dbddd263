package repair

import (
	"context"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// How long one question may take. Without these a server that takes connections and answers nothing would hold a duty
// up for as long as the network layer waits, which is minutes.
const (
	statementTime = 15 * time.Second // a page of holds, documents or orders, a row written
	viewTime      = time.Minute      // all SKUs and a page of orders of one shard
	wholeTime     = 5 * time.Minute  // the invariants, which read whole tables
	sampleTime    = 30 * time.Second // one MULTI of Redis, which serves others meanwhile
	actTime       = 5 * time.Minute  // all that one audit asks for; a takeover in hand has its own end
	applyTime     = 2 * time.Minute  // a page of the log, applied; a commit under way is never cut
)

// boundedLedger is the ledger of an audit, no question of which waits for ever.
type boundedLedger struct{ audit.Ledger }

func (l boundedLedger) Shard(ctx context.Context, number int) (takeover.Shard, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return l.Ledger.Shard(ctx, number)
}

func (l boundedLedger) View(ctx context.Context, number int, after string, limit int) (audit.View, error) {
	ctx, cancel := context.WithTimeout(ctx, viewTime)
	defer cancel()
	view, err := l.Ledger.View(ctx, number, after, limit)
	if err != nil {
		return nil, err
	}
	return boundedView{view}, nil
}

type boundedView struct{ audit.View }

func (v boundedView) Orders(ctx context.Context, ids []string) (map[string]audit.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return v.View.Orders(ctx, ids)
}

func (v boundedView) Bought(ctx context.Context, after event.BuyerKey, limit int) (map[event.BuyerKey]int64, event.BuyerKey, error) {
	ctx, cancel := context.WithTimeout(ctx, viewTime) // its first SKU is counted in full, however many orders that has
	defer cancel()
	return v.View.Bought(ctx, after, limit)
}

func (v boundedView) BoughtOf(ctx context.Context, keys []event.BuyerKey) (map[event.BuyerKey]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, viewTime)
	defer cancel()
	return v.View.BoughtOf(ctx, keys)
}

func (v boundedView) Invariants(ctx context.Context) ([]audit.Broken, error) {
	ctx, cancel := context.WithTimeout(ctx, wholeTime)
	defer cancel()
	return v.View.Invariants(ctx)
}

// boundedRedis is the Redis of an audit, in the same manner.
type boundedRedis struct{ audit.Redis }

func (r boundedRedis) Sample(ctx context.Context, q audit.Question) (audit.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	return r.Redis.Sample(ctx, q)
}

func (r boundedRedis) Entry(ctx context.Context, at stock.Position) (takeover.Status, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	return r.Redis.Entry(ctx, at)
}

func (r boundedRedis) Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	return r.Redis.Range(ctx, after, count)
}

// promptTime bounds the short calls to a Redis. One that is stopped, or whose address leads elsewhere by now, keeps
// the connection and says nothing: whoever waited for it would find the new master late.
const promptTime = 1500 * time.Millisecond

// prompt is a Redis whose short calls end soon. A call that was cut off has an unknown outcome, as any other that got
// no answer.
type prompt struct{ takeover.Redis }

func (p prompt) Status(ctx context.Context) (takeover.Status, error) {
	return within(ctx, promptTime, p.Redis.Status)
}

func (p prompt) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	return p.Redis.Check(ctx)
}

func (p prompt) Fence(ctx context.Context, s takeover.Seal, adopt bool) error {
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	return p.Redis.Fence(ctx, s, adopt)
}

func (p prompt) Put(ctx context.Context, s takeover.Seal, seq int64, put takeover.Put) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	return p.Redis.Put(ctx, s, seq, put)
}

func (p prompt) Open(ctx context.Context, s takeover.Seal, seq int64, continues stock.Position) error {
	ctx, cancel := context.WithTimeout(ctx, promptTime)
	defer cancel()
	return p.Redis.Open(ctx, s, seq, continues)
}

// within asks one question under a bound.
func within[T any](ctx context.Context, bound time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return ask(ctx)
}
