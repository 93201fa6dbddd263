package redisstock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// limit sets a SKU's limit per buyer, and leaves it uncounted.
func (s *shop) limit(sku, units int64) {
	s.t.Helper()
	change := stock.Kept
	change.Limit = units
	if out := s.do(stock.Operation{Kind: stock.Configure, ID: "~~limit", Lines: stock.Lines{{SKU: sku}}, Change: change}); out.Code != stock.Accepted {
		s.t.Fatalf("%+v", out)
	}
}

// count does of a takeover what limits need of it: what buyers have, and the marker that says so.
func (s *shop) count(epoch int64, fields ...string) {
	s.t.Helper()
	ctx := s.t.Context()
	opener := NewOpener(s.shard, Unsafe{})
	seal := takeover.Seal{Ledger: testLedger, Epoch: epoch, Nonce: fmt.Sprint("nonce", epoch)}
	last := s.log()
	if err := opener.Fence(ctx, seal, false); err != nil {
		s.t.Fatal(err)
	}
	seq, err := opener.Put(ctx, seal, 0, takeover.Put{Target: "buyers", Verb: takeover.VerbSet, Args: fields})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := opener.Open(ctx, seal, seq, last[len(last)-1].Position); err != nil {
		s.t.Fatal(err)
	}
	s.epoch.Store(epoch)
}

func (s *shop) buyers() map[string]string {
	s.t.Helper()
	all, err := s.rdb.HGetAll(s.t.Context(), s.shard.keys.Buyers).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	delete(all, "~")
	return all
}

func by(buyer string, op stock.Operation) stock.Operation {
	op.Buyer = buyer
	return op
}

func TestALimitSellsNothingUntilItIsCounted(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 100)
	s.limit(1, 2)
	if out := s.do(reserve("a", one(1, 1))); out.Code != stock.BuyerMissing || out.SKU != 1 {
		t.Errorf("without a buyer: %+v", out)
	}
	if out := s.do(by("ann", reserve("a", one(1, 1)))); out.Code != stock.Uncounted || out.SKU != 1 {
		t.Errorf("uncounted: %+v", out)
	}
	s.count(6, "1", "1", "1:ann", "1")
	if out := s.do(by("ann", reserve("a", one(1, 1)))); out.Code != stock.Accepted {
		t.Errorf("counted: %+v", out)
	}
	if out := s.do(by("ann", reserve("b", one(1, 1)))); out.Code != stock.LimitReached || out.SKU != 1 || out.Bought != 2 || out.Limit != 2 {
		t.Errorf("beyond: %+v", out)
	}
	s.limit(1, 3)
	if out := s.do(by("ann", reserve("b", one(1, 1)))); out.Code != stock.Accepted {
		t.Errorf("a higher limit goes on counting: %+v", out)
	}
	s.limit(1, 0)
	if out := s.do(by("ann", reserve("c", one(1, 50)))); out.Code != stock.Accepted {
		t.Errorf("without a limit: %+v", out)
	}
	s.limit(1, 60)
	if out := s.do(by("ann", reserve("d", one(1, 1)))); out.Code != stock.Uncounted {
		t.Errorf("nobody counted meanwhile: %+v", out)
	}
}

func TestTwoHundredRequestsOfOneBuyerStayWithinTheLimit(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1000)
	s.limit(1, 2)
	s.count(6, "1", "1")
	for round := range 3 {
		var taken atomic.Int64
		var ids sync.Map
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				id := fmt.Sprintf("o-%d-%d", round, i)
				out, err := s.desk.Do(t.Context(), 0, by("ann", reserve(id, one(1, 1))))
				switch {
				case err != nil:
					t.Error(err)
				case out.Code == stock.Accepted:
					taken.Add(1)
					ids.Store(id, true)
				case out.Code != stock.LimitReached:
					t.Errorf("%+v", out)
				}
			})
		}
		all.Wait()
		if taken.Load() != 2 || s.buyers()["1:ann"] != "2" {
			t.Errorf("round %d: %d taken, counted %v", round, taken.Load(), s.buyers())
		}
		ids.Range(func(id, _ any) bool {
			if out := s.do(move(stock.Release, id.(string))); out.Code != stock.Accepted {
				t.Errorf("%+v", out)
			}
			return true
		})
		if diff := cmp.Diff(map[string]string{"1": "1"}, s.buyers()); diff != "" {
			t.Errorf("after the release (-want +got)\n%s", diff)
		}
	}
}

