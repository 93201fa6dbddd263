package redisstock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestEveryCallerOfABatchGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	const rounds, callers = 4, 64
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1_000_000)
	s.sku(2, 0)
	for round := range rounds {
		short := round%2 == 1 // every third order is refused, so that the reply has a line for each
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				id := fmt.Sprintf("o%d-%d", round, i)
				op := reserve(id, one(1, int64(i+1)))
				if refused := short && i%3 == 0; refused {
					op.Lines[0].SKU = 2
				}
				out := s.do(op)
				record, err := s.rdb.HGet(context.Background(), s.shard.keys.Orders, id).Result()
				switch {
				case op.Lines[0].SKU == 2:
					if out.Code != stock.SoldOut || !errors.Is(err, redis.Nil) || out.Short[0].Asked != int64(i+1) {
						t.Errorf("%s: %+v, and Redis has %q", id, out, record)
					}
				case out.Code != stock.Accepted || record != event.FormatRecord(&out.Reservation) || out.Receipt != out.Reservation.Receipt:
					t.Errorf("%s: answered %+v, and Redis has %q", id, out, record)
				}
			})
		}
		all.Wait()
	}
	s.replay()
	if calls := s.desk.Stats().Calls.Load(); calls >= rounds*callers {
		t.Errorf("%d calls for %d orders: nobody shared one", calls, rounds*callers)
	}
}

// A reply that has not one line for each operation is not understood: nobody is told anything that it says.
func TestAReplyOfAnotherLengthIsNoReply(t *testing.T) {
	t.Parallel()
	op := reserve("a", one(1, 1))
	for _, rest := range []string{"", "+", "+\n", "+\n+\n+", "+\n+\n"} {
		batch := []*pending{{op: &op}, {op: &op}}
		if err := (reply{class: "OK", seq: 2, rest: rest}).answer(0, 5, batch); err == nil {
			t.Errorf("%q is believed: %+v and %+v", rest, batch[0].answer, batch[1].answer)
		}
	}
}

func TestASeqCountsWithinItsEpochOnly(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 1000)
	for i := range 5 {
		s.do(reserve(fmt.Sprintf("o%d", i), one(1, 1)))
	}
	c := s.desk.branch(0)
	for _, row := range []struct {
		epoch stock.Epoch
		want  int64
		why   string
	}{
		{stock.Epoch{Epoch: 5, Applied: 3}, 7, "we saw more than Postgres"},
		{stock.Epoch{Epoch: 5, Applied: 9}, 9, "others saw more than we"},
		{stock.Epoch{Epoch: 6}, 0, "numbers begin anew in an epoch"},
		{stock.Epoch{Epoch: 4, Applied: 2}, 2, "a Postgres that went back is not held to what came after"},
	} {
		if got := c.minSeq(row.epoch); got != row.want {
			t.Errorf("%+v: Redis has to be at %d, want %d: %s", row.epoch, got, row.want, row.why)
		}
	}
	s.open(6)
	if out := s.do(reserve("after", one(1, 1))); out.Code != stock.Accepted {
		t.Errorf("after a takeover: %+v", out)
	}
}

// sent keeps the deadlines of the calls that a client sends.
type sent struct {
	mu        sync.Mutex
	deadlines []int64
}

