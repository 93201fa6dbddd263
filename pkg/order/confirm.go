package order

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Confirm makes a hold an order: the whole of it, or what shall stand of the lines named; the rest goes back, lines that
// are not named included. With level Persisted the answer says Persisted only if this very confirm (or the one that it
// repeats) is committed in Postgres. After expiry the units are taken again, as the next attempt, if they are there.
// Errors: *UnknownOrderError, *ConflictError, *ShortfallError, *StateError (released, cancelled), *SKUError, *LimitError.
func (c *Clerk) Confirm(ctx context.Context, call Call) (Answer, error) {
	shard, results, err := c.begin(ctx, &call)
	if err != nil {
		return Answer{}, err
	}
	if results != nil && results.Units() == 0 {
		return Answer{}, stock.BadField("lines", "0 units", "confirm at least one unit, or release the order")
	}
	op := stock.Operation{Kind: stock.Confirm, ID: call.ID, Attempt: call.Attempt, Lines: results}
	return c.settled(ctx, call.Ack, shard, func() (Answer, error) { return c.confirm(ctx, shard, op) })
}

func (c *Clerk) confirm(ctx context.Context, shard int, op stock.Operation) (Answer, error) {
	for range 2 {
		out, level, err := c.ask(ctx, shard, op)
		if err != nil {
			return Answer{}, err
		}
		r := &out.Reservation
		switch {
		case level == Persisted && r.State == stock.Expired && r.Attempt == op.Attempt:
			return c.confirmAgain(ctx, shard, r, op)
		case level == Persisted && r.Attempt == op.Attempt && op.Lines != nil && isSold(r) && !sameUnits(r.Lines, sold, op.Lines, now):
			out.Code = stock.Conflict
		case out.Code == stock.Retake:
			lines := r.Lines
			if op.Lines != nil {
				lines = op.Lines
			}
			late := op
			late.Kind = stock.LateConfirm
			if out, err = c.decide(ctx, shard, late); err != nil {
				return Answer{}, err
			}
			fillAsked(out.Short, lines)
			if out.Code == stock.Replayed && out.Reservation.State == stock.Held && out.Reservation.Attempt == op.Attempt {
				continue // its expiry was lost to a takeover meanwhile: it is a hold again
			}
		}
		a, err := c.confirmed(ctx, shard, out, op.ID, op.Attempt, op.Lines)
		if err == nil && level == Persisted {
			a.Level = Persisted
		}
		return a, err
	}
	return Answer{}, &stock.ClosedError{Shard: shard, Reason: "rebuilding", RetryAfter: retrySoon}
}

func isSold(r *stock.Reservation) bool {
	return r.State == stock.Confirmed || r.State == stock.Fulfilled
}

// fillAsked completes the shortage of a late confirm, which need not name lines: what it takes stands in the order.
func fillAsked(short []stock.Short, lines stock.Lines) {
	for i := range short {
		for _, l := range lines {
			if l.SKU == short[i].SKU {
				short[i].Asked = l.Now
			}
		}
	}
}

// confirmAgain confirms an expired order whose record Redis has dropped: a sale, under the next attempt, of what stood
// of the lines that the ledger has, or of what is named of it.
func (c *Clerk) confirmAgain(ctx context.Context, shard int, found *stock.Reservation, op stock.Operation) (Answer, error) {
	wanted := found.Lines
	if op.Lines != nil {
		if wanted = op.Lines; !within(wanted, found.Lines) {
			return Answer{}, c.beyond(ctx, found)
		}
	}
	var lines stock.Lines
	for _, l := range wanted {
		if l.Now > 0 {
			lines = append(lines, stock.Line{SKU: l.SKU, Asked: l.Now, Now: l.Now})
		}
	}
	out, err := c.decide(ctx, shard, stock.Operation{
		Kind: stock.Sale, ID: found.ID, Attempt: found.Attempt + 1, Buyer: found.Buyer, Lines: lines, Known: true,
	})
	if err != nil {
		return Answer{}, err
	}
	return c.confirmed(ctx, shard, out, found.ID, found.Attempt, op.Lines)
}

