package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// kinds are what makes sense for an order by its state; "" is one that is not there. What stands more often is
// drawn more often.
var kinds = map[stock.State][]stock.Kind{
	"":              {stock.Reserve, stock.Reserve, stock.Reserve, stock.Sale},
	stock.Held:      {stock.Confirm, stock.Confirm, stock.Release, stock.Release, stock.Extend, stock.Replace, stock.Replace, stock.Expire, stock.Expire, stock.Expire, stock.Reserve},
	stock.Confirmed: {stock.Confirm, stock.Release, stock.Reserve, stock.Sale, stock.Expire, stock.Extend, stock.Replace},
	stock.Released:  {stock.Reserve, stock.Reserve, stock.Sale, stock.Confirm, stock.Release},
	stock.Expired:   {stock.LateConfirm, stock.LateConfirm, stock.Confirm, stock.Reserve, stock.Sale},
	stock.Cancelled: {stock.Reserve, stock.Sale, stock.Confirm, stock.Release},
	stock.Fulfilled: {stock.Reserve, stock.Sale, stock.Confirm, stock.Release},
}

var anyKind = []stock.Kind{stock.Reserve, stock.Sale, stock.Confirm, stock.Release, stock.Expire, stock.LateConfirm, stock.Extend, stock.Replace}

var buyers = []string{"", "", "", "u1", "u1", "bob@example.org"}

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
	switch op.Kind {
	case stock.Confirm, stock.LateConfirm, stock.Release:
		op.Lines = drawResults(t, old.Lines)
		return op
	case stock.Expire:
		return op
	case stock.Extend:
		// Far enough from any bound that the milliseconds of a call do not matter.
		op.Until = max(1, old.ExpiresMillis+rapid.SampledFrom([]int64{-1, 0, 120_000, 120_000, 25 * 3_600_000}).Draw(t, "longer"))
		return op
	case stock.Replace:
		op.Lines = drawLines(t, skus)
		return op
	}
	if op.Kind == stock.Reserve {
		op.TTL = rapid.SampledFrom([]int64{1000, 1000, 60_000, stock.DefaultTTLMillis}).Draw(t, "ttl")
	}
	if gone := r.aged[op.ID]; !stands && gone > 0 && rapid.Bool().Draw(t, "known") {
		op.Known, op.Attempt = true, gone+1 // as whoever has found the attempt before in the ledger
	}
	op.Partial = rapid.IntRange(0, 3).Draw(t, "partial") == 0
	if stands && op.Attempt == old.Attempt && sense > 3 { // the same once more
		op.Buyer = old.Buyer
		for _, l := range old.Lines {
			if l.Asked > 0 {
				op.Lines = append(op.Lines, stock.Line{SKU: l.SKU, Asked: l.Asked, Now: l.Asked})
			}
		}
		return op
	}
	op.Buyer = rapid.SampledFrom(buyers).Draw(t, "buyer")
	op.Lines = drawLines(t, skus)
	return op
}

func drawLines(t *rapid.T, skus []ledger.Document) stock.Lines {
	var lines stock.Lines
	for _, sku := range drawSKUs(t, skus, 3) {
		units := rapid.Int64Range(1, 4).Draw(t, "units")
		lines = append(lines, stock.Line{SKU: sku, Asked: units, Now: units})
	}
	return lines
}

// drawResults draws what shall stand of some lines of an order; nil, the whole of it, as often as not.
func drawResults(t *rapid.T, lines stock.Lines) stock.Lines {
	if len(lines) == 0 || rapid.Bool().Draw(t, "whole") {
		return nil
	}
	var results stock.Lines
	for i, l := range lines {
		if i > 0 && rapid.IntRange(0, 2).Draw(t, "unnamed") == 0 {
			continue
		}
		left := max(0, l.Now-rapid.SampledFrom([]int64{0, 0, 1, 1, 2, -1}).Draw(t, "less"))
		results = append(results, stock.Line{SKU: l.SKU, Now: left})
	}
	return results
}

// drawParcels lets documents of orders be written and decided: parcels, cancellations and returns, some of them twice.
func (m *machine) drawParcels(ctx context.Context, t *rapid.T) error {
	return m.drawPapers(ctx, t, "parcels", m.drawParcel)
}

// drawParcel writes a document of an order that the ledger has confirmed or shipped, or finds one; false when there is nothing that
// it could be about.
func (m *machine) drawParcel(ctx context.Context, t *rapid.T, r *room) (d ledger.Document, written bool, err error) {
	id := fmt.Sprintf("%s%d-p%d", m.name, r.number, rapid.IntRange(0, 9).Draw(t, "parcel"))
	if _, stands := m.documents[id]; stands {
		d, err = m.standing(ctx, r, id)
		return d, err == nil, err
	}
	kind := rapid.SampledFrom([]string{stock.DocumentFulfil, stock.DocumentFulfil, stock.DocumentCancel, stock.DocumentReturn}).Draw(t, "kind")
	var sold []stock.Reservation
	for _, order := range slices.Sorted(maps.Keys(r.past[r.applied].Orders)) {
		if o := r.past[r.applied].Orders[order]; kind != stock.DocumentReturn && o.State == stock.Confirmed || kind == stock.DocumentReturn && shipped(o.Lines) > 0 {
			sold = append(sold, o)
		}
	}
	if len(sold) == 0 {
		return d, false, nil
	}
	o := sold[rapid.IntRange(0, len(sold)-1).Draw(t, "order")]
	now, err := m.h.now(ctx, r.number)
	if err != nil {
		return d, false, err
	}
	n := ledger.NewDocument{
		ID: id, Kind: kind, Reason: "machine",
		Order: ledger.DocumentOrder{ID: o.ID, Shard: r.number, Attempt: o.Attempt}, DeadlineMillis: m.h.ledger.Deadline(now),
	}
	if rapid.Bool().Draw(t, "part") {
		n.Lines = []stock.Line{{SKU: o.Lines[0].SKU, Asked: rapid.Int64Range(1, 2).Draw(t, "units")}}
	}
	d, _, err = m.h.ledger.WriteDocument(ctx, n)
	if errors.As(err, new(*ledger.QuantityError)) || errors.As(err, new(*ledger.OrderStateError)) {
		return d, false, nil // what is written already has the units
	}
	if err == nil {
		m.documents[id] = d
	}
	return d, err == nil, err
}

// shipped are the units that have left.
func shipped(lines stock.Lines) (units int64) {
	for _, l := range lines {
		units += l.Fulfilled
	}
	return units
}
