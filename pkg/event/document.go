package event

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// document moves what a document says; settle then tells what becomes of the order that it names.
func (b *Book) document(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {
	if before != nil {
		return nil, "the document was settled already"
	}
	after := &stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}
	if op.Refused {
		after.State = stock.Refused
		return after, ""
	}
	switch op.Document {
	case stock.DocumentFulfil: // its movements are negative
		return after, b.shift(op.Lines, 0, 0, 1)
	case stock.DocumentCancel:
		return after, b.shift(op.Lines, 1, 0, -1)
	}
	return after, b.shift(op.Lines, 1, 0, 0)
}

// settle changes the record of the order that a fulfilment or cancellation names. When there is none, or it does not fit,
// the stock has moved and the record stays: the document was written with the order's row locked, so it is right about
// the units, and the record is of another life of the order, or was dropped and is none of this. Redis decides the same
// way; a Book that called it poison would halt a shard over a record that nobody reads any more.
func (b *Book) settle(op *stock.Operation, receipt stock.Receipt) (before, after *stock.Reservation) {
	if !stock.OfOrder(op.Document) || op.Order.Asked == 0 {
		return nil, nil
	}
	before = b.Orders[op.Order.ID]
	if before == nil || before.State != stock.Confirmed || before.Attempt != op.Order.Asked {
		return nil, nil
	}
	lines, fits := settled(before.Lines, op)
	if !fits {
		return nil, nil
	}
	next := *before
	next.Receipt = receipt
	if lines.Units() == 0 {
		next.State = stock.Cancelled
		if slices.ContainsFunc(lines, func(l stock.Line) bool { return l.Fulfilled > 0 }) {
			next.State = stock.Fulfilled
		}
	}
	next.Lines = compact(lines)
	b.Orders[op.Order.ID] = &next
	return before, &next
}

// settled gives the lines after a fulfilment or cancellation; they do not fit when one is missing or has too little.
func settled(lines stock.Lines, op *stock.Operation) (stock.Lines, bool) {
	out := slices.Clone(lines)
	i := 0
	for _, m := range op.Lines {
		for i < len(out) && out[i].SKU < m.SKU {
			i++
		}
		if i == len(out) || out[i].SKU != m.SKU {
			return nil, false
		}
		units := m.Asked
		if op.Document == stock.DocumentFulfil {
			units = -units
			out[i].Fulfilled += units
		}
		if out[i].Now -= units; out[i].Now < 0 || out[i].Fulfilled > stock.MaxLineQuantity {
			return nil, false
		}
	}
	return out, true
}
