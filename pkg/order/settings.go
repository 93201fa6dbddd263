package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Uncounted is what Epochs is told of a shard with a SKU whose limit per buyer is on and not counted: a takeover counts.
const Uncounted = "uncounted"

// Settings are how a SKU is set after a change.
type Settings struct {
	SKU string
	stock.Settings
	Receipt stock.Receipt
	Level   Level
	// Uncounted: the limit is on, and what buyers have is not counted yet. Until a takeover has done it, orders of the SKU
	// are refused.
	Uncounted bool
}

// Configure changes settings of a SKU; what the change keeps stays. The same again changes nothing more. Errors:
// *UnknownSKUError, *SKUError (Redis lacks it).
func (c *Clerk) Configure(ctx context.Context, sku string, change stock.Change, ack Level) (Settings, error) {
	if err := checkChange(sku, change); err != nil {
		return Settings{}, err
	}
	if err := checkLevel(ack); err != nil {
		return Settings{}, err
	}
	s, err := c.sku(ctx, "sku", sku)
	if err != nil {
		return Settings{}, err
	}
	a, err := c.configure(ctx, s, sku, change, ack)
	if err != nil {
		return Settings{}, err
	}
	set := Settings{SKU: sku, Settings: change.Apply(stock.Settings{}), Receipt: a.Receipt, Level: a.Level}
	if f, _, ok, err := c.parts.Records.Field(ctx, s.Shard, s.Number); err == nil && ok {
		set.Settings = f.Settings
	}
	if change.Limit > 0 {
		counted, err := c.parts.Records.Counted(ctx, s.Shard, s.Number)
		if set.Uncounted = err != nil || !counted; set.Uncounted {
			c.parts.Epochs.Doubt(s.Shard, Uncounted)
		}
	}
	return set, nil
}

// configure sends the change. It has no id by which a repeat is known, and needs none: it says what shall be.
func (c *Clerk) configure(ctx context.Context, s SKU, text string, change stock.Change, ack Level) (Answer, error) {
	op := stock.Operation{
		Kind: stock.Configure, ID: fmt.Sprintf("~~set:%d", s.Number), Lines: stock.Lines{{SKU: s.Number}}, Change: change,
	}
	known := &names{numbers: []int64{s.Number}, texts: []string{text}}
	return c.settled(ctx, ack, s.Shard, func() (Answer, error) {
		out, err := c.decide(ctx, s.Shard, op)
		switch {
		case err != nil:
			return Answer{}, err
		case out.Code == stock.Accepted:
			return Answer{Receipt: out.Receipt, Level: Memory}, nil
		}
		return Answer{}, c.refusal(ctx, s.Shard, out, known)
	})
}

func checkChange(sku string, change stock.Change) error {
	if err := stock.CheckSKU("sku", sku); err != nil {
		return err
	}
	switch {
	case change == stock.Kept:
		return stock.BadField("body", "{}", "name at least one setting")
	case change.Opens != stock.Keep && (change.Opens < 0 || change.Opens > stock.MaxStockQuantity):
		return stock.BadField("opens_at", fmt.Sprint(change.Opens), "use a time since 1970; one that has passed opens at once")
	case change.Limit != stock.Keep && (change.Limit < 0 || change.Limit > stock.MaxMovementQuantity):
		return stock.BadField("buyer_limit", fmt.Sprint(change.Limit), fmt.Sprintf("use a whole number from 0 (no limit) to %d", stock.MaxMovementQuantity))
	}
	return nil
}
