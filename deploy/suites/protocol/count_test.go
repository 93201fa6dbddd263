package protocol

import (
	"context"
	"errors"
	"fmt"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// drawStockPaper draws what a document without an order is about.
func (m *machine) drawStockPaper(t *rapid.T, r *room, n *ledger.NewDocument) {
	n.Kind = rapid.SampledFrom([]string{stock.DocumentAdjust, stock.DocumentAdjust, stock.DocumentReceive, stock.DocumentReturn, stock.DocumentCount, stock.DocumentCount}).Draw(t, "kind")
	most, least := 2, int64(1)
	switch n.Kind {
	case stock.DocumentAdjust:
		least = -9
	case stock.DocumentCount:
		most, least = 1, 0
		if rapid.Bool().Draw(t, "as of") && r.applied > 0 {
			n.AsOf.Position = stock.Position{Epoch: r.at.Epoch, Seq: rapid.Int64Range(1, r.applied).Draw(t, "position")}
		}
	}
	for _, sku := range drawSKUs(t, m.openings[r.number], most) {
		units := rapid.Int64Range(least, 6).Filter(func(n int64) bool { return n != 0 || least == 0 }).Draw(t, "units")
		n.Lines = append(n.Lines, stock.Line{SKU: sku, Asked: units})
	}
}

// writeStockPaper writes it; false when the ledger has a reason not to, which a count may meet.
func (m *machine) writeStockPaper(ctx context.Context, r *room, n ledger.NewDocument) (d ledger.Document, written bool, err error) {
	d, _, err = m.h.ledger.WriteDocument(ctx, n)
	var refused *ledger.CountError
	switch {
	case n.Kind == stock.DocumentCount && errors.As(err, &refused):
		m.seen.saw("a count that was refused: " + refused.Why)
		return d, false, nil
	case n.Kind == stock.DocumentCount && errors.Is(err, ledger.ErrUnknownSKU): // its opening is not persisted
		return d, false, nil
	case err != nil:
		return d, false, err
	}
	if n.Kind == stock.DocumentCount {
		m.seen.saw("a count")
		sku := n.Lines[0].SKU
		if want := n.Lines[0].Asked - r.wasOnHand(sku, n.AsOf.Position); d.Lines[0].Asked != want {
			return d, false, fmt.Errorf("a count of %d as of %v corrects SKU %d by %d, the model by %d", n.Lines[0].Asked, n.AsOf, sku, d.Lines[0].Asked, want)
		}
	}
	return d, true, nil
}

// wasOnHand is what was on the shelf at a position of this epoch, as it is known where the ledger stands: with the
// corrections of counts that were applied in between. The zero position is where the ledger stands.
func (r *room) wasOnHand(sku int64, at stock.Position) int64 {
	if at == (stock.Position{}) {
		at.Seq = r.applied
	}
	units := r.past[at.Seq].Shelves[sku].OnHand()
	for _, e := range r.entries {
		if e.Position.Epoch != r.at.Epoch || e.Position.Seq <= at.Seq || e.Position.Seq > r.applied {
			continue
		}
		for _, op := range e.Ops {
			if op.Kind == stock.Movement && op.Document == stock.DocumentCount && !op.Refused {
				for _, l := range op.Lines {
					if l.SKU == sku {
						units += l.Asked
					}
				}
			}
		}
	}
	return units
}

// drawCounts posts counts of one SKU in a row, some of them sent, and applied, before the next is written.
func (m *machine) drawCounts(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	sku := drawSKUs(t, m.openings[r.number], 1)[0]
	for range rapid.IntRange(2, 4).Draw(t, "counts") {
		now, err := m.h.now(ctx, r.number)
		if err != nil {
			return err
		}
		n := ledger.NewDocument{
			ID: fmt.Sprintf("%s%d-c%d", m.name, r.number, len(m.documents)), Kind: stock.DocumentCount, Reason: "machine", DeadlineMillis: m.h.ledger.Deadline(now),
			Lines: []stock.Line{{SKU: sku, Asked: rapid.Int64Range(0, 12).Draw(t, "units")}},
		}
		if r.applied > 0 && rapid.IntRange(0, 2).Draw(t, "as of") > 0 {
			n.AsOf.Position = stock.Position{Epoch: r.at.Epoch, Seq: rapid.Int64Range(1, r.applied).Draw(t, "position")}
		}
		d, written, err := m.writeStockPaper(ctx, r, n)
		if err != nil {
			return err
		}
		if !written {
			continue
		}
		m.documents[n.ID] = d
		if rapid.IntRange(0, 3).Draw(t, "sent") == 0 {
			continue
		}
		if err := m.send(ctx, map[*room][]stock.Operation{r: {d.Operation()}}); err != nil {
			return err
		}
		if rapid.IntRange(0, 3).Draw(t, "applied") == 0 {
			continue
		}
		applied, err := m.h.apply(ctx, r.number, 500)
		if r.applied += int64(applied); err != nil {
			return err
		}
		if err := r.sameLog(ctx); err != nil { // the next count asks what was corrected until now
			return err
		}
	}
	return nil
}
