package event

import "github.com/stockpipe/stockpipe/pkg/stock"

// A BuyerKey is one buyer of one SKU.
type BuyerKey struct {
	SKU   int64 // its number
	Buyer string
}

// count follows what the buyer of a changed order has of each SKU with a limit.
func (b *Book) count(c *Change) {
	switch c.Op.Kind {
	case stock.Configure, stock.NewSKU, stock.Opened:
	case stock.Movement:
		// The buyer stands beside the cancellation: the order's record may be gone, and the units come back to him all
		// the same. A fulfilment only changes what his units are called, and a return gives nothing back.
		if c.Op.Document == stock.DocumentCancel && !c.Op.Refused && c.Op.Buyer != "" {
			for _, l := range c.Op.Lines {
				b.buy(c.Op.Buyer, l.SKU, -l.Asked)
			}
		}
	default:
		b.countOrder(c.Before, c.After)
	}
}

// countOrder adds what an order changed, line by line. Only an ended order changes its buyer, and that counts nothing.
func (b *Book) countOrder(before, after *stock.Reservation) {
	if after == nil || after.Buyer == "" {
		return
	}
	was, is := Counted(before), Counted(after)
	for len(was) > 0 || len(is) > 0 {
		var sku, units int64
		if len(is) == 0 || len(was) > 0 && was[0].SKU <= is[0].SKU {
			sku, units = was[0].SKU, -was[0].Now-was[0].Fulfilled
			was = was[1:]
		} else {
			sku = is[0].SKU
		}
		if len(is) > 0 && is[0].SKU == sku {
			units += is[0].Now + is[0].Fulfilled
			is = is[1:]
		}
		b.buy(after.Buyer, sku, units)
	}
}

// Counted are the lines of an order that count for its buyer, each with what stands of it and what was shipped: what the
// order gave back does not.
func Counted(r *stock.Reservation) stock.Lines {
	if r == nil || r.State.Ended() {
		return nil
	}
	return r.Lines
}

// buy adds to what a buyer has of a SKU, never below zero: what he had before the limit may not be counted. Nothing has
// no entry.
func (b *Book) buy(buyer string, sku, units int64) {
	if units == 0 || b.Settings[sku].Limit == 0 {
		return
	}
	key := BuyerKey{SKU: sku, Buyer: buyer}
	if n := b.Bought[key] + units; n > 0 {
		b.Bought[key] = n
	} else {
		delete(b.Bought, key)
	}
}
