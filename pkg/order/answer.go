package order

import (
	"context"
	"fmt"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Level is how far an acceptance got before it is answered.
type Level string

// Memory is Redis; Persisted is committed in Postgres.
const (
	Memory    Level = "memory"
	Persisted Level = "persisted"
)

// A Line is units of a SKU by its text.
type Line struct {
	SKU      string
	Quantity int64
}

// A Part is a line of an order as it stands.
type Part struct {
	SKU       string
	Asked     int64 // when it was reserved; 0 for a line that only a replace brought
	Quantity  int64 // held or committed now; of an ended order what it gave back last
	Fulfilled int64 // shipped
}

// An Answer is how one attempt of an order stands.
type Answer struct {
	ID            string
	Attempt       int64
	State         stock.State
	Buyer         string
	Receipt       stock.Receipt // of its last transition
	Level         Level         // that was reached
	ExpiresMillis int64         // Redis time in milliseconds since 1970; 0 = never
	Lines         []Part        // ordered by SKU number
	Replayed      bool          // it stood before this call, which changed nothing
}

// names are the SKUs of a request, whose texts are known already, so that its answer costs no look-up.
type names struct {
	numbers []int64 // ordered
	texts   []string
}

// text names one SKU.
func (c *Clerk) text(ctx context.Context, number int64, known *names) string {
	if known != nil {
		if i, ok := slices.BinarySearch(known.numbers, number); ok {
			return known.texts[i]
		}
	}
	return c.named(ctx, stock.Lines{{SKU: number}}, nil)[0].SKU
}

// answer turns a reservation into an Answer, with SKU texts from what is known or from the catalog.
func (c *Clerk) answer(ctx context.Context, r *stock.Reservation, known *names) Answer {
	lines := c.named(ctx, r.Lines, known)
	a := Answer{ID: r.ID, Attempt: r.Attempt, State: r.State, Buyer: r.Buyer, Receipt: r.Receipt, Level: Memory, Lines: lines}
	if r.State == stock.Held || r.State == stock.Expired {
		a.ExpiresMillis = r.ExpiresMillis
	}
	return a
}

// named gives the lines their SKU texts. It runs after the decision, so it cannot fail: whoever was accepted must
// not be told that nothing was written because the catalog is away. A SKU that cannot be named is "#<number>".
func (c *Clerk) named(ctx context.Context, lines stock.Lines, known *names) []Part {
	out := make([]Part, len(lines))
	if known != nil && len(known.numbers) == len(lines) && sameNumbers(known.numbers, lines) {
		for i := range lines {
			out[i] = part(known.texts[i], &lines[i])
		}
		return out
	}
	numbers := make([]int64, len(lines))
	for i := range lines {
		numbers[i] = lines[i].SKU
	}
	texts, err := c.parts.Catalog.Names(ctx, numbers)
	for i, l := range lines {
		text, ok := texts[l.SKU]
		if err != nil || !ok {
			text = fmt.Sprintf("#%d", l.SKU)
		}
		out[i] = part(text, &l)
	}
	return out
}

func part(text string, l *stock.Line) Part {
	return Part{SKU: text, Asked: l.Asked, Quantity: l.Now, Fulfilled: l.Fulfilled}
}

func sameNumbers(numbers []int64, lines stock.Lines) bool {
	for i := range lines {
		if numbers[i] != lines[i].SKU {
			return false
		}
	}
	return true
}

// shorts names the lines of a refusal.
func (c *Clerk) shorts(ctx context.Context, short []stock.Short, known *names) []ShortLine {
	lines := make(stock.Lines, len(short))
	for i, s := range short {
		lines[i] = stock.Line{SKU: s.SKU}
	}
	named := c.named(ctx, lines, known)
	out := make([]ShortLine, len(short))
	for i, s := range short {
		out[i] = ShortLine{SKU: named[i].SKU, Asked: s.Asked, Available: s.Available}
	}
	return out
}

// refusal is the error of an outcome that stands against every kind of operation.
func (c *Clerk) refusal(ctx context.Context, shard int, out stock.Outcome, known *names) error {
	switch out.Code {
	case stock.MissingSKU, stock.FrozenSKU, stock.Inconsistent, stock.ClosedSKU, stock.UnopenedSKU:
		text := c.text(ctx, out.SKU, known)
		if out.Code == stock.MissingSKU || out.Code == stock.ClosedSKU {
			c.parts.Catalog.Forget(text)
		}
		return &SKUError{SKU: text, Code: out.Code, RetryAfter: retryDoubt}
	case stock.BuyerMissing, stock.Uncounted, stock.LimitReached:
		return c.limited(ctx, shard, out, known)
	case stock.OutOfBounds:
		return &OutOfBoundsError{}
	case stock.Damaged:
		return &stock.ClosedError{Shard: shard, Reason: "damaged", RetryAfter: retryDoubt}
	case stock.Again:
		return &stock.ClosedError{Shard: shard, Reason: "busy", RetryAfter: retrySoon}
	}
	// A code that this flow does not expect here, for example from a newer library: nothing is known of it.
	return fmt.Errorf("outcome %q of the desk: %w", out.Code, stock.ErrUnknown)
}

// limited is the error of an order that a limit per buyer stands against.
func (c *Clerk) limited(ctx context.Context, shard int, out stock.Outcome, known *names) error {
	text := c.text(ctx, out.SKU, known)
	switch out.Code {
	case stock.BuyerMissing:
		return &BuyerRequiredError{SKU: text}
	case stock.LimitReached:
		return &LimitError{SKU: text, Have: out.Bought, Limit: out.Limit}
	}
	// Only a takeover counts, and whoever decides about one may not have heard of it.
	c.parts.Epochs.Doubt(shard, Uncounted)
	return &UncountedError{SKU: text, RetryAfter: retryDoubt}
}
