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

// A Buyer is one buyer of one SKU, by its number.
type Buyer struct {
	SKU  int64
	Name string
}

// A Model is one shard as the rules want it: a few maps, and one operation after the other. It is meant to be
// read, not to be fast. The zero value is not ready, use NewModel. Not safe for concurrent use.
type Model struct {
	Shelves map[int64]Shelf
	Orders  map[string]stock.Reservation // orders, and documents under "~<id>"
	Bought  map[Buyer]int64              // units of SKUs with a limit; nobody has an entry of 0
	Counted map[int64]bool               // the SKUs of which Bought is all
}

// NewModel is an empty shard.
func NewModel() *Model {
	return &Model{Shelves: map[int64]Shelf{}, Orders: map[string]stock.Reservation{}, Bought: map[Buyer]int64{}, Counted: map[int64]bool{}}
}

// Clone is the same state once more. Lines are shared: nobody changes them in place.
func (m *Model) Clone() *Model {
	return &Model{Shelves: maps.Clone(m.Shelves), Orders: maps.Clone(m.Orders), Bought: maps.Clone(m.Bought), Counted: maps.Clone(m.Counted)}
}

// Recount is what a takeover does for the SKUs with a limit: from now on all that buyers have is counted.
func (m *Model) Recount() {
	m.Bought, m.Counted = map[Buyer]int64{}, map[int64]bool{}
	for number, s := range m.Shelves {
		if s.Limit > 0 {
			m.Counted[number] = true
		}
	}
	for _, r := range m.Orders {
		for _, l := range r.Lines {
			if m.Counted[l.SKU] && r.Buyer != "" && !r.State.Ended() && l.Now+l.Fulfilled > 0 {
				m.Bought[Buyer{l.SKU, r.Buyer}] += l.Now + l.Fulfilled
			}
		}
	}
}

// Do decides an operation at a Redis time in milliseconds and, if it is accepted, writes it under a receipt. What
// is not accepted changes nothing, a refused document excepted.
func (m *Model) Do(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return m.take(op, now, receipt)
	case stock.LateConfirm:
		return m.late(op, now, receipt)
	case stock.Confirm, stock.Release, stock.Expire, stock.Extend, stock.Replace:
		return m.hold(op, now, receipt)
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

// shift adds to available, held and committed of a SKU.
func (m *Model) shift(sku, available, held, committed int64) {
	s := m.Shelves[sku]
	s.Available += available
	s.Held += held
	s.Committed += committed
	m.Shelves[sku] = s
}

// buy counts units for a buyer, while the SKU has a limit.
func (m *Model) buy(buyer string, sku, units int64) {
	if buyer == "" || m.Shelves[sku].Limit == 0 {
		return
	}
	has := max(0, m.Bought[Buyer{sku, buyer}]+units)
	if m.Bought[Buyer{sku, buyer}] = has; has == 0 {
		delete(m.Bought, Buyer{sku, buyer})
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
	if out, refused := m.forbidden(op.Lines, op.Buyer, now); refused {
		return out
	}
	lines := op.Lines
	if op.Partial {
		lines = m.there(op.Lines)
	}
	if out, refused := m.tooMany(lines, op.Buyer); refused {
		return out
	}
	for _, l := range lines {
		if m.Shelves[l.SKU].Available < l.Now {
			return stock.Outcome{Code: stock.SoldOut, Short: m.left(op.Lines)}
		}
	}
	r := stock.Reservation{ID: op.ID, Attempt: op.Attempt, Buyer: op.Buyer, Lines: lines}
	r.State, r.ExpiresMillis = stock.Held, now+op.TTL
	if op.Kind == stock.Sale {
		r.State, r.ExpiresMillis = stock.Confirmed, 0
	}
	for _, l := range lines {
		if m.buy(r.Buyer, l.SKU, l.Now); r.State == stock.Held {
			m.shift(l.SKU, -l.Now, +l.Now, 0)
		} else {
			m.shift(l.SKU, -l.Now, 0, +l.Now)
		}
	}
	return m.write(r, receipt)
}

// sameAsked compares what was asked for; lines that only a replace brought were not.
func sameAsked(a, b stock.Lines) bool {
	asked := func(lines stock.Lines) map[int64]int64 {
		units := map[int64]int64{}
		for _, l := range lines {
			if l.Asked != 0 {
				units[l.SKU] = l.Asked
			}
		}
		return units
	}
	return maps.Equal(asked(a), asked(b))
}

// there are the lines as far as they can be had; all of them when that is not a single unit.
func (m *Model) there(lines stock.Lines) stock.Lines {
	out := slices.Clone(lines)
	for i := range out {
		out[i].Now = min(out[i].Now, m.Shelves[out[i].SKU].Available)
	}
	if out.Units() == 0 {
		return lines
	}
	return out
}

// forbidden says which SKU may not be taken at all, line by line.
func (m *Model) forbidden(lines stock.Lines, buyer string, now int64) (stock.Outcome, bool) {
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
		case s.Limit > 0 && buyer == "":
			code = stock.BuyerMissing
		case s.Limit > 0 && !m.Counted[l.SKU]:
			code = stock.Uncounted
		default:
			continue
		}
		return stock.Outcome{Code: code, SKU: l.SKU}, true
	}
	return stock.Outcome{}, false
}

// tooMany says of which SKU the buyer would have more than its limit.
func (m *Model) tooMany(lines stock.Lines, buyer string) (stock.Outcome, bool) {
	for _, l := range lines {
		limit, has := m.Shelves[l.SKU].Limit, m.Bought[Buyer{l.SKU, buyer}]
		if limit > 0 && has+l.Now > limit {
			return stock.Outcome{Code: stock.LimitReached, SKU: l.SKU, Bought: has, Limit: limit}, true
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
	counted := m.Clone()
	counted.Recount()
	for number := range m.Counted {
		for b := range counted.Bought {
			if b.SKU == number && m.Bought[b] != counted.Bought[b] {
				return "a buyer has more or less than is counted: " + b.Name
			}
		}
	}
	return ""
}
