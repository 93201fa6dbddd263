package redisstock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestThousandUnitsAreSoldOnceToManyCallers(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1000)
	const callers, each = 256, 40
	var mu sync.Mutex
	won := map[string]stock.Receipt{}
	refused := 0
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprintf("o-%d-%d", c, i)
				out, err := s.desk.Do(context.Background(), 0, reserve(id, one(1, 1)))
				mu.Lock()
				switch {
				case err != nil:
					t.Errorf("%s: %v", id, err)
				case out.Code == stock.Accepted:
					won[id] = out.Receipt
				case out.Code == stock.SoldOut:
					refused++
				default:
					t.Errorf("%s: %+v", id, out)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(won) != 1000 || refused != callers*each-1000 {
		t.Fatalf("%d won, %d refused", len(won), refused)
	}
	if got := s.field(1); got != (stock.Quantities{Held: 1000}) {
		t.Fatalf("stock is %v", got)
	}
	book := s.replay()
	for id, receipt := range won {
		if r := book.Orders[id]; r == nil || r.Receipt != receipt {
			t.Fatalf("%s was answered %v, the log says %+v", id, receipt, r)
		}
	}
	st := s.desk.Stats()
	if st.Calls.Load() >= st.Operations.Load()/4 || st.Unclassified.Load() != 0 {
		t.Errorf("%d operations took %d calls, %d unclassified", st.Operations.Load(), st.Calls.Load(), st.Unclassified.Load())
	}
}

func TestLostReplyTakesStockOnce(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		name string
		do   func(*shop) stock.Outcome
		want stock.Quantities
	}{
		{"reserve", func(s *shop) stock.Outcome { return s.do(reserve("o1", one(1, 1))) }, stock.Quantities{Available: 99, Held: 1}},
		{"confirm", func(s *shop) stock.Outcome { return s.do(move(stock.Confirm, "o0")) }, stock.Quantities{Available: 98, Committed: 2}},
		{"release", func(s *shop) stock.Outcome { return s.do(move(stock.Release, "o0")) }, stock.Quantities{Available: 100}},
	}
	for _, k := range kinds {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cut=%v", k.name, cut), func(t *testing.T) {
				t.Parallel()
				addr := sandboxtest.SharedRedis(t)
				proxy := sandboxtest.Proxy(t, addr)
				s := openShop(t, addr, proxy.Addr())
				s.sku(1, 100)
				before := int64(1)
				if k.name != "reserve" {
					s.do(reserve("o0", one(1, 2)))
					before++
				}
				arm := proxy.SwallowReply
				if cut {
					arm = proxy.CutAfterExecution
				}
				arm(faultproxy.Contains("FCALL"))
				out := k.do(s)
				if out.Code != stock.Accepted && out.Code != stock.Replayed {
					t.Fatalf("answer %+v", out)
				}
				if proxy.Fired() != 1 {
					t.Fatalf("the fault fired %d times", proxy.Fired())
				}
				if got := s.field(1); got != k.want {
					t.Fatalf("stock %v, want %v", got, k.want)
				}
				if entries := int64(len(s.log())); entries != before+2 { // opened, new SKU, …
					t.Fatalf("%d entries", entries)
				}
				s.replay()
			})
		}
	}
}

func TestCallerIsAnsweredInTimeWhenRedisIsSlow(t *testing.T) {
	t.Parallel()
	addr := sandboxtest.SharedRedis(t)
	proxy := sandboxtest.Proxy(t, addr)
	s := openShop(t, addr, proxy.Addr())
	s.sku(1, 10)
	proxy.Delay(3 * time.Second)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := s.desk.Do(ctx, 0, reserve(fmt.Sprintf("o%d", i), one(1, 1)))
			var closed *stock.ClosedError
			if !errors.Is(err, stock.ErrUnknown) && !errors.As(err, &closed) {
				t.Errorf("answer %v", err)
			}
			if took := time.Since(began); took > 800*time.Millisecond {
				t.Errorf("took %v", took)
			}
		})
	}
	all.Wait()
	proxy.Delay(0)
}

