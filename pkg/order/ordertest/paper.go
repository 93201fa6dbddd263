package ordertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// deadline is how long a document may wait, in milliseconds.
const deadline = 3_600_000

// Open writes an opening.
func (w *World) Open(_ context.Context, sku string, units int64, shard int, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.LedgerAway != nil {
		return order.Paper{}, false, w.LedgerAway
	}
	if s, ok := w.skus[sku]; ok {
		if s.Opening != units {
			return order.Paper{}, false, &order.DocumentConflictError{Why: fmt.Sprintf("opened with %d", s.Opening)}
		}
		if p := w.papers[openingID(s.Number)]; p != nil {
			return *p, false, nil
		}
		return order.Paper{ID: openingID(s.Number), Shard: s.Shard, SKU: s.Number, State: order.Applied}, false, nil
	}
	s := w.number(sku, units, shard)
	p := &order.Paper{ID: openingID(s.Number), Shard: shard, SKU: s.Number, State: order.Written, Operation: stock.Operation{
		Kind: stock.NewSKU, ID: stock.DocumentID(openingID(s.Number)), Deadline: now + deadline, SKU: sku,
		Lines: stock.Lines{{SKU: s.Number, Asked: units, Now: units}},
	}}
	w.papers[p.ID] = p
	return *p, true, nil
}

func openingID(number int64) string { return fmt.Sprintf("~open:%d", number) }

// written is a document whose id stands, or nil.
func (w *World) written(id string, draft any) (*order.Paper, error) {
	p := w.papers[id]
	if w.LedgerAway != nil {
		return nil, w.LedgerAway
	}
	if p != nil && !reflect.DeepEqual(w.drafts[id], draft) {
		return nil, &order.DocumentConflictError{Why: "the document stands with other content"}
	}
	return p, nil
}

// file keeps a new document.
func (w *World) file(id string, draft any, p *order.Paper, op stock.Operation, now int64) (order.Paper, bool, error) {
	op.Kind, op.ID, op.Deadline = stock.Movement, stock.DocumentID(id), now+deadline
	for i := range op.Lines {
		op.Lines[i].Now = op.Lines[i].Asked
	}
	p.ID, p.State, p.Operation = id, order.Written, op
	w.papers[id], w.drafts[id] = p, draft
	return *p, true, nil
}

func (w *World) shardOf(number int64) int { return w.skus[w.texts[number]].Shard }

// Write writes a document.
func (w *World) Write(_ context.Context, d order.Draft, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, err := w.written(d.ID, d); err != nil || p != nil {
		return deref(p), false, err
	}
	units := d.Units
	if d.Scrap {
		units = 0
	}
	return w.file(d.ID, d, &order.Paper{Shard: w.shardOf(d.SKU), SKU: d.SKU}, stock.Operation{
		Document: d.Kind, Reason: d.Reason, Lines: stock.Lines{{SKU: d.SKU, Asked: units}},
	}, now)
}

func deref(p *order.Paper) order.Paper {
	if p == nil {
		return order.Paper{}
	}
	return *p
}

// WriteOrder writes a document of an order.
func (w *World) WriteOrder(_ context.Context, d order.OrderDraft, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, err := w.written(d.ID, d); err != nil || p != nil {
		return deref(p), false, err
	}
	row, ok := w.attempts[attemptKey{d.Shard, d.Order, d.Attempt}]
	if d.Attempt == 0 {
		row, ok = w.rows[d.Shard][d.Order]
	}
	switch {
	case !ok:
		return order.Paper{}, false, order.ErrUnknownOrder
	case row.State != stock.Confirmed && (row.State != stock.Fulfilled || d.Kind != stock.DocumentReturn):
		return order.Paper{}, false, &order.NotConfirmedError{Order: row}
	}
	lines, err := w.left(&row, &d)
	if err != nil {
		return order.Paper{}, false, err
	}
	if len(lines) > stock.MaxOrderLines {
		return order.Paper{}, false, stock.BadField("lines", fmt.Sprint(len(lines)), "name the lines, in several documents")
	}
	op := stock.Operation{Document: d.Kind, Reason: d.Reason, Order: stock.OrderRef{ID: d.Order, Key: row.Attempt, Asked: row.Attempt}}
	for _, l := range lines {
		switch {
		case d.Kind == stock.DocumentFulfil:
			l.Asked = -l.Asked
		case d.Scrap:
			l.Asked = 0
		}
		op.Lines = append(op.Lines, l)
	}
	if d.Kind == stock.DocumentCancel {
		op.Buyer = row.Buyer
	}
	return w.file(d.ID, d, &order.Paper{Shard: d.Shard, Lines: lines}, op, now)
}

