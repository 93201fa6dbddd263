package takeover_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// bought reserves for a buyer.
func (s *shop) bought(id, buyer string, units int64) stock.Outcome {
	s.t.Helper()
	op := s.order(id, units)
	op.Buyer = buyer
	out, err := s.desk.Do(ctx, 0, op)
	s.must(err)
	return out
}

func (s *shop) limit(units int64) {
	s.t.Helper()
	s.accept(stock.Operation{Kind: stock.Configure, ID: "~~limit", Lines: stock.Lines{{SKU: s.sku}}, Change: stock.Change{Opens: stock.Keep, Limit: units}})
}

// buyers is the hash without its sentinel.
func (s *shop) buyers() map[string]string {
	s.t.Helper()
	fields, err := s.rdb.HGetAll(ctx, s.shard.Keys().Buyers).Result()
	s.must(err)
	delete(fields, "~")
	return fields
}

// ofOrder writes a document of an order, and moves it.
func (s *shop) ofOrder(kind, id, order string, units int64) {
	s.t.Helper()
	n := ledger.NewDocument{ID: id, Kind: kind, Reason: "test", Order: ledger.DocumentOrder{ID: order}, DeadlineMillis: s.ledger.Deadline(s.now())}
	if units > 0 {
		n.Lines = []stock.Line{{SKU: s.sku, Asked: units}}
	}
	doc, _, err := s.ledger.WriteDocument(ctx, n)
	s.must(err)
	s.accept(doc.Operation())
	s.consume()
}

// traded has orders of two buyers in every state, taken before their SKU had a limit: u has 2 held, 3 confirmed of which
// 1 was cancelled and 1 shipped, and 2 shipped in full; v gave all back. Nobody named counts for nobody.
func traded(t testing.TB) *shop {
	t.Helper()
	s := newShop(t).stocked()
	for _, o := range []struct {
		id, buyer string
		units     int64
		kind      stock.Kind
	}{
		{"held", "u", 2, 0}, {"paid", "u", 3, stock.Confirm}, {"shipped", "u", 2, stock.Confirm}, {"nobody", "", 5, stock.Confirm},
		{"released", "v", 4, stock.Release}, {"cancelled", "v", 6, stock.Confirm},
	} {
		if out := s.bought(o.id, o.buyer, o.units); out.Code != stock.Accepted {
			t.Fatalf("%s: %+v", o.id, out)
		}
		if o.kind != 0 {
			s.accept(stock.Operation{Kind: o.kind, ID: o.id, Attempt: 1})
		}
	}
	s.consume()
	s.ofOrder(stock.DocumentCancel, "c1", "paid", 1)
	s.ofOrder(stock.DocumentFulfil, "f1", "paid", 1)
	s.ofOrder(stock.DocumentFulfil, "f2", "shipped", 0)
	s.ofOrder(stock.DocumentCancel, "c2", "cancelled", 0)
	return s
}

func (s *shop) mark() string { return takeover.MarkField(s.sku) }

func TestALimitIsCountedByTheTakeoverAfterItWasSwitchedOn(t *testing.T) {
	t.Parallel()
	s := traded(t)
	s.limit(8)
	if out := s.bought("early", "u", 1); out.Code != stock.Uncounted || out.SKU != s.sku {
		t.Fatalf("%+v", out)
	}
	// What buyers took meanwhile is not in the log of the ledger yet: the drain brings it.
	s.takeover(takeover.Options{})
	if diff := cmp.Diff(map[string]string{s.mark(): "1", s.mark() + ":u": "6"}, s.buyers()); diff != "" {
		t.Fatal(diff)
	}
	if out := s.bought("more", "u", 3); out.Code != stock.LimitReached || out.Bought != 6 || out.Limit != 8 {
		t.Errorf("%+v", out)
	}
	if out := s.bought("last", "u", 2); out.Code != stock.Accepted {
		t.Errorf("%+v", out)
	}
	s.agrees()
	s.accept(stock.Operation{Kind: stock.Release, ID: "held", Attempt: 1})
	s.agrees()
	// After another takeover it is as it was: 6 are left, and 2 more may be had.
	s.takeover(takeover.Options{})
	if out := s.bought("again", "u", 3); out.Code != stock.LimitReached || out.Bought != 6 {
		t.Errorf("%+v", out)
	}
	if out := s.bought("again", "u", 2); out.Code != stock.Accepted {
		t.Errorf("%+v", out)
	}
	s.agrees()
	s.consume()
	s.agrees()
	if f := s.probe(); f.Class != takeover.Healthy {
		t.Error(f)
	}
}