// A refusal after a try of unknown outcome is final only when that try can no longer run.
func TestRefusalAfterUnknownTryWaitsForItsDeadline(t *testing.T) {
	t.Parallel()
	addr := sandboxtest.SharedRedis(t)
	proxy := sandboxtest.Proxy(t, addr)
	s := openShop(t, addr, proxy.Addr())
	s.sku(1, 1)
	s.do(reserve("first", one(1, 1)))
	proxy.SwallowReply(faultproxy.Contains("FCALL"))
	began := time.Now()
	out := s.do(reserve("second", one(1, 1)))
	if out.Code != stock.SoldOut {
		t.Fatalf("answer %+v", out)
	}
	// The deadline is a whole millisecond of Redis' clock, so it may lie up to two before ours.
	if took := time.Since(began); took < callTimeout-2*time.Millisecond {
		t.Errorf("the refusal was given after %v, while the first try could run until %v", took, callTimeout)
	}
}

func TestClosedShardsRefuseByClass(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rows := []struct {
		name, reason string
		harm         func(*testing.T, *shop)
	}{
		{"state deleted", "missing", func(t *testing.T, s *shop) { s.rdb.Del(ctx, s.shard.keys.State) }},
		{"orders deleted", "torn", func(t *testing.T, s *shop) { s.rdb.Del(ctx, s.shard.keys.Orders) }},
		{"buyers deleted", "torn", func(t *testing.T, s *shop) { s.rdb.Del(ctx, s.shard.keys.Buyers) }},
		{"log deleted", "missing", func(t *testing.T, s *shop) { s.rdb.Del(ctx, s.shard.keys.Log) }},
		{"log is a string", "torn", func(t *testing.T, s *shop) { s.rdb.Set(ctx, s.shard.keys.Log, "x", 0) }},
		{"state is a string", "torn", func(t *testing.T, s *shop) { s.rdb.Set(ctx, s.shard.keys.State, "x", 0) }},
		{"orders is a string", "torn", func(t *testing.T, s *shop) { s.rdb.Set(ctx, s.shard.keys.Orders, "x", 0) }},
		{"seq moved by hand", "torn", func(t *testing.T, s *shop) { s.rdb.HIncrBy(ctx, s.shard.keys.State, "q", 1) }},
		{"nonce changed", "torn", func(t *testing.T, s *shop) { s.rdb.HSet(ctx, s.shard.keys.State, "n", "other") }},
		{"foreign entry", "torn", func(t *testing.T, s *shop) {
			s.rdb.Do(ctx, "XADD", s.shard.keys.Log, "5-900", "x", "y")
		}},
		{"older epoch asked", "epoch", func(t *testing.T, s *shop) { s.open(6); s.epoch.Store(5) }},
		{"library flushed", "fenced", func(t *testing.T, s *shop) { s.rdb.FunctionFlush(ctx) }},
		{"library reloaded", "fenced", func(t *testing.T, s *shop) { s.rdb.FunctionLoadReplace(ctx, Library()) }},
		{"older state restored", "torn", func(t *testing.T, s *shop) {
			dump := s.rdb.Dump(ctx, s.shard.keys.State).Val()
			s.do(reserve("later", one(1, 1)))
			s.rdb.RestoreReplace(ctx, s.shard.keys.State, 0, dump)
		}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			server := sandboxtest.Redis(t)
			s := openShop(t, server.Addr(), "")
			s.sku(1, 10)
			s.do(reserve("before", one(1, 1)))
			r.harm(t, s)
			for i := range 3 { // and it stays refused
				_, err := s.desk.Do(ctx, 0, reserve(fmt.Sprintf("after%d", i), one(1, 1)))
				if !IsClosed(err) || i == 0 && !IsClosed(err, r.reason) {
					t.Fatalf("try %d: %v, want closed (%s)", i, err, r.reason)
				}
			}
			if r.reason != "epoch" && len(s.doubt) == 0 {
				t.Error("nobody was told")
			}
			if n := s.desk.Stats().Unclassified.Load(); n != 0 {
				t.Errorf("%d unclassified", n)
			}
			if err := LoadLibrary(ctx, s.rdb, LibraryVersion); err != nil {
				t.Fatal(err)
			}
			if s.rdb.Type(ctx, s.shard.keys.Log).Val() == "string" {
				s.rdb.Del(ctx, s.shard.keys.Log)
			}
			s.open(7)
			out, err := s.desk.Do(ctx, 0, reserve("again", one(1, 1)))
			if err != nil || out.Code != stock.Accepted && out.Code != stock.MissingSKU {
				t.Fatalf("after a takeover: %+v %v", out, err)
			}
		})
	}
}

