package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An Extension lengthens a hold, by a time from now or until a moment: exactly one of the two.
type Extension struct {
	ID      string
	Attempt int64
	TTL     int64 // milliseconds from now; 0: Until is meant
	Until   int64 // Redis time in milliseconds since 1970; 0: TTL is meant
	Ack     Level
}

// Extend makes a hold last longer, at most 24 h from now, and never shorter: a hold that lasts that long already is
// answered as it stands. Errors: *UnknownOrderError, *ConflictError (another attempt stands), *StateError (no hold),
// *OutOfBoundsError.
func (c *Clerk) Extend(ctx context.Context, e Extension) (Answer, error) {
	call := Call{ID: e.ID, Attempt: e.Attempt, Ack: e.Ack}
	if err := checkExtension(&e); err != nil {
		return Answer{}, err
	}
	shard, _, err := c.begin(ctx, &call)
	if err != nil {
		return Answer{}, err
	}
	op := stock.Operation{Kind: stock.Extend, ID: e.ID, Attempt: e.Attempt, Until: e.Until}
	if e.TTL != 0 {
		// Counted once: a repeat of ours must not name a later end than the caller was thinking of.
		began, err := c.parts.Records.Now(ctx, shard)
		if err != nil {
			return Answer{}, fmt.Errorf("%w (%w)", &stock.ClosedError{Shard: shard, Reason: "unreachable", RetryAfter: retrySoon}, err)
		}
		op.Until = began + e.TTL
	}
	return c.settled(ctx, e.Ack, shard, func() (Answer, error) {
		out, level, err := c.ask(ctx, shard, op)
		if err != nil {
			return Answer{}, err
		}
		if out.Code == stock.OutOfBounds {
			return Answer{}, &OutOfBoundsError{Why: "a hold may last at most 24 h from the call that extends it: name an earlier end, and extend it again later"}
		}
		return c.onHold(ctx, shard, &out, level, &op, "extended")
	})
}

func checkExtension(e *Extension) error {
	switch {
	case e.TTL == 0 && e.Until == 0:
		return stock.BadField("ttl", "", "say how long from now, or until when")
	case e.TTL != 0 && e.Until != 0:
		return stock.BadField("until", fmt.Sprint(e.Until), "leave it out beside ttl: one of the two says when the hold ends")
	case e.TTL != 0:
		return stock.CheckTTL("ttl", e.TTL)
	case e.Until < 0 || e.Until > stock.MaxStockQuantity:
		return stock.BadField("until", fmt.Sprint(e.Until), "use a moment within the next 24 h")
	}
	return nil
}
