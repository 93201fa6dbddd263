package order

import (
	"context"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Replace gives a hold other lines, all of them or none: Lines of the call are the order as it shall stand, 1 to
// 1,000,000 units each, the same SKU on several lines summed. The order's own units count as available, so a buyer never
// stands in his own way. How long the hold lasts does not change. Errors: *UnknownOrderError, *UnknownSKUError,
// *SoldOutError, *LimitError, *ConflictError (another attempt stands), *StateError (no hold), *ShardsError, *SKUError,
// *OutOfBoundsError.
func (c *Clerk) Replace(ctx context.Context, call Call) (Answer, error) {
	if err := c.checkCall(&call); err != nil {
		return Answer{}, err
	}
	if err := c.checkLines(call.Lines, 1); err != nil {
		return Answer{}, err
	}
	lines, there, known, err := c.place(ctx, call.Lines)
	if err != nil {
		return Answer{}, err
	}
	shard, err := c.home(ctx, call.ID, call.Attempt)
	if err != nil {
		return Answer{}, err
	}
	if shard != there {
		shards := []int{shard, there}
		slices.Sort(shards)
		return Answer{}, &ShardsError{Shards: shards}
	}
	op := stock.Operation{Kind: stock.Replace, ID: call.ID, Attempt: call.Attempt, Lines: lines}
	return c.settled(ctx, call.Ack, shard, func() (Answer, error) {
		out, level, err := c.ask(ctx, shard, op)
		switch {
		case err != nil:
			return Answer{}, err
		case out.Code == stock.SoldOut:
			return Answer{}, &SoldOutError{Lines: c.shorts(ctx, out.Short, known)}
		case out.Code == stock.OutOfBounds:
			return Answer{}, &OutOfBoundsError{Why: "the order would have too many lines, those included that earlier replaces took away: reserve another order"}
		}
		return c.onHold(ctx, shard, &out, level, &op, "replaced")
	})
}
