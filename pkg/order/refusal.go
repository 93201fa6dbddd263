package order

import (
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Besides these, every call of a Clerk may answer *stock.FieldError (bad input), *stock.ClosedError (nothing was
// written) and stock.ErrUnknown (send the same again). None of the refusals below took or moved stock.

// An UnknownSKUError names SKUs that do not exist.
type UnknownSKUError struct{ Fields []stock.FieldError }

func (e *UnknownSKUError) Error() string {
	return fmt.Sprintf("%d of the SKUs do not exist, the first is %s: create it first, or check the spelling (case counts)", len(e.Fields), e.Fields[0].Value)
}

// An UnknownOrderError is an order that neither store has.
type UnknownOrderError struct{ ID string }

func (e *UnknownOrderError) Error() string {
	return fmt.Sprintf("order %s is not known: it was never accepted, or its hold was lost; ask with its receipt, or reserve again", e.ID)
}

// A ShortLine is one line of an order that could not be had.
type ShortLine struct {
	SKU       string
	Asked     int64
	Available int64
}

// A SoldOutError lists every line of an order that was refused whole.
type SoldOutError struct{ Lines []ShortLine }

func (e *SoldOutError) Error() string {
	return "not enough units for every line; nothing was taken: ask for what is available, under the same order id"
}

// A ShortfallError is a confirm that came after the hold expired, when the units were gone. It was recorded.
type ShortfallError struct {
	ID    string
	Lines []ShortLine
}

func (e *ShortfallError) Error() string {
	return fmt.Sprintf("the hold of order %s expired and its units are gone: refund the buyer, or reserve again later", e.ID)
}

// A ConflictError is an order that stands in a way that does not allow what was asked.
type ConflictError struct {
	Why   string
	Order Answer // as it stands
}

func (e *ConflictError) Error() string { return e.Why }

// A StateError is an order whose state ends the matter: released, cancelled, or confirmed.
type StateError struct {
	Why   string
	Order Answer // as it stands; its State is the answer
}

func (e *StateError) Error() string { return e.Why }

// A ShardsError is an order whose lines live in more than one shard.
type ShardsError struct{ Shards []int }

func (e *ShardsError) Error() string {
	return fmt.Sprintf("the lines live in shards %v, and an order is decided in one: send an order per shard, with its own id", e.Shards)
}

// A SKUError is a SKU that sells nothing now, whatever its quantity.
type SKUError struct {
	SKU        string
	Code       stock.Code // MissingSKU, FrozenSKU, Inconsistent: in doubt; ClosedSKU, UnopenedSKU: by the shop's will
	RetryAfter time.Duration
}

func (e *SKUError) Error() string {
	switch e.Code {
	case stock.ClosedSKU:
		return fmt.Sprintf("SKU %q is closed for sale: leave it out of the order", e.SKU)
	case stock.UnopenedSKU:
		return fmt.Sprintf("SKU %q is not on sale yet: ask again after its opening time", e.SKU)
	case stock.FrozenSKU:
		return fmt.Sprintf("SKU %q is frozen because its stock is in doubt: ask again later, an operator has to look", e.SKU)
	case stock.MissingSKU:
		return fmt.Sprintf("SKU %q exists and is not in Redis (just created, or being rebuilt): ask again", e.SKU)
	}
	return fmt.Sprintf("the numbers of SKU %q do not add up: ask again later, an operator has to look", e.SKU)
}

// A DocumentConflictError is a document id, or a SKU's opening, that stands with other content.
type DocumentConflictError struct{ Why string }

func (e *DocumentConflictError) Error() string { return e.Why }

// A RefusedError is a document for which there were not enough units. That is final.
type RefusedError struct {
	Document Document
	Lines    []ShortLine
	Holds    []Hold // of a withdrawal: who has the units that are not available
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused for good: available would leave 0 to %d; correct the quantity and send it under a new document id", int64(stock.MaxStockQuantity))
}

// An InsufficientError is a document that asks for more of an order than it has, or a count below what is promised.
// Nothing was written.
type InsufficientError struct {
	Why   string
	Lines []ShortLine
	Holds []Hold // that keep the units, as many as are worth naming
}

func (e *InsufficientError) Error() string { return e.Why }

// A Hold is an order that has units of a SKU.
type Hold struct {
	Order    string
	Attempt  int64
	State    stock.State // held or confirmed
	SKU      string
	Quantity int64
}

// A CountError is a stocktake that cannot be posted: another one is in flight, which ends, or one of a later moment was
// posted, which is final.
type CountError struct {
	Why      string
	InFlight bool
}

func (e *CountError) Error() string { return e.Why }

// A HeldError is a SKU that cannot be deleted because units of it are held, or a document of it is not settled.
type HeldError struct {
	SKU             string
	Held, Committed int64
	Holds           []Hold
	Document        string // that is not settled
	Closed          bool   // it is closed for sale by now, and stays so
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("SKU %q has %d units held (and %d sold and not shipped, which may stay): delete it when they are confirmed, released or expired", e.SKU, e.Held, e.Committed)
	if e.Held == 0 && e.Document != "" {
		text = fmt.Sprintf("document %s of SKU %q is not settled: delete it in a moment", e.Document, e.SKU)
	}
	if e.Closed {
		text += "; it is closed for sale now"
	}
	return text
}

// A LimitError is an order that would give its buyer more of a SKU than the limit.
type LimitError struct {
	SKU   string
	Have  int64 // what the buyer has of it, over all orders: held, confirmed and shipped
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the buyer has %d of SKU %q, and the limit is %d: ask for %d at most", e.Have, e.SKU, e.Limit, max(e.Limit-e.Have, 0))
}

// A BuyerRequiredError is an order without a buyer of a SKU that has a limit per buyer.
type BuyerRequiredError struct{ SKU string }

func (e *BuyerRequiredError) Error() string {
	return fmt.Sprintf("SKU %q has a limit per buyer: name the buyer", e.SKU)
}

// An UncountedError is an order of a SKU whose limit was switched on, while what buyers have of it is not counted yet.
type UncountedError struct {
	SKU        string
	RetryAfter time.Duration
}

func (e *UncountedError) Error() string {
	return fmt.Sprintf("SKU %q got a limit per buyer, and what buyers have of it is not counted yet: ask again, a takeover counts it", e.SKU)
}

// An OutOfBoundsError is a hold that would last too long, or an order that would have too many lines.
type OutOfBoundsError struct{ Why string }

func (e *OutOfBoundsError) Error() string {
	if e.Why == "" {
		return "it would last longer, or have more lines, than is allowed"
	}
	return e.Why
}
