package producerapp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// documents are the stock documents.
type documents struct{ store *ledger.Ledger }

func (d *documents) Open(ctx context.Context, sku string, units int64, shard int, now int64) (order.Paper, bool, error) {
	doc, created, err := d.store.WriteOpening(ctx, sku, units, shard, d.store.Deadline(now))
	return paper(doc), created, documentError(err)
}

func (d *documents) Write(ctx context.Context, n order.Draft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: n.Kind, Reason: n.Reason, Note: n.Note, Scrap: n.Scrap, Lines: []stock.Line{{SKU: n.SKU, Asked: n.Units}},
	})
}

func (d *documents) WriteOrder(ctx context.Context, n order.OrderDraft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: n.Kind, Reason: n.Reason, Note: n.Note, Scrap: n.Scrap, Lines: n.Lines,
		Order: ledger.DocumentOrder{ID: n.Order, Shard: n.Shard, Attempt: n.Attempt},
	})
}

func (d *documents) WriteCount(ctx context.Context, n order.CountDraft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: stock.DocumentCount, Reason: n.Reason, Note: n.Note, Lines: []stock.Line{{SKU: n.SKU, Asked: n.Counted}},
		AsOf: ledger.AsOf{Position: n.At, Millis: n.AtMillis},
	})
}

func (d *documents) write(ctx context.Context, now int64, n ledger.NewDocument) (order.Paper, bool, error) {
	n.DeadlineMillis = d.store.Deadline(now)
	doc, created, err := d.store.WriteDocument(ctx, n)
	return paper(doc), created, documentError(err)
}

func (d *documents) Paper(ctx context.Context, id string) (order.Paper, error) {
	doc, err := d.store.Document(ctx, id)
	return paper(doc), err
}

func documentError(err error) error {
	var conflict *ledger.ConflictError
	var standing *ledger.OrderStateError
	var lacks *ledger.QuantityError
	var count *ledger.CountError
	switch {
	case errors.As(err, &conflict):
		return &order.DocumentConflictError{Why: conflict.Error() + "; use a new document id for another movement"}
	case errors.As(err, &standing):
		return &order.NotConfirmedError{Order: standing.Order}
	case errors.As(err, &lacks):
		e := &order.LacksError{}
		for _, l := range lacks.Lines {
			e.Short = append(e.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: l.Open})
		}
		return e
	case errors.As(err, &count):
		return countError(count)
	case errors.Is(err, ledger.ErrUnknownOrder):
		return order.ErrUnknownOrder
	case errors.Is(err, ledger.ErrUnknownSKU):
		return order.ErrUnknownSKU
	}
	return err
}

func countError(e *ledger.CountError) error {
	switch e.Why {
	case ledger.CountInFlight:
		return &order.CountError{InFlight: true, Why: fmt.Sprintf("count %s of the SKU is not settled yet, and they go one at a time: send this one again", e.Document)}
	case ledger.CountOlder:
		return &order.CountError{Why: fmt.Sprintf("a count as of %s is posted, and this one, as of %s, is older: count again, under a new document id", e.Last, e.AsOf)}
	}
	return &order.LacksError{
		Short: []stock.Short{{SKU: e.SKU, Asked: e.Counted, Available: e.Held + e.Sold}}, Holds: promised(e.SKU, e.Promises),
	}
}

func promised(sku int64, promises []ledger.Promise) []order.StoredHold {
	out := make([]order.StoredHold, len(promises))
	for i, p := range promises {
		out[i] = order.StoredHold{Order: p.OrderID, Attempt: p.Attempt, State: p.State, SKU: sku, Quantity: p.Units}
	}
	return out
}

// paper fills in what a document is about: its units, whatever moves by them.
func paper(d ledger.Document) order.Paper {
	p := order.Paper{ID: d.ID, Shard: d.Shard, State: order.PaperState(d.State), Receipt: d.Receipt}
	if len(d.Lines) == 0 {
		return p
	}
	p.SKU, p.Operation = d.Lines[0].SKU, d.Operation()
	if d.Order.ID == "" {
		return p
	}
	if p.Lines = d.Units; p.Lines == nil {
		p.Lines = d.Lines
	}
	p.Lines = slices.Clone(p.Lines)
	for i := range p.Lines {
		p.Lines[i].Asked = max(p.Lines[i].Asked, -p.Lines[i].Asked)
	}
	return p
}

// shelves are the SKUs themselves.
type shelves struct{ store *ledger.Ledger }

func (s *shelves) Delete(ctx context.Context, number int64) error {
	err := s.store.MarkDeleted(ctx, number)
	var standing *ledger.StandingSKUError
	if errors.As(err, &standing) {
		return &order.StillHeldError{Held: standing.Held, Committed: standing.Sold, Document: standing.Document, Open: standing.Open}
	}
	return err
}

func (s *shelves) Deleted(ctx context.Context, text string) (bool, error) {
	return s.store.WasDeleted(ctx, text)
}

func (s *shelves) Promised(ctx context.Context, shard int, number int64) ([]order.StoredHold, error) {
	promises, err := s.store.Promises(ctx, shard, number)
	return promised(number, promises), err
}
