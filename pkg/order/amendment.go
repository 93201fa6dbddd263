package order

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An Amendment changes an order that is confirmed, under a document of its own: it ships units (fulfil), takes the sale
// of units back (cancel), or takes shipped units back (return).
type Amendment struct {
	DocumentID string
	Kind       string // stock.DocumentFulfil, stock.DocumentCancel or stock.DocumentReturn
	OrderID    string
	Attempt    int64 // that is meant; 0: the newest
	// Lines are the units of this document, 1 to 1,000,000, the same SKU on several lines summed, as many as an order may
	// have. Nil: all that is left of the order; of a return all that was shipped and is not back.
	Lines  []Line
	Scrap  bool   // return: the units are not for sale
	Reason string // a code of 1 to 32 characters
	Note   string // free text of at most MaxNoteBytes
	Ack    Level
}

// Amend writes the document in Postgres, with the order's row locked, and then has its movement decided, as Move does.
// A confirm that Redis has and Postgres has not is waited for, and so is a fulfilment, by a return. Errors: *UnknownOrderError, *StateError,
// *ConflictError (another attempt stands), *InsufficientError, *DocumentConflictError, *RefusedError (final).
func (c *Clerk) Amend(ctx context.Context, a Amendment) (Document, error) {
	if err := c.checkAmendment(&a); err != nil {
		return Document{}, err
	}
	shard, err := c.home(ctx, a.OrderID, a.Attempt)
	if err != nil {
		return Document{}, err
	}
	draft := OrderDraft{
		ID: a.DocumentID, Kind: a.Kind, Reason: a.Reason, Note: a.Note,
		Shard: shard, Order: a.OrderID, Attempt: a.Attempt, Scrap: a.Scrap,
	}
	p, created, err := c.writeAmendment(ctx, &a, &draft)
	if a.isBehind(err) {
		if err = c.catchUp(ctx, shard, &a, err); err == nil {
			p, created, err = c.writeAmendment(ctx, &a, &draft)
		}
	}
	if err != nil {
		return Document{}, c.amendmentError(ctx, &a, shard, err)
	}
	ref := p.Operation.Order
	d := Document{
		ID: a.DocumentID, Kind: a.Kind, Order: a.OrderID, Attempt: cmp.Or(a.Attempt, ref.Asked), // 0: no record is of it, and its row may be numbered otherwise
		Scrap: a.Scrap, Reason: a.Reason, Replayed: !created,
	}
	for _, part := range c.named(ctx, p.Lines, nil) {
		d.Lines = append(d.Lines, Line{SKU: part.SKU, Quantity: part.Asked})
	}
	return c.carry(ctx, d, p, a.Ack)
}

func (c *Clerk) checkAmendment(a *Amendment) error {
	if err := stock.CheckOrderID("order_id", a.OrderID); err != nil {
		return err
	}
	if a.Attempt != 0 {
		if err := checkAttempt(a.Attempt); err != nil {
			return err
		}
	}
	if a.Lines != nil {
		if err := c.checkLines(a.Lines, 1); err != nil {
			return err
		}
	}
	return checkPaper(a.DocumentID, a.Reason, a.Note, a.Ack)
}

func (c *Clerk) writeAmendment(ctx context.Context, a *Amendment, draft *OrderDraft) (p Paper, created bool, err error) {
	if a.Lines != nil {
		if draft.Lines, err = c.amended(ctx, a, draft.Shard); err != nil {
			return p, false, err
		}
	}
	return c.parts.Papers.WriteOrder(ctx, *draft, c.redisNow(ctx, draft.Shard))
}

// amended finds the SKUs of a document among those of the order: a text may belong to another SKU by now, which was
// created after the order's was deleted.
func (c *Clerk) amended(ctx context.Context, a *Amendment, shard int) (stock.Lines, error) {
	order, err := c.row(ctx, a, shard)
	if err != nil {
		return nil, err
	}
	numbers := make([]int64, len(order.Lines))
	for i, l := range order.Lines {
		numbers[i] = l.SKU
	}
	texts, err := c.parts.Catalog.Names(ctx, numbers)
	if err != nil {
		return nil, c.ledgerAway(fmt.Errorf("find the SKUs of order %s: %w", a.OrderID, err))
	}
	byText := make(map[string]int64, len(texts))
	for number, text := range texts {
		byText[text] = number
	}
	lines := make([]stock.Line, len(a.Lines))
	for i, l := range a.Lines {
		number, ok := byText[l.SKU]
		if !ok {
			return nil, stock.BadField("lines["+strconv.Itoa(i)+"].sku", l.SKU, "name a SKU of the order")
		}
		lines[i] = stock.Line{SKU: number, Asked: l.Quantity}
	}
	return stock.Canonical(lines, c.parts.MaxLines)
}

