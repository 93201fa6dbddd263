package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Found is everything that is known of an order id.
type Found struct {
	ID         string
	Receipt    stock.Receipt // that Standing is about; zero when nothing is known
	Standing   stock.Standing
	Matches    []Match
	Incomplete []string // stores that could not be asked
}

// A Match is what one shard knows of an order.
type Match struct {
	Shard  int
	Redis  *Answer // nil: no record
	Ledger *Answer // nil: no row
}

// Lookup asks both stores for an order, in every shard, and the ledger for the receipt; a nil receipt means that
// of the newest match. A store that is away makes the answer incomplete, not an error. Errors: *UnknownOrderError
// when no receipt was given and neither store knows the order.
func (c *Clerk) Lookup(ctx context.Context, id string, receipt *stock.Receipt) (Found, error) {
	if err := stock.CheckOrderID("order_id", id); err != nil {
		return Found{}, err
	}
	f := Found{ID: id, Standing: stock.StandingUnknown}
	matches := make([]Match, c.parts.Shards)
	for shard := range matches {
		matches[shard].Shard = shard
		r, ok, err := c.parts.Records.Record(ctx, shard, id)
		if err != nil {
			f.Incomplete = append(f.Incomplete, fmt.Sprintf("redis shard %d", shard))
		} else if ok {
			matches[shard].Redis = c.seen(ctx, &r)
		}
	}
	// The ledger is read after Redis, and the receipt after both: an order that moves on meanwhile is seen late,
	// never seen in neither.
	rows, err := c.parts.Orders.Lookup(ctx, id)
	if err != nil {
		f.Incomplete = append(f.Incomplete, "ledger")
	}
	for i := range rows {
		if shard := rows[i].Receipt.Shard; shard < len(matches) {
			matches[shard].Ledger = c.seen(ctx, &rows[i])
			matches[shard].Ledger.Level = Persisted
		}
	}
	for _, m := range matches {
		if m.Redis != nil || m.Ledger != nil {
			f.Matches = append(f.Matches, m)
		}
	}
	if receipt == nil {
		if receipt = newest(f.Matches); receipt == nil {
			if f.Incomplete != nil {
				return f, nil
			}
			return Found{}, &UnknownOrderError{ID: id}
		}
	}
	f.Receipt = *receipt
	if standing, err := c.parts.Receipts.Standing(ctx, *receipt); err == nil {
		f.Standing = standing
	}
	return f, nil
}

func (c *Clerk) seen(ctx context.Context, r *stock.Reservation) *Answer {
	a := c.answer(ctx, r, nil)
	return &a
}

// newest is the receipt of the highest attempt; of equal ones what Redis says goes first, it is ahead.
func newest(matches []Match) *stock.Receipt {
	var best *Answer
	for _, m := range matches {
		for _, a := range []*Answer{m.Redis, m.Ledger} {
			if a != nil && (best == nil || a.Attempt > best.Attempt) {
				best = a
			}
		}
	}
	if best == nil {
		return nil
	}
	return &best.Receipt
}
