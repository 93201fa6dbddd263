package order_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// limit changes nothing but the limit per buyer.
func limit(units int64) stock.Change {
	change := stock.Kept
	change.Limit = units
	return change
}

func ofBuyer(id, buyer string, quantity int64) *order.Request {
	r := tea(id, quantity)
	r.Buyer = buyer
	return r
}

// limited is a world with a limit of 2 tea, counted by a takeover.
func limited(t *testing.T) (*ordertest.World, *order.Clerk) {
	t.Helper()
	w, c := open(t, 1)
	must[order.Settings](t)(c.Configure(context.Background(), "tea", limit(2), order.Persisted))
	w.Lose()
	return w, c
}

func TestALimitIsRefusedUntilATakeoverHasCounted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	must[order.Answer](t)(c.Reserve(ctx, ofBuyer("before", "u1", 1)))
	set := must[order.Settings](t)(c.Configure(ctx, "tea", limit(2), order.Persisted))
	if !set.Uncounted || set.Limit != 2 || set.Level != order.Persisted || !cmp.Equal(w.Doubts, []string{order.Uncounted}) {
		t.Errorf("%+v, doubted %v", set, w.Doubts)
	}
	var uncounted *order.UncountedError
	if _, err := c.Reserve(ctx, ofBuyer("o1", "u1", 1)); !errors.As(err, &uncounted) || uncounted.SKU != "tea" || len(w.Doubts) != 2 {
		t.Errorf("%v, doubted %v", err, w.Doubts)
	}
	var buyer *order.BuyerRequiredError
	if _, err := c.Reserve(ctx, tea("o1", 1)); !errors.As(err, &buyer) {
		t.Errorf("%v", err)
	}
	w.Lose()
	must[order.Answer](t)(c.Reserve(ctx, ofBuyer("o1", "u1", 1)))
	var reached *order.LimitError
	if _, err := c.Reserve(ctx, ofBuyer("o2", "u1", 1)); !errors.As(err, &reached) || reached.Have != 2 || reached.Limit != 2 || reached.SKU != "tea" {
		t.Errorf("%v", err)
	}
	if set := must[order.Settings](t)(c.Configure(ctx, "tea", limit(3), order.Persisted)); set.Uncounted {
		t.Error("a limit that changes is counted already")
	}
	must[order.Answer](t)(c.Reserve(ctx, ofBuyer("o2", "u1", 1)))
	must[order.Settings](t)(c.Configure(ctx, "tea", limit(0), order.Persisted))
	must[order.Answer](t)(c.Reserve(ctx, tea("o3", 5)))
	if set := must[order.Settings](t)(c.Configure(ctx, "tea", limit(3), order.Persisted)); !set.Uncounted {
		t.Error("switched off and on, it was not counted in between")
	}
}

func TestTwoHundredCallsOfABuyerGetTheLimitAndNoMore(t *testing.T) {
	t.Parallel()
	w, c := limited(t)
	ctx := context.Background()
	round := func(prefix string) (taken []string) {
		var mu sync.Mutex
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				id := prefix + string(rune('a'+i%26)) + string(rune('a'+i/26))
				if _, err := c.Reserve(ctx, ofBuyer(id, "u1", 1)); err == nil {
					mu.Lock()
					defer mu.Unlock()
					taken = append(taken, id)
				} else if !errors.As(err, new(*order.LimitError)) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		return taken
	}
	for _, prefix := range []string{"x", "y"} {
		taken := round(prefix)
		if len(taken) != 2 || w.Bought("tea", "u1") != 2 {
			t.Fatalf("%v taken, %d counted", taken, w.Bought("tea", "u1"))
		}
		w.Lose()
		if got := round(prefix + "again"); len(got) != 0 || w.Bought("tea", "u1") != 2 {
			t.Fatalf("after a takeover %v taken, %d counted", got, w.Bought("tea", "u1"))
		}
		for _, id := range taken {
			must[order.Answer](t)(c.Release(ctx, on(id, 1, order.Memory)))
		}
	}
}

func TestWhatGivesALimitBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	amend := func(c *order.Clerk, kind string) {
		d, err := c.Amend(ctx, order.Amendment{DocumentID: kind, Kind: kind, OrderID: "o1", Reason: "table", Ack: order.Persisted})
		if err != nil || d.State != order.Applied {
			t.Errorf("%s: %+v, %v", kind, d, err)
		}
	}
	for name, row := range map[string]struct {
		end  func(*ordertest.World, *order.Clerk)
		left int64
	}{
		"release": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Release(ctx, on("o1", 1, order.Memory)))
		}, 0},
		"release of a part": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Release(ctx, part(1, order.Line{SKU: "tea", Quantity: 1})))
		}, 1},
		"expiry": {func(w *ordertest.World, _ *order.Clerk) { w.Tick(time.Hour) }, 0},
		"confirm of a part": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Confirm(ctx, part(1, order.Line{SKU: "tea", Quantity: 1})))
		}, 1},
		"confirm": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Memory)))
		}, 2},
		"cancel": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Memory)))
			amend(c, stock.DocumentCancel)
		}, 0},
		"cancel of a dropped record": {func(w *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Memory)))
			w.Drop("o1")
			amend(c, stock.DocumentCancel)
		}, 0},
		"fulfil and return": {func(_ *ordertest.World, c *order.Clerk) {
			must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Memory)))
			amend(c, stock.DocumentFulfil)
			amend(c, stock.DocumentReturn)
		}, 2},
	} {
		w, c := limited(t)
		must[order.Answer](t)(c.Reserve(ctx, ofBuyer("o1", "u1", 2)))
		row.end(w, c)
		if got := w.Bought("tea", "u1"); got != row.left {
			t.Errorf("%s leaves %d, want %d", name, got, row.left)
		}
		w.Lose()
		if got := w.Bought("tea", "u1"); got != row.left {
			t.Errorf("%s leaves %d after a takeover, want %d", name, got, row.left)
		}
	}
}

func TestSettingsChangeWhatTheyNameAndNoMore(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	opens := stock.Kept
	opens.Opens = ordertest.Now + 60_000
	frozen, closed := stock.Kept, stock.Kept
	frozen.Frozen, closed.Closed = stock.On, stock.On
	for _, step := range []struct {
		change stock.Change
		code   stock.Code
	}{{opens, stock.UnopenedSKU}, {closed, stock.ClosedSKU}, {frozen, stock.FrozenSKU}} {
		for range 2 { // a repeat is no harm
			must[order.Settings](t)(c.Configure(ctx, "tea", step.change, order.Persisted))
		}
		var sku *order.SKUError
		if _, err := c.Reserve(ctx, tea("o1", 1)); !errors.As(err, &sku) || sku.Code != step.code {
			t.Errorf("%v, want %s", err, step.code)
		}
	}
	want := stock.Settings{OpensMillis: ordertest.Now + 60_000, Frozen: true, Closed: true}
	shelf := must[order.Shelf](t)(c.Stock(ctx, "tea"))
	if shelf.Redis.Settings != want || shelf.Ledger.Settings != want {
		t.Errorf("%+v", shelf)
	}
	lift := stock.Change{Opens: ordertest.Now, Frozen: stock.Off, Closed: stock.Off, Limit: stock.Keep}
	must[order.Settings](t)(c.Configure(ctx, "tea", lift, order.Persisted))
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 1)))

	for _, bad := range []stock.Change{stock.Kept, {Opens: -2, Limit: stock.Keep}, limit(-2), limit(stock.MaxMovementQuantity + 1)} {
		if _, err := c.Configure(ctx, "tea", bad, order.Memory); !errors.As(err, new(*stock.FieldError)) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	w.Flush("tea")
	var sku *order.SKUError
	if _, err := c.Configure(ctx, "tea", lift, order.Memory); !errors.As(err, &sku) || sku.Code != stock.MissingSKU {
		t.Errorf("%v", err)
	}
}

func TestASettingThatATakeoverLosesIsSentAgain(t *testing.T) {
	t.Parallel()
	w, _ := open(t, 1)
	c := patient(t, w)
	w.Stopped = true
	onceMoved(t, w, 1, func() {
		w.Lose()
		w.Locked(func() { w.Stopped = false })
	})
	closed := stock.Kept
	closed.Closed = stock.On
	set := must[order.Settings](t)(c.Configure(context.Background(), "tea", closed, order.Persisted))
	if set.Level != order.Persisted || !w.FieldOf("tea").Closed || kinds(w) != "TT" {
		t.Errorf("%+v after %s", set, kinds(w))
	}
}

