package ledger

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// draftOf is a document of an order in shard 0.
func draftOf(id, kind, order string, of stock.Lines) NewDocument {
	return NewDocument{ID: id, Kind: kind, Reason: "r", Order: DocumentOrder{ID: order}, Lines: of, DeadlineMillis: farAway}
}

// written writes a document that must be new.
func (w *teller) written(n NewDocument) Document {
	w.t.Helper()
	doc, created, err := w.l.WriteDocument(context.Background(), n)
	check(w.t, err)
	if !created {
		w.t.Fatalf("%s stands already", n.ID)
	}
	op := doc.Operation()
	check(w.t, event.CheckOperation(&op))
	return doc
}

// carried writes a document and applies its entry.
func (w *teller) carried(n NewDocument) Document {
	w.t.Helper()
	w.apply(w.entry(w.written(n).Operation()))
	doc, err := w.l.Document(context.Background(), n.ID)
	check(w.t, err)
	return doc
}

// sold makes a confirmed order.
func (w *teller) sold(id string, of stock.Lines) {
	w.t.Helper()
	w.apply(w.entry(stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Buyer: "b", Lines: of}))
}

// stands is the order's newest attempt.
func (w *teller) stands(id string) Found {
	w.t.Helper()
	found, err := w.l.Lookup(context.Background(), id)
	check(w.t, err)
	if len(found) != 1 {
		w.t.Fatalf("%d shards have %s", len(found), id)
	}
	return found[0]
}

func (w *teller) quantities(sku int64) stock.Quantities {
	w.t.Helper()
	s, err := w.l.Stocks(context.Background(), []int64{sku})
	check(w.t, err)
	return s[sku].Quantities
}

func TestParcelsEndAnOrderAndReturnsComeBackOrGoToScrap(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea, mug := w.sku(10), w.sku(10)
	w.sold("o", lines(tea, 4, mug, 2))
	first := w.carried(draftOf("p1", stock.DocumentFulfil, "o", lines(tea, 3)))
	want := stock.Operation{
		Kind: stock.Movement, ID: "~p1", Document: stock.DocumentFulfil, Reason: "r", Deadline: farAway,
		Lines: lines(tea, -3), Order: stock.OrderRef{ID: "o", Key: 1, Asked: 1},
	}
	if diff := cmp.Diff(want, first.Operation()); diff != "" || first.State != DocumentApplied {
		t.Errorf("%s: %s", first.State, diff)
	}
	w.same()
	if got := w.stands("o"); got.Reservation.State != stock.Confirmed || got.Reservation.Receipt.Position != w.at ||
		cmp.Diff(stock.Lines{{SKU: tea, Asked: 4, Now: 1, Fulfilled: 3}, {SKU: mug, Asked: 2, Now: 2}}, got.Reservation.Lines) != "" {
		t.Errorf("after a parcel: %+v", got)
	}
	cancel := w.carried(draftOf("c1", stock.DocumentCancel, "o", lines(mug, 2)))
	if cancel.Buyer != "b" || cancel.Operation().Buyer != "b" {
		t.Errorf("whose limit gets the units back: %+v", cancel)
	}
	w.carried(draftOf("p2", stock.DocumentFulfil, "o", nil))
	w.same()
	if got := w.stands("o"); got.Reservation.State != stock.Fulfilled {
		t.Errorf("after the last parcel: %+v", got)
	}
	w.carried(draftOf("r1", stock.DocumentReturn, "o", lines(tea, 1)))
	scrap := draftOf("r2", stock.DocumentReturn, "o", nil)
	scrap.Scrap = true
	if doc := w.carried(scrap); cmp.Diff(lines(tea, 0), doc.Lines) != "" || cmp.Diff(lines(tea, 3), doc.Units) != "" || !doc.Whole {
		t.Errorf("the scrapped ones: %+v", doc)
	}
	w.same()
	if n := count(t, w.l, `select returned from reservation_line where order_id = 'o' and sku = $1`, tea); n != 4 {
		t.Errorf("%d of 4 came back", n)
	}
	if q := w.quantities(tea); q != (stock.Quantities{Available: 7}) {
		t.Errorf("tea: %v, 4 of 10 left, one came back", q)
	}
	var quantity *QuantityError
	if _, _, err := w.l.WriteDocument(context.Background(), draftOf("r3", stock.DocumentReturn, "o", lines(tea, 1))); !errors.As(err, &quantity) ||
		cmp.Diff([]OpenLine{{SKU: tea, Asked: 1, Open: 0}}, quantity.Lines) != "" {
		t.Errorf("one more than was shipped: %v", err)
	}
	of, err := w.l.DocumentsOfOrder(context.Background(), 0, "o", 10)
	if err != nil || len(of) != 5 || of[0].ID != "r2" {
		t.Errorf("%d documents of the order, %v", len(of), err)
	}
}

