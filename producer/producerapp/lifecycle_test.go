package producerapp

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func units(lines ...any) []api.Line {
	var out []api.Line
	for i := 0; i < len(lines); i += 2 {
		out = append(out, api.Line{SKU: lines[i].(string), Quantity: int64(lines[i+1].(int))})
	}
	return out
}

func results(lines ...any) []api.Result {
	var out []api.Result
	for _, l := range units(lines...) {
		out = append(out, api.Result(l))
	}
	return out
}

// bought makes o1 an order of 4 tea and 2 jam that is confirmed.
func bought(s *shop) {
	s.Helper()
	ctx := s.Context()
	must[api.Document](s)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 10}))
	must[api.Document](s)(s.Create(ctx, "jam", api.OpeningRequest{Opening: 10}))
	r := &api.ReserveRequest{OrderID: "o1", Buyer: "u1", TTL: 60, Lines: units("tea", 4, "jam", 2)}
	must[api.Reservation](s)(s.Reserve(ctx, r))
	must[api.Reservation](s)(s.Confirm(ctx, "o1", api.AttemptRequest{}))
}

func TestAHoldIsChangedInBothStores(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	for _, sku := range []string{"tea", "jam", "ham"} {
		must[api.Document](t)(s.Create(ctx, sku, api.OpeningRequest{Opening: 10}))
	}
	r := &api.ReserveRequest{OrderID: "o1", TTL: 60, Policy: "partial", Lines: units("tea", 12, "jam", 2)}
	held := must[api.Reservation](t)(s.Reserve(ctx, r))
	if diff := cmp.Diff([]api.OrderLine{{SKU: "tea", Asked: 12, Quantity: 10}, {SKU: "jam", Asked: 2, Quantity: 2}}, held.Lines); diff != "" {
		t.Error(diff)
	}
	for _, replayed := range []bool{false, true} {
		a := must[api.Reservation](t)(s.Replace(ctx, "o1", api.ReplaceRequest{Lines: units("ham", 3, "tea", 10), Ack: api.Persisted}))
		if diff := cmp.Diff([]api.OrderLine{{SKU: "tea", Asked: 12, Quantity: 10}, {SKU: "jam", Asked: 2}, {SKU: "ham", Quantity: 3}}, a.Lines); diff != "" || a.Replayed != replayed || !a.IsPersisted() {
			t.Error(diff, a)
		}
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for _, replayed := range []bool{false, true} {
		a := must[api.Reservation](t)(s.Extend(ctx, "o1", api.ExtendRequest{Until: until.Format(time.RFC3339), Ack: api.Persisted}))
		if a.ExpiresAt != until.Format("2006-01-02T15:04:05.000Z") || a.Replayed != replayed || !a.IsPersisted() {
			t.Errorf("%+v", a)
		}
	}
	if p := problemOf(t, second(s.Extend(ctx, "o1", api.ExtendRequest{Until: until.Add(24 * time.Hour).Format(time.RFC3339)}))); p.Code != api.CodeBounds {
		t.Errorf("%+v", p)
	}
	for _, replayed := range []bool{false, true} {
		a := must[api.Reservation](t)(s.Release(ctx, "o1", api.AttemptRequest{Lines: results("ham", 1, "jam", 0)}))
		if a.State != "held" || a.Lines[2].Quantity != 1 || a.Replayed != replayed {
			t.Errorf("%+v", a)
		}
	}
	if p := problemOf(t, second(s.Release(ctx, "o1", api.AttemptRequest{Lines: results("ham", 2)}))); p.Code != api.CodeConflict {
		t.Errorf("%+v", p)
	}
	if again := must[api.Reservation](t)(s.Reserve(ctx, r)); !again.Replayed {
		t.Errorf("%+v", again)
	}
	for _, replayed := range []bool{false, true} {
		a := must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{Lines: results("tea", 5)}))
		if a.State != "confirmed" || a.Replayed != replayed || !a.IsPersisted() || a.Lines[0].Quantity != 5 {
			t.Errorf("%+v", a)
		}
	}
	if p := problemOf(t, second(s.Confirm(ctx, "o1", api.AttemptRequest{Lines: results("tea", 4)}))); p.Code != api.CodeConflict {
		t.Errorf("%+v", p)
	}
	if q := s.quantities("tea"); q != (api.Quantities{Available: 5, Committed: 5, OnHand: 10}) {
		t.Errorf("tea %+v", q)
	}
	if q := s.quantities("ham"); q.Available != 10 {
		t.Errorf("ham %+v", q)
	}
}

