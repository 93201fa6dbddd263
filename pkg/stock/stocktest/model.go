package stocktest

import (
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Shelf is a SKU of the Model.
type Shelf struct {
	stock.Quantities
	stock.Settings
}

// A Model is one shard as the rules want it: two maps, and one operation after the other. It is meant to be
// read, not to be fast. The zero value is not ready, use NewModel. Not safe for concurrent use.
type Model struct {
	Shelves map[int64]Shelf
	Orders  map[string]stock.Reservation // orders, and documents under "~<id>"
}

// NewModel is an empty shard.
func NewModel() *Model {
	return &Model{Shelves: map[int64]Shelf{}, Orders: map[string]stock.Reservation{}}
}

// Clone is the same state once more. Lines are shared: nobody changes them in place.
func (m *Model) Clone() *Model {
	return &Model{Shelves: maps.Clone(m.Shelves), Orders: maps.Clone(m.Orders)}
}

// Do decides an operation at a Redis time in milliseconds and, if it is accepted, writes it under a receipt. What
// is not accepted changes nothing, a refused document excepted.
func (m *Model) Do(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return m.take(op, now, receipt)
	case stock.Confirm, stock.Release, stock.Expire, stock.LateConfirm:
		return m.move(op, now, receipt)
	case stock.Movement:
		return m.document(op, now, receipt)
	case stock.NewSKU:
		return m.create(op, now, receipt)
	case stock.Configure:
		return m.configure(op, receipt)
	}
	panic("the model knows no operation " + string(op.Kind))
}

// write keeps an order's new standing and answers that it was accepted.
func (m *Model) write(r stock.Reservation, receipt stock.Receipt) stock.Outcome {
	r.Receipt = receipt
	m.Orders[r.ID] = r
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt, Reservation: r}
}

// shift adds to available, held and committed the given multiples of what stands of each line.
func (m *Model) shift(lines stock.Lines, available, held, committed int64) {
	for _, l := range lines {
		s := m.Shelves[l.SKU]
		s.Available += available * l.Now
		s.Held += held * l.Now
		s.Committed += committed * l.Now
		m.Shelves[l.SKU] = s
	}
}

func known(code stock.Code, r stock.Reservation) stock.Outcome {
	return stock.Outcome{Code: code, Reservation: r}
}

// take decides R and S. Who the order is comes before whether there is stock (field case H1).
func (m *Model) take(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	old, stands := m.Orders[op.ID]
	switch {
	case stands && op.Attempt > old.Attempt && !old.State.Ended():
		return known(stock.Conflict, old)
	case stands && op.Attempt < old.Attempt:
		return known(stock.Replayed, old)
	case stands && op.Attempt == old.Attempt:
		// A sale is content, too, but for an order that has left the hold: there a repeat cannot be told apart.
		if old.Buyer != op.Buyer || !sameAsked(old.Lines, op.Lines) || op.Kind == stock.Sale && old.State == stock.Held {
			return known(stock.Conflict, old)
		}
		return known(stock.Replayed, old)
	case !stands && op.Attempt > 1 && !op.Known:
		return stock.Outcome{Code: stock.NoRecord}
	}
	if out, refused := m.refusal(op.Lines, now); refused {
		return out
	}
	r := stock.Reservation{ID: op.ID, Attempt: op.Attempt, Buyer: op.Buyer, Lines: op.Lines}
	if op.Kind == stock.Sale {
		r.State = stock.Confirmed
		m.shift(op.Lines, -1, 0, +1)
	} else {
		r.State, r.ExpiresMillis = stock.Held, now+op.TTL
		m.shift(op.Lines, -1, +1, 0)
	}
	return m.write(r, receipt)
}

func sameAsked(a, b stock.Lines) bool {
	return slices.EqualFunc(a, b, func(x, y stock.Line) bool { return x.SKU == y.SKU && x.Asked == y.Asked })
}

// refusal says why units of the lines cannot be taken: line by line what a SKU forbids, then the shortage, with
// what is there of every line.
func (m *Model) refusal(lines stock.Lines, now int64) (stock.Outcome, bool) {
	for _, l := range lines {
		s, there := m.Shelves[l.SKU]
		var code stock.Code
		switch {
		case !there:
			code = stock.MissingSKU
		case s.Frozen:
			code = stock.FrozenSKU
		case s.Closed:
			code = stock.ClosedSKU
		case s.OpensMillis > now:
			code = stock.UnopenedSKU
		default:
			continue
		}
		return stock.Outcome{Code: code, SKU: l.SKU}, true
	}
	for _, l := range lines {
		if m.Shelves[l.SKU].Available < l.Now {
			return stock.Outcome{Code: stock.SoldOut, Short: m.left(lines)}, true
		}
	}
	return stock.Outcome{}, false
}

