package protocol

import (
	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// kinds are what makes sense for an order by its state; "" is one that is not there. What stands more often is
// drawn more often.
var kinds = map[stock.State][]stock.Kind{
	"":              {stock.Reserve, stock.Reserve, stock.Reserve, stock.Sale},
	stock.Held:      {stock.Confirm, stock.Release, stock.Expire, stock.Expire, stock.Expire, stock.Reserve},
	stock.Confirmed: {stock.Confirm, stock.Release, stock.Reserve, stock.Sale, stock.Expire},
	stock.Released:  {stock.Reserve, stock.Reserve, stock.Sale, stock.Confirm, stock.Release},
	stock.Expired:   {stock.LateConfirm, stock.LateConfirm, stock.Confirm, stock.Reserve, stock.Sale},
}

var anyKind = []stock.Kind{stock.Reserve, stock.Sale, stock.Confirm, stock.Release, stock.Expire, stock.LateConfirm}

// drawOrder draws an operation of an order: mostly one that makes sense, sometimes a repeat, sometimes anything.
func drawOrder(t *rapid.T, r *room, skus []ledger.Document) stock.Operation {
	op := stock.Operation{ID: rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "order")}
	old, stands := r.now.Orders[op.ID]
	op.Attempt = max(1, old.Attempt)
	likely, sense := kinds[old.State], rapid.IntRange(0, 9).Draw(t, "sense")
	if sense == 0 {
		likely = anyKind
	}
	op.Kind = rapid.SampledFrom(likely).Draw(t, "kind")
	taking := op.Kind == stock.Reserve || op.Kind == stock.Sale
	switch {
	case sense == 1:
		op.Attempt = rapid.Int64Range(1, 4).Draw(t, "attempt")
	case taking && stands && old.State.Ended() && sense < 8:
		op.Attempt++
	}
	if !taking {
		return op
	}
	if op.Kind == stock.Reserve {
		op.TTL = rapid.SampledFrom([]int64{1000, 1000, 60_000, stock.DefaultTTLMillis}).Draw(t, "ttl")
	}
	op.Known = !stands && op.Attempt > 1 && rapid.Bool().Draw(t, "known")
	if stands && op.Attempt == old.Attempt && sense > 3 { // the same once more
		op.Buyer = old.Buyer
		for _, l := range old.Lines {
			op.Lines = append(op.Lines, stock.Line{SKU: l.SKU, Asked: l.Asked, Now: l.Asked})
		}
		return op
	}
	op.Buyer = rapid.SampledFrom([]string{"", "", "", "u1", "bob@example.org"}).Draw(t, "buyer")
	for _, sku := range drawSKUs(t, skus, 3) {
		units := rapid.Int64Range(1, 4).Draw(t, "units")
		op.Lines = append(op.Lines, stock.Line{SKU: sku, Asked: units, Now: units})
	}
	return op
}
