package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Confirm makes a hold an order. With level Persisted the answer says Persisted only if this very confirm (or the
// one that it repeats) is committed in Postgres. After expiry the units are taken again, as the next attempt, if
// they are there. Errors: *UnknownOrderError, *ConflictError, *ShortfallError, *StateError (released, cancelled),
// *SKUError.
func (c *Clerk) Confirm(ctx context.Context, id string, attempt int64, ack Level) (Answer, error) {
	if err := checkCall(id, attempt, ack); err != nil {
		return Answer{}, err
	}
	shard, err := c.home(ctx, id, attempt)
	if err != nil {
		return Answer{}, err
	}
	return c.settled(ctx, ack, shard, func() (Answer, error) { return c.confirm(ctx, shard, id, attempt) })
}

func checkCall(id string, attempt int64, ack Level) error {
	if err := stock.CheckOrderID("order_id", id); err != nil {
		return err
	}
	if err := checkAttempt(attempt); err != nil {
		return err
	}
	return checkLevel(ack)
}

func (c *Clerk) confirm(ctx context.Context, shard int, id string, attempt int64) (Answer, error) {
	op := stock.Operation{Kind: stock.Confirm, ID: id, Attempt: attempt}
	// A reservation may arrive between the desk's look and the ledger's: then the second round finds it.
	for range 2 {
		out, err := c.decide(ctx, shard, op)
		if err == nil && out.Code == stock.Retake {
			late, lines := op, out.Reservation.Lines
			late.Kind = stock.LateConfirm
			out, err = c.decide(ctx, shard, late)
			fillAsked(out.Short, lines)
		}
		if err != nil {
			return Answer{}, err
		}
		if out.Code == stock.Replayed && out.Reservation.State == stock.Held && out.Reservation.Attempt == attempt {
			continue // its expiry was lost to a takeover meanwhile: it is a hold again
		}
		if out.Code != stock.NoRecord {
			return c.confirmed(ctx, shard, out, id, attempt)
		}
		found, err := c.known(ctx, shard, id)
		switch {
		case err != nil:
			return Answer{}, err
		case found == nil:
			return Answer{}, &UnknownOrderError{ID: id}
		case found.State == stock.Expired && found.Attempt == attempt:
			return c.confirmAgain(ctx, shard, found)
		case found.State != stock.Held:
			out = stock.Outcome{Code: stock.Replayed, Reservation: *found}
			if found.Attempt < attempt {
				out.Code = stock.Conflict
			}
			a, err := c.confirmed(ctx, shard, out, id, attempt)
			a.Level = Persisted
			return a, err
		}
	}
	// Postgres has a hold that Redis does not: it is in doubt, and whoever compares them will find it.
	return Answer{}, &stock.ClosedError{Shard: shard, Reason: "missing", RetryAfter: retryDoubt}
}

// fillAsked completes the shortage of a late confirm, which names no lines: what was asked stands in the order.
func fillAsked(short []stock.Short, lines stock.Lines) {
	for i := range short {
		for _, l := range lines {
			if l.SKU == short[i].SKU {
				short[i].Asked = l.Now
			}
		}
	}
}

// confirmAgain confirms an expired order whose record Redis has dropped: a sale, under the next attempt, of the
// lines that the ledger has.
func (c *Clerk) confirmAgain(ctx context.Context, shard int, found *stock.Reservation) (Answer, error) {
	lines := make(stock.Lines, len(found.Lines))
	for i, l := range found.Lines {
		lines[i] = stock.Line{SKU: l.SKU, Asked: l.Asked, Now: l.Asked}
	}
	out, err := c.decide(ctx, shard, stock.Operation{
		Kind: stock.Sale, ID: found.ID, Attempt: found.Attempt + 1, Buyer: found.Buyer, Lines: lines, Known: true,
	})
	if err != nil {
		return Answer{}, err
	}
	return c.confirmed(ctx, shard, out, found.ID, found.Attempt)
}

// confirmed answers a confirm of an attempt by what became of it.
func (c *Clerk) confirmed(ctx context.Context, shard int, out stock.Outcome, id string, attempt int64) (Answer, error) {
	r := &out.Reservation
	switch out.Code {
	case stock.Accepted:
		return c.answer(ctx, r, nil), nil
	case stock.Replayed:
		sold := r.State == stock.Confirmed || r.State == stock.Fulfilled
		repeat := sold && r.Attempt == attempt
		if sold && r.Attempt == attempt+1 {
			var err error
			if repeat, err = c.confirmedLate(ctx, shard, r); err != nil {
				return Answer{}, err
			}
		}
		if repeat {
			a := c.answer(ctx, r, nil)
			a.Replayed = true
			return a, nil
		}
		if r.Attempt == attempt && r.State.Ended() && r.State != stock.Expired {
			return Answer{}, c.state(ctx, r, fmt.Sprintf("order %s was %s, its units are back in stock: reserve again as attempt %d", id, r.State, attempt+1))
		}
		fallthrough
	case stock.Conflict:
		return Answer{}, c.conflict(ctx, r, fmt.Sprintf("order %s stands at attempt %d, %s: name that attempt, or look the order up", id, r.Attempt, r.State))
	case stock.SoldOut:
		return Answer{}, c.shortfall(ctx, shard, id, attempt, out.Short)
	}
	return Answer{}, c.refusal(ctx, shard, out, nil)
}

// confirmedLate tells whether an attempt that is sold is the late confirm of the one before it, which a repeat of that
// confirm finds, or the buyer's next order under the same id, which has nothing to do with it. Both leave the same
// record: only the ledger knows how the attempt before ended, and a confirm follows an expiry only. Where the ledger
// cannot tell yet, or cannot be asked, the answer is not known.
func (c *Clerk) confirmedLate(ctx context.Context, shard int, r *stock.Reservation) (bool, error) {
	for waited := false; ; waited = true {
		before, there, err := c.parts.Orders.Attempt(ctx, shard, r.ID, r.Attempt-1)
		if err != nil {
			return false, c.ledgerAway(fmt.Errorf("look up how attempt %d of order %s ended: %w", r.Attempt-1, r.ID, err))
		}
		if there && before.State.Ended() || waited {
			return there && before.State == stock.Expired && before.Buyer == r.Buyer && sameAsked(before.Lines, r.Lines), nil
		}
		// An attempt ends before the next one begins, in the log and so in the ledger.
		if c.await(ctx, r.Receipt) != stock.StandingPersisted {
			return false, fmt.Errorf("the ledger does not have attempt %d of order %s yet: ask again: %w", r.Attempt, r.ID, stock.ErrUnknown)
		}
	}
}

// shortfall records the refusal before it is answered: somebody has to refund a buyer, and no entry says so.
func (c *Clerk) shortfall(ctx context.Context, shard int, id string, attempt int64, short []stock.Short) error {
	lines := c.shorts(ctx, short, nil)
	if err := c.parts.Orders.Shortfall(ctx, shard, id, attempt, short); err != nil {
		return c.ledgerAway(fmt.Errorf("record the shortfall of order %s: %w", id, err))
	}
	return &ShortfallError{ID: id, Lines: lines}
}

func (c *Clerk) state(ctx context.Context, r *stock.Reservation, why string) error {
	return &StateError{Why: why, Order: c.answer(ctx, r, nil)}
}
