package reconcilerapp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// plant adds to the available units of a SKU behind the back of the library.
var plant = redis.NewScript(`local f = redis.call('HGET', KEYS[1], ARGV[1])
local a, rest = string.match(f, '^(%d+)(.*)$')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', a + ARGV[2]) .. rest)
return 1`)

// traffic reserves, confirms, releases and lets expire, until stopped.
func (s *shop) traffic(skus ...int64) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var orders atomic.Int64
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for ctx.Err() == nil {
				n := orders.Add(1)
				id := fmt.Sprint("o", n)
				out, err := s.desk.Do(ctx, 0, stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: 1000, Lines: stock.Lines{{SKU: skus[n%int64(len(skus))], Asked: 1, Now: 1}}})
				if err == nil && out.Code == stock.Accepted && n%3 != 0 {
					kind := stock.Confirm
					if n%3 == 1 {
						kind = stock.Release
					}
					_, _ = s.desk.Do(ctx, 0, stock.Operation{Kind: kind, ID: id, Attempt: 1})
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	stop = sync.OnceValue(func() int64 { cancel(); wait.Wait(); return orders.Load() })
	s.t.Cleanup(func() { stop() })
	return stop
}

func TestPassesUnderTrafficRepairNothingAndFindWhatIsPlanted(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea, mug := s.sku("tea", 100_000, 0), s.sku("mug", 100_000, 0)
	s.consume()
	stop := s.traffic(tea, mug)
	before := len(s.repairs())
	expired := 0
	for range 12 {
		expired += s.want(repair.ExitClean).Shards[0].Expired
	}
	if now := len(s.repairs()); now != before {
		t.Fatalf("repairs %+v", s.repairs()[before:])
	}
	key := redisstock.NewKeys("sp", 0).State
	check(t, plant.Run(t.Context(), s.rdb, []string{key}, tea, 7).Err())
	check(t, plant.Run(t.Context(), s.rdb, []string{key}, mug, -7).Err())
	doc := s.want(repair.ExitRepaired, "--on-tampered=ledger-wins")
	for name, by := range map[string]int64{"tea": 7, "mug": -7} {
		found := 0
		for _, a := range doc.Shards[0].Acts {
			if a.Name == name && a.Verb == "takeover" {
				found++
				if got := available(a.Redis) - available(a.Postgres); got != by {
					t.Errorf("%s: off by %d, want %d: %+v", name, got, by, a)
				}
			}
		}
		if found != 1 {
			t.Errorf("%s was named %d times: %s", name, found, text(doc))
		}
	}
	for range 3 {
		s.want(repair.ExitClean, "--on-tampered=ledger-wins")
	}
	orders := stop()
	sandboxtest.Eventually(t, soon, func() error {
		expired += s.want(repair.ExitClean).Shards[0].Expired
		stocks, err := s.ledger.Stocks(t.Context(), []int64{tea, mug})
		if err != nil {
			return err
		}
		for _, one := range stocks {
			if one.Held != 0 || one.OnHand() != 100_000 || !strings.HasPrefix(s.state(0, one.SKU.Number), fmt.Sprintf("%d|0|%d", one.Available, one.Committed)) {
				return fmt.Errorf("%+v, Redis %s", one, s.state(0, one.SKU.Number))
			}
		}
		return nil
	})
	t.Logf("%d orders, %d expired", orders, expired)
}

func available(field string) (units int64) {
	_, _ = fmt.Sscanf(field, "%d|", &units)
	return units
}

// halt stops a shard in Postgres where it stands.
func (s *shop) halt(shard int, reason string) {
	s.t.Helper()
	row, err := s.ledger.Shard(s.t.Context(), shard)
	check(s.t, err)
	_, err = s.ledger.Halt(s.t.Context(), ledger.Verdict{Shard: shard, Position: row.Position(), Claim: row.Claim, Reason: reason})
	check(s.t, err)
}