func TestRestartedRedisRefuses(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	s := openShop(t, server.Addr(), "")
	s.sku(1, 10)
	s.do(reserve("before", one(1, 1)))
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		_, err := s.desk.Do(t.Context(), 0, reserve("after", one(1, 1)))
		if !IsClosed(err, "fenced") {
			return fmt.Errorf("answer %w", err)
		}
		return nil
	})
	if got := s.field(1); got != (stock.Quantities{Available: 9, Held: 1}) {
		t.Fatalf("the data survived as %v", got)
	}
}

func TestFullRedisRefusesToTakeAndStillSettles(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	s := openShop(t, server.Addr(), "")
	s.sku(1, 10)
	s.do(reserve("a", one(1, 1)))
	s.do(reserve("b", one(1, 1)))
	if err := s.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.desk.Do(t.Context(), 0, reserve("c", one(1, 1))); !IsClosed(err, "memory") {
		t.Fatalf("reserve: %v", err)
	}
	if out := s.do(move(stock.Confirm, "a")); out.Code != stock.Accepted {
		t.Fatalf("confirm: %+v", out)
	}
	if out := s.do(move(stock.Release, "b")); out.Code != stock.Accepted {
		t.Fatalf("release: %+v", out)
	}
	s.replay()
}

func TestBatchBeyondTheLineLimitIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	var cart []stock.Line
	for sku := int64(1); sku <= 150; sku++ {
		s.sku(sku, 1000)
		cart = append(cart, one(sku, 1))
	}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			id := fmt.Sprintf("cart%d", i)
			if out := s.do(reserve(id, append([]stock.Line(nil), cart...)...)); out.Code != stock.Accepted {
				t.Errorf("%s: %+v", id, out)
			}
			if out := s.do(move(stock.Confirm, id)); out.Code != stock.Accepted {
				t.Errorf("confirm %s: %+v", id, out)
			}
		})
	}
	all.Wait()
	for _, e := range s.log() {
		if len(e.After) > stock.MaxCallLines {
			t.Errorf("entry %s touched %d SKUs", e.Position, len(e.After))
		}
	}
	s.replay()
}

func TestLargestOrderIsOneStep(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	var cart []stock.Line
	for sku := int64(1); sku <= stock.MaxOrderLines; sku++ {
		s.sku(sku, 2)
		cart = append(cart, one(sku, 1))
	}
	if out := s.do(reserve("big", cart...)); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	cart[700].Asked, cart[700].Now = 2, 2
	out := s.do(reserve("big2", cart...))
	if out.Code != stock.SoldOut || len(out.Short) != stock.MaxOrderLines || out.Short[700] != (stock.Short{SKU: 701, Asked: 2, Available: 1}) {
		t.Fatalf("%v %d", out.Code, len(out.Short))
	}
	if out := s.do(move(stock.Release, "big")); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	s.replay()
}