// left gives the units of a document of an order, or refuses more than are left.
func (w *World) left(row *stock.Reservation, d *order.OrderDraft) (stock.Lines, error) {
	used := w.pending(d.Order, row.Attempt, false, stock.DocumentFulfil, stock.DocumentCancel)
	if d.Kind == stock.DocumentReturn {
		used = w.pending(d.Order, row.Attempt, true, stock.DocumentReturn)
	}
	there := map[int64]int64{}
	var all stock.Lines
	for _, l := range row.Lines {
		if there[l.SKU] = l.Now - used[l.SKU]; d.Kind == stock.DocumentReturn {
			there[l.SKU] = l.Fulfilled - used[l.SKU]
		}
		if there[l.SKU] > 0 {
			all = append(all, stock.Line{SKU: l.SKU, Asked: there[l.SKU]})
		}
	}
	asked := d.Lines
	if asked == nil {
		asked = all
	}
	var lacks order.LacksError
	short := len(asked) == 0
	for _, l := range asked {
		lacks.Short = append(lacks.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: there[l.SKU]})
		short = short || l.Asked > there[l.SKU]
	}
	if short {
		return nil, &lacks
	}
	return slices.Clone(asked), nil
}

// WriteCount writes a count.
func (w *World) WriteCount(_ context.Context, d order.CountDraft, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, err := w.written(d.ID, d); err != nil || p != nil {
		return deref(p), false, err
	}
	for id, p := range w.papers {
		if other, ok := w.drafts[id].(order.CountDraft); ok && other.SKU == d.SKU {
			if p.State == order.Written {
				return order.Paper{}, false, &order.CountError{Why: "count " + id + " of the SKU is in flight", InFlight: true}
			}
			if d.At != (stock.Position{}) && other.At.Seq > d.At.Seq {
				return order.Paper{}, false, &order.CountError{Why: "count " + id + " is of a later moment"}
			}
		}
	}
	f := w.shelves[d.SKU]
	then := f.OnHand()
	if d.At != (stock.Position{}) {
		then = w.onHandAt(d.SKU, d.At, w.skus[w.texts[d.SKU]].Opening)
	}
	delta := d.Counted - then
	if promised := f.Held + f.Committed; f.OnHand()+delta < promised {
		return order.Paper{}, false, &order.LacksError{
			Short: []stock.Short{{SKU: d.SKU, Asked: d.Counted, Available: promised}}, Holds: w.holdsOf(d.SKU),
		}
	}
	return w.file(d.ID, d, &order.Paper{Shard: w.shardOf(d.SKU), SKU: d.SKU}, stock.Operation{
		Document: stock.DocumentCount, Reason: d.Reason, Lines: stock.Lines{{SKU: d.SKU, Asked: delta}},
	}, now)
}

func (w *World) holdsOf(number int64) []order.StoredHold {
	var out []order.StoredHold
	keys := slices.SortedFunc(maps.Keys(w.attempts), func(a, b attemptKey) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.attempt, b.attempt))
	})
	for _, k := range keys {
		r := w.attempts[k]
		for _, l := range r.Lines {
			if l.SKU == number && l.Now > 0 && (r.State == stock.Held || r.State == stock.Confirmed) {
				out = append(out, order.StoredHold{Order: r.ID, Attempt: r.Attempt, State: r.State, SKU: number, Quantity: l.Now})
			}
		}
	}
	return out
}