func second[V any](_ V, err error) error { return err }

func TestAnOrderIsShippedCancelledAndBroughtBack(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	bought(s)
	for _, replayed := range []bool{false, true} {
		d := must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1", Lines: units("tea", 3)}))
		if d.State != "applied" || d.Level != api.Persisted || d.Quantity != 3 || d.Replayed != replayed || d.Attempt != 1 {
			t.Errorf("%+v", d)
		}
		d = must[api.Document](t)(s.Cancel(ctx, "o1", &api.AmendRequest{DocumentID: "d2"}))
		if diff := cmp.Diff(units("tea", 1, "jam", 2), d.Lines); diff != "" || d.State != "applied" || d.Replayed != replayed {
			t.Errorf("%s %+v", diff, d)
		}
		d = must[api.Document](t)(s.Return(ctx, "o1", &api.ReturnRequest{DocumentID: "d3", Lines: units("tea", 1), Scrap: true}))
		if diff := cmp.Diff(units("tea", 1), d.Lines); diff != "" || !d.Scrap || d.State != "applied" || d.Replayed != replayed {
			t.Errorf("%s %+v", diff, d)
		}
		d = must[api.Document](t)(s.Return(ctx, "o1", &api.ReturnRequest{DocumentID: "d4"}))
		if diff := cmp.Diff(units("tea", 2), d.Lines); diff != "" || d.State != "applied" {
			t.Errorf("%s %+v", diff, d)
		}
	}
	if p := problemOf(t, second(s.Return(ctx, "o1", &api.ReturnRequest{DocumentID: "d5"}))); p.Code != api.CodeInsufficient {
		t.Errorf("%+v", p)
	}
	if p := problemOf(t, second(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d6"}))); p.Code != api.CodeConfirmed || p.Order == nil || p.Order.State != "fulfilled" || p.Order.Lines[0].Asked != 4 {
		t.Errorf("%+v", p)
	}
	o := must[api.Order](t)(s.Order(ctx, "o1", ""))
	want := []api.OrderLine{{SKU: "tea", Asked: 4, Fulfilled: 3}, {SKU: "jam", Asked: 2}}
	for store, r := range map[string]*api.Record{"Redis": o.Matches[0].Redis, "Postgres": o.Matches[0].Ledger} {
		if diff := cmp.Diff(want, r.Lines); diff != "" || r.State != "fulfilled" {
			t.Errorf("%s: %s %+v", store, diff, r)
		}
	}
	if q := s.quantities("tea"); q != (api.Quantities{Available: 9, OnHand: 9}) {
		t.Errorf("tea %+v", q)
	}
}

func TestADocumentWaitsForTheConsumer(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 10}))
	s.consumer.rest(true)
	must[api.Reservation](t)(s.Reserve(ctx, &api.ReserveRequest{OrderID: "o1", Sale: true, Ack: api.Memory, Lines: units("tea", 4)}))
	once := *s.Client
	once.Tries = 1
	if p := problemOf(t, second(once.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1"}))); p.Code != api.CodeClosed || p.Reason != "behind" {
		t.Errorf("%+v", p)
	}
	var beside sync.WaitGroup
	beside.Go(func() { s.consumer.rest(false) })
	defer beside.Wait()
	if d := must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1"})); d.State != "applied" || d.Quantity != 4 {
		t.Errorf("%+v", d)
	}
}

func TestALateConfirmOfAPartOfADroppedOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 10}))
	must[api.Document](t)(s.Create(ctx, "jam", api.OpeningRequest{Opening: 10}))
	must[api.Reservation](t)(s.Reserve(ctx, &api.ReserveRequest{OrderID: "o1", TTL: 1, Ack: api.Persisted, Lines: units("tea", 4, "jam", 2)}))
	expire(s, "o1")
	check(t, s.rdb.HDel(ctx, s.shard(0).Keys().Orders, "o1").Err())
	for _, replayed := range []bool{false, true} {
		a := must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{Lines: results("tea", 3)}))
		if a.Attempt != 2 || a.State != "confirmed" || a.Replayed != replayed || !a.IsPersisted() {
			t.Errorf("%+v", a)
		}
	}
	if d := must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1"})); d.Attempt != 2 || d.Quantity != 3 {
		t.Errorf("%+v", d)
	}
	if q := s.quantities("tea"); q != (api.Quantities{Available: 7, OnHand: 7}) {
		t.Errorf("tea %+v", q)
	}
}