func TestAnswersOfEveryStateToEveryOperation(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1_000_000)
	make := map[string]func(id string){
		"none":      func(string) {},
		"held":      func(id string) { s.do(reserve(id, one(1, 2))) },
		"confirmed": func(id string) { s.do(reserve(id, one(1, 2))); s.do(move(stock.Confirm, id)) },
		"released":  func(id string) { s.do(reserve(id, one(1, 2))); s.do(move(stock.Release, id)) },
		"expired": func(id string) {
			op := reserve(id, one(1, 2))
			op.TTL = stock.MinTTLMillis
			s.do(op)
			s.expire(id)
		},
	}
	sale := func(id string) stock.Operation {
		op := reserve(id, one(1, 2))
		op.Kind, op.TTL = stock.Sale, 0
		return op
	}
	second := func(id string) stock.Operation { op := reserve(id, one(1, 2)); op.Attempt = 2; return op }
	asks := []struct {
		name string
		op   func(id string) stock.Operation
		want map[string]stock.Code
	}{
		{"reserve", func(id string) stock.Operation { return reserve(id, one(1, 2)) }, map[string]stock.Code{"none": stock.Accepted, "held": stock.Replayed, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Replayed}},
		{"reserve other", func(id string) stock.Operation { return reserve(id, one(1, 3)) }, map[string]stock.Code{"none": stock.Accepted, "held": stock.Conflict, "confirmed": stock.Conflict, "released": stock.Conflict, "expired": stock.Conflict}},
		{"reserve 2", second, map[string]stock.Code{"none": stock.NoRecord, "held": stock.Conflict, "confirmed": stock.Conflict, "released": stock.Accepted, "expired": stock.Accepted}},
		{"sale", sale, map[string]stock.Code{"none": stock.Accepted, "held": stock.Conflict, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Replayed}},
		{"confirm", func(id string) stock.Operation { return move(stock.Confirm, id) }, map[string]stock.Code{"none": stock.NoRecord, "held": stock.Accepted, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Retake}},
		{"confirm 2", func(id string) stock.Operation { op := move(stock.Confirm, id); op.Attempt = 2; return op }, map[string]stock.Code{"none": stock.NoRecord, "held": stock.Conflict, "confirmed": stock.Conflict, "released": stock.Conflict, "expired": stock.Conflict}},
		{"late confirm", func(id string) stock.Operation { return move(stock.LateConfirm, id) }, map[string]stock.Code{"none": stock.NoRecord, "held": stock.Replayed, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Accepted}},
		{"release", func(id string) stock.Operation { return move(stock.Release, id) }, map[string]stock.Code{"none": stock.NoRecord, "held": stock.Accepted, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Replayed}},
		{"expire", func(id string) stock.Operation { return move(stock.Expire, id) }, map[string]stock.Code{"none": stock.NoRecord, "held": stock.NotDue, "confirmed": stock.Replayed, "released": stock.Replayed, "expired": stock.Replayed}},
	}
	var all sync.WaitGroup
	for _, ask := range asks {
		for state, build := range make {
			all.Go(func() {
				id := fmt.Sprintf("%s.%s.%d", state, string(ask.op("x").Kind), rand.Uint32())
				build(id)
				if got := s.do(ask.op(id)); got.Code != ask.want[state] {
					t.Errorf("%s of a %s order: %s, want %s", ask.name, state, got.Code, ask.want[state])
				}
			})
		}
	}
	all.Wait()
	s.replay()
}

// expire waits until the hold is due by Redis' clock, asking again and again.
func (s *shop) expire(id string) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, 10*time.Second, func() error {
		if out := s.do(move(stock.Expire, id)); out.Code != stock.Accepted {
			return fmt.Errorf("expire: %s", out.Code)
		}
		return nil
	})
}