// Paper reads a document.
func (w *World) Paper(_ context.Context, id string) (order.Paper, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.papers[id]; p != nil {
		return *p, w.LedgerAway
	}
	return order.Paper{}, fmt.Errorf("document %s is unknown", id)
}

// Delete frees a SKU's text.
func (w *World) Delete(_ context.Context, number int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.LedgerAway != nil {
		return w.LedgerAway
	}
	if f := w.shelves[number]; f.Held > 0 || !f.Closed {
		return &order.StillHeldError{Held: f.Held, Committed: f.Committed, Open: !f.Closed}
	}
	text := w.texts[number]
	if w.skus[text].Number == number {
		delete(w.skus, text)
	}
	w.deleted[text] = true
	return nil
}

// Deleted tells whether a text was freed.
func (w *World) Deleted(_ context.Context, text string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleted[text], w.LedgerAway
}

// Promised names who has units.
func (w *World) Promised(_ context.Context, _ int, number int64) ([]order.StoredHold, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holdsOf(number), w.LedgerAway
}

// movement decides a document.
func (w *World) movement(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	available, committed := int64(1), int64(0)
	switch op.Document {
	case stock.DocumentFulfil:
		available, committed = 0, 1
	case stock.DocumentCancel:
		committed = -1
	}
	r := &stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}
	switch {
	case record != nil:
		return standing(stock.Replayed, record)
	case w.now > op.Deadline:
		return stock.Outcome{Code: stock.Overdue}
	}
	for _, l := range op.Lines {
		f := w.fields[l.SKU]
		if f == nil {
			return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
		}
		if f.Available+available*l.Asked < 0 || f.Committed+committed*l.Asked < 0 {
			r.State = stock.Refused
			return stock.Outcome{Code: stock.NotAllowed, Receipt: w.enter(shard, []*stock.Reservation{r}, nil)}
		}
	}
	for _, l := range op.Lines {
		w.fields[l.SKU].Available += available * l.Asked
		w.fields[l.SKU].Committed += committed * l.Asked
		if op.Buyer != "" {
			w.owe(op.Buyer, stock.Lines{{SKU: l.SKU, Now: l.Asked}}, -1)
		}
	}
	after := w.settled(shard, op)
	if after == nil {
		return w.accept(shard, r, op.Lines)
	}
	dropped := w.records[shard][after.ID] == nil
	out := w.accept(shard, r, op.Lines, after)
	if dropped {
		delete(w.records[shard], after.ID)
	}
	return out
}

// settled is the order of a document as the document leaves it. Without a record Postgres' row alone moves.
func (w *World) settled(shard int, op *stock.Operation) *stock.Reservation {
	if !stock.OfOrder(op.Document) {
		return nil
	}
	row, ok := w.attempts[attemptKey{shard, op.Order.ID, op.Order.Asked}]
	if record := w.records[shard][op.Order.ID]; record != nil && record.Attempt == op.Order.Asked {
		row, ok = *record, true
	}
	if !ok {
		return nil
	}
	row.Lines = slices.Clone(row.Lines)
	shipped := int64(0)
	for i := range row.Lines {
		for _, m := range op.Lines {
			if l := &row.Lines[i]; l.SKU == m.SKU {
				l.Now -= max(m.Asked, -m.Asked)
				l.Fulfilled += max(-m.Asked, 0)
			}
		}
		shipped += row.Lines[i].Fulfilled
	}
	switch {
	case row.Lines.Units() > 0:
	case shipped > 0:
		row.State = stock.Fulfilled
	default:
		row.State = stock.Cancelled
	}
	return &row
}