func (m *Model) left(lines stock.Lines) []stock.Short {
	var left []stock.Short
	for _, l := range lines {
		left = append(left, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: m.Shelves[l.SKU].Available})
	}
	return left
}

// move decides C, X, E and L: whatever needs an order that stands.
func (m *Model) move(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	r, stands := m.Orders[op.ID]
	from := stock.Held
	if op.Kind == stock.LateConfirm {
		from = stock.Expired
	}
	switch {
	case !stands:
		return stock.Outcome{Code: stock.NoRecord}
	case op.Attempt > r.Attempt:
		return known(stock.Conflict, r)
	case op.Kind == stock.Confirm && op.Attempt == r.Attempt && r.State == stock.Expired:
		return known(stock.Retake, r)
	case op.Attempt < r.Attempt, r.State != from:
		return known(stock.Replayed, r)
	case op.Kind == stock.Expire && r.ExpiresMillis > now:
		return known(stock.NotDue, r)
	}
	switch op.Kind {
	case stock.Confirm:
		r.State = stock.Confirmed
		m.shift(r.Lines, 0, -1, +1)
	case stock.Release:
		r.State = stock.Released
		m.shift(r.Lines, +1, -1, 0)
	case stock.Expire:
		r.State = stock.Expired
		m.shift(r.Lines, +1, -1, 0)
	default:
		if out, refused := m.refusal(r.Lines, now); refused {
			return out
		}
		r.State = stock.Confirmed
		r.Attempt++
		m.shift(r.Lines, -1, 0, +1)
	}
	return m.write(r, receipt)
}

// document decides M. It has one outcome for ever: too few units are one, and written down.
func (m *Model) document(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	if old, stands := m.Orders[op.ID]; stands {
		return known(stock.Replayed, old)
	}
	if now > op.Deadline {
		return stock.Outcome{Code: stock.Overdue}
	}
	r := stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}
	for _, l := range op.Lines {
		s, there := m.Shelves[l.SKU]
		if !there {
			return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
		}
		if s.Available+l.Asked < 0 || s.OnHand()+l.Asked > stock.MaxStockQuantity {
			r.State = stock.Refused
		}
	}
	if r.State == stock.Refused {
		m.write(r, receipt)
		return stock.Outcome{Code: stock.NotAllowed, Receipt: receipt, Short: m.left(op.Lines)}
	}
	m.shift(op.Lines, +1, 0, 0)
	return m.write(r, receipt)
}

// create decides N.
func (m *Model) create(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	if old, stands := m.Orders[op.ID]; stands {
		return known(stock.Replayed, old)
	}
	if now > op.Deadline {
		return stock.Outcome{Code: stock.Overdue}
	}
	l := op.Lines[0]
	if _, there := m.Shelves[l.SKU]; there {
		return stock.Outcome{Code: stock.Conflict}
	}
	m.Shelves[l.SKU] = Shelf{Quantities: stock.Quantities{Available: l.Asked}}
	return m.write(stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}, receipt)
}

// configure decides T. It moves nothing and leaves no record.
func (m *Model) configure(op stock.Operation, receipt stock.Receipt) stock.Outcome {
	s, there := m.Shelves[op.Lines[0].SKU]
	if !there {
		return stock.Outcome{Code: stock.MissingSKU, SKU: op.Lines[0].SKU}
	}
	s.Settings = op.Settings
	m.Shelves[op.Lines[0].SKU] = s
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt}
}

// Broken names the first law of the shard that does not hold: held is what the open orders hold, committed what
// the confirmed ones have, and nothing is below zero. Empty is good.
func (m *Model) Broken() string {
	sums := map[int64]stock.Quantities{}
	for _, r := range m.Orders {
		for _, l := range r.Lines {
			q := sums[l.SKU]
			switch r.State {
			case stock.Held:
				q.Held += l.Now
			case stock.Confirmed:
				q.Committed += l.Now
			}
			sums[l.SKU] = q
		}
	}
	for number, s := range m.Shelves {
		if !s.Valid() {
			return "a quantity is below zero: " + s.Quantities.String()
		}
		if q := sums[number]; s.Held != q.Held || s.Committed != q.Committed {
			return "the orders hold " + q.String() + ", the SKU says " + s.Quantities.String()
		}
	}
	return ""
}
