package event

import (
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Book is the state of one shard, or of the part of it that was loaded, and folds entries into it. It is
// the one place in Go that says what an operation does: the ledger persists what a Book computed, the audit
// folds the log between Postgres and Redis with it, tests replay whole logs through it.
//
// A Book trusts that the log is a prefix that the library accepted; whatever contradicts its own state is a
// *PoisonError, after which the Book is half-way and must be thrown away. Not safe for concurrent use.
type Book struct {
	Shard    int
	Stock    map[int64]stock.Quantities
	Settings map[int64]stock.Settings // only SKUs that have some
	// Orders has the newest attempt of every order that was loaded or made, and documents under "~<id>".
	Orders map[string]*stock.Reservation
	// Forgetful allows an attempt to be taken again after it ended: its record was dropped when the retention
	// had passed. The ledger's key decides whether that was true; an audit only compares.
	Forgetful bool
	// Bought has what buyers hold, have confirmed and were sent of the SKUs with a limit. Nil: nobody asks. The Book
	// only follows it: what buyers had before a limit was switched on is counted by a takeover.
	Bought map[BuyerKey]int64
}

// NewBook is an empty book of a shard.
func NewBook(shard int) *Book {
	return &Book{
		Shard: shard, Stock: map[int64]stock.Quantities{}, Settings: map[int64]stock.Settings{},
		Orders: map[string]*stock.Reservation{},
	}
}

// A Change is what one operation did. After is nil when no reservation or document changed (settings, opened). A
// document of an order has two: its own, and what became of the order, if the Book has it and it fits.
type Change struct {
	Op          *stock.Operation
	Receipt     stock.Receipt
	Before      *stock.Reservation // the order as it stood, nil when it was not there
	After       *stock.Reservation // a fresh value; Before is left as it was
	OrderBefore *stock.Reservation // of a document: the order that it names, nil when that did not change
	OrderAfter  *stock.Reservation
}

// A Mismatch is an after-image that disagrees with the fold: somebody else changed Redis. It names both figures.
type Mismatch struct {
	SKU      int64
	Position stock.Position
	Ours     stock.Quantities // by folding the operations
	Redis    stock.Quantities // by the after-image
}

func (m Mismatch) String() string {
	return fmt.Sprintf("SKU number %d at %s: the log folds to %s, Redis had %s", m.SKU, m.Position, m.Ours, m.Redis)
}

// A PoisonError is an operation that contradicts the state that it is applied to.
type PoisonError struct {
	Receipt stock.Receipt
	Op      stock.Operation
	Why     string
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("entry %s, operation %d (%s of %s): %s", e.Receipt.Position, e.Receipt.Index, string(AppendBody(nil, &e.Op)), e.Op.ID, e.Why)
}

// Needs names the orders that entries move without having made them, those that a document is about included: load
// these before Apply. Documents themselves need nothing loaded, their uniqueness is the ledger's.
func Needs(entries []Entry) []string {
	made := map[string]bool{}
	var ids []string
	need := func(id string) {
		if !made[id] {
			made[id] = true
			ids = append(ids, id)
		}
	}
	for i := range entries {
		for j := range entries[i].Ops {
			op := &entries[i].Ops[j]
			switch op.Kind {
			case stock.Reserve, stock.Sale:
				made[op.ID] = true
			case stock.Confirm, stock.LateConfirm, stock.Release, stock.Expire, stock.Extend, stock.Replace:
				need(op.ID)
			case stock.Movement:
				if op.Order.ID != "" {
					need(op.Order.ID)
				}
			}
		}
	}
	return ids
}

// Apply folds one entry and calls each for every operation in order. It returns the after-images that disagree; the Book
// keeps its own numbers. The error is a *PoisonError.
func (b *Book) Apply(e *Entry, each func(Change)) ([]Mismatch, error) {
	receipt := stock.Receipt{Shard: b.Shard, Position: e.Position}
	for i := range e.Ops {
		receipt.Index = i
		change, err := b.step(&e.Ops[i], receipt, e.AtMillis)
		if err != nil {
			return nil, err
		}
		if each != nil {
			each(change)
		}
	}
	var off []Mismatch
	for _, a := range e.After {
		if ours := b.Stock[a.SKU]; ours != a.Quantities {
			off = append(off, Mismatch{SKU: a.SKU, Position: e.Position, Ours: ours, Redis: a.Quantities})
		}
	}
	return off, nil
}

func (b *Book) step(op *stock.Operation, receipt stock.Receipt, at int64) (Change, error) {
	change := Change{Op: op, Receipt: receipt, Before: b.Orders[op.ID]}
	after, why := b.next(op, change.Before, receipt, at)
	if why != "" {
		return change, &PoisonError{Receipt: receipt, Op: *op, Why: why}
	}
	if after != nil {
		after.Receipt = receipt
		b.Orders[op.ID] = after
		change.After = after
	}
	if op.Kind == stock.Movement && !op.Refused {
		change.OrderBefore, change.OrderAfter = b.settle(op, receipt)
	}
	if b.Bought != nil {
		b.count(&change)
	}
	return change, nil
}

// next computes the order after the operation and moves the stock; a reason instead means poison.
func (b *Book) next(op *stock.Operation, before *stock.Reservation, receipt stock.Receipt, at int64) (*stock.Reservation, string) {
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return b.take(op, before, at)
	case stock.Confirm, stock.Release, stock.Expire, stock.LateConfirm:
		return b.move(op, before)
	case stock.Extend:
		return b.extend(op, before)
	case stock.Replace:
		return b.replace(op, before)
	case stock.Movement:
		return b.document(op, before)
	case stock.NewSKU:
		l := op.Lines[0]
		if _, there := b.Stock[l.SKU]; there || before != nil {
			return nil, fmt.Sprintf("SKU number %d exists already", l.SKU)
		}
		b.Stock[l.SKU] = stock.Quantities{Available: l.Asked}
		return &stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}, ""
	case stock.Configure:
		sku := op.Lines[0].SKU
		if _, there := b.Stock[sku]; !there {
			return nil, fmt.Sprintf("unknown SKU number %d", sku)
		}
		if settings := op.Change.Apply(b.Settings[sku]); settings == (stock.Settings{}) {
			delete(b.Settings, sku)
		} else {
			b.Settings[sku] = settings
		}
		return nil, ""
	case stock.Opened:
		if receipt.Seq != 1 || receipt.Index != 0 {
			return nil, "an epoch is opened by its first entry only"
		}
		return nil, ""
	}
	return nil, "unknown kind"
}

// shift moves each line's present units between the three quantities, times the given signs.
func (b *Book) shift(lines stock.Lines, available, held, committed int64) string {
	for _, l := range lines {
		q, there := b.Stock[l.SKU]
		if !there {
			return fmt.Sprintf("unknown SKU number %d", l.SKU)
		}
		q.Available += available * l.Now
		q.Held += held * l.Now
		q.Committed += committed * l.Now
		if !q.Valid() {
			return fmt.Sprintf("SKU number %d would become %s", l.SKU, q)
		}
		b.Stock[l.SKU] = q
	}
	return ""
}
