package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Deletion is how far the deletion of a SKU got.
type Deletion struct {
	SKU      string
	Deleted  bool          // false: it is closed for sale, which is not persisted yet; delete it again
	Receipt  stock.Receipt // of its being closed for sale; zero when it was deleted before
	Replayed bool          // it was deleted before this call
}

// Delete closes a SKU for sale and, once that is persisted, frees its text: created again it is another SKU. Deleted
// already is answered the same. Errors: *UnknownSKUError (there never was one), *HeldError.
func (c *Clerk) Delete(ctx context.Context, sku string) (Deletion, error) {
	if err := stock.CheckSKU("sku", sku); err != nil {
		return Deletion{}, err
	}
	c.parts.Catalog.Forget(sku) // the text may belong to another number by now
	s, err := c.sku(ctx, "sku", sku)
	if errors.As(err, new(*UnknownSKUError)) {
		deleted, lost := c.parts.Shelves.Deleted(ctx, sku)
		switch {
		case lost != nil:
			return Deletion{}, c.ledgerAway(fmt.Errorf("look for a deleted SKU: %w", lost))
		case deleted:
			return Deletion{SKU: sku, Deleted: true, Replayed: true}, nil
		}
	}
	if err != nil {
		return Deletion{}, err
	}
	// A look before the shop window is emptied: it decides nothing, the ledger does.
	if f, _, ok, err := c.parts.Records.Field(ctx, s.Shard, s.Number); err == nil && ok && f.Held > 0 && !f.Closed {
		return Deletion{}, &HeldError{SKU: sku, Held: f.Held, Committed: f.Committed, Holds: c.promised(ctx, s)}
	}
	closing := stock.Kept
	closing.Closed = stock.On
	a, err := c.configure(ctx, s, sku, closing, Persisted)
	if err != nil {
		return Deletion{}, err
	}
	d := Deletion{SKU: sku, Receipt: a.Receipt}
	if a.Level != Persisted {
		return d, nil
	}
	var held *StillHeldError
	switch err := c.parts.Shelves.Delete(ctx, s.Number); {
	case errors.As(err, &held) && held.Open:
		return d, nil // somebody opened it meanwhile
	case errors.As(err, &held):
		return Deletion{}, &HeldError{
			SKU: sku, Held: held.Held, Committed: held.Committed, Holds: c.promised(ctx, s), Document: held.Document, Closed: true,
		}
	case err != nil:
		return Deletion{}, fmt.Errorf("%w (mark the SKU as deleted: %w)", stock.ErrUnknown, err)
	}
	c.parts.Catalog.Forget(sku)
	d.Deleted = true
	return d, nil
}

// promised names the orders that have units of a SKU. It says more about a refusal: without Postgres it says nothing.
func (c *Clerk) promised(ctx context.Context, s SKU) []Hold {
	stored, err := c.parts.Shelves.Promised(ctx, s.Shard, s.Number)
	if err != nil {
		return nil
	}
	return c.holds(ctx, stored)
}
