package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// beat is one heartbeat of each consumer, in order.
func beat(t testing.TB, l *Ledger, consumers ...string) map[string][]int {
	t.Helper()
	owned := map[string][]int{}
	for _, c := range consumers {
		shards, err := l.Assign(context.Background(), c, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		owned[c] = shards
	}
	return owned
}

// silence makes a consumer look as if it had not been heard of since.
func silence(t testing.TB, l *Ledger, consumer string, since time.Duration) {
	t.Helper()
	exec(t, l, `update consumer set seen = seen - $2::interval where id = $1`, consumer, since)
	exec(t, l, `update assignment set until = until - $2::interval where consumer = $1`, consumer, since)
}

func TestConsumersShareTheShards(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	if got := beat(t, l, "a"); !slices.Equal(got["a"], []int{0, 1, 2, 3}) {
		t.Fatalf("alone: %v", got)
	}
	// The second finds nothing free until the first gave up its surplus.
	steps := []map[string][]int{beat(t, l, "b"), beat(t, l, "a"), beat(t, l, "b"), beat(t, l, "a", "b")}
	want := []map[string][]int{{"b": {}}, {"a": {0, 1}}, {"b": {2, 3}}, {"a": {0, 1}, "b": {2, 3}}}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Error(diff)
	}
}

func TestDeadConsumerIsReplaced(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	beat(t, l, "a", "b", "a", "b")
	silence(t, l, "a", 2*time.Minute)
	if got := beat(t, l, "b"); !slices.Equal(got["b"], []int{0, 1, 2, 3}) {
		t.Errorf("after the death of a: %v", got)
	}
	// It was only stopped, and comes back.
	beat(t, l, "a", "b")
	if got := beat(t, l, "a", "b"); len(got["a"]) != 2 || len(got["b"]) != 2 {
		t.Errorf("after its return: %v", got)
	}
}

func TestStoppedConsumerIsReplacedWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	for range 3 {
		for _, c := range []string{"a", "b"} {
			if _, err := l.Assign(context.Background(), c, DefaultAssignmentTTL); err != nil {
				t.Fatal(err)
			}
		}
	}
	began := time.Now()
	tick := time.NewTicker(AssignmentHeartbeat)
	defer tick.Stop()
	for {
		shards, err := l.Assign(context.Background(), "b", DefaultAssignmentTTL)
		if err != nil {
			t.Fatal(err)
		}
		if len(shards) == 4 {
			break
		}
		if time.Since(began) > 5*time.Second {
			t.Fatalf("b owns %v after %v", shards, time.Since(began))
		}
		<-tick.C
	}
	if took := time.Since(began); took < DefaultAssignmentTTL-AssignmentHeartbeat {
		t.Errorf("a was replaced after %v: it had not been silent for long", took)
	}
}

func TestAConsumerThatLeavesIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	l := open(t, 3)
	beat(t, l, "a", "b", "a", "b")
	for range 2 {
		if err := l.Leave(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if got := beat(t, l, "b"); !slices.Equal(got["b"], []int{0, 1, 2}) {
		t.Errorf("%v", got)
	}
	held, err := l.Assignments(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, a := range held {
		text = append(text, fmt.Sprintln(a.Shard, a.Consumer, time.Until(a.Until) > 50*time.Second))
	}
	if diff := cmp.Diff([]string{"0 b true\n", "1 b true\n", "2 b true\n"}, text); diff != "" {
		t.Error(diff)
	}
}

func TestAConsumerKeepsWhatItHasWhenOthersChange(t *testing.T) {
	t.Parallel()
	l := open(t, 6)
	beat(t, l, "a", "b", "c")
	before := beat(t, l, "a", "b", "c")
	if err := l.Leave(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	beat(t, l, "d") // takes the place of a before the others could grow
	after := beat(t, l, "b", "c", "d")
	if !slices.Equal(before["b"], after["b"]) || !slices.Equal(before["c"], after["c"]) || !slices.Equal(before["a"], after["d"]) {
		t.Errorf("before %v, after %v", before, after)
	}
	exec(t, l, `update assignment set consumer = '', until = to_timestamp(0) where consumer in ('c', 'd')`)
	if got := beat(t, l, "b"); !slices.Equal(got["b"], before["b"]) {
		t.Errorf("b had %v, and took %v although its share did not change", before["b"], got["b"])
	}
}

func TestShardsOfADroppedConsumerAreFreeAtOnce(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	beat(t, l, "a", "b", "a", "b")
	exec(t, l, `delete from consumer where id = 'a'`) // its assignments run for a moment longer
	if got := beat(t, l, "b"); len(got["b"]) != 4 {
		t.Errorf("%v", got)
	}
}

func TestMoreConsumersThanShardsLeaveSomeIdle(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	if got := beat(t, l, "a", "b", "c", "a", "b", "c"); len(got["a"]) != 1 || len(got["b"])+len(got["c"]) != 0 {
		t.Errorf("%v", got)
	}
}

func TestConcurrentHeartbeatsNeverGiveAShardTwice(t *testing.T) {
	t.Parallel()
	l := open(t, 8)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			for range 20 {
				if _, err := l.Assign(context.Background(), fmt.Sprint("c", i), time.Minute); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkShares(t, l, 8, []string{"c0", "c1", "c2", "c3", "c4"})
}

// checkShares lets the consumers settle and wants shares of floor or ceil, each shard owned once.
func checkShares(t testing.TB, l *Ledger, shards int, live []string) {
	t.Helper()
	beat(t, l, live...)
	owned := beat(t, l, live...)
	var all []int
	for _, c := range live {
		if n := len(owned[c]); n < shards/len(live) || n > (shards+len(live)-1)/len(live) {
			t.Fatalf("%s owns %d of %d among %d: %v", c, n, shards, len(live), owned)
		}
		all = append(all, owned[c]...)
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != shards || len(all) != shards {
		t.Fatalf("owned: %v", owned)
	}
	if again := beat(t, l, live...); !cmp.Equal(owned, again) {
		t.Fatalf("shards move without a need: %v, then %v", owned, again)
	}
}

func TestSharesAreFairWhoeverComesAndGoes(t *testing.T) {
	t.Parallel()
	const shards = 5
	l := open(t, shards)
	rapid.Check(t, func(r *rapid.T) {
		exec(t, l, `delete from consumer`)
		exec(t, l, `update assignment set consumer = '', until = to_timestamp(0)`)
		names := []string{"a", "b", "c", "d"}
		live := map[string]bool{}
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			c := rapid.SampledFrom(names).Draw(r, "consumer")
			switch rapid.IntRange(0, 3).Draw(r, "step") {
			case 0:
				silence(t, l, c, 2*time.Minute)
				delete(live, c)
			case 1:
				if err := l.Leave(context.Background(), c); err != nil {
					r.Fatal(err)
				}
				delete(live, c)
			default:
				beat(t, l, c)
				live[c] = true
			}
		}
		if len(live) == 0 {
			live["a"] = true
		}
		var left []string
		for _, c := range names {
			if live[c] {
				left = append(left, c)
			}
		}
		checkShares(t, l, shards, left)
	})
}

func TestHeartbeatsAndTurnsDoNotWaitForTheHolderOfAShard(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	beat(t, l, "a")
	if _, err := l.TakeTurn(ctx, 0, "a", time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// Even the strongest row lock: the consumer that holds it may have been stopped.
	if _, err := tx.Exec(ctx, `select number from shard for update`); err != nil {
		t.Fatal(err)
	}
	silence(t, l, "a", 2*time.Minute)
	if shards, err := l.Assign(ctx, "b", time.Minute); err != nil || len(shards) != 2 {
		t.Errorf("%v, %v", shards, err)
	}
	if ok, err := l.TakeTurn(ctx, 0, "b", time.Minute); err != nil || !ok {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestAConsumerStoppedInItsHeartbeatLeavesNoLock(t *testing.T) {
	t.Parallel()
	stalled, proxy := proxied(t, 2)
	direct, err := Open(context.Background(), Config{Name: "other", URL: strings.Replace(
		stalled.pool.Config().ConnString(), proxy.Addr(), sandboxtest.Postgres(t).Addr(), 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(direct.Close)
	beat(t, stalled, "stalled-consumer")
	fault := proxy.SwallowReply(faultproxy.Contains("stalled-consumer"))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	ended := make(chan error)
	go func() {
		_, err := stalled.Assign(ctx, "stalled-consumer", time.Minute)
		ended <- err
	}()
	<-fault.Done()
	began := time.Now()
	beat(t, direct, "other")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the other waited %v", took)
	}
	cancel()
	proxy.CloseAll() // else the driver waits 15 s for the server to close what the proxy holds
	if err := <-ended; err == nil {
		t.Error("a heartbeat without an answer was a success")
	}
}

func TestAHeartbeatWithoutANameIsRefused(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	for _, c := range []string{"", "nul\x00"} {
		if _, err := l.Assign(context.Background(), c, time.Second); err == nil {
			t.Errorf("%q was accepted", c)
		}
	}
	if _, err := l.Assign(context.Background(), "a", 0); err == nil {
		t.Error("a ttl of 0 was accepted")
	}
}

func TestTheTurnHasOneHolder(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	ctx := context.Background()
	take := func(shard int, holder string, ttl time.Duration) bool {
		t.Helper()
		ok, err := l.TakeTurn(ctx, shard, holder, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !take(0, "a", time.Minute) || take(0, "b", time.Minute) || !take(0, "a", time.Minute) || !take(1, "b", time.Minute) {
		t.Error("the first has the turn of its shard, and of no other")
	}
	if ok, err := l.RenewTurn(ctx, 0, "b", time.Minute); ok || err != nil {
		t.Errorf("b renewed the turn of a: %v, %v", ok, err)
	}
	if ok, err := l.RenewTurn(ctx, 0, "a", 20*time.Millisecond); !ok || err != nil {
		t.Errorf("a could not renew: %v, %v", ok, err)
	}
	sandboxtest.Eventually(t, soon, func() error { return want(count(t, l, `select count(*) from turn where until <= now()`), 1) })
	if ok, err := l.RenewTurn(ctx, 0, "a", time.Minute); ok || err != nil {
		t.Errorf("a renewed a turn that was over: %v, %v", ok, err)
	}
	if !take(0, "b", time.Minute) {
		t.Error("a turn that is over is not free")
	}
	if ok, err := l.RenewTurn(ctx, 0, "a", time.Minute); ok || err != nil {
		t.Errorf("a renewed what it lost: %v, %v", ok, err)
	}
	if err := l.GiveUpTurn(ctx, 0, "a"); err != nil || take(0, "a", time.Minute) {
		t.Errorf("a gave up the turn of b: %v", err)
	}
	if err := l.GiveUpTurn(ctx, 0, "b"); err != nil || !take(0, "a", time.Minute) {
		t.Errorf("a turn that was given up is not free: %v", err)
	}
	if ok, err := l.TakeTurn(ctx, 9, "a", time.Minute); ok || err == nil {
		t.Error("a turn of a shard that is not there")
	}
	if _, err := l.TakeTurn(ctx, 0, "", time.Minute); err == nil {
		t.Error("a turn without a holder")
	}
}

func TestOnlyOneOfManyTakesTheTurn(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 16 {
		wg.Go(func() {
			ok, err := l.TakeTurn(context.Background(), 0, fmt.Sprint("r", i), time.Minute)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ok {
				won++
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d took the turn", won)
	}
}