func TestWhatBuyersHaveIsRebuiltWhateverRedisSays(t *testing.T) {
	t.Parallel()
	hurts := map[string]func(s *shop){
		"nothing":  func(*shop) {},
		"flushed":  func(s *shop) { s.must(s.rdb.FlushAll(ctx).Err()) },
		"deleted":  func(s *shop) { s.must(s.rdb.Del(ctx, s.shard.Keys().Buyers).Err()) },
		"no hash":  func(s *shop) { s.must(s.rdb.Set(ctx, s.shard.Keys().Buyers, "x", 0).Err()) },
		"edited":   func(s *shop) { s.must(s.rdb.HSet(ctx, s.shard.Keys().Buyers, s.mark()+":u", 1).Err()) },
		"unmarked": func(s *shop) { s.must(s.rdb.HDel(ctx, s.shard.Keys().Buyers, s.mark()).Err()) },
		"extra": func(s *shop) {
			s.must(s.rdb.HSet(ctx, s.shard.Keys().Buyers, s.mark()+":w", 3, "77", "1", "77:u", 9, "x", "y", s.mark()+":v", 0).Err())
		},
	}
	for name, hurt := range hurts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := traded(t)
			s.limit(8)
			s.takeover(takeover.Options{})
			want := s.buyers()
			s.consume()
			hurt(s)
			r := s.takeover(takeover.Options{})
			if diff := cmp.Diff(want, s.buyers()); diff != "" || len(want) != 2 {
				t.Error(diff)
			}
			if name == "extra" && r.Deleted != 5 || name == "nothing" && r.Put+r.Deleted > 0 {
				t.Errorf("%+v", r)
			}
			s.agrees()
		})
	}
}

