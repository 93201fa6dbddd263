package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Release gives the units of a hold back. What has already ended is answered as it stands and nothing changes.
// Errors: *UnknownOrderError, *ConflictError (another attempt stands), *StateError (confirmed).
func (c *Clerk) Release(ctx context.Context, id string, attempt int64, ack Level) (Answer, error) {
	if err := checkCall(id, attempt, ack); err != nil {
		return Answer{}, err
	}
	shard, err := c.home(ctx, id, attempt)
	if err != nil {
		return Answer{}, err
	}
	return c.settled(ctx, ack, shard, func() (Answer, error) { return c.release(ctx, shard, id, attempt) })
}

func (c *Clerk) release(ctx context.Context, shard int, id string, attempt int64) (Answer, error) {
	op := stock.Operation{Kind: stock.Release, ID: id, Attempt: attempt}
	for range 2 { // as in confirm
		out, err := c.decide(ctx, shard, op)
		if err != nil {
			return Answer{}, err
		}
		if out.Code != stock.NoRecord {
			return c.released(ctx, shard, out, id, attempt)
		}
		found, err := c.known(ctx, shard, id)
		switch {
		case err != nil:
			return Answer{}, err
		case found == nil:
			return Answer{}, &UnknownOrderError{ID: id}
		case found.State != stock.Held:
			out = stock.Outcome{Code: stock.Replayed, Reservation: *found}
			if found.Attempt < attempt {
				out.Code = stock.Conflict
			}
			a, err := c.released(ctx, shard, out, id, attempt)
			a.Level = Persisted
			return a, err
		}
	}
	return Answer{}, &stock.ClosedError{Shard: shard, Reason: "missing", RetryAfter: retryDoubt}
}

// released answers a release of an attempt by what became of it.
func (c *Clerk) released(ctx context.Context, shard int, out stock.Outcome, id string, attempt int64) (Answer, error) {
	r := &out.Reservation
	switch out.Code {
	case stock.Accepted:
		return c.answer(ctx, r, nil), nil
	case stock.Replayed, stock.Conflict:
		if out.Code == stock.Replayed && (r.State == stock.Confirmed || r.State == stock.Fulfilled) {
			return Answer{}, c.state(ctx, r, fmt.Sprintf("order %s is %s: a release ends holds only", id, r.State))
		}
		if out.Code == stock.Replayed && r.Attempt == attempt {
			a := c.answer(ctx, r, nil)
			a.Replayed = true
			return a, nil
		}
		return Answer{}, c.conflict(ctx, r, fmt.Sprintf("order %s stands at attempt %d, %s: name that attempt if it is the one to release", id, r.Attempt, r.State))
	}
	return Answer{}, c.refusal(ctx, shard, out, nil)
}
