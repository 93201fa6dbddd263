package redisstock

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// raw sends one call as a producer of the present epoch does, and gives the reply's lines.
func (s *shop) raw(function string, minSeq, deadline int64, operations string) []string {
	s.t.Helper()
	text, err := s.rdb.FCall(s.t.Context(), function, s.shard.keys.list(),
		token(testLedger, s.epoch.Load()), minSeq, deadline, operations).Text()
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Split(text, "\n")
}

// firstWord is the first word of a reply.
func firstWord(lines []string) string { return strings.Fields(lines[0])[0] }

// contents is everything that the shard's keys hold.
func (s *shop) contents() map[string]any {
	s.t.Helper()
	state, err := s.shard.State(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	orders, err := s.rdb.HGetAll(s.t.Context(), s.shard.keys.Orders).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := s.shard.Range(s.t.Context(), stock.Position{}, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	return map[string]any{"state": state, "orders": orders, "log": log}
}

// unchanged fails when the shard's keys hold something else than they did.
func (s *shop) unchanged(before map[string]any) {
	s.t.Helper()
	if diff := cmp.Diff(before, s.contents()); diff != "" {
		s.t.Errorf("(-before +after)\n%s", diff)
	}
}

// A copy of keys as another attempt left them, under the same epoch and at the same seq, as a Postgres that lost its
// claims could give it out: only the nonce tells.
func TestAForeignStateUnderTheSameEpochAndSeqIsTorn(t *testing.T) {
	t.Parallel()
	for name, buyers := range map[string]string{"all of it": "another", "all but the buyers": "nonce"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			s := openShop(t, sandboxtest.SharedRedis(t), "")
			s.sku(1, 10)
			s.rdb.HSet(ctx, s.shard.keys.State, "n", "another")
			s.rdb.HSet(ctx, s.shard.keys.Orders, "~", "another."+s.rdb.HGet(ctx, s.shard.keys.State, "q").Val())
			s.rdb.HSet(ctx, s.shard.keys.Buyers, "~", buyers)
			if _, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); !IsClosed(err, "torn") {
				t.Errorf("answer %v", err)
			}
		})
	}
}

// TestOlderKeysOfTheSameEpochAreTorn: whoever puts back what a key was some orders ago, while the process lives, would
// make it forget them: their repeats would take stock once more.
func TestOlderKeysOfTheSameEpochAreTorn(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"orders", "state", "both"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			s := openShop(t, sandboxtest.SharedRedis(t), "")
			s.sku(1, 10)
			keys := map[string][]string{"orders": {s.shard.keys.Orders}, "state": {s.shard.keys.State}, "both": {s.shard.keys.Orders, s.shard.keys.State}}[which]
			old := make([]string, len(keys))
			for i, key := range keys {
				old[i] = s.rdb.Dump(ctx, key).Val()
			}
			if _, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); err != nil {
				t.Fatal(err)
			}
			for i, key := range keys {
				if err := s.rdb.RestoreReplace(ctx, key, 0, old[i]).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if status, err := s.shard.Status(ctx); err != nil || status.Fence != takeover.FenceDiffers {
				t.Errorf("status %+v, %v", status, err)
			}
			if out, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); !IsClosed(err, "torn") {
				t.Errorf("answer %v, %v", out, err)
			}
		})
	}
}

// TestACallWithoutARecordLeavesTheMarkBehind: settings write no order.
func TestACallWithoutARecordLeavesTheMarkBehind(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	freeze := stock.Operation{Kind: stock.Configure, ID: "~~freeze", Lines: stock.Lines{{SKU: 1}}, Change: stock.Change{Frozen: stock.On, Opens: stock.Keep, Limit: stock.Keep}}
	if out, err := s.desk.Do(ctx, 0, freeze); err != nil || out.Code != stock.Accepted {
		t.Fatal(out, err)
	}
	if _, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); IsClosed(err, "torn") {
		t.Error(err)
	}
}

func TestAShardThatIsBeingFilledSellsNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	opener := NewOpener(s.shard, Unsafe{})
	seal := takeover.Seal{Ledger: testLedger, Epoch: 6, Nonce: "nonce"}
	if err := opener.Fence(ctx, seal, false); err != nil {
		t.Fatal(err)
	}
	s.epoch.Store(6)
	before := s.contents()
	if _, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); !IsClosed(err, "rebuilding") {
		t.Errorf("answer %v", err)
	}
	s.unchanged(before)
}