func TestOlderCountsOfTheSameEpochAreTorn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 100)
	s.limit(1, 2)
	s.count(6, "1", "1")
	s.do(by("ann", reserve("a", one(1, 1))))
	old := s.rdb.Dump(ctx, s.shard.keys.Buyers).Val()
	s.do(by("ann", reserve("b", one(1, 1))))
	if err := s.rdb.RestoreReplace(ctx, s.shard.keys.Buyers, 0, old).Err(); err != nil {
		t.Fatal(err)
	}
	if status, err := s.shard.Status(ctx); err != nil || status.Fence != takeover.FenceDiffers {
		t.Errorf("status %+v, %v", status, err)
	}
	if _, err := s.desk.Do(ctx, 0, by("ann", reserve("c", one(1, 1)))); !IsClosed(err, "torn") {
		t.Errorf("answer %v", err)
	}
}

func TestAReplaceCountsWhatItAddsAndGivesBackTheRest(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 3)
	s.sku(2, 100)
	s.limit(1, 3)
	s.count(6, "1", "1")
	s.do(by("ann", reserve("a", one(1, 2))))
	replace := stock.Operation{Kind: stock.Replace, ID: "a", Attempt: 1, Lines: stock.Lines{one(1, 3), one(2, 1)}}
	// The last unit is free, and two more are its own.
	if out := s.do(replace); out.Code != stock.Accepted || s.field(1) != (stock.Quantities{Held: 3}) || s.buyers()["1:ann"] != "3" {
		t.Errorf("%+v; %v; %v", out, s.field(1), s.buyers())
	}
	if out := s.do(replace); out.Code != stock.Replayed {
		t.Errorf("again: %+v", out)
	}
	replace.Lines = stock.Lines{one(1, 4)}
	if out := s.do(replace); out.Code != stock.LimitReached || out.Bought != 3 {
		t.Errorf("beyond the limit: %+v", out)
	}
	s.limit(1, 0)
	if out := s.do(replace); out.Code != stock.SoldOut || !cmp.Equal(out.Short, []stock.Short{{SKU: 1, Asked: 4, Available: 3}}) {
		t.Errorf("beyond the stock: %+v", out)
	}
	replace.Lines = stock.Lines{one(2, 5)}
	if out := s.do(replace); out.Code != stock.Accepted || s.field(1) != (stock.Quantities{Available: 3}) || s.field(2) != (stock.Quantities{Available: 95, Held: 5}) {
		t.Errorf("%+v; %v; %v", out, s.field(1), s.field(2))
	}
	// What was asked first is how its repeat is known.
	if out := s.do(by("ann", reserve("a", one(1, 2)))); out.Code != stock.Replayed {
		t.Errorf("the reserve again: %+v", out)
	}
}

func TestTheLargestOrderIsReplacedByAnotherOfItsSize(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	var first, second, both stock.Lines
	for sku := int64(1); sku <= 1500; sku++ {
		s.sku(sku, 10)
		if sku <= 750 {
			first = append(first, one(sku, 1))
		} else {
			second = append(second, one(sku, 2))
		}
		both = append(both, one(sku, 1))
	}
	if out := s.do(reserve("half", first...)); out.Code != stock.Accepted {
		t.Fatalf("%+v", out.Code)
	}
	if out := s.do(stock.Operation{Kind: stock.Replace, ID: "half", Attempt: 1, Lines: second}); out.Code != stock.Accepted || len(out.Reservation.Lines) != 1500 {
		t.Fatalf("%+v, %d lines", out.Code, len(out.Reservation.Lines))
	}
	if out := s.do(reserve("all", both...)); out.Code != stock.Accepted {
		t.Fatalf("%+v", out.Code)
	}
	if out := s.do(stock.Operation{Kind: stock.Confirm, ID: "all", Attempt: 1, Lines: both[:700]}); out.Code != stock.Accepted {
		t.Fatalf("%+v", out.Code)
	}
	if got := [2]stock.Quantities{s.field(700), s.field(701)}; got != [2]stock.Quantities{{Available: 9, Committed: 1}, {Available: 10}} {
		t.Errorf("%v", got)
	}
	s.sku(1501, 10)
	if out := s.do(stock.Operation{Kind: stock.Replace, ID: "half", Attempt: 1, Lines: stock.Lines{one(1501, 1)}}); out.Code != stock.Accepted {
		// 750 lines that were asked for, and this one: the second half is gone again.
		t.Errorf("%+v", out.Code)
	}
	s.replay()
}

