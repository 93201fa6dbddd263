package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An orderKey is the key of one attempt within a shard.
type orderKey struct {
	id  string
	key int64
}

// amendments are what the documents of a run do to orders, beside the moves of the orders themselves. In most runs there
// are none.
type amendments struct {
	older map[orderKey]*stock.Reservation // rows that documents name and that are not the newest of their order
	late  map[orderKey]lateOrder
	kept  []orderKey // their document was refused: Redis keeps the record that was kept for it as long as after a move
	back  []returned
	count []counted
	wrong *event.PoisonError // of the present entry
}

// A lateOrder was changed by a document when no record could be of it any more. Its row keeps the position and the time
// of its last move: by these the record is dropped where it was not dropped yet, and the order may begin anew.
type lateOrder struct {
	before *stock.Reservation // as the table has it
	after  *stock.Reservation
}

type returned struct {
	orderKey
	sku, units int64
}

// A counted SKU has a newer count than the table says.
type counted struct {
	sku int64
	at  stock.Position
}

// amend carries a document over to the order that it names, and a count to the SKUs that it counted.
func (f *fold) amend(c event.Change) {
	op := c.Op
	p := f.papers[paperID(op.ID)]
	switch {
	case op.Document == stock.DocumentCount && !op.Refused:
		for _, l := range op.Lines {
			f.amends.count = append(f.amends.count, counted{l.SKU, p.asOf})
		}
		return
	case op.Order.ID == "":
		return
	}
	of := orderKey{op.Order.ID, op.Order.Key}
	before := f.standing(of)
	switch {
	case before == nil:
		f.poison(c, fmt.Sprintf("the ledger has no attempt %d of order %s", of.key, of.id))
	case op.Refused:
		if _, moved := f.moves[of.id]; op.Order.Asked != 0 && !moved && f.orders[of.id].key == of.key {
			f.amends.kept = append(f.amends.kept, of)
		}
	case op.Document == stock.DocumentReturn:
		units := p.lines
		if p.units != nil {
			units = p.units
		}
		for _, l := range units {
			if l.Asked != 0 {
				f.amends.back = append(f.amends.back, returned{of, l.SKU, l.Asked})
			}
		}
	default:
		f.settleOrder(c, of, before)
	}
}

func (f *fold) poison(c event.Change, why string) {
	if f.amends.wrong == nil {
		f.amends.wrong = &event.PoisonError{Receipt: c.Receipt, Op: *c.Op, Why: why}
	}
}

// settleOrder writes what the Book says became of the order. Where the Book has no record that the document is of, the
// order's row changes all the same.
func (f *fold) settleOrder(c event.Change, of orderKey, before *stock.Reservation) {
	if c.OrderAfter != nil && c.OrderBefore == before {
		f.move(of.id, c.OrderAfter)
		delete(f.amends.late, of) // the move begins at what the table has
		return
	}
	if c.OrderAfter != nil {
		// The record is of another life of the order under the same number. The document was written for this row.
		f.book.Orders[of.id] = c.OrderBefore
	}
	after := settled(before, c)
	if after == nil {
		f.poison(c, fmt.Sprintf("the order is %s under attempt %d with %s", before.State, before.Attempt, event.FormatLines(before.Lines)))
		return
	}
	old := f.amends.late[of].before
	if old == nil {
		old = before
	}
	if f.amends.late == nil {
		f.amends.late = map[orderKey]lateOrder{}
	}
	if m, moved := f.moves[of.id]; moved && m.key == of.key {
		m.after = after
		f.moves[of.id] = m
	} else if i := f.madeAt(of); i >= 0 {
		f.made[i].Reservation = after
	} else {
		f.amends.late[of] = lateOrder{before: old, after: after}
	}
	if f.book.Orders[of.id] == before {
		f.book.Orders[of.id] = after
	}
}

// settled asks a Book of this order alone what the document makes of it; nil when it does not fit. The order keeps its
// position.
func settled(order *stock.Reservation, c event.Change) (after *stock.Reservation) {
	b := event.NewBook(order.Receipt.Shard)
	b.Orders[order.ID] = order
	for _, l := range order.Lines {
		b.Stock[l.SKU] = stock.Quantities{Committed: l.Now}
	}
	op := *c.Op
	op.Order.Asked = order.Attempt
	_, err := b.Apply(&event.Entry{Position: c.Receipt.Position, Ops: []stock.Operation{op}}, func(c event.Change) { after = c.OrderAfter })
	if err != nil || after == nil {
		return nil
	}
	after.Receipt = order.Receipt
	return after
}

// standing is how an attempt stands at this point of the run; nil when the ledger has none.
func (f *fold) standing(of orderKey) *stock.Reservation {
	if i := f.madeAt(of); i >= 0 {
		return f.made[i].Reservation
	}
	if m, moved := f.moves[of.id]; moved && m.key == of.key {
		return m.after
	}
	if late, there := f.amends.late[of]; there {
		return late.after
	}
	if old, read := f.orders[of.id]; read && old.key == of.key {
		return old.row
	}
	return f.amends.older[of]
}

// madeAt is the place in made of an attempt that began in this run, -1 for others.
func (f *fold) madeAt(of orderKey) int {
	if _, here := f.place[of.id]; !here {
		return -1
	}
	return slices.IndexFunc(f.made, func(m madeOrder) bool { return m.ID == of.id && m.key == of.key })
}

// selectKeyed is selectNewest for attempts that are named.
const selectKeyed = `select v.id, x.attempt, x.asked, x.state, x.buyer, x.expires_ms, x.epoch, x.seq, x.idx,
    x.moved > clock_timestamp() - $4 * interval '1 ms', l.sku, l.asked, l.now, l.fulfilled
from unnest($2::text[], $3::bigint[]) v(id, key),
    lateral (select * from reservation r where r.shard = $1 and r.order_id = v.id and r.attempt = v.key offset 0) x,
    lateral (select * from reservation_line l where l.shard = $1 and l.order_id = v.id and l.attempt = v.key order by l.sku offset 0) l`

// loadOlder reads the rows that documents name and that are not the newest of their order.
func (t *transaction) loadOlder(ctx context.Context) error {
	var ids []string
	var keys []int64
	seen := map[orderKey]bool{}
	for _, i := range t.fresh {
		entry := t.batch.items[i].entry
		for j := range entry.Ops {
			o := entry.Ops[j].Order
			of := orderKey{o.ID, o.Key}
			if o.ID == "" || seen[of] || t.fold.orders[o.ID].key == o.Key {
				continue
			}
			seen[of] = true
			ids, keys = append(ids, o.ID), append(keys, o.Key)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := t.conn.Query(ctx, selectKeyed, t.batch.shard, ids, keys, t.ledger.retention.Milliseconds())
	if err != nil {
		return fmt.Errorf("read %d orders of documents: %w", len(ids), err)
	}
	return t.fold.loadKeyed(rows)
}

func (f *fold) loadKeyed(rows pgx.Rows) error {
	f.amends.older = map[orderKey]*stock.Reservation{}
	return eachOrderLine(rows, func(id string, key int64, _ bool, row *stock.Reservation, line stock.Line) error {
		of := orderKey{id, key}
		r := f.amends.older[of]
		if r == nil {
			made := *row
			made.Receipt.Shard = f.book.Shard
			r = &made
			f.amends.older[of] = r
		}
		r.Lines = append(r.Lines, line)
		return nil
	})
}