func (*sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); args[0] == "fcall" {
			s.mu.Lock()
			s.deadlines = append(s.deadlines, args[len(args)-2].(int64))
			s.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

// A call may wait in a socket for long. Redis compares its deadline with its own clock, so it has to be told in
// that clock's time, and no later than the moment at which the caller is told something.
func TestACallCarriesItsCallersDeadlineInRedisTime(t *testing.T) {
	t.Parallel()
	s := openShop(t, sandboxtest.SharedRedis(t), "")
	s.sku(1, 10)
	var calls sent
	s.rdb.AddHook(&calls)
	for _, row := range []struct{ caller, most time.Duration }{{300 * time.Millisecond, 300 * time.Millisecond}, {time.Hour, callTimeout}} {
		before, err := s.shard.Time(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), row.caller)
		_, err = s.desk.Do(ctx, 0, reserve(fmt.Sprint(row.caller), one(1, 1)))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		after, err := s.shard.Time(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// What the desk knows of Redis' clock is as exact as a round trip: a tenth of a second is plenty.
		const slack = 100
		got := calls.deadlines[len(calls.deadlines)-1]
		if least, most := before.UnixMilli()+row.most.Milliseconds()-slack, after.UnixMilli()+row.most.Milliseconds()+slack; got < least || got > most {
			t.Errorf("a caller who waits for %v sends the deadline %d, want %d to %d", row.caller, got, least, most)
		}
	}
}

func TestACallerWhoLeavesAfterTheCallWasSentIsToldUnknown(t *testing.T) {
	t.Parallel()
	addr := sandboxtest.SharedRedis(t)
	proxy := sandboxtest.Proxy(t, addr)
	s := openShop(t, addr, proxy.Addr())
	s.sku(1, 10)
	proxy.SwallowReply(faultproxy.Contains("busy-lane"))
	first := make(chan error, 1)
	go func() { // received below
		_, err := s.desk.Do(context.Background(), 0, reserve("busy-lane", one(1, 1)))
		first <- err
	}()
	lane := &s.desk.branch(0).apply
	sandboxtest.Eventually(t, 5*time.Second, func() error {
		lane.mu.Lock()
		defer lane.mu.Unlock()
		if lane.flying == 0 {
			return errors.New("the lane is idle")
		}
		return nil
	})
	proxy.SwallowReply(faultproxy.Contains("leaver"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.desk.Do(ctx, 0, reserve("leaver", one(1, 1))); !errors.Is(err, stock.ErrUnknown) {
		t.Errorf("answer %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if out := s.do(reserve("leaver", one(1, 1))); out.Code != stock.Replayed {
		t.Errorf("its order was taken, and the repeat is answered %+v", out)
	}
}

func TestTheDriverSendsNothingTwice(t *testing.T) {
	t.Parallel()
	addr := sandboxtest.SharedRedis(t)
	proxy := sandboxtest.Proxy(t, addr)
	rdb := connect(t, proxy.Addr())
	key := sandboxtest.Prefix(t) + ":count"
	proxy.CutAfterExecution(faultproxy.Contains("incr"))
	if err := rdb.Incr(t.Context(), key).Err(); err == nil {
		t.Error("the reply was lost, and no error came")
	}
	if n, err := rdb.Get(t.Context(), key).Int(); err != nil || n != 1 {
		t.Errorf("counted to %d, %v", n, err)
	}
}

// Confirms name no lines, so the desk cannot know that they are too many for one call: the library does as much as
// fits, and what is left is asked again.
func TestWhatDoesNotFitIntoACallIsAskedAgain(t *testing.T) {
	t.Parallel()
	const carts, lines = 6, 150 // two of them are more lines than a call may have
	addr := sandboxtest.SharedRedis(t)
	proxy := sandboxtest.Proxy(t, addr)
	s := openShop(t, addr, proxy.Addr())
	var cart []stock.Line
	for sku := int64(1); sku <= lines; sku++ {
		s.sku(sku, carts)
		cart = append(cart, one(sku, 1))
	}
	for i := range carts {
		s.do(reserve(fmt.Sprintf("cart%d", i), append([]stock.Line(nil), cart...)...))
	}
	before := s.desk.Stats().Operations.Load()
	proxy.Delay(300 * time.Millisecond) // so that all but the first two wait for one another
	var all sync.WaitGroup
	for i := range carts {
		all.Go(func() {
			if out := s.do(move(stock.Confirm, fmt.Sprintf("cart%d", i))); out.Code != stock.Accepted {
				t.Errorf("cart%d: %+v", i, out)
			}
		})
	}
	all.Wait()
	proxy.Delay(0)
	if sent := s.desk.Stats().Operations.Load() - before; sent <= carts {
		t.Errorf("%d operations were sent for %d carts: none was asked again", sent, carts)
	}
	s.replay()
}
