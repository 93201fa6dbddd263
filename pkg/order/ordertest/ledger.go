package ordertest

import (
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A ledger is what Postgres has.
type ledger struct {
	rows     map[int]map[string]stock.Reservation // the newest attempt of each order
	attempts map[attemptKey]stock.Reservation     // every attempt
	shelves  map[int64]event.Field
	history  []level
	papers   map[string]*order.Paper
	drafts   map[string]any // what each paper was written from
	deleted  map[string]bool
}

type attemptKey struct {
	shard   int
	id      string
	attempt int64
}

// A level is how much of a SKU was on hand from a position on.
type level struct {
	sku    int64
	at     stock.Position
	onHand int64
}

func newLedger() ledger {
	return ledger{
		rows: map[int]map[string]stock.Reservation{}, attempts: map[attemptKey]stock.Reservation{}, shelves: map[int64]event.Field{},
		papers: map[string]*order.Paper{}, drafts: map[string]any{}, deleted: map[string]bool{},
	}
}

// An entry is what Postgres will get of one operation.
type entry struct {
	receipt stock.Receipt
	rows    []stock.Reservation
	fields  map[int64]event.Field // as the operation left them
}

func (l *ledger) persist(e *entry) {
	for _, row := range e.rows {
		if p := l.papers[documentID(row.ID)]; p != nil {
			p.State, p.Receipt = order.Applied, e.receipt
			if row.State == stock.Refused {
				p.State = order.Refused
			}
			continue
		}
		l.rows[e.receipt.Shard][row.ID] = row
		l.attempts[attemptKey{e.receipt.Shard, row.ID, row.Attempt}] = row
	}
	for number, f := range e.fields {
		l.shelves[number] = f
		l.history = append(l.history, level{sku: number, at: e.receipt.Position, onHand: f.OnHand()})
	}
}

func documentID(id string) string {
	if id != "" && id[0] == '~' {
		return id[1:]
	}
	return "\x00"
}

// pending sums the units of documents of an order that are of a kind, by SKU: those that are written and not applied,
// or with all set those that are applied, too.
func (l *ledger) pending(orderID string, attempt int64, all bool, kinds ...string) map[int64]int64 {
	sum := map[int64]int64{}
	for id, p := range l.papers {
		d, ok := l.drafts[id].(order.OrderDraft)
		if !ok || d.Order != orderID || p.Operation.Order.Asked != attempt || p.State == order.Refused || p.State == order.Applied && !all {
			continue
		}
		for _, kind := range kinds {
			if d.Kind == kind {
				for _, line := range p.Lines {
					sum[line.SKU] += line.Asked
				}
			}
		}
	}
	return sum
}

// onHandAt is what was on hand at a position: what the last entry up to there left, or the opening.
func (l *ledger) onHandAt(sku int64, at stock.Position, opening int64) int64 {
	units := opening
	for _, h := range l.history {
		if h.sku == sku && (h.at.Epoch < at.Epoch || h.at.Epoch == at.Epoch && h.at.Seq <= at.Seq) {
			units = h.onHand
		}
	}
	return units
}
