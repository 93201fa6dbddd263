package ledger

import (
	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A fold gathers what a run of entries does to the tables, so that each table is written once. What an
// operation means is event.Book's; a fold only remembers which row it ended in. A hold and its end in one run
// become one row.
type fold struct {
	shard int64
	book  *event.Book
	now   int64 // Postgres' clock, microseconds since 1970

	loaded []loadedSKU
	orders map[string]loadedOrder // newest attempt of each order that was read
	papers map[string]paper       // documents by id, as the table has them

	rows   copyRows // of event
	ops    int
	made   []madeOrder
	place  map[string]int // order → index in made of its newest attempt
	moves  map[string]movedOrder
	amends amendments
	opened []int64        // SKUs whose first entry is here
	signs  map[int64]sign // of SKUs that have some, or had
	signed []int64        // SKUs whose sign changed here
	limits limits
	settle []settlement

	mismatches []event.Mismatch
}

type loadedSKU struct {
	sku int64
	stock.Quantities
}

type loadedOrder struct {
	key    int64 // attempt as the ledger numbers it
	recent bool  // its last transition is younger than the retention
	row    *stock.Reservation
}

// A madeOrder is an attempt that begins in this run.
type madeOrder struct {
	*stock.Reservation
	key int64
	ttl int64 // milliseconds, 0 = never due
}

// A movedOrder is where an attempt that was there before ends up.
type movedOrder struct {
	key    int64
	before *stock.Reservation // as the table has it
	after  *stock.Reservation
	longer int64 // milliseconds that an extended hold has left; 0 when it was not extended
}

// A sign is what a SKU is told besides its quantities.
type sign struct {
	stock.Settings
	doubt string
}

type settlement struct {
	id    string
	state string
	at    stock.Receipt
}

func newFold(shard, ops int) *fold {
	f := &fold{
		shard: int64(shard), book: event.NewBook(shard), orders: map[string]loadedOrder{}, papers: map[string]paper{},
		place: make(map[string]int, ops), made: make([]madeOrder, 0, ops), moves: map[string]movedOrder{}, signs: map[int64]sign{},
	}
	f.rows.grow(ops * eventRowBytes)
	f.book.Orders = make(map[string]*stock.Reservation, ops)
	return f
}

func (f *fold) at(now int64) { f.now = now }

func (f *fold) loadStock(rows pgx.Rows) error {
	var s loadedSKU
	var sg sign
	_, err := pgx.ForEachRow(rows, []any{&s.sku, &s.Available, &s.Held, &s.Committed, &sg.OpensMillis, &sg.Frozen, &sg.Closed, &sg.Limit, &sg.doubt}, func() error {
		f.loaded = append(f.loaded, s)
		f.book.Stock[s.sku] = s.Quantities
		if sg != (sign{}) {
			f.signs[s.sku] = sg
			f.book.Settings[s.sku] = sg.Settings
			if sg.Limit > 0 {
				f.limits.had = append(f.limits.had, s.sku)
			}
		}
		return nil
	})
	return err
}

func (f *fold) loadOrders(rows pgx.Rows) error {
	var r *stock.Reservation
	return eachOrderLine(rows, func(id string, key int64, recent bool, row *stock.Reservation, line stock.Line) error {
		if r == nil || r.ID != id {
			made := *row
			r = &made
			f.orders[id] = loadedOrder{key: key, recent: recent, row: r}
			f.book.Orders[id] = r
		}
		r.Lines = append(r.Lines, line)
		return nil
	})
}

// eachOrderLine reads rows of the form of selectNewest: neighbours with one id are one order.
func eachOrderLine(rows pgx.Rows, each func(id string, key int64, recent bool, row *stock.Reservation, line stock.Line) error) error {
	var recent bool
	return eachLine(rows, &recent, func(id string, key int64, row *stock.Reservation, line stock.Line) error {
		return each(id, key, recent, row, line)
	})
}

// eachLine is eachOrderLine for rows whose tenth column says something else of the last move; it goes to told.
func eachLine(rows pgx.Rows, told any, each func(id string, key int64, row *stock.Reservation, line stock.Line) error) error {
	var r stock.Reservation
	var line stock.Line
	var key int64
	_, err := pgx.ForEachRow(rows, []any{&r.ID, &key, &r.Attempt, &r.State, &r.Buyer, &r.ExpiresMillis,
		&r.Receipt.Epoch, &r.Receipt.Seq, &r.Receipt.Index, told, &line.SKU, &line.Asked, &line.Now, &line.Fulfilled}, func() error {
		return each(r.ID, key, &r, line)
	})
	return err
}

// missingStock names the SKUs of loaded orders that were not asked for.
func (f *fold) missingStock(asked []int64) []int64 {
	if len(f.orders) == 0 {
		return nil
	}
	known := make(map[int64]bool, len(asked))
	for _, sku := range asked {
		known[sku] = true
	}
	var missing []int64
	for id := range f.orders {
		for _, l := range f.book.Orders[id].Lines {
			if !known[l.SKU] {
				known[l.SKU] = true
				missing = append(missing, l.SKU)
			}
		}
	}
	return missing
}

// add folds one entry. The error is an *event.PoisonError, after which the fold must be thrown away.
func (f *fold) add(e *event.Entry, after string) error {
	if err := f.prepare(e); err != nil {
		return err
	}
	f.amends.wrong = nil
	off, err := f.book.Apply(e, func(c event.Change) { f.take(c, e.AtMillis, after) })
	if err != nil {
		return err
	}
	if f.amends.wrong != nil {
		return f.amends.wrong
	}
	// Somebody else changed Redis. The ledger keeps its own numbers and stops this one SKU, not the shop.
	for _, m := range off {
		s := f.signs[m.SKU]
		s.Frozen = true
		if s.doubt == "" {
			s.doubt = m.String()
		}
		f.signs[m.SKU] = s
		f.signed = append(f.signed, m.SKU)
	}
	f.mismatches = append(f.mismatches, off...)
	return nil
}

// prepare checks what the book cannot know: that an entry settles the document that was written, and that an
// order which begins again was forgotten by right.
func (f *fold) prepare(e *event.Entry) error {
	for i := range e.Ops {
		op := &e.Ops[i]
		switch op.Kind {
		case stock.Movement, stock.NewSKU:
			if why := f.unfit(op); why != "" {
				return &event.PoisonError{Receipt: stock.Receipt{Shard: f.book.Shard, Position: e.Position, Index: i}, Op: *op, Why: why}
			}
		case stock.Reserve, stock.Sale:
			// Redis forgets an ended or confirmed order after the retention, and the client may begin again.
			if f.forgotten(op.ID) {
				delete(f.book.Orders, op.ID)
			}
		}
	}
	return nil
}

// forgotten is true for an order whose stored attempt ended, or was confirmed, longer ago than the retention
// and was not touched in this run.
func (f *fold) forgotten(id string) bool {
	old, read := f.orders[id]
	if !read || old.recent {
		return false
	}
	_, made := f.place[id]
	_, moved := f.moves[id]
	return !made && !moved && f.book.Orders[id].State != stock.Held
}

// take notes one change: its event row, and the row of the order, document or SKU that it ends in.
func (f *fold) take(c event.Change, at int64, after string) {
	f.addEvent(c, at, after)
	f.ops++
	switch c.Op.Kind {
	case stock.Reserve, stock.Sale, stock.LateConfirm:
		f.make(c)
	case stock.Confirm, stock.Release, stock.Expire, stock.Extend, stock.Replace:
		f.move(c.Op.ID, c.After)
		if c.Op.Kind == stock.Extend {
			f.extend(c.Op.ID, c.Op.Until-at)
		}
	case stock.NewSKU:
		f.opened = append(f.opened, c.Op.Lines[0].SKU)
		f.settle = append(f.settle, settlement{paperID(c.Op.ID), documentApplied, c.Receipt})
	case stock.Movement:
		state := documentApplied
		if c.Op.Refused {
			state = documentRefused
		}
		f.settle = append(f.settle, settlement{paperID(c.Op.ID), state, c.Receipt})
		f.amend(c)
	case stock.Configure:
		// On top of the ledger's own freeze, which the log does not know.
		sku := c.Op.Lines[0].SKU
		s := sign{Settings: c.Op.Change.Apply(f.signs[sku].Settings)}
		if s.Frozen {
			s.doubt = f.signs[sku].doubt
		}
		if (s.Limit > 0) != (f.signs[sku].Limit > 0) {
			f.limits.switched = append(f.limits.switched, sku)
		}
		f.signs[sku] = s
		f.signed = append(f.signed, sku)
	}
}

// The states of a document beside written.
const (
	documentApplied = "applied"
	documentRefused = "refused"
)

// move notes where an attempt stands now.
func (f *fold) move(id string, after *stock.Reservation) {
	if i, here := f.place[id]; here {
		f.made[i].Reservation = after
		return
	}
	m, moved := f.moves[id]
	if !moved {
		m = movedOrder{key: f.orders[id].key, before: f.orders[id].row}
	}
	m.after = after
	f.moves[id] = m
}

// extend notes how long a hold has left from the moment that Redis made it longer, in milliseconds.
func (f *fold) extend(id string, left int64) {
	if i, here := f.place[id]; here {
		f.made[i].ttl = left
		return
	}
	m := f.moves[id]
	m.longer = left
	f.moves[id] = m
}

// make gives an attempt its key. The first row of an order has key 1, whatever attempt it was asked as, and a later one
// the number that it was asked as, or the next free one where an earlier life of the order, forgotten by Redis, has
// that. So the newest has the highest key also when an order begins anew with attempt 1, of which nothing is read
// beforehand: its key is taken wherever the order has a row.
func (f *fold) make(c event.Change) {
	m := madeOrder{Reservation: c.After, key: 1}
	if c.Op.Kind == stock.Reserve {
		m.ttl = c.Op.TTL
	}
	if i, here := f.place[c.Op.ID]; here {
		m.key = max(c.After.Attempt, f.made[i].key+1)
	} else if old, read := f.orders[c.Op.ID]; read {
		m.key = max(c.After.Attempt, old.key+1)
	}
	f.place[c.Op.ID] = len(f.made)
	f.made = append(f.made, m)
}