func TestASKUIsDeletedOnceAndCreatedAgainUnderAnotherNumber(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	var held *order.HeldError
	if _, err := c.Delete(ctx, "tea"); !errors.As(err, &held) || held.Held != 4 || held.Closed || len(held.Holds) != 1 || held.Holds[0].Order != "o1" {
		t.Errorf("%v", err)
	}
	if w.FieldOf("tea").Closed {
		t.Error("what is refused at the first look changes nothing")
	}
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Persisted)))
	w.Stopped = true
	if d := must[order.Deletion](t)(c.Delete(ctx, "tea")); d.Deleted || d.Receipt.Seq == 0 {
		t.Errorf("before it is persisted: %+v", d)
	}
	w.Apply()
	w.Stopped = false
	if d := must[order.Deletion](t)(c.Delete(ctx, "tea")); !d.Deleted || d.Replayed {
		t.Errorf("%+v", d)
	}
	if d := must[order.Deletion](t)(c.Delete(ctx, "tea")); !d.Deleted || !d.Replayed {
		t.Errorf("again: %+v", d)
	}
	if _, err := c.Delete(ctx, "none"); !errors.As(err, new(*order.UnknownSKUError)) {
		t.Errorf("%v", err)
	}
	if _, err := c.Reserve(ctx, tea("o2", 1)); !errors.As(err, new(*order.UnknownSKUError)) {
		t.Errorf("%v", err)
	}
	must[order.Document](t)(c.Create(ctx, "tea", 7, order.Persisted))
	if s, err := w.SKU(ctx, "tea"); err != nil || s.Number != 2 {
		t.Errorf("%+v %v", s, err)
	}
	// The old order is shipped as what it was, not as what is called so now.
	d := must[order.Document](t)(c.Amend(ctx, order.Amendment{
		DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Lines: []order.Line{{SKU: "tea", Quantity: 4}}, Reason: "shipped", Ack: order.Persisted,
	}))
	if d.State != order.Applied || w.FieldOf("tea").OnHand() != 7 {
		t.Errorf("%+v, tea %v", d, w.FieldOf("tea"))
	}
}

// Who looked first saw nothing held; who held meanwhile keeps the SKU, which is closed by then.
func TestAHoldThatCameBeforeTheClosingKeepsTheSKU(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	var once sync.Once
	w.Before = func(op stock.Operation) error {
		if op.Kind == stock.Configure {
			once.Do(func() { must[order.Answer](t)(w.Clerk().Reserve(ctx, tea("o1", 1))) })
		}
		return nil
	}
	var held *order.HeldError
	if _, err := c.Delete(ctx, "tea"); !errors.As(err, &held) || held.Held != 1 || !held.Closed {
		t.Errorf("%v", err)
	}
}