func TestALimitThatWasSwitchedOffIsCountedAnewWhenItComesBack(t *testing.T) {
	t.Parallel()
	s := traded(t)
	s.limit(8)
	s.takeover(takeover.Options{})
	s.limit(0)
	if out := s.bought("free", "u", 50); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	s.agrees()
	s.consume()
	s.agrees()
	s.limit(60)
	if out := s.bought("early", "u", 1); out.Code != stock.Uncounted {
		t.Errorf("%+v", out)
	}
	s.consume()
	r, err := audit.Sweep(ctx, ledger.NewAuditor(s.ledger, 0), redisstock.NewSampler(s.shard), audit.Options{})
	s.must(err)
	if len(r.Drifts) != 1 || r.Drifts[0].Class != takeover.Uncounted || r.Drifts[0].Verb != audit.VerbTakeover || r.Drifts[0].SKU != s.sku {
		t.Errorf("found %v", r.Drifts)
	}
	s.takeover(takeover.Options{})
	if diff := cmp.Diff(map[string]string{s.mark(): "1", s.mark() + ":u": "56"}, s.buyers()); diff != "" {
		t.Error(diff)
	}
	s.agrees()
	s.limit(0)
	s.consume()
	s.takeover(takeover.Options{}) // of a SKU without a limit nothing is kept
	if got := s.buyers(); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

func TestManyBuyersArePutInBoundedCalls(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	for i := range 700 {
		if out := s.bought(fmt.Sprint("o", i), fmt.Sprintf("%s%d@example.org", "somebody.with.a.long.name", i), 1); out.Code != stock.Accepted {
			t.Fatalf("%+v", out)
		}
	}
	s.limit(1)
	s.takeover(takeover.Options{Page: 50})
	if n := len(s.buyers()); n != 701 {
		t.Errorf("%d fields", n)
	}
	s.agrees()
}

// Whoever writes into the counts while they are put is noticed when they are read back.
func TestSomebodyElseWritingIsNoticedInEveryHash(t *testing.T) {
	t.Parallel()
	for _, target := range []string{takeover.TargetState, takeover.TargetOrders, takeover.TargetBuyers} {
		for _, extra := range []bool{false, true} {
			s := traded(t)
			s.limit(8)
			s.takeover(takeover.Options{})
			s.must(s.rdb.FlushAll(ctx).Err())
			_, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{At: func(at takeover.Step) error {
				if at != takeover.StepVerify {
					return nil
				}
				key := map[string]string{takeover.TargetState: s.shard.Keys().State, takeover.TargetOrders: s.shard.Keys().Orders, takeover.TargetBuyers: s.shard.Keys().Buyers}[target]
				field := map[string]string{takeover.TargetState: s.mark(), takeover.TargetOrders: "paid", takeover.TargetBuyers: s.mark() + ":u"}[target]
				if extra {
					field += "1"
				}
				return s.rdb.HSet(ctx, key, field, "7").Err()
			}})
			if !errors.Is(err, takeover.ErrDisagrees) {
				t.Errorf("%s, extra %v: it was opened: %v", target, extra, err)
			}
			s.refuses("closed")
		}
	}
}

// Every form of a line, and the states that documents lead to, come back from Postgres as Redis wrote them.
func TestRecordsOfAllKindsAreRebuiltAsTheyWere(t *testing.T) {
	t.Parallel()
	s := traded(t)
	doc, _, err := s.ledger.WriteOpening(ctx, "mug", 3, 0, s.now()+60_000)
	s.must(err)
	s.accept(doc.Operation())
	mug := doc.Lines[0].SKU
	op := func(kind stock.Kind, id string, lines ...stock.Line) stock.Operation {
		return stock.Operation{Kind: kind, ID: id, Attempt: 1, Lines: lines}
	}
	part := s.order("part", 1)
	part.Partial, part.Lines = true, append(part.Lines, stock.Line{SKU: mug, Asked: 5, Now: 5})
	for _, one := range []stock.Operation{
		part, s.order("other", 2), op(stock.Replace, "other", stock.Line{SKU: s.sku, Asked: 1, Now: 1}),
		s.order("away", 4), op(stock.Release, "away", stock.Line{SKU: s.sku, Now: 3}),
		s.order("some", 9), op(stock.Confirm, "some", stock.Line{SKU: s.sku, Now: 4}),
		op(stock.Release, "part", stock.Line{SKU: mug, Now: 0}), op(stock.Replace, "other", stock.Line{SKU: mug, Asked: 2, Now: 2}),
		{Kind: stock.Extend, ID: "other", Attempt: 1, Until: s.now() + 3_600_000},
	} {
		s.accept(one)
	}
	s.consume()
	s.ofOrder(stock.DocumentFulfil, "f3", "some", 3)
	s.agrees()
	records := func() map[string]string {
		all, err := s.rdb.HGetAll(ctx, s.shard.Keys().Orders).Result()
		s.must(err)
		delete(all, "~")
		return all
	}
	want := maps.Clone(records())
	s.must(s.rdb.FlushAll(ctx).Err())
	s.takeover(takeover.Options{})
	if diff := cmp.Diff(want, records()); diff != "" {
		t.Error(diff)
	}
	s.agrees()
	s.ofOrder(stock.DocumentFulfil, "f4", "some", 0)
	s.agrees()
}