// expire ends a hold that is due, as the reconciler does, and waits until Postgres has it.
func expire(s *shop, id string) {
	s.Helper()
	desk := s.desk()
	sandboxtest.Eventually(s, 5*time.Second, func() error {
		out, err := desk.Do(s.Context(), 0, stock.Operation{Kind: stock.Expire, ID: id, Attempt: 1})
		if err == nil && out.Code != stock.Accepted && out.Reservation.State != stock.Expired {
			err = fmt.Errorf("expire is answered %s", out.Code)
		}
		if err != nil {
			return err
		}
		found, err := s.ledger.Lookup(s.Context(), id)
		if err == nil && (len(found) == 0 || found[0].Reservation.State != stock.Expired) {
			err = fmt.Errorf("Postgres has %+v", found)
		}
		return err
	})
}

func TestACountIsRebasedOnWhatMovedSince(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 100}))
	must[api.Reservation](t)(s.Reserve(ctx, &api.ReserveRequest{OrderID: "held", TTL: 60, Ack: api.Persisted, Lines: units("tea", 5)}))
	s.quantities("tea")
	at := must[api.Stock](t)(s.Stock(ctx, "tea")).Ledger.Position
	must[api.Reservation](t)(s.Reserve(ctx, &api.ReserveRequest{OrderID: "o1", Sale: true, Lines: units("tea", 30)}))
	must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1"}))
	n := &api.CountRequest{DocumentID: "n1", Counted: 120, Position: at}
	for _, replayed := range []bool{false, true} {
		d := must[api.Document](t)(s.Count(ctx, "tea", n))
		if d.Quantity != 20 || *d.Counted != 120 || d.State != "applied" || d.Replayed != replayed {
			t.Errorf("%+v", d)
		}
	}
	n.DocumentID = "n2"
	if d := must[api.Document](t)(s.Count(ctx, "tea", n)); d.Quantity != 0 {
		t.Errorf("the same count under another id: %+v", d)
	}
	if q := s.quantities("tea"); q != (api.Quantities{Available: 85, Held: 5, OnHand: 90}) {
		t.Errorf("tea %+v", q)
	}
	p := problemOf(t, second(s.Count(ctx, "tea", &api.CountRequest{DocumentID: "n3", Counted: 4})))
	if diff := cmp.Diff([]api.Hold{{OrderID: "held", Attempt: 1, State: "held", SKU: "tea", Quantity: 5}}, p.Holds); diff != "" || p.Code != api.CodeInsufficient {
		t.Errorf("%s%+v", diff, p)
	}
	must[api.Document](t)(s.Count(ctx, "tea", &api.CountRequest{DocumentID: "n4", Counted: 90}))
	if p := problemOf(t, second(s.Count(ctx, "tea", &api.CountRequest{DocumentID: "n5", Counted: 90, Position: at}))); p.Code != api.CodeCountOld {
		t.Errorf("%+v", p)
	}
	p = problemOf(t, second(s.Adjust(ctx, "tea", &api.AdjustRequest{DocumentID: "a1", Quantity: -86, Reason: "lost"})))
	if p.Code != api.CodeRefused || len(p.Holds) != 1 {
		t.Errorf("%+v", p)
	}
	must[api.Document](t)(s.TakeBack(ctx, "tea", &api.StockReturnRequest{DocumentID: "t1", Quantity: 1}))
	must[api.Document](t)(s.TakeBack(ctx, "tea", &api.StockReturnRequest{DocumentID: "t2", Quantity: 1, Scrap: true}))
	if q := s.quantities("tea"); q.OnHand != 91 {
		t.Errorf("tea %+v", q)
	}
}

