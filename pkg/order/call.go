package order

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Call is about an order that was reserved.
type Call struct {
	ID      string
	Attempt int64 // that is meant, from 1: an old call cannot touch a newer hold
	// Lines are what shall stand of the lines named, 0 to 1,000,000 units, each SKU once. Results and not differences,
	// so that a repeat changes nothing. Nil means the whole order.
	Lines []Line
	Ack   Level
}

func (c *Clerk) checkCall(call *Call) error {
	if err := stock.CheckOrderID("order_id", call.ID); err != nil {
		return err
	}
	if err := checkAttempt(call.Attempt); err != nil {
		return err
	}
	return checkLevel(call.Ack)
}

// begin checks a call, and finds the order's shard and the numbers of the SKUs that are named.
func (c *Clerk) begin(ctx context.Context, call *Call) (shard int, results stock.Lines, err error) {
	if err := c.checkCall(call); err != nil {
		return 0, nil, err
	}
	if call.Lines != nil {
		if results, err = c.results(ctx, call.Lines); err != nil {
			return 0, nil, err
		}
	}
	shard, err = c.home(ctx, call.ID, call.Attempt)
	return shard, results, err
}

// results are the lines that shall stand, ordered by SKU number. A SKU of another shard needs no look here: the order has
// no line of it, and whoever decides says so.
func (c *Clerk) results(ctx context.Context, asked []Line) (stock.Lines, error) {
	if err := c.checkLines(asked, 0); err != nil {
		return nil, err
	}
	texts := make([]string, len(asked))
	for i := range asked {
		texts[i] = asked[i].SKU
	}
	skus, err := c.parts.Catalog.SKUs(ctx, texts)
	if err != nil {
		return nil, c.ledgerAway(fmt.Errorf("find %d SKUs: %w", len(texts), err))
	}
	var unknown []stock.FieldError
	lines := make(stock.Lines, len(asked))
	for i := range asked {
		s, ok := skus[asked[i].SKU]
		if !ok {
			unknown = append(unknown, unknownSKU(fmt.Sprintf("lines[%d].sku", i), asked[i].SKU))
			continue
		}
		lines[i] = stock.Line{SKU: s.Number, Now: asked[i].Quantity}
	}
	if unknown != nil {
		return nil, &UnknownSKUError{Fields: unknown}
	}
	sortLines(lines)
	for i := range lines[1:] {
		if lines[i].SKU == lines[i+1].SKU {
			return nil, stock.BadField("lines", c.text(ctx, lines[i].SKU, nil), "name each SKU once: the quantity is what shall stand of it")
		}
	}
	return lines, nil
}

func sortLines(lines stock.Lines) {
	slices.SortFunc(lines, func(a, b stock.Line) int { return cmp.Compare(a.SKU, b.SKU) })
}

// checkLines bounds the lines of a request before anybody is asked.
func (c *Clerk) checkLines(lines []Line, least int64) error {
	if len(lines) == 0 || len(lines) > c.parts.MaxLines {
		return stock.BadField("lines", strconv.Itoa(len(lines)), fmt.Sprintf("use 1 to %d lines", c.parts.MaxLines))
	}
	for i := range lines {
		if err := stock.CheckSKU("sku", lines[i].SKU); err != nil {
			return inLine(err, i)
		}
		if q := lines[i].Quantity; q < least || q > stock.MaxLineQuantity {
			return inLine(stock.BadField("quantity", strconv.FormatInt(q, 10), fmt.Sprintf("use a whole number from %d to %d", least, stock.MaxLineQuantity)), i)
		}
	}
	return nil
}

