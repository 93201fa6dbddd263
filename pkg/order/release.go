package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Release gives the units of a hold back: all of them, or of the lines named what is more than shall stand; the lines
// that are not named stay, and a hold of which nothing is left is released. What has already ended is answered as it
// stands and nothing changes. Errors: *UnknownOrderError, *ConflictError (another attempt stands, or less than is named),
// *StateError (confirmed).
func (c *Clerk) Release(ctx context.Context, call Call) (Answer, error) {
	shard, results, err := c.begin(ctx, &call)
	if err != nil {
		return Answer{}, err
	}
	op := stock.Operation{Kind: stock.Release, ID: call.ID, Attempt: call.Attempt, Lines: results}
	return c.settled(ctx, call.Ack, shard, func() (Answer, error) { return c.release(ctx, shard, op) })
}

func (c *Clerk) release(ctx context.Context, shard int, op stock.Operation) (Answer, error) {
	out, level, err := c.ask(ctx, shard, op)
	if err != nil {
		return Answer{}, err
	}
	r := &out.Reservation
	switch {
	case out.Code == stock.Accepted:
		return c.stands(ctx, &out, level), nil
	case out.Code == stock.Replayed && isSold(r):
		return Answer{}, c.state(ctx, r, fmt.Sprintf("order %s is %s: a release ends holds only; cancel it under a document of yours", op.ID, r.State))
	case out.Code == stock.Replayed && r.Attempt == op.Attempt:
		return c.stands(ctx, &out, level), nil
	case out.Code == stock.Conflict && r.Attempt == op.Attempt:
		return Answer{}, c.beyond(ctx, r)
	case out.Code == stock.Replayed, out.Code == stock.Conflict:
		return Answer{}, c.otherAttempt(ctx, r)
	}
	return Answer{}, c.refusal(ctx, shard, out, nil)
}
