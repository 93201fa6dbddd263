package protocol

import (
	"context"
	"errors"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// documents puts every SKU into one shard where told so: a table with carts needs that.
type documents struct {
	*ledger.Ledger
	shard int // -1: where the clerk wants it
}

func (d documents) Open(ctx context.Context, sku string, units int64, shard int, now int64) (order.Paper, bool, error) {
	if d.shard >= 0 {
		shard = d.shard
	}
	doc, created, err := d.WriteOpening(ctx, sku, units, shard, d.Deadline(now))
	return paper(doc), created, documentError(err)
}

func (d documents) Write(ctx context.Context, n order.Draft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: n.Kind, Reason: n.Reason, Note: n.Note, Scrap: n.Scrap, Lines: []stock.Line{{SKU: n.SKU, Asked: n.Units}},
	})
}

func (d documents) WriteOrder(ctx context.Context, n order.OrderDraft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: n.Kind, Reason: n.Reason, Note: n.Note, Scrap: n.Scrap, Lines: n.Lines,
		Order: ledger.DocumentOrder{ID: n.Order, Shard: n.Shard, Attempt: n.Attempt},
	})
}

func (d documents) WriteCount(ctx context.Context, n order.CountDraft, now int64) (order.Paper, bool, error) {
	return d.write(ctx, now, ledger.NewDocument{
		ID: n.ID, Kind: stock.DocumentCount, Reason: n.Reason, Note: n.Note, Lines: []stock.Line{{SKU: n.SKU, Asked: n.Counted}},
		AsOf: ledger.AsOf{Position: n.At, Millis: n.AtMillis},
	})
}

func (d documents) write(ctx context.Context, now int64, n ledger.NewDocument) (order.Paper, bool, error) {
	n.DeadlineMillis = d.Deadline(now)
	doc, created, err := d.WriteDocument(ctx, n)
	return paper(doc), created, documentError(err)
}

func (d documents) Paper(ctx context.Context, id string) (order.Paper, error) {
	doc, err := d.Document(ctx, id)
	return paper(doc), err
}

func documentError(err error) error {
	var conflict *ledger.ConflictError
	var standing *ledger.OrderStateError
	var lacks *ledger.QuantityError
	var count *ledger.CountError
	switch {
	case errors.As(err, &conflict):
		return &order.DocumentConflictError{Why: conflict.Error()}
	case errors.As(err, &standing):
		return &order.NotConfirmedError{Order: standing.Order}
	case errors.As(err, &lacks):
		e := &order.LacksError{}
		for _, l := range lacks.Lines {
			e.Short = append(e.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: l.Open})
		}
		return e
	case errors.As(err, &count) && (count.Why == ledger.CountInFlight || count.Why == ledger.CountOlder):
		return &order.CountError{InFlight: count.Why == ledger.CountInFlight, Why: count.Error()}
	case errors.As(err, &count):
		return &order.LacksError{Short: []stock.Short{{SKU: count.SKU, Asked: count.Counted, Available: count.Held + count.Sold}}}
	case errors.Is(err, ledger.ErrUnknownOrder):
		return order.ErrUnknownOrder
	}
	return err
}

// paper tells what a document is about: its units, whatever moves by them.
func paper(d ledger.Document) order.Paper {
	p := order.Paper{ID: d.ID, Shard: d.Shard, State: order.PaperState(d.State), Receipt: d.Receipt}
	if len(d.Lines) == 0 {
		return p
	}
	p.SKU, p.Operation = d.Lines[0].SKU, d.Operation()
	if d.Order.ID == "" {
		return p
	}
	units := d.Units
	if units == nil {
		units = d.Lines
	}
	for _, l := range units {
		p.Lines = append(p.Lines, stock.Line{SKU: l.SKU, Asked: max(l.Asked, -l.Asked)})
	}
	return p
}

// shelves are the SKUs themselves; the tables delete none.
type shelves struct{ *ledger.Ledger }

func (s shelves) Delete(ctx context.Context, number int64) error { return s.MarkDeleted(ctx, number) }

func (s shelves) Deleted(ctx context.Context, text string) (bool, error) {
	return s.WasDeleted(ctx, text)
}

func (s shelves) Promised(ctx context.Context, shard int, number int64) ([]order.StoredHold, error) {
	return nil, nil
}