func TestACountCorrectsWhatTheBooksHadThen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := ordertest.New(1)
	w.Stock("tea", 100, 0)
	c := w.Clerk()
	must[order.Answer](t)(c.Reserve(ctx, tea("o0", 1)))
	at := must[order.Shelf](t)(c.Stock(ctx, "tea")).Redis.Position
	// 30 are sold and shipped after the count of 120.
	r := tea("o1", 30)
	r.Sale = true
	must[order.Answer](t)(c.Reserve(ctx, r))
	must[order.Document](t)(c.Amend(ctx, order.Amendment{DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Reason: "shipped", Ack: order.Persisted}))
	n := order.Count{DocumentID: "n1", SKU: "tea", Counted: 120, At: at, Reason: "counted", Ack: order.Persisted}
	d := must[order.Document](t)(c.Count(ctx, n))
	if d.Units != 20 || d.Counted != 120 || d.State != order.Applied || w.FieldOf("tea").OnHand() != 90 {
		t.Errorf("%+v, tea %v", d, w.FieldOf("tea"))
	}
	again := must[order.Document](t)(c.Count(ctx, n))
	d.Replayed = true
	if diff := cmp.Diff(d, again); diff != "" || w.FieldOf("tea").OnHand() != 90 {
		t.Error(diff)
	}
	n.DocumentID, n.At, n.Counted = "n2", stock.Position{}, 0
	var lacks *order.InsufficientError
	want := []order.Hold{{Order: "o0", Attempt: 1, State: stock.Held, SKU: "tea", Quantity: 1}}
	if _, err := c.Count(ctx, n); !errors.As(err, &lacks) || !cmp.Equal(want, lacks.Holds) || !cmp.Equal(lacks.Lines, []order.ShortLine{{SKU: "tea", Available: 1}}) {
		t.Errorf("%v %+v", err, lacks)
	}
	n.Counted = 50
	w.Before = func(stock.Operation) error { return &stock.ClosedError{Reason: "fenced"} }
	if d := must[order.Document](t)(c.Count(ctx, n)); d.State != order.Written {
		t.Errorf("%+v", d)
	}
	w.Before = nil
	n.DocumentID = "n3"
	var count *order.CountError
	if _, err := c.Count(ctx, n); !errors.As(err, &count) || !count.InFlight {
		t.Errorf("%v", err)
	}
	for _, bad := range []order.Count{
		{Counted: -1}, {Counted: stock.MaxMovementQuantity + 1}, {At: at, AtMillis: 1}, {AtMillis: -1}, {DocumentID: "~x"}, {Reason: "two words"}, {Ack: "disk"},
	} {
		bad.SKU = "tea"
		if _, err := c.Count(ctx, bad); !errors.As(err, new(*stock.FieldError)) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestUnitsOfNoKnownOrderComeBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	m := order.Movement{DocumentID: "d1", Kind: stock.DocumentReturn, SKU: "tea", Units: 3, Reason: "found", Ack: order.Persisted}
	must[order.Document](t)(c.Move(ctx, m))
	m.DocumentID, m.Scrap = "d2", true
	if d := must[order.Document](t)(c.Move(ctx, m)); d.Units != 3 || !d.Scrap || w.FieldOf("tea").Available != 13 {
		t.Errorf("%+v, tea %v", d, w.FieldOf("tea"))
	}
	m.Units = -1
	if _, err := c.Move(ctx, m); !errors.As(err, new(*stock.FieldError)) {
		t.Errorf("%v", err)
	}
}

func TestAWithdrawalOfWhatIsPromisedNamesTheHolds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, c := open(t, 1)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	must[order.Answer](t)(c.Reserve(ctx, tea("o2", 1)))
	m := order.Movement{DocumentID: "d1", Kind: stock.DocumentAdjust, SKU: "tea", Units: -6, Reason: "broken", Ack: order.Persisted}
	var refused *order.RefusedError
	if _, err := c.Move(ctx, m); !errors.As(err, &refused) {
		t.Fatal(err)
	}
	ids := make([]string, len(refused.Holds))
	for i, h := range refused.Holds {
		ids[i] = h.Order
	}
	slices.Sort(ids)
	if diff := cmp.Diff([]string{"o1", "o2"}, ids); diff != "" {
		t.Error(diff)
	}
}

// rusty is a catalog that remembers a SKU until it is told to forget it.
type rusty struct {
	order.Catalog
	known map[string]order.SKU
}

func (r *rusty) SKU(ctx context.Context, text string) (order.SKU, error) {
	if s, ok := r.known[text]; ok {
		return s, nil
	}
	return r.Catalog.SKU(ctx, text)
}

func (r *rusty) Forget(text string) { delete(r.known, text) }

// Another producer deleted the SKU and created it again: what is remembered of it here must not be deleted in its place.
func TestADeletionMeansTheSKUThatLivesNow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, other := open(t, 1)
	old, err := w.SKU(ctx, "tea")
	if err != nil {
		t.Fatal(err)
	}
	must[order.Deletion](t)(other.Delete(ctx, "tea"))
	must[order.Document](t)(other.Create(ctx, "tea", 5, order.Persisted))
	p := w.Parts()
	p.Catalog = &rusty{p.Catalog, map[string]order.SKU{"tea": old}}
	c := must[*order.Clerk](t)(order.NewClerk(p))
	if d := must[order.Deletion](t)(c.Delete(ctx, "tea")); d.Replayed {
		t.Errorf("%+v", d)
	}
	if _, err := w.SKU(ctx, "tea"); !errors.Is(err, order.ErrUnknownSKU) {
		t.Errorf("it lives on: %v", err)
	}
}