func TestForgetDropsOnlyWhatRestsWhereTheLedgerKnowsIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 100)
	var endings []stock.Ending
	for _, id := range []string{"held", "released", "moved", "confirmed"} {
		endings = append(endings, stock.Ending{ID: id, Receipt: s.do(reserve(id, one(1, 1))).Receipt})
	}
	endings[1].Receipt = s.do(move(stock.Release, "released")).Receipt
	s.do(move(stock.Release, "moved")) // the ledger does not know yet
	endings[3].Receipt = s.do(move(stock.Confirm, "confirmed")).Receipt
	endings = append(endings, stock.Ending{ID: "absent"}, stock.Ending{ID: "~"})
	before := s.log()
	epoch := s.Epoch(0)
	if n, err := s.shard.Forget(ctx, epoch, endings); err != nil || n != 2 {
		t.Errorf("%d dropped, %v", n, err)
	}
	for id, want := range map[string]bool{"held": true, "released": false, "moved": true, "confirmed": false} {
		if _, there, err := s.shard.Record(ctx, id); err != nil || there != want {
			t.Errorf("%s: there %v, %v", id, there, err)
		}
	}
	if diff := cmp.Diff(before, s.log()); diff != "" {
		t.Errorf("it left an entry:\n%s", diff)
	}
	if out := s.do(reserve("next", one(1, 1))); out.Code != stock.Accepted {
		t.Errorf("after a forget: %+v", out)
	}
	epoch.Epoch++
	if _, err := s.shard.Forget(ctx, epoch, endings); err == nil {
		t.Error("another epoch was let in")
	}
	if n, err := s.shard.Forget(ctx, s.Epoch(0), nil); err != nil || n != 0 {
		t.Errorf("nothing to forget: %d, %v", n, err)
	}
}

func TestAnExtensionIsBounded(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	held := s.do(reserve("a", one(1, 1))).Reservation.ExpiresMillis
	const day = 24 * 3_600_000
	extend := func(until int64) stock.Outcome {
		return s.do(stock.Operation{Kind: stock.Extend, ID: "a", Attempt: 1, Until: until})
	}
	for _, step := range []struct {
		until int64
		code  stock.Code
		ends  int64
	}{
		{held + 1000, stock.Accepted, held + 1000},
		{held + 1000, stock.Replayed, held + 1000},
		{held, stock.Replayed, held + 1000}, // never shorter
		{held + day, stock.OutOfBounds, 0},
		{held - 900_000 + day, stock.Accepted, held - 900_000 + day},
	} {
		if out := extend(step.until); out.Code != step.code || out.Reservation.ExpiresMillis != step.ends {
			t.Errorf("until %+d: %+v", step.until-held, out)
		}
	}
	s.do(move(stock.Confirm, "a"))
	if out := extend(held + day); out.Code != stock.Replayed || out.Reservation.State != stock.Confirmed {
		t.Errorf("of a confirmed order: %+v", out)
	}
}

func TestAnOrderIsKnownByWhatWasAskedFirst(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	s.sku(2, 10)
	s.sku(3, 10)
	first := reserve("a", one(2, 2))
	s.do(first)
	for _, lines := range []stock.Lines{{one(1, 1), one(2, 1)}, {one(2, 2), one(3, 1)}, {one(1, 1), one(3, 4)}} {
		if out := s.do(stock.Operation{Kind: stock.Replace, ID: "a", Attempt: 1, Lines: lines}); out.Code != stock.Accepted {
			t.Errorf("%+v", out)
		}
		if out := s.do(first); out.Code != stock.Replayed {
			t.Errorf("after a replace by %v: %+v", lines, out)
		}
		if out := s.do(reserve("a", lines...)); out.Code != stock.Conflict {
			t.Errorf("what stands was never asked: %+v", out)
		}
	}
}
