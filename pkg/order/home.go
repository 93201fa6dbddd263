package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// home finds the shard that an order lives in. With one shard that is no question; with more the matches of all
// are looked at: the attempt that is meant goes before others, and what still stands before what has ended.
func (c *Clerk) home(ctx context.Context, id string, attempt int64) (int, error) {
	if c.parts.Shards == 1 {
		return 0, nil
	}
	var matches []stock.Reservation
	for shard := range c.parts.Shards {
		r, ok, err := c.parts.Records.Record(ctx, shard, id)
		// A shard that cannot be trusted now may have the order: "unknown order" would be a guess.
		if closed := new(stock.ClosedError); errors.As(err, &closed) {
			return 0, err
		}
		if err != nil {
			return 0, fmt.Errorf("%w (%w)", &stock.ClosedError{Shard: shard, Reason: "unreachable", RetryAfter: retrySoon}, err)
		}
		if ok {
			r.Receipt.Shard = shard
			matches = append(matches, r)
		}
	}
	if len(matches) == 0 {
		var err error
		if matches, err = c.parts.Orders.Lookup(ctx, id); err != nil {
			return 0, c.ledgerAway(err)
		}
	}
	if len(matches) == 0 {
		return 0, &UnknownOrderError{ID: id}
	}
	best := matches[0]
	for _, r := range matches[1:] {
		if rank(r, attempt) > rank(best, attempt) || rank(r, attempt) == rank(best, attempt) && r.Attempt > best.Attempt {
			best = r
		}
	}
	return best.Receipt.Shard, nil
}

func rank(r stock.Reservation, attempt int64) int {
	n := 0
	if r.Attempt == attempt {
		n += 2
	}
	if !r.State.Ended() {
		n++
	}
	return n
}

// known is the newest attempt of an order in one shard by Postgres; nil when it has none.
func (c *Clerk) known(ctx context.Context, shard int, id string) (*stock.Reservation, error) {
	all, err := c.parts.Orders.Lookup(ctx, id)
	if err != nil {
		return nil, c.ledgerAway(fmt.Errorf("look order %s up: %w", id, err))
	}
	for i := range all {
		if all[i].Receipt.Shard == shard {
			return &all[i], nil
		}
	}
	return nil, nil
}

// ledgerAway is the refusal of a call that needs Postgres and cannot have it. Nothing was written.
func (c *Clerk) ledgerAway(err error) error {
	if errors.Is(err, stock.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w (%w)", &stock.ClosedError{Reason: "ledger", RetryAfter: retrySoon}, err)
}