// An order can be cancelled whole once, and a document that is on its way counts as much as one that has arrived.
func TestWhatIsOnItsWayIsNotGivenASecondTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.sold("o", lines(tea, 5))
	w.written(draftOf("p1", stock.DocumentFulfil, "o", lines(tea, 2)))
	var quantity *QuantityError
	_, created, err := w.l.WriteDocument(ctx, draftOf("c1", stock.DocumentCancel, "o", lines(tea, 4)))
	if !errors.As(err, &quantity) || created || cmp.Diff([]OpenLine{{SKU: tea, Asked: 4, Open: 3}}, quantity.Lines) != "" {
		t.Errorf("4 of 3: %v", err)
	}
	if doc := w.written(draftOf("c1", stock.DocumentCancel, "o", nil)); cmp.Diff(lines(tea, 3), doc.Lines) != "" {
		t.Errorf("the rest: %+v", doc)
	}
	if _, _, err := w.l.WriteDocument(ctx, draftOf("c2", stock.DocumentCancel, "o", nil)); !errors.As(err, &quantity) || quantity.Lines[0].Open != 0 {
		t.Errorf("nothing is left: %v", err)
	}
	// What is shipped is not there to come back before the parcel has left.
	if _, _, err := w.l.WriteDocument(ctx, draftOf("r1", stock.DocumentReturn, "o", lines(tea, 1))); err == nil {
		t.Error("a return of what never left")
	}
}

