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
	// Counted reports whether what buyers have of a SKU with a limit is counted in full.
	Counted(ctx context.Context, shard int, sku int64) (bool, error)
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

// OrderPapers are the documents of orders: fulfil, cancel, return.
type OrderPapers interface {
	// WriteOrder writes a document with the order's row locked and everything counted that is written and not applied. An
	// id that stands is treated as by Documents. Errors: ErrUnknownOrder, *NotConfirmedError, *LacksError,
	// *DocumentConflictError.
	WriteOrder(ctx context.Context, d OrderDraft, now int64) (p Paper, created bool, err error)
}

// ErrUnknownOrder is OrderPapers' answer for an attempt that Postgres does not have (yet).
var ErrUnknownOrder = errors.New("unknown order")

// A NotConfirmedError is OrderPapers' answer for an attempt that is not confirmed in Postgres (yet).
type NotConfirmedError struct{ Order stock.Reservation }

func (e *NotConfirmedError) Error() string {
	return "the order is " + string(e.Order.State) + " in the ledger"
}

// A LacksError is the answer to a document that asks for more than there is of a line.
type LacksError struct {
	Short []stock.Short // Available is what may still be asked for
	Holds []StoredHold  // of a count: who has the units
}

func (e *LacksError) Error() string { return "there are not enough units for the document" }

// A StoredHold is a Hold by the SKU's number.
type StoredHold struct {
	Order    string
	Attempt  int64
	State    stock.State
	SKU      int64
	Quantity int64
}

// An OrderDraft is a document of an order before it is written.
type OrderDraft struct {
	ID      string
	Kind    string // stock.DocumentFulfil, stock.DocumentCancel or stock.DocumentReturn
	Reason  string
	Note    string
	Shard   int
	Order   string
	Attempt int64       // as its client numbers it; 0: the newest
	Lines   stock.Lines // Asked units of each SKU, above 0; nil: all that is left, or all that was shipped and is not back
	Scrap   bool        // return: the units are not for sale
}

// Counts are stocktakes.
type Counts interface {
	// WriteCount writes a count. Errors: ErrUnknownSKU, *CountError (another is in flight, or a later one was posted, or
	// its moment is not known), *LacksError (below what is promised), *DocumentConflictError.
	WriteCount(ctx context.Context, d CountDraft, now int64) (p Paper, created bool, err error)
}

// A CountDraft is a stocktake before it is written. Its moment is a position or a time; neither: now.
type CountDraft struct {
	ID       string
	Reason   string
	Note     string
	SKU      int64
	Counted  int64
	At       stock.Position
	AtMillis int64 // Redis time in milliseconds since 1970
}

// Shelves are the SKUs as the ledger keeps them.
type Shelves interface {
	// Delete marks a SKU as deleted: its text is free for another number then. Again it changes nothing. Errors:
	// *StillHeldError.
	Delete(ctx context.Context, number int64) error
	// Deleted reports whether a text belonged to a SKU that was deleted.
	Deleted(ctx context.Context, text string) (bool, error)
	// Promised are orders that have units of a SKU held or sold and not shipped, as many as are worth naming.
	Promised(ctx context.Context, shard int, number int64) ([]StoredHold, error)
}

// A StillHeldError is Shelves' answer for a SKU that cannot be deleted now.
type StillHeldError struct {
	Held, Committed int64
	Document        string // that is written and not settled
	Open            bool   // it is not closed for sale any more
}

func (e *StillHeldError) Error() string { return "units of the SKU are promised" }

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
	Scrap  bool  // return: they are not for sale
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
	Lines     stock.Lines     // of a document of an order: Asked units of each SKU, above 0
}
