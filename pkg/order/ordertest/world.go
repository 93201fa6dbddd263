// Package ordertest is a small stock world in memory that answers every contract of package order, for tests of
// the flow and of what stands before it. It follows the rules of the function library closely enough to be fooled
// in the same ways; that the real stores do is proven elsewhere.
package ordertest

import (
	"cmp"
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
	skus    map[string]order.SKU
	fields  map[int64]*event.Field // what Redis has
	records map[int]map[string]*stock.Reservation
	rows    map[int]map[string]stock.Reservation // what Postgres has, the newest attempt of each order
	papers  map[string]*order.Paper
	drafts  map[string]order.Draft
	behind  map[stock.Receipt]stock.Reservation // accepted and not yet persisted

	attempts map[attemptKey]stock.Reservation // what Postgres has, every attempt
	lost     map[stock.Receipt]bool
	applied  chan struct{} // closed and replaced when the ledger moves

	// Operations are all that reached the Desk, Shortfalls the orders that were told short.
	Operations []stock.Operation
	Shortfalls []string
	// Stopped keeps Postgres behind until Apply.
	Stopped bool
	// Before, when set, answers an operation in place of the Desk; After changes its answer.
	Before func(op stock.Operation) error
	After  func(op stock.Operation, out *stock.Outcome) error
	// LedgerAway makes every call of Postgres fail with it.
	LedgerAway error
}

type attemptKey struct {
	shard   int
	id      string
	attempt int64
}

// New is a world of so many shards, open under epoch 1.
func New(shards int) *World {
	w := &World{
		now: Now, epoch: 1, seq: map[int]int64{}, skus: map[string]order.SKU{}, fields: map[int64]*event.Field{},
		records: map[int]map[string]*stock.Reservation{}, rows: map[int]map[string]stock.Reservation{},
		papers: map[string]*order.Paper{}, drafts: map[string]order.Draft{},
		behind: map[stock.Receipt]stock.Reservation{}, lost: map[stock.Receipt]bool{}, attempts: map[attemptKey]stock.Reservation{}, applied: make(chan struct{}),
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
		Desk: w, Epochs: w, Catalog: w, Receipts: w, Orders: w, Records: w, Documents: w, Figures: w,
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
	s := order.SKU{Number: int64(len(w.skus) + 1), Shard: shard, Opening: available}
	w.skus[sku] = s
	w.fields[s.Number] = &event.Field{Quantities: stock.Quantities{Available: available}}
	return s
}

// FieldOf is a SKU as Redis has it, to look at or, under Locked, to change; nil when Redis lacks it.
func (w *World) FieldOf(sku string) *event.Field { return w.fields[w.skus[sku].Number] }

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
				w.move(r.Lines, -1, 1, 0)
				w.enter(shard, r, stock.Expired)
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
	inOrder := slices.SortedFunc(maps.Keys(w.behind), func(a, b stock.Receipt) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq))
	})
	for _, r := range inOrder {
		w.persist(r, w.behind[r])
	}
	clear(w.behind)
	close(w.applied)
	w.applied = make(chan struct{})
}

// Lose is a takeover: what Postgres has not got is gone, and a new epoch begins.
func (w *World) Lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for receipt, row := range w.behind {
		w.lost[receipt] = true
		if row.State == stock.Held || row.State == stock.Confirmed {
			held := int64(-1)
			if row.State == stock.Confirmed {
				held = 0
			}
			w.move(row.Lines, held, 1, -1-held)
		}
		delete(w.records[receipt.Shard], row.ID)
		if old, ok := w.rows[receipt.Shard][row.ID]; ok {
			w.records[receipt.Shard][row.ID] = &old
			if old.State == stock.Held {
				w.move(old.Lines, 1, -1, 0)
			}
		}
	}
	clear(w.behind)
	w.epoch++
	for shard := range w.seq {
		w.seq[shard] = 1
	}
	close(w.applied)
	w.applied = make(chan struct{})
}

func (w *World) persist(r stock.Receipt, row stock.Reservation) {
	if p := w.papers[documentID(row.ID)]; p != nil {
		p.State, p.Receipt = order.Applied, r
		if row.State == stock.Refused {
			p.State = order.Refused
		}
		return
	}
	w.rows[r.Shard][row.ID] = row
	w.attempts[attemptKey{r.Shard, row.ID, row.Attempt}] = row
}

func documentID(id string) string {
	if id != "" && id[0] == '~' {
		return id[1:]
	}
	return "\x00"
}

// enter writes a transition: the record, its receipt, and what Postgres will get.
func (w *World) enter(shard int, r *stock.Reservation, state stock.State) stock.Receipt {
	w.seq[shard]++
	r.State = state
	r.Receipt = stock.Receipt{Shard: shard, Position: stock.Position{Epoch: w.epoch, Seq: w.seq[shard]}}
	w.records[shard][r.ID] = r
	if w.Stopped {
		w.behind[r.Receipt] = *r
	} else {
		w.persist(r.Receipt, *r)
	}
	return r.Receipt
}

func (w *World) move(lines stock.Lines, held, available, committed int64) {
	for _, l := range lines {
		f := w.fields[l.SKU]
		f.Held += held * l.Now
		f.Available += available * l.Now
		f.Committed += committed * l.Now
	}
}

// Epoch tells the world's epoch.
func (w *World) Epoch(shard int) stock.Epoch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return stock.Epoch{Shard: shard, Ledger: "world", Epoch: w.epoch, Open: true}
}

// Doubt is heard and needs nothing.
func (w *World) Doubt(int, string) {}

var (
	_ stock.Desk      = (*World)(nil)
	_ stock.Epochs    = (*World)(nil)
	_ order.Catalog   = (*World)(nil)
	_ order.Receipts  = (*World)(nil)
	_ order.Orders    = (*World)(nil)
	_ order.Records   = (*World)(nil)
	_ order.Documents = (*World)(nil)
	_ order.Figures   = (*World)(nil)
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
