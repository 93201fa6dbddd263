package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (w *teller) closeForSale(sku int64) {
	w.t.Helper()
	w.apply(w.entry(stock.Operation{Kind: stock.Configure, ID: "~~close", Lines: stock.Lines{{SKU: sku}},
		Change: stock.Change{Opens: stock.Keep, Closed: stock.On, Limit: stock.Keep}}))
}

func TestASKUIsDeletedWhenNothingOfItIsInTheAir(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	text := "sku-0-0"
	w.sold("sold", lines(tea, 2))
	w.apply(w.entry(reserve("held", 1, lines(tea, 3))))
	standing := func(want StandingSKUError) {
		t.Helper()
		var e *StandingSKUError
		if err := w.l.MarkDeleted(ctx, tea); !errors.As(err, &e) || cmp.Diff(want, *e) != "" {
			t.Errorf("%v: %+v", err, e)
		}
		if _, err := w.l.SKU(ctx, text); err != nil {
			t.Error(err)
		}
	}
	held := []Promise{{"held", 1, stock.Held, 3}, {"sold", 1, stock.Confirmed, 2}}
	standing(StandingSKUError{SKU: tea, Open: true, Held: 3, Sold: 2, Promises: held})
	w.closeForSale(tea)
	standing(StandingSKUError{SKU: tea, Held: 3, Sold: 2, Promises: held})
	w.apply(w.entry(move(stock.Release, "held", 1)))
	in := w.written(NewDocument{ID: "in", Kind: stock.DocumentReceive, Reason: "r", Lines: lines(tea, 1), DeadlineMillis: farAway})
	standing(StandingSKUError{SKU: tea, Sold: 2, Document: "in"})
	w.apply(w.entry(in.Operation()))
	if was, err := w.l.WasDeleted(ctx, text); err != nil || was {
		t.Errorf("deleted before: %v, %v", was, err)
	}
	for range 2 {
		check(t, w.l.MarkDeleted(ctx, tea))
	}
	if was, err := w.l.WasDeleted(ctx, text); err != nil || !was {
		t.Errorf("not deleted: %v, %v", was, err)
	}
	if _, err := w.l.SKU(ctx, text); !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("it lives: %v", err)
	}
	if err := w.l.MarkDeleted(ctx, 99); !errors.Is(err, ErrUnknownSKU) {
		t.Error(err)
	}
	// What is sold is shipped, and what is deleted takes no goods.
	w.carried(draftOf("p", stock.DocumentFulfil, "sold", nil))
	var err error
	_, _, err = w.l.WriteDocument(ctx, NewDocument{ID: "more", Kind: stock.DocumentReceive, Reason: "r", Lines: lines(tea, 1), DeadlineMillis: farAway})
	if !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("goods for a deleted SKU: %v", err)
	}
	doc, created, err := w.l.WriteOpening(ctx, text, 5, 0, farAway)
	if err != nil || !created || doc.Lines[0].SKU == tea {
		t.Errorf("created again: %+v, %v, %v", doc, created, err)
	}
	w.same()
}
