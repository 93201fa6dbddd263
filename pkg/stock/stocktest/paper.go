package stocktest

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

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
		if _, there := m.Shelves[l.SKU]; !there {
			return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
		}
	}
	for _, l := range op.Lines {
		s, available, committed := m.Shelves[l.SKU], l.Asked, int64(0)
		switch op.Document {
		case stock.DocumentFulfil:
			available, committed = 0, l.Asked
		case stock.DocumentCancel:
			committed = -l.Asked
		}
		if s.Available+available < 0 || s.Committed+committed < 0 || s.OnHand()+available+committed > stock.MaxStockQuantity {
			r.State = stock.Refused
		}
	}
	if r.State == stock.Refused {
		m.write(r, receipt)
		short := m.left(op.Lines)
		for i := range short {
			if op.Document == stock.DocumentFulfil || op.Document == stock.DocumentCancel {
				short[i].Available = m.Shelves[short[i].SKU].Committed
			}
		}
		return stock.Outcome{Code: stock.NotAllowed, Receipt: receipt, Short: short}
	}
	for _, l := range op.Lines {
		switch op.Document {
		case stock.DocumentFulfil:
			m.shift(l.SKU, 0, 0, l.Asked)
		case stock.DocumentCancel:
			m.shift(l.SKU, l.Asked, 0, -l.Asked)
			m.buy(op.Buyer, l.SKU, -l.Asked)
		default:
			m.shift(l.SKU, l.Asked, 0, 0)
		}
	}
	m.amend(op, receipt)
	return m.write(r, receipt)
}

// amend changes the order that a fulfilment or a cancellation is about, if its record is the one that is meant and has
// the units. If not, only the stock has moved: the ledger has decided, and the record is none of it.
func (m *Model) amend(op stock.Operation, receipt stock.Receipt) {
	r, stands := m.Orders[op.Order.ID]
	shipped := op.Document == stock.DocumentFulfil
	if !shipped && op.Document != stock.DocumentCancel || !stands || r.State != stock.Confirmed || r.Attempt != op.Order.Asked {
		return
	}
	lines := slices.Clone(r.Lines)
	left, gone := int64(0), int64(0)
	for _, moves := range op.Lines {
		i := slices.IndexFunc(lines, func(l stock.Line) bool { return l.SKU == moves.SKU })
		units := max(moves.Asked, -moves.Asked)
		if i < 0 || lines[i].Now < units {
			return
		}
		if lines[i].Now -= units; shipped {
			lines[i].Fulfilled += units
		}
	}
	for _, l := range lines {
		left, gone = left+l.Now, gone+l.Fulfilled
	}
	switch {
	case left > 0:
	case gone > 0:
		r.State = stock.Fulfilled
	default:
		r.State = stock.Cancelled
	}
	r.Lines = bare(lines)
	m.write(r, receipt)
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

// configure decides T. It moves nothing and leaves no record. What was counted of a SKU is worth nothing once its limit
// is off, because nobody goes on counting.
func (m *Model) configure(op stock.Operation, receipt stock.Receipt) stock.Outcome {
	sku, c := op.Lines[0].SKU, op.Change
	s, there := m.Shelves[sku]
	if !there {
		return stock.Outcome{Code: stock.MissingSKU, SKU: sku}
	}
	for _, flag := range []struct {
		to *bool
		by stock.Switch
	}{{&s.Frozen, c.Frozen}, {&s.Closed, c.Closed}} {
		if flag.by != stock.KeepIt {
			*flag.to = flag.by == stock.On
		}
	}
	if c.Opens != stock.Keep {
		s.OpensMillis = c.Opens
	}
	if c.Limit != stock.Keep {
		s.Limit = c.Limit
	}
	if s.Limit == 0 {
		delete(m.Counted, sku)
	}
	m.Shelves[sku] = s
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt}
}
