package order

import (
	"context"
	"errors"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrUnknownSKU is a Catalog's answer for a text that Postgres does not know. It is never said of one that only
// Redis lacks.
var ErrUnknownSKU = errors.New("unknown SKU")

// A SKU is where a SKU's text leads.
type SKU struct {
	Number  int64
	Shard   int
	Opening int64 // units it was created with
}

// A Catalog tells what a SKU's text means, from memory where it can. Safe for concurrent use. An error other
// than ErrUnknownSKU means that Postgres could not be asked.
type Catalog interface {
	SKU(ctx context.Context, text string) (SKU, error)
	SKUs(ctx context.Context, texts []string) (map[string]SKU, error)     // unknown ones are absent
	Names(ctx context.Context, numbers []int64) (map[int64]string, error) // SKUs that were deleted included
	Forget(text string)                                                   // what is remembered of it may be out of date
}

// Receipts tells how far receipts got. Safe for concurrent use.
type Receipts interface {
	// Wait returns once the ledger says persisted or lost, or with the context's end, which is an error.
	Wait(ctx context.Context, r stock.Receipt) (stock.Standing, error)
	// Resolve judges an acceptance at the moment that its reply arrives: from memory while it stands under the
	// newest epoch, else by asking the ledger (protocol N).
	Resolve(ctx context.Context, r stock.Receipt) (stock.Standing, error)
	// Standing asks the ledger now.
	Standing(ctx context.Context, r stock.Receipt) (stock.Standing, error)
}

// Orders is what the ledger knows of orders, read on the primary.
type Orders interface {
	// Lookup gives the newest attempt of an order in every shard that has it; none is no error.
	Lookup(ctx context.Context, id string) ([]stock.Reservation, error)
	// Attempt gives one attempt of an order in one shard, as the client numbered it; false when it has none.
	Attempt(ctx context.Context, shard int, id string, attempt int64) (stock.Reservation, bool, error)
	// Shortfall records that a confirm came after expiry and the units were gone; it returns after the commit.
	// The same told again is one row.
	Shortfall(ctx context.Context, shard int, id string, attempt int64, short []stock.Short) error
}

// Records reads Redis beside the Desk. What it says is a view, never the ground of a decision.
type Records interface {
	// Record is what the orders hash has; *stock.ClosedError while the shard is not open, when that means nothing.
	Record(ctx context.Context, shard int, id string) (stock.Reservation, bool, error)
	// Field is a SKU as Redis has it, at the position of its shard's log; false when Redis lacks it.
	Field(ctx context.Context, shard int, sku int64) (event.Field, stock.Position, bool, error)
	Now(ctx context.Context, shard int) (millis int64, err error) // Redis' clock
}

// Documents are the stock documents of the ledger, unique by id for ever.
type Documents interface {
	// Open writes a new SKU with its opening document, Write another document; now is Redis' clock in
	// milliseconds. An id that stands comes back as it is with created false, if its content is the same; else
	// the error is a *DocumentConflictError.
	Open(ctx context.Context, sku string, units int64, shard int, now int64) (p Paper, created bool, err error)
	Write(ctx context.Context, d Draft, now int64) (p Paper, created bool, err error)
	Paper(ctx context.Context, id string) (Paper, error)
}

// Figures is what the ledger says of a SKU's quantities; false while its opening is not applied.
type Figures interface {
	Figure(ctx context.Context, sku string) (event.Field, stock.Position, bool, error)
}

// A Draft is a document before it is written.
type Draft struct {
	ID     string
	Kind   string // stock.DocumentReceive or DocumentAdjust
	Reason string
	Note   string
	SKU    int64
	Units  int64 // signed
}

// A PaperState is how far a document got.
type PaperState string

// A written document will be decided by the Desk; the ledger says applied or refused, once and for ever.
const (
	Written PaperState = "written"
	Applied PaperState = "applied"
	Refused PaperState = "refused"
)

// A Paper is a document as the ledger has it.
type Paper struct {
	ID        string // of the document, in the ledger
	Shard     int
	SKU       int64
	State     PaperState
	Receipt   stock.Receipt   // of its entry; zero while written
	Operation stock.Operation // what to send to the Desk
}