func TestALimitHoldsForAllOrdersOfABuyer(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 300}))
	two := int64(2)
	set := must[api.SettingsAnswer](t)(s.Configure(ctx, "tea", api.SettingsRequest{BuyerLimit: &two}))
	if set.Hint == "" || set.Settings.BuyerLimit != 2 || set.Level != api.Persisted {
		t.Errorf("%+v", set)
	}
	once := *s.Client
	once.Tries = 1
	ask := func(id string) error {
		return second(once.Reserve(ctx, &api.ReserveRequest{OrderID: id, Buyer: "u1", TTL: 600, Ack: api.Persisted, Lines: units("tea", 1)}))
	}
	if p := problemOf(t, ask("early")); p.Code != api.CodeUncounted {
		t.Errorf("%+v", p)
	}
	s.takeover()
	s.ready(true)
	sandboxtest.Eventually(t, 5*time.Second, func() error {
		set, err := s.Configure(ctx, "tea", api.SettingsRequest{BuyerLimit: &two})
		if err == nil && set.Hint != "" {
			err = fmt.Errorf("%+v", set)
		}
		return err
	})
	for round := range 2 {
		var mu sync.Mutex
		var taken []string
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				id := fmt.Sprintf("r%d-%d", round, i)
				err := ask(id)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					taken = append(taken, id)
				} else if p := problemOf(t, err); p.Code != api.CodeLimit || *p.Have != 2 {
					t.Errorf("%+v", p)
				}
			})
		}
		callers.Wait()
		if len(taken) != 2 {
			t.Fatalf("round %d: %v", round, taken)
		}
		s.takeover()
		s.ready(true)
		if p := problemOf(t, ask("more")); p.Code != api.CodeLimit {
			t.Errorf("after a takeover %+v", p)
		}
		for _, id := range taken {
			must[api.Reservation](t)(s.Release(ctx, id, api.AttemptRequest{}))
		}
	}
}

func TestASKUIsDeletedAndCreatedAgain(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	bought(s)
	must[api.Reservation](t)(s.Reserve(ctx, hold("o2", "tea", 1)))
	s.quantities("tea")
	if p := problemOf(t, second(s.Delete(ctx, "tea"))); p.Code != api.CodeHeld || len(p.Holds) != 2 {
		t.Errorf("%+v", p)
	}
	must[api.Reservation](t)(s.Release(ctx, "o2", api.AttemptRequest{Ack: api.Persisted}))
	for _, replayed := range []bool{false, true} {
		if d := must[api.DeleteAnswer](t)(s.Delete(ctx, "tea")); d.State != "deleted" || d.Replayed != replayed {
			t.Errorf("%+v", d)
		}
	}
	if p := problemOf(t, second(s.Reserve(ctx, hold("o3", "tea", 1)))); p.Code != api.CodeUnknownSKU {
		t.Errorf("%+v", p)
	}
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 3}))
	must[api.Reservation](t)(s.Reserve(ctx, hold("o3", "tea", 3)))
	must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d1", Lines: units("tea", 4, "jam", 2)}))
	if q := s.quantities("tea"); q != (api.Quantities{Held: 3, OnHand: 3}) {
		t.Errorf("tea %+v", q)
	}
}

func TestAnOrderOf1500LinesGoesThroughBothStores(t *testing.T) {
	t.Parallel()
	s := openShopWith(t, 1, "--max-lines", "1500")
	ctx := t.Context()
	const n = stock.MaxOrderLines
	var lines []api.Line
	var callers sync.WaitGroup
	bound := make(chan struct{}, 32)
	for i := range n {
		sku := fmt.Sprintf("sku-%d", i)
		lines = append(lines, api.Line{SKU: sku, Quantity: 2})
		callers.Go(func() {
			bound <- struct{}{}
			defer func() { <-bound }()
			if _, err := s.Create(ctx, sku, api.OpeningRequest{Opening: 2, Ack: api.Memory}); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	r := must[api.Reservation](t)(s.Reserve(ctx, &api.ReserveRequest{OrderID: "o1", TTL: 600, Ack: api.Persisted, Lines: lines}))
	if len(r.Lines) != n || !r.IsPersisted() {
		t.Errorf("%d lines at level %s", len(r.Lines), r.Level)
	}
	var named []api.Result
	for i := range lines {
		lines[i].Quantity = 1
		named = append(named, api.Result(lines[i]))
	}
	must[api.Reservation](t)(s.Replace(ctx, "o1", api.ReplaceRequest{Lines: lines, Ack: api.Persisted}))
	named[n-1].Quantity = 0
	r = must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{Lines: named}))
	if !r.IsPersisted() || r.State != "confirmed" {
		t.Errorf("%s at level %s", r.State, r.Level)
	}
	for i := 0; i < n-1; i += stock.MaxCallLines {
		must[api.Document](t)(s.Fulfil(ctx, "o1", &api.AmendRequest{Lines: lines[i:min(i+stock.MaxCallLines, n-1)]}))
	}
	o := must[api.Order](t)(s.Order(ctx, "o1", ""))
	if m := o.Matches[0]; m.Redis.State != "fulfilled" || m.Ledger.State != "fulfilled" || len(m.Ledger.Lines) != n {
		t.Errorf("Redis has %s, Postgres %s", m.Redis.State, m.Ledger.State)
	}
}