func TestAHaltedShardThatStillSellsIsClosedAndARetryOpensIt(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 10, 0)
	s.persist(0)
	s.hold(0, "o1", sku, 1, 60_000)
	s.halt(0, "a consumer died before it could close Redis")
	doc := s.want(repair.ExitOperator)
	if act := doc.Shards[0].Acts[0]; act.Class != "unfenced" || act.Verb != "fence" || act.Repair == 0 {
		t.Errorf("%+v", act)
	}
	repairs := len(s.repairs())
	doc = s.want(repair.ExitOperator)
	if act := doc.Shards[0].Acts[0]; act.Class != "halted" || !strings.Contains(act.Text, "a consumer died") || len(s.repairs()) != repairs {
		t.Errorf("%+v", act)
	}
	if code, out := s.run("retry", "--shard", "0"); code != 0 {
		t.Fatalf("retry: %d %s", code, out)
	}
	s.persist(0)
	s.same(0, sku, "9|1|0") // nothing was given up
	s.want(repair.ExitClean)
}

func TestServeNeverOpensAHaltedShard(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.serve()
	epoch := s.opened(0, 0, soon)
	s.halt(0, "by hand")
	status := redisstock.NewShard(s.rdb, "sp", 0)
	sandboxtest.Eventually(t, soon, func() error { // closed at once
		st, err := status.Status(t.Context())
		if err != nil || st.Mode != "closed" {
			return fmt.Errorf("%+v %s", st, fmt.Sprint(err))
		}
		return nil
	})
	check(t, s.rdb.FlushAll(t.Context()).Err())
	time.Sleep(1500 * time.Millisecond) // three probes
	row, err := s.ledger.Shard(t.Context(), 0)
	check(t, err)
	if row.State != ledger.StateHalted || row.Epoch != epoch {
		t.Errorf("%+v", row)
	}
}

func TestAStoppedConsumersLogIsAppliedByThePass(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 10, 0)
	s.want(repair.ExitClean) // not yet old enough
	sandboxtest.Eventually(t, soon, func() error {
		doc := s.result("--once", "--stuck-after", "1s")
		if doc.Exit != repair.ExitRepaired {
			return fmt.Errorf("exit %d: %s", doc.Exit, text(doc))
		}
		if act := doc.Shards[0].Acts[0]; act.Class != "gap-log" || act.Verb != "apply" || act.State != repair.Done {
			t.Errorf("%+v", act)
		}
		return nil
	})
	s.same(0, sku, "10|0|0")
	s.want(repair.ExitClean, "--stuck-after", "1s")
}

func TestABrokenRuleWithinPostgresNeedsAnOperator(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 10, 0)
	s.hold(0, "o1", sku, 1, 60_000)
	s.persist(0)
	s.exec(`delete from reservation_line`)
	doc := s.want(repair.ExitOperator)
	found := false
	for _, a := range doc.Shards[0].Acts {
		found = found || a.Class == "invariant" && a.Key == "ledger"
	}
	if !found {
		t.Error(text(doc))
	}
}

func TestAnOperatorsCommandGetsTheTurnFromWhoServes(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.serve()
	epoch := s.opened(0, 0, soon)
	s.serve()
	s.halt(0, "by hand")
	began := time.Now()
	if code, out := s.run("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it waited %v", took)
	}
	epoch = s.opened(0, epoch, soon)
	check(t, s.rdb.FlushAll(t.Context()).Err())
	s.opened(0, epoch, soon) // who serves goes on
}

func TestMoreDifferencesThanAnAuditNamesHaltTheShard(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	var skus []int64
	for i := range 120 {
		skus = append(skus, s.sku(fmt.Sprint("sku-", i), 10, 0))
	}
	s.persist(0)
	for _, sku := range skus {
		s.setStock(sku, "11|0|0")
	}
	if act := s.want(repair.ExitOperator).Shards[0].Acts[0]; act.Class != "tampered" || act.Verb != "halt" {
		t.Errorf("%+v", act)
	}
	if code, out := s.run("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	s.persist(0)
	s.same(0, skus[119], "10|0|0")
	s.want(repair.ExitClean)
}