func TestTwoCancellationsOfOneUnitAreOne(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.sold("o", lines(tea, 1))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var created, refused int
	for _, id := range []string{"a", "a", "b", "b", "c", "c"} {
		wg.Go(func() {
			_, made, err := w.l.WriteDocument(context.Background(), draftOf(id, stock.DocumentCancel, "o", lines(tea, 1)))
			mu.Lock()
			defer mu.Unlock()
			var quantity *QuantityError
			switch {
			case err == nil && made:
				created++
			case errors.As(err, &quantity):
				refused++
			case err != nil:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// The other call of the winning id is its repeat, and no refusal.
	if created != 1 || refused != 4 {
		t.Errorf("%d created, %d refused, want 1 and 4", created, refused)
	}
}

func TestDocumentsOfAnOrderSayHowItStands(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 2), 0)
	tea := w.sku(100)
	w.apply(w.entry(reserve("held", 1, lines(tea, 1)), reserve("gone", 1, lines(tea, 1)), reserve("late", 1, lines(tea, 1))))
	w.apply(w.entry(move(stock.Release, "gone", 1), move(stock.Expire, "late", 1)))
	w.sold("sold", lines(tea, 1))
	w.sold("undone", lines(tea, 1))
	w.carried(draftOf("c", stock.DocumentCancel, "undone", nil))
	for order, want := range map[string]stock.State{
		"held": stock.Held, "gone": stock.Released, "late": stock.Expired, "undone": stock.Cancelled,
	} {
		for _, kind := range []string{stock.DocumentFulfil, stock.DocumentCancel, stock.DocumentReturn} {
			_, _, err := w.l.WriteDocument(ctx, draftOf("d", kind, order, nil))
			var state *OrderStateError
			if !errors.As(err, &state) || state.Order.State != want || state.Order.Attempt != 1 || state.Kind != kind || state.Order.Receipt.Epoch == 0 {
				t.Errorf("%s of %s: %v", kind, order, err)
			}
		}
	}
	for name, order := range map[string]DocumentOrder{
		"nobody's": {ID: "none"}, "another shard": {ID: "sold", Shard: 1}, "another attempt": {ID: "sold", Attempt: 2},
	} {
		n := draftOf("d", stock.DocumentFulfil, "", nil)
		n.Order = order
		if _, _, err := w.l.WriteDocument(ctx, n); !errors.Is(err, ErrUnknownOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var quantity *QuantityError
	if _, _, err := w.l.WriteDocument(ctx, draftOf("d", stock.DocumentReturn, "sold", nil)); !errors.As(err, &quantity) {
		t.Errorf("a return of what is sold and not shipped: %v", err)
	}
	if n := count(t, w.l, `select count(*) from stock_document where id = 'd'`); n != 0 {
		t.Error("a refused document was written")
	}
}

func TestDocumentsOfOrdersAreRepeatedForEver(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.sold("o", lines(tea, 5))
	w.sold("other", lines(tea, 5))
	part, whole := draftOf("p", stock.DocumentFulfil, "o", lines(tea, 2)), draftOf("c", stock.DocumentCancel, "o", nil)
	part.Order.Attempt, part.Note = 1, "van 3"
	w.carried(part)
	w.carried(whole)
	for _, n := range []NewDocument{part, whole} {
		n.DeadlineMillis++
		doc, created, err := w.l.WriteDocument(ctx, n)
		if err != nil || created || doc.State != DocumentApplied {
			t.Errorf("the repeat of %s: %+v, %v, %v", n.ID, doc, created, err)
		}
	}
	scrapped := draftOf("r", stock.DocumentReturn, "o", lines(tea, 1))
	scrapped.Scrap = true
	w.carried(scrapped)
	for name, c := range map[string]struct {
		of    NewDocument
		spoil func(*NewDocument)
		field string
	}{
		"kind":         {part, func(n *NewDocument) { n.Kind = stock.DocumentCancel }, "kind"},
		"reason":       {part, func(n *NewDocument) { n.Reason = "x" }, "reason"},
		"note":         {part, func(n *NewDocument) { n.Note = "" }, "note"},
		"order":        {part, func(n *NewDocument) { n.Order.ID = "other" }, "order"},
		"shard":        {part, func(n *NewDocument) { n.Order.Shard = 1 }, "order.shard"},
		"attempt":      {part, func(n *NewDocument) { n.Order.Attempt = 2 }, "order.attempt"},
		"units":        {part, func(n *NewDocument) { n.Lines = lines(tea, 3) }, "lines"},
		"now whole":    {part, func(n *NewDocument) { n.Lines = nil }, "lines"},
		"no more":      {whole, func(n *NewDocument) { n.Lines = lines(tea, 3) }, "lines"},
		"not scrapped": {scrapped, func(n *NewDocument) { n.Scrap = false }, "scrap"},
		"more scrap":   {scrapped, func(n *NewDocument) { n.Lines = lines(tea, 2) }, "lines"},
	} {
		n := c.of
		c.spoil(&n)
		_, _, err := w.l.WriteDocument(ctx, n)
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadDocumentsOfOrdersNameTheirField(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.sold("o", lines(tea, 5))
	for field, spoil := range map[string]func(*NewDocument){
		"kind":          func(n *NewDocument) { n.Kind = "gift" },
		"order":         func(n *NewDocument) { n.Order.ID = "" },
		"order ":        func(n *NewDocument) { n.Kind = stock.DocumentReceive },
		"order.shard":   func(n *NewDocument) { n.Order.Shard = -1 },
		"order.attempt": func(n *NewDocument) { n.Order.Attempt = -1 },
		"scrap":         func(n *NewDocument) { n.Scrap = true },
		"as_of":         func(n *NewDocument) { n.AsOf.Millis = 5 },
		"lines":         func(n *NewDocument) { n.Lines = lines(tea, 0) },
		"lines ":        func(n *NewDocument) { n.Lines = lines(tea, -1) },
	} {
		n := draftOf("d", stock.DocumentFulfil, "o", lines(tea, 1))
		spoil(&n)
		_, _, err := w.l.WriteDocument(context.Background(), n)
		var bad *stock.FieldError
		if !errors.As(err, &bad) || bad.Field+" " != field+" " && bad.Field != field[:len(field)-1] {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestUnitsComeBackOfNoOrderAtAll(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.carried(NewDocument{ID: "r1", Kind: stock.DocumentReturn, Reason: "r", Lines: lines(tea, 2), DeadlineMillis: farAway})
	w.carried(NewDocument{ID: "r2", Kind: stock.DocumentReturn, Reason: "r", Lines: lines(tea, 3), Scrap: true, DeadlineMillis: farAway})
	w.same()
	if q := w.quantities(tea); q.Available != 12 {
		t.Errorf("%v, want 12 available", q)
	}
}