// confirmed answers a confirm of an attempt by what became of it.
func (c *Clerk) confirmed(ctx context.Context, shard int, out stock.Outcome, id string, attempt int64, results stock.Lines) (Answer, error) {
	r := &out.Reservation
	switch out.Code {
	case stock.Accepted:
		return c.answer(ctx, r, nil), nil
	case stock.Replayed:
		sold := isSold(r)
		repeat := sold && r.Attempt == attempt
		if sold && r.Attempt == attempt+1 {
			var err error
			if repeat, err = c.confirmedLate(ctx, shard, r, results); err != nil {
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
		return Answer{}, c.otherAttempt(ctx, r)
	case stock.Conflict:
		switch {
		case r.Attempt != attempt:
			return Answer{}, c.otherAttempt(ctx, r)
		case r.State == stock.Held || r.State == stock.Expired:
			return Answer{}, c.beyond(ctx, r)
		}
		return Answer{}, c.conflict(ctx, r, fmt.Sprintf("order %s was confirmed with other lines: cancel what is too much under a document of yours, or reserve more under another id", id))
	case stock.SoldOut:
		return Answer{}, c.shortfall(ctx, shard, id, attempt, out.Short)
	}
	return Answer{}, c.refusal(ctx, shard, out, nil)
}

// confirmedLate tells whether an attempt that is sold is the late confirm of the one before it, which a repeat of that
// confirm finds, or the buyer's next order under the same id, which has nothing to do with it. Both leave the same
// record: only the ledger knows how the attempt before ended, and a confirm follows an expiry only. Where the ledger
// cannot tell yet, or cannot be asked, the answer is not known.
func (c *Clerk) confirmedLate(ctx context.Context, shard int, r *stock.Reservation, results stock.Lines) (bool, error) {
	for waited := false; ; waited = true {
		before, there, err := c.parts.Orders.Attempt(ctx, shard, r.ID, r.Attempt-1)
		if err != nil {
			return false, c.ledgerAway(fmt.Errorf("look up how attempt %d of order %s ended: %w", r.Attempt-1, r.ID, err))
		}
		if there && before.State.Ended() || waited {
			return there && before.State == stock.Expired && before.Buyer == r.Buyer && continues(r, &before, results), nil
		}
		// An attempt ends before the next one begins, in the log and so in the ledger.
		if c.await(ctx, r.Receipt) != stock.StandingPersisted {
			return false, fmt.Errorf("the ledger does not have attempt %d of order %s yet: ask again: %w", r.Attempt, r.ID, stock.ErrUnknown)
		}
	}
}

// continues reports whether a sold attempt has the lines that a confirm of the expired one before it would have left: a
// late confirm keeps what was asked, and the sale that stands in for it after the retention asks for what it takes.
func continues(r, before *stock.Reservation, results stock.Lines) bool {
	if results != nil {
		return sameUnits(r.Lines, sold, results, now) &&
			(sameUnits(r.Lines, asked, before.Lines, asked) || sameUnits(r.Lines, asked, results, now))
	}
	return sameUnits(r.Lines, asked, before.Lines, asked) || sameUnits(r.Lines, asked, before.Lines, now)
}

// shortfall records the refusal before it is answered: somebody has to refund a buyer, and no entry says so.
func (c *Clerk) shortfall(ctx context.Context, shard int, id string, attempt int64, short []stock.Short) error {
	lines := c.shorts(ctx, short, nil)
	if err := c.parts.Orders.Shortfall(ctx, shard, id, attempt, short); err != nil {
		return c.ledgerAway(fmt.Errorf("record the shortfall of order %s: %w", id, err))
	}
	return &ShortfallError{ID: id, Lines: lines}
}