func TestDocumentsHaveOneOutcome(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	s.sku(2, 0)
	doc := func(id string, deadline int64, lines ...stock.Line) stock.Operation {
		return stock.Operation{Kind: stock.Movement, ID: "~" + id, Document: "adjust", Reason: "test", Deadline: deadline, Lines: lines}
	}
	if out := s.do(doc("in", farAway, one(1, 5), one(2, 7))); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	if out := s.do(doc("in", farAway, one(1, 5), one(2, 7))); out.Code != stock.Replayed || out.Reservation.State != stock.Done {
		t.Fatalf("%+v", out)
	}
	out := s.do(doc("out", farAway, one(1, -16)))
	if out.Code != stock.NotAllowed || !cmp.Equal(out.Short, []stock.Short{{SKU: 1, Asked: -16, Available: 15}}) {
		t.Fatalf("%+v", out)
	}
	s.do(doc("more", farAway, one(1, 100)))
	if out := s.do(doc("out", farAway, one(1, -16))); out.Code != stock.Replayed || out.Reservation.State != stock.Refused {
		t.Fatalf("a refused document was not refused again: %+v", out)
	}
	if out := s.do(doc("late", 1, one(1, 1))); out.Code != stock.Overdue {
		t.Fatalf("%+v", out)
	}
	if got := s.field(1); got.Available != 115 {
		t.Fatalf("stock %v", got)
	}
	s.replay()
}

// What an order ships or gives up is more than is promised only where Postgres let two documents through, or somebody
// edited the figures. Then it is refused for ever, and the order's record stays as it was.
func TestADocumentOfAnOrderThatIsRefusedLeavesTheOrder(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	sale := reserve("a", one(1, 2))
	sale.Kind, sale.TTL = stock.Sale, 0
	s.do(sale)
	doc := func(id, kind string, units int64) stock.Operation {
		if kind == stock.DocumentFulfil {
			units = -units
		}
		return stock.Operation{
			Kind: stock.Movement, ID: "~" + id, Document: kind, Reason: "test", Deadline: farAway, Lines: stock.Lines{one(1, units)},
			Order: stock.OrderRef{ID: "a", Key: 1, Asked: 1},
		}
	}
	for _, kind := range []string{stock.DocumentFulfil, stock.DocumentCancel} {
		before := s.rdb.HGet(t.Context(), s.shard.keys.Orders, "a").Val()
		for range 2 {
			out := s.do(doc("much-"+kind, kind, 3))
			if out.Code != stock.NotAllowed && (out.Code != stock.Replayed || out.Reservation.State != stock.Refused) {
				t.Errorf("%s of 3 of 2: %+v", kind, out)
			}
		}
		if after := s.rdb.HGet(t.Context(), s.shard.keys.Orders, "a").Val(); after != before {
			t.Errorf("a refused %s moved the order from %q to %q", kind, before, after)
		}
	}
	entries := s.log()
	last := entries[len(entries)-1].Ops[0]
	if !last.Refused || last.Document != stock.DocumentCancel || last.Order.ID != "a" {
		t.Errorf("the log says %+v of the refusal", last)
	}
	if out := s.do(doc("parcel", stock.DocumentFulfil, 2)); out.Code != stock.Accepted {
		t.Errorf("a document that fits, behind them: %+v", out)
	}
	if book := s.replay(); book.Orders["a"].State != stock.Fulfilled {
		t.Errorf("the order stands as %+v", book.Orders["a"])
	}
}

func TestFrozenSKUTakesNothingAndLetsGo(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	s.sku(2, 10)
	s.do(reserve("a", one(1, 1)))
	freeze := stock.Operation{Kind: stock.Configure, ID: "~~set", Lines: stock.Lines{{SKU: 1}}, Change: stock.Change{Frozen: stock.On, Opens: stock.Keep, Limit: stock.Keep}}
	if out := s.do(freeze); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	if out := s.do(reserve("b", one(1, 1), one(2, 1))); out.Code != stock.FrozenSKU || out.SKU != 1 {
		t.Fatalf("%+v", out)
	}
	if out := s.do(reserve("c", one(2, 1))); out.Code != stock.Accepted {
		t.Fatalf("the shop stopped with one SKU: %+v", out)
	}
	if out := s.do(move(stock.Release, "a")); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	freeze.Change.Frozen = stock.Off
	s.do(freeze)
	if out := s.do(reserve("b", one(1, 1))); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	s.replay()
}