// row is the attempt of the document by Postgres.
func (c *Clerk) row(ctx context.Context, a *Amendment, shard int) (*stock.Reservation, error) {
	if a.Attempt == 0 {
		order, err := c.known(ctx, shard, a.OrderID)
		if err == nil && order == nil {
			err = ErrUnknownOrder
		}
		return order, err
	}
	order, there, err := c.parts.Orders.Attempt(ctx, shard, a.OrderID, a.Attempt)
	switch {
	case err != nil:
		return nil, c.ledgerAway(fmt.Errorf("look up attempt %d of order %s: %w", a.Attempt, a.OrderID, err))
	case !there:
		return nil, ErrUnknownOrder
	}
	return &order, nil
}

// isMeant reports whether a document is about an attempt.
func (a *Amendment) isMeant(attempt int64) bool { return a.Attempt == 0 || a.Attempt == attempt }

// isBehind reports whether a refusal may only mean that Postgres has not heard of a confirm, or of a fulfilment, yet.
func (a *Amendment) isBehind(err error) bool {
	var standing *NotConfirmedError
	switch {
	case errors.As(err, &standing):
		return standing.Order.State == stock.Held || a.Attempt == 0 && standing.Order.State.Ended()
	case errors.As(err, new(*LacksError)):
		return a.Kind == stock.DocumentReturn
	}
	return errors.Is(err, ErrUnknownOrder)
}

// catchUp waits until Postgres has what Redis says of a sold order. Where Redis knows of none, the error stands.
func (c *Clerk) catchUp(ctx context.Context, shard int, a *Amendment, behind error) error {
	r, ok, err := c.parts.Records.Record(ctx, shard, a.OrderID)
	switch {
	case errors.As(err, new(*stock.ClosedError)):
		return err
	case err != nil:
		return fmt.Errorf("%w (%w)", &stock.ClosedError{Shard: shard, Reason: "unreachable", RetryAfter: retrySoon}, err)
	case !ok || !a.isMeant(r.Attempt) || !isSold(&r):
		if ok && errors.Is(behind, ErrUnknownOrder) {
			return &NotConfirmedError{Order: r} // Redis is ahead, and says more than nothing
		}
		return behind
	}
	switch c.await(ctx, r.Receipt) {
	case stock.StandingPersisted:
		return nil
	case stock.StandingLost:
		return behind
	}
	return &stock.ClosedError{Shard: shard, Reason: "behind", RetryAfter: retryDoubt}
}

func (c *Clerk) amendmentError(ctx context.Context, a *Amendment, shard int, err error) error {
	var standing *NotConfirmedError
	var lacks *LacksError
	switch {
	case errors.Is(err, ErrUnknownOrder):
		return c.unknownAttempt(ctx, a, shard)
	case errors.As(err, &standing) && !a.isMeant(standing.Order.Attempt):
		return c.otherAttempt(ctx, &standing.Order)
	case errors.As(err, &standing):
		// Whoever refuses need not know what was asked once; the caller is shown the whole order where it can be had.
		if r, ok, err := c.parts.Orders.Attempt(ctx, shard, a.OrderID, standing.Order.Attempt); err == nil && ok && r.State == standing.Order.State {
			standing.Order = r
		}
		return c.state(ctx, &standing.Order, fmt.Sprintf("order %s is %s: %s is for what is confirmed", a.OrderID, standing.Order.State, a.Kind))
	case errors.As(err, &lacks):
		return &InsufficientError{
			Why:   fmt.Sprintf("order %s does not have the units, documents that are written and not applied yet included: nothing was written; ask for what is left, under the same document id", a.OrderID),
			Lines: c.shorts(ctx, lacks.Short, nil),
		}
	case errors.As(err, new(*stock.ClosedError)):
		return err
	}
	return c.documentError("", err)
}

// unknownAttempt tells an attempt that never was from an order that nobody knows.
func (c *Clerk) unknownAttempt(ctx context.Context, a *Amendment, shard int) error {
	found, err := c.known(ctx, shard, a.OrderID)
	switch {
	case err != nil:
		return err
	case found == nil || a.isMeant(found.Attempt):
		return &UnknownOrderError{ID: a.OrderID}
	}
	return c.otherAttempt(ctx, found)
}
