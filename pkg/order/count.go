package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Count is a stocktake: so many units of a SKU were on the shelf at a moment, whatever was held or sold of them then.
// What moved since stays moved.
type Count struct {
	DocumentID string
	SKU        string
	Counted    int64          // on_hand, from 0
	At         stock.Position // the moment as a position of the shard's log, as a look at the SKU answers it
	AtMillis   int64          // the moment as Redis time in milliseconds since 1970; neither: now
	Reason     string         // a code of 1 to 32 characters
	Note       string         // free text of at most MaxNoteBytes
	Ack        Level
}

// Count writes the stocktake in Postgres and then has the difference decided, as Move does. Errors: *UnknownSKUError,
// *CountError, *InsufficientError (below what is promised), *DocumentConflictError, *RefusedError (final).
func (c *Clerk) Count(ctx context.Context, n Count) (Document, error) {
	if err := checkCount(&n); err != nil {
		return Document{}, err
	}
	s, err := c.sku(ctx, "sku", n.SKU)
	if err != nil {
		return Document{}, err
	}
	p, created, err := c.parts.Counts.WriteCount(ctx, CountDraft{
		ID: n.DocumentID, Reason: n.Reason, Note: n.Note, SKU: s.Number, Counted: n.Counted, At: n.At, AtMillis: n.AtMillis,
	}, c.redisNow(ctx, s.Shard))
	var lacks *LacksError
	switch {
	case errors.As(err, &lacks):
		return Document{}, &InsufficientError{
			Why:   fmt.Sprintf("%d units counted are fewer than are held and sold: nothing was written; release or cancel orders first", n.Counted),
			Lines: c.shorts(ctx, lacks.Short, nil), Holds: c.holds(ctx, lacks.Holds),
		}
	case err != nil:
		return Document{}, c.documentError(n.SKU, err)
	}
	d := Document{ID: n.DocumentID, Kind: stock.DocumentCount, SKU: n.SKU, Counted: n.Counted, Reason: n.Reason, Replayed: !created}
	if len(p.Operation.Lines) > 0 {
		d.Units = p.Operation.Lines[0].Asked
	}
	return c.carry(ctx, d, p, n.Ack)
}

func checkCount(n *Count) error {
	if err := stock.CheckSKU("sku", n.SKU); err != nil {
		return err
	}
	switch {
	case n.Counted < 0 || n.Counted > stock.MaxMovementQuantity:
		return stock.BadField("counted", fmt.Sprint(n.Counted), fmt.Sprintf("use a whole number from 0 to %d", stock.MaxMovementQuantity))
	case n.At != (stock.Position{}) && n.AtMillis != 0:
		return stock.BadField("at", fmt.Sprint(n.AtMillis), "leave it out beside position: one of the two says when it was counted")
	case n.AtMillis < 0 || n.AtMillis > stock.MaxStockQuantity:
		return stock.BadField("at", fmt.Sprint(n.AtMillis), "use the moment of the count, which has passed")
	}
	return checkPaper(n.DocumentID, n.Reason, n.Note, n.Ack)
}

// holds names the SKUs of holds.
func (c *Clerk) holds(ctx context.Context, stored []StoredHold) []Hold {
	lines := make(stock.Lines, len(stored))
	for i, h := range stored {
		lines[i].SKU = h.SKU
	}
	named := c.named(ctx, lines, nil)
	out := make([]Hold, len(stored))
	for i, h := range stored {
		out[i] = Hold{Order: h.Order, Attempt: h.Attempt, State: h.State, SKU: named[i].SKU, Quantity: h.Quantity}
	}
	return out
}