// ask sends an operation on an order that was reserved. Where Redis has no record of it, Postgres answers in its place,
// in the same words: that is level Persisted. Errors: *UnknownOrderError.
func (c *Clerk) ask(ctx context.Context, shard int, op stock.Operation) (stock.Outcome, Level, error) {
	// A reservation may arrive between the desk's look and the ledger's: then the second round finds it.
	for range 2 {
		out, err := c.decide(ctx, shard, op)
		if err != nil || out.Code != stock.NoRecord {
			return out, Memory, err
		}
		found, err := c.known(ctx, shard, op.ID)
		switch {
		case err != nil:
			return out, "", err
		case found == nil:
			return out, "", &UnknownOrderError{ID: op.ID}
		case found.State != stock.Held:
			out = stock.Outcome{Code: stock.Replayed, Reservation: *found}
			if found.Attempt < op.Attempt {
				out.Code = stock.Conflict
			}
			return out, Persisted, nil
		}
	}
	// Postgres has a hold that Redis does not: it is in doubt, and whoever compares them will find it.
	return stock.Outcome{}, "", &stock.ClosedError{Shard: shard, Reason: "missing", RetryAfter: retryDoubt}
}

// stands answers with an order that was found as it stands, unchanged unless this call did it.
func (c *Clerk) stands(ctx context.Context, out *stock.Outcome, level Level) Answer {
	a := c.answer(ctx, &out.Reservation, nil)
	a.Level, a.Replayed = level, out.Code != stock.Accepted
	return a
}

// onHold answers a change of a hold by what became of it: whatever else the order is by now ends the matter.
func (c *Clerk) onHold(ctx context.Context, shard int, out *stock.Outcome, level Level, op *stock.Operation, verb string) (Answer, error) {
	r := &out.Reservation
	switch {
	case out.Code == stock.Accepted, out.Code == stock.Replayed && r.Attempt == op.Attempt && r.State == stock.Held:
		return c.stands(ctx, out, level), nil
	case out.Code == stock.Replayed && r.Attempt == op.Attempt:
		return Answer{}, c.state(ctx, r, fmt.Sprintf("order %s is %s: only a hold can be %s", op.ID, r.State, verb))
	case out.Code == stock.Replayed, out.Code == stock.Conflict:
		return Answer{}, c.otherAttempt(ctx, r)
	}
	return Answer{}, c.refusal(ctx, shard, *out, nil)
}

// otherAttempt refuses a call whose attempt is not the one that stands.
func (c *Clerk) otherAttempt(ctx context.Context, r *stock.Reservation) error {
	return c.conflict(ctx, r, fmt.Sprintf("order %s stands at attempt %d, %s: name that attempt if it is the one that is meant", r.ID, r.Attempt, r.State))
}

// beyond refuses results that the order does not have.
func (c *Clerk) beyond(ctx context.Context, r *stock.Reservation) error {
	return c.conflict(ctx, r, fmt.Sprintf("order %s does not have what is named: name its own SKUs, and at most what stands of each; a replace can bring more", r.ID))
}

// conflict answers with the order as it stands.
func (c *Clerk) conflict(ctx context.Context, r *stock.Reservation, why string) error {
	return &ConflictError{Why: why, Order: c.answer(ctx, r, nil)}
}

func (c *Clerk) state(ctx context.Context, r *stock.Reservation, why string) error {
	return &StateError{Why: why, Order: c.answer(ctx, r, nil)}
}

// A quantity picks one of a line's figures.
type quantity func(l *stock.Line) int64

func asked(l *stock.Line) int64 { return l.Asked }
func now(l *stock.Line) int64   { return l.Now }
func sold(l *stock.Line) int64  { return l.Now + l.Fulfilled }

// sameUnits reports whether a's and b's figures agree SKU by SKU; lines without units are as good as absent.
func sameUnits(a stock.Lines, ofA quantity, b stock.Lines, ofB quantity) bool {
	i, j := 0, 0
	for {
		for i < len(a) && ofA(&a[i]) == 0 {
			i++
		}
		for j < len(b) && ofB(&b[j]) == 0 {
			j++
		}
		if i == len(a) || j == len(b) {
			return i == len(a) && j == len(b)
		}
		if a[i].SKU != b[j].SKU || ofA(&a[i]) != ofB(&b[j]) {
			return false
		}
		i, j = i+1, j+1
	}
}

// within reports whether no result is above what stands.
func within(results, lines stock.Lines) bool {
	j := 0
	for _, l := range results {
		for j < len(lines) && lines[j].SKU < l.SKU {
			j++
		}
		if l.Now > 0 && (j == len(lines) || lines[j].SKU != l.SKU || lines[j].Now < l.Now) {
			return false
		}
	}
	return true
}