func TestDamagedStockTextStopsItsSKUOnly(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	s.sku(2, 10)
	s.do(reserve("a", one(1, 1)))
	s.rdb.HSet(t.Context(), s.shard.keys.State, "1", "garbage")
	for _, op := range []stock.Operation{reserve("b", one(1, 1)), move(stock.Release, "a")} {
		if out := s.do(op); out.Code != stock.Inconsistent || out.SKU != 1 {
			t.Fatalf("%+v", out)
		}
	}
	if out := s.do(reserve("c", one(2, 1))); out.Code != stock.Accepted {
		t.Fatalf("%+v", out)
	}
	if out := s.do(reserve("d", one(3, 1))); out.Code != stock.MissingSKU || out.SKU != 3 {
		t.Fatalf("%+v", out)
	}
}

// An adopted Redis gives its old log up in the same step that takes its token over: an attempt that dies right
// after the fence must not leave another ledger's entries where ours are read from.
func TestAdoptingMovesTheForeignLogAway(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	ctx := context.Background()
	opener := NewOpener(s.shard, Unsafe{})
	seal := takeover.Seal{Ledger: "other", Epoch: 3, Nonce: "n2"}
	var refused *takeover.RefusedError
	if err := opener.Fence(ctx, seal, false); !errors.As(err, &refused) || refused.Class != "FOREIGN" {
		t.Fatalf("a foreign ledger fenced this Redis: %v", err)
	}
	if err := opener.Fence(ctx, seal, true); err != nil {
		t.Fatal(err)
	}
	if n := s.rdb.Exists(ctx, s.shard.keys.Log).Val(); n != 0 {
		t.Error("the foreign log is still in place")
	}
	if n := s.rdb.XLen(ctx, s.shard.keys.Archive(3)).Val(); n != 2 {
		t.Errorf("%d entries are kept as evidence, want 2", n)
	}
}

// Whatever is damaged by hand stops the order or the SKU that it belongs to, not the strangers in the same call.
func TestDamageStopsNobodyElseInTheCall(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	for sku := range int64(3) {
		s.sku(sku+1, 1000)
	}
	ctx := context.Background()
	s.do(reserve("torn", one(3, 1)))
	s.rdb.HSet(ctx, s.shard.keys.Orders, "torn", "rubbish", "odd", "h|5-1-0|1|5||x")
	s.rdb.HSet(ctx, s.shard.keys.State, "2", "5|0|0|zz")
	var all sync.WaitGroup
	for round := range 8 {
		for _, op := range []stock.Operation{reserve("torn", one(1, 1)), move(stock.Confirm, "torn"), move(stock.Expire, "odd")} {
			all.Go(func() {
				if out, err := s.desk.Do(ctx, 0, op); err != nil || out.Code != stock.Damaged {
					t.Errorf("%c of %s: %+v, %v", op.Kind, op.ID, out.Code, err)
				}
			})
		}
		all.Go(func() {
			if out := s.do(reserve(fmt.Sprintf("hurt%d", round), one(2, 1))); out.Code != stock.Inconsistent || out.SKU != 2 {
				t.Errorf("a damaged SKU answered %+v", out)
			}
		})
		for i := range 20 {
			all.Go(func() {
				if out := s.do(reserve(fmt.Sprintf("fine%d-%d", round, i), one(1, 1))); out.Code != stock.Accepted {
					t.Errorf("a stranger was answered %+v", out)
				}
			})
		}
	}
	all.Wait()
	if n := s.desk.Stats().Unclassified.Load(); n != 0 {
		t.Errorf("%d unclassified", n)
	}
}