func TestAnOpenShardTakesNoPut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	before := s.contents()
	opener := NewOpener(s.shard, Unsafe{})
	seal := takeover.Seal{Ledger: testLedger, Epoch: 5, Nonce: "nonce"}
	for seq := range int64(4) {
		_, err := opener.Put(ctx, seal, seq, takeover.Put{Target: takeover.TargetState, Verb: takeover.VerbSet, Args: []string{"1", "99|0|0"}})
		var refused *takeover.RefusedError
		if !errors.As(err, &refused) || refused.Class != "CLOSED" {
			t.Errorf("put after %d: %v", seq, err)
		}
		if err := opener.Open(ctx, seal, seq, stock.Position{}); !errors.As(err, &refused) || refused.Class != "CLOSED" {
			t.Errorf("open after %d: %v", seq, err)
		}
	}
	s.unchanged(before)
}

func TestACallIsBoundByItsSeqAndItsDeadline(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	before := s.contents()
	if got := firstWord(s.raw(fnApply, 3, farAway, "S|1|1=1 a")); got != "REWOUND" {
		t.Errorf("a caller who saw more than Redis has is answered %s", got)
	}
	if got := firstWord(s.raw(fnApply, 2, 1, "S|1|1=1 a")); got != "LATE" {
		t.Errorf("a call after its deadline is answered %s", got)
	}
	s.unchanged(before)
	if got := firstWord(s.raw(fnApply, 2, farAway, "S|1|1=1 a")); got != "OK" {
		t.Errorf("a call in time, by who saw what Redis has, is answered %s", got)
	}
}

func TestSettleTakesNoUnits(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	before := s.contents()
	got := s.raw(fnSettle, 0, farAway, "S|1|1=1 a;R900000|1|1=1 b;M9000000000000|receive|r|1=+5 ~d")
	if diff := cmp.Diff([]string{"<", "<", "<"}, got[1:]); firstWord(got) != "OK" || diff != "" {
		t.Errorf("answer %q", got)
	}
	s.unchanged(before)
}

// The ids of one call may be the same: callers repeat themselves, and the batcher does not compare.
func TestAnOrderTwiceInACallIsTakenOnce(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]string{
		"a rush on one SKU": "R900000|1|1=1 a a",
		"a cart":            "R900000|1|1=1,2=1 a a",
		"with a buyer":      "R900000|1|1=1 a,u a,u",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, sandboxtest.SharedRedis(t), "")
			s.sku(1, 10)
			s.sku(2, 10)
			got := s.raw(fnApply, 0, farAway, call)
			if firstWord(got) != "OK" || len(got) != 3 || got[1] != "+" || !strings.HasPrefix(got[2], "=h|5-4-0|1|") {
				t.Errorf("answer %q", got)
			}
			if q := s.field(1); q != (stock.Quantities{Available: 9, Held: 1}) {
				t.Errorf("stock %v", q)
			}
			s.replay()
		})
	}
}

// An entry that Redis refuses is the half-run that can be had at will: nothing may be written, and the shard must
// not go on as if nothing had been, even after what stood in the way is gone.
func TestARefusedEntryWritesNothingAndClosesTheShard(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	log, err := s.rdb.Dump(ctx, s.shard.keys.Log).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.rdb.Do(ctx, "XADD", s.shard.keys.Log, "5-900", "x", "y").Err(); err != nil {
		t.Fatal(err)
	}
	before := s.contents()
	if _, err := s.desk.Do(ctx, 0, reserve("a", one(1, 1))); !IsClosed(err, "torn") {
		t.Errorf("answer %v", err)
	}
	s.unchanged(before)
	if err := s.rdb.RestoreReplace(ctx, s.shard.keys.Log, 0, log).Err(); err != nil {
		t.Fatal(err)
	}
	before = s.contents()
	if _, err := s.desk.Do(ctx, 0, reserve("b", one(1, 1))); !IsClosed(err, "torn") {
		t.Errorf("after the way was cleared: %v", err)
	}
	s.unchanged(before)
}

// A hold that expired gave its units back, and others may have them by the time of the late confirm.
func TestALateConfirmNeedsTheUnitsOnceMore(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1)
	first := reserve("first", one(1, 1))
	first.TTL = stock.MinTTLMillis
	s.do(first)
	s.expire("first")
	s.do(reserve("second", one(1, 1)))
	before := s.contents()
	out := s.do(move(stock.LateConfirm, "first"))
	if out.Code != stock.SoldOut || len(out.Short) != 1 || out.Short[0].Available != 0 {
		t.Errorf("answer %+v", out)
	}
	s.unchanged(before)
	s.do(move(stock.Release, "second"))
	if out := s.do(move(stock.LateConfirm, "first")); out.Code != stock.Accepted || out.Reservation.Attempt != 2 {
		t.Errorf("once the unit is back: %+v", out)
	}
	s.replay()
}
