// Package ordertest is a small stock world in memory that answers every contract of package order, for tests of
// the flow and of what stands before it. It follows the rules of the function library closely enough to be fooled
// in the same ways; that the real stores do is proven elsewhere.
package ordertest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Now is the world's Redis time until Tick moves it, in milliseconds since 1970.
const Now = 1_700_000_000_000

// A World is one shard or more. Safe for concurrent use; hooks are set before it is used, or under Locked.
type World struct {
	mu sync.Mutex

	now     int64
	epoch   int64
	seq     map[int]int64
	skus    map[string]order.SKU // that live
	texts   map[int64]string     // of every number that was ever given
	fields  map[int64]*event.Field
	records map[int]map[string]*stock.Reservation
	bought  map[event.BuyerKey]int64
	counted map[int64]bool // SKUs of which bought is complete

	ledger
	behind  []entry // accepted and not yet persisted, in order
	lost    map[stock.Receipt]bool
	applied chan struct{} // closed and replaced when the ledger moves

	// Operations are all that reached the Desk, Shortfalls the orders that were told short, Doubts what was doubted.
	Operations []stock.Operation
	Shortfalls []string
	Doubts     []string
	// Stopped keeps Postgres behind until Apply.
	Stopped bool
	// Before, when set, answers an operation in place of the Desk; After changes its answer.
	Before func(op stock.Operation) error
	After  func(op stock.Operation, out *stock.Outcome) error
	// LedgerAway makes every call of Postgres fail with it.
	LedgerAway error
}

// New is a world of so many shards, open under epoch 1.
func New(shards int) *World {
	w := &World{
		now: Now, epoch: 1, seq: map[int]int64{}, skus: map[string]order.SKU{}, texts: map[int64]string{},
		fields: map[int64]*event.Field{}, records: map[int]map[string]*stock.Reservation{},
		bought: map[event.BuyerKey]int64{}, counted: map[int64]bool{},
		ledger: newLedger(), lost: map[stock.Receipt]bool{}, applied: make(chan struct{}),
	}
	for shard := range shards {
		w.records[shard], w.rows[shard] = map[string]*stock.Reservation{}, map[string]stock.Reservation{}
	}
	return w
}

// Clerk is a Clerk over the world that waits 50 ms for a level.
func (w *World) Clerk() *order.Clerk {
	c, err := order.NewClerk(w.Parts())
	if err != nil {
		panic(err)
	}
	return c
}

// Parts are the world as a Clerk wants it.
func (w *World) Parts() order.Parts {
	return order.Parts{
		Desk: w, Epochs: w, Catalog: w, Receipts: w, Orders: w, Records: w, Documents: w, Papers: w, Counts: w, Shelves: w, Figures: w,
		Shards: len(w.records), Patience: 50 * time.Millisecond,
	}
}

// Locked runs f while nothing else happens.
func (w *World) Locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// Stock puts a SKU with available units into a shard of both stores.
func (w *World) Stock(sku string, available int64, shard int) order.SKU {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.number(sku, available, shard)
	w.fields[s.Number] = &event.Field{Quantities: stock.Quantities{Available: available}}
	w.shelves[s.Number] = *w.fields[s.Number]
	return s
}

// number gives a SKU the next number.
func (w *World) number(sku string, opening int64, shard int) order.SKU {
	s := order.SKU{Number: int64(len(w.texts) + 1), Shard: shard, Opening: opening}
	w.skus[sku], w.texts[s.Number] = s, sku
	return s
}

// FieldOf is a SKU as Redis has it, to look at or, under Locked, to change; nil when Redis lacks it.
func (w *World) FieldOf(sku string) *event.Field { return w.fields[w.skus[sku].Number] }

// Bought is what a buyer has of a SKU by Redis' count.
func (w *World) Bought(sku, buyer string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bought[event.BuyerKey{SKU: w.skus[sku].Number, Buyer: buyer}]
}

// Flush takes a SKU away from Redis.
func (w *World) Flush(sku string) { w.Locked(func() { delete(w.fields, w.skus[sku].Number) }) }

// Tick moves Redis' time and expires what is due.
func (w *World) Tick(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now += d.Milliseconds()
	for shard := range w.records {
		for _, id := range slices.Sorted(maps.Keys(w.records[shard])) {
			r := w.records[shard][id]
			if r.State == stock.Held && r.ExpiresMillis <= w.now {
				next := *r
				next.State = stock.Expired
				w.change(shard, r, &next)
			}
		}
	}
}

// Drop drops an order's record from Redis, as after the retention.
func (w *World) Drop(id string) {
	w.Locked(func() {
		for shard := range w.records {
			delete(w.records[shard], id)
		}
	})
}

// Apply lets Postgres catch up.
func (w *World) Apply() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.behind {
		w.persist(&w.behind[i])
	}
	w.behind = nil
	close(w.applied)
	w.applied = make(chan struct{})
}

// Lose is a takeover: what Postgres has not got is gone, a new epoch begins, and what buyers have is counted.
func (w *World) Lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.behind {
		w.lost[e.receipt] = true
		for _, row := range e.rows {
			delete(w.records[e.receipt.Shard], row.ID)
			if old, ok := w.rows[e.receipt.Shard][row.ID]; ok {
				w.records[e.receipt.Shard][row.ID] = &old
			}
		}
	}
	w.behind = nil
	clear(w.fields)
	for number, f := range w.shelves {
		w.fields[number] = &f
	}
	w.count()
	w.epoch++
	for shard := range w.seq {
		w.seq[shard] = 1
	}
	close(w.applied)
	w.applied = make(chan struct{})
}

// count is what a takeover writes: what buyers have of SKUs with a limit.
func (w *World) count() {
	clear(w.bought)
	clear(w.counted)
	for number, f := range w.fields {
		w.counted[number] = f.Limit > 0
	}
	for _, r := range w.attempts {
		if !r.State.Ended() {
			w.owe(r.Buyer, r.Lines, 1)
		}
	}
}

// Epoch tells the world's epoch.
func (w *World) Epoch(shard int) stock.Epoch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return stock.Epoch{Shard: shard, Ledger: "world", Epoch: w.epoch, Open: true}
}

// Doubt is kept.
func (w *World) Doubt(_ int, what string) { w.Locked(func() { w.Doubts = append(w.Doubts, what) }) }

var (
	_ stock.Desk        = (*World)(nil)
	_ stock.Epochs      = (*World)(nil)
	_ order.Catalog     = (*World)(nil)
	_ order.Receipts    = (*World)(nil)
	_ order.Orders      = (*World)(nil)
	_ order.Records     = (*World)(nil)
	_ order.Documents   = (*World)(nil)
	_ order.OrderPapers = (*World)(nil)
	_ order.Counts      = (*World)(nil)
	_ order.Shelves     = (*World)(nil)
	_ order.Figures     = (*World)(nil)
)

// Do decides as the library does.
func (w *World) Do(ctx context.Context, shard int, op stock.Operation) (stock.Outcome, error) {
	if err := event.CheckOperation(&op); err != nil {
		return stock.Outcome{}, err
	}
	w.mu.Lock()
	w.Operations = append(w.Operations, op)
	before, after := w.Before, w.After
	w.mu.Unlock()
	if before != nil {
		if err := before(op); err != nil {
			return stock.Outcome{}, err
		}
	}
	w.mu.Lock()
	out := w.decide(shard, op)
	w.mu.Unlock()
	if after != nil {
		if err := after(op, &out); err != nil {
			return stock.Outcome{}, err
		}
	}
	return out, ctx.Err()
}
