package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Shelf is what both stores say of a SKU's quantities, read one after the other.
type Shelf struct {
	SKU
	Text       string
	Redis      *Figure // nil: Redis does not have it, or is away
	Ledger     *Figure // nil: the opening is not applied, or Postgres is away
	Incomplete []string
}

// A Figure is quantities at a position of the shard's log.
type Figure struct {
	event.Field
	stock.Position
}

// Stock asks both stores for a SKU. Errors: *UnknownSKUError.
func (c *Clerk) Stock(ctx context.Context, text string) (Shelf, error) {
	if err := stock.CheckSKU("sku", text); err != nil {
		return Shelf{}, err
	}
	s, err := c.sku(ctx, "sku", text)
	if err != nil {
		return Shelf{}, err
	}
	shelf := Shelf{SKU: s, Text: text}
	switch f, at, ok, err := c.parts.Records.Field(ctx, s.Shard, s.Number); {
	case err != nil:
		shelf.Incomplete = append(shelf.Incomplete, fmt.Sprintf("redis shard %d", s.Shard))
	case ok:
		shelf.Redis = &Figure{Field: f, Position: at}
	}
	switch f, at, ok, err := c.parts.Figures.Figure(ctx, text); {
	case err != nil:
		shelf.Incomplete = append(shelf.Incomplete, "ledger")
	case ok:
		shelf.Ledger = &Figure{Field: f, Position: at}
	}
	return shelf, nil
}
