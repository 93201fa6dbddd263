package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Request asks for units.
type Request struct {
	ID      string
	Attempt int64 // from 1
	Buyer   string
	Lines   []Line // the same SKU on several lines is summed
	TTL     int64  // milliseconds of the hold; unused in a sale
	Sale    bool   // confirmed at once
	Partial bool   // takes what is there of each line, in place of all or nothing
	Ack     Level
}

// Reserve takes the units of every line, or none; a partial one what is there, of one line at least. Sent again it answers
// the same reservation, Replayed, in the state that it has now. Errors: *UnknownSKUError, *SoldOutError, *ConflictError,
// *ShardsError, *SKUError, *LimitError, *BuyerRequiredError, *UncountedError.
func (c *Clerk) Reserve(ctx context.Context, r *Request) (Answer, error) {
	if err := c.check(r); err != nil {
		return Answer{}, err
	}
	lines, shard, known, err := c.place(ctx, r.Lines)
	if err != nil {
		return Answer{}, err
	}
	op := stock.Operation{Kind: stock.Reserve, ID: r.ID, Attempt: r.Attempt, Buyer: r.Buyer, TTL: r.TTL, Lines: lines, Partial: r.Partial}
	if r.Sale {
		op.Kind, op.TTL = stock.Sale, 0
	}
	return c.settled(ctx, r.Ack, shard, func() (Answer, error) { return c.reserve(ctx, shard, op, known) })
}

func (c *Clerk) check(r *Request) error {
	if err := stock.CheckOrderID("order_id", r.ID); err != nil {
		return err
	}
	if err := checkAttempt(r.Attempt); err != nil {
		return err
	}
	if err := stock.CheckBuyer("buyer", r.Buyer); err != nil {
		return err
	}
	if err := checkLevel(r.Ack); err != nil {
		return err
	}
	if !r.Sale {
		if err := stock.CheckTTL("ttl", r.TTL); err != nil {
			return err
		}
	}
	return c.checkLines(r.Lines, 1)
}

// inLine gives a field its place; paths are written only for what is refused.
func inLine(err error, i int) error {
	var f *stock.FieldError
	if errors.As(err, &f) {
		f.Field = "lines[" + strconv.Itoa(i) + "]." + f.Field
	}
	return err
}

// place turns the lines of a request into canonical ones, all in one shard.
func (c *Clerk) place(ctx context.Context, asked []Line) (stock.Lines, int, *names, error) {
	if len(asked) == 1 { // the hot path: one look into memory
		s, err := c.sku(ctx, "lines[0].sku", asked[0].SKU)
		if err != nil {
			return nil, 0, nil, err
		}
		lines := stock.Lines{{SKU: s.Number, Asked: asked[0].Quantity, Now: asked[0].Quantity}}
		return lines, s.Shard, &names{numbers: []int64{s.Number}, texts: []string{asked[0].SKU}}, nil
	}
	texts := make([]string, len(asked))
	for i := range asked {
		texts[i] = asked[i].SKU
	}
	skus, err := c.parts.Catalog.SKUs(ctx, texts)
	if err != nil {
		return nil, 0, nil, c.ledgerAway(fmt.Errorf("find %d SKUs: %w", len(texts), err))
	}
	var unknown []stock.FieldError
	var shards []int
	lines := make([]stock.Line, len(asked))
	for i := range asked {
		s, ok := skus[asked[i].SKU]
		if !ok {
			unknown = append(unknown, unknownSKU(fmt.Sprintf("lines[%d].sku", i), asked[i].SKU))
			continue
		}
		if !slices.Contains(shards, s.Shard) {
			shards = append(shards, s.Shard)
		}
		lines[i] = stock.Line{SKU: s.Number, Asked: asked[i].Quantity}
	}
	if unknown != nil {
		return nil, 0, nil, &UnknownSKUError{Fields: unknown}
	}
	if len(shards) > 1 {
		slices.Sort(shards)
		return nil, 0, nil, &ShardsError{Shards: shards}
	}
	canonical, err := stock.Canonical(lines, c.parts.MaxLines)
	if err != nil {
		return nil, 0, nil, err
	}
	return canonical, shards[0], namesOf(canonical, skus), nil
}

func namesOf(lines stock.Lines, skus map[string]SKU) *names {
	byNumber := make(map[int64]string, len(skus))
	for text, s := range skus {
		byNumber[s.Number] = text
	}
	n := &names{numbers: make([]int64, len(lines)), texts: make([]string, len(lines))}
	for i := range lines {
		n.numbers[i], n.texts[i] = lines[i].SKU, byNumber[lines[i].SKU]
	}
	return n
}

// sku finds one SKU.
func (c *Clerk) sku(ctx context.Context, field, text string) (SKU, error) {
	s, err := c.parts.Catalog.SKU(ctx, text)
	switch {
	case errors.Is(err, ErrUnknownSKU):
		return SKU{}, &UnknownSKUError{Fields: []stock.FieldError{unknownSKU(field, text)}}
	case err != nil:
		return SKU{}, c.ledgerAway(fmt.Errorf("find a SKU: %w", err))
	}
	return s, nil
}

func unknownSKU(field, text string) stock.FieldError {
	return *stock.BadField(field, text, "create the SKU first, or check its spelling (case counts)")
}

// reserve sends a reservation or sale once.
func (c *Clerk) reserve(ctx context.Context, shard int, op stock.Operation, known *names) (Answer, error) {
	out, err := c.decide(ctx, shard, op)
	level := Memory
	if err == nil && out.Code == stock.NoRecord {
		out, level, err = c.reopen(ctx, shard, op)
	}
	if err != nil {
		return Answer{}, err
	}
	switch out.Code {
	case stock.Accepted, stock.Replayed:
		a := c.answer(ctx, &out.Reservation, known)
		a.Replayed, a.Level = out.Code == stock.Replayed, level
		return a, nil
	case stock.Conflict:
		return Answer{}, c.conflict(ctx, &out.Reservation, takingConflict(&out.Reservation, &op))
	case stock.SoldOut:
		return Answer{}, &SoldOutError{Lines: c.shorts(ctx, out.Short, known)}
	}
	return Answer{}, c.refusal(ctx, shard, out, known)
}

// reopen decides a higher attempt of an order of which Redis has no record: an earlier attempt may have ended so
// long ago that its record was dropped. Postgres knows, or there was none that counts.
func (c *Clerk) reopen(ctx context.Context, shard int, op stock.Operation) (stock.Outcome, Level, error) {
	found, err := c.known(ctx, shard, op.ID)
	if err != nil {
		return stock.Outcome{}, Memory, err
	}
	switch {
	case found == nil || found.Attempt < op.Attempt && found.State.Ended():
		op.Known = true
		out, err := c.decide(ctx, shard, op)
		return out, Memory, err
	case found.Attempt > op.Attempt || found.Attempt == op.Attempt && found.Buyer == op.Buyer && sameUnits(found.Lines, asked, op.Lines, asked) && !(op.Kind == stock.Sale && found.State == stock.Held):
		return stock.Outcome{Code: stock.Replayed, Reservation: *found}, Persisted, nil
	}
	return stock.Outcome{Code: stock.Conflict, Reservation: *found}, Persisted, nil
}

func takingConflict(r *stock.Reservation, op *stock.Operation) string {
	if r.Attempt < op.Attempt {
		return fmt.Sprintf("order %s stands at attempt %d, %s: only an ended order takes stock again; use the order as it stands, or release it first", r.ID, r.Attempt, r.State)
	}
	return fmt.Sprintf("order %s stands with other content under attempt %d: repeat it as it was, or use a new order id", r.ID, r.Attempt)
}
