package streambus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/bus/bustest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// connect keeps the client rules of the pipeline: nothing is sent twice, deadlines count.
func connect(t testing.TB, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// stream is one log on the shared Redis.
type stream struct {
	rdb *redis.Client
	key string
}

func open(t testing.TB) bustest.Log { return newStream(t) }

func newStream(t testing.TB) *stream {
	return &stream{connect(t, sandboxtest.SharedRedis(t)), sandboxtest.Prefix(t) + ":{0}:log"}
}

func (s *stream) source(reader string) *Source {
	return New(Config{Redis: s.rdb, Log: s.key, Consumer: reader, Block: 50 * time.Millisecond})
}

func (s *stream) Source(_ testing.TB, reader string) bus.Source { return s.source(reader) }

func (s *stream) Append(t testing.TB, messages ...bustest.Message) {
	t.Helper()
	for _, m := range messages {
		var values []string
		for _, f := range m.Fields {
			values = append(values, f[0], f[1])
		}
		if err := s.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: s.key, ID: m.ID, Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *stream) Drop(t testing.TB) {
	t.Helper()
	if err := s.rdb.Del(t.Context(), s.key).Err(); err != nil {
		t.Fatal(err)
	}
}

func (s *stream) readers(t testing.TB) map[string]int64 {
	t.Helper()
	found, err := s.rdb.XInfoConsumers(t.Context(), s.key, Group).Result()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int64{}
	for _, r := range found {
		names[r.Name] = r.Pending
	}
	return names
}

func TestConformance(t *testing.T) {
	t.Parallel()
	bustest.Run(t, open)
}

func at(epoch, seq int64) stock.Position { return stock.Position{Epoch: epoch, Seq: seq} }

func TestAnAbsentStreamIsNotMade(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	src := s.source("a")
	_, _ = src.From(t.Context(), at(0, 0))
	_, _ = src.Next(t.Context(), at(0, 0))
	if err := src.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if n := s.rdb.Exists(t.Context(), s.key).Val(); n != 0 {
		t.Error("the reader made a stream")
	}
}

func TestWhatTheLedgerReachedIsAcknowledgedWhoeverReadIt(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1))
	dead, next := s.source("dead"), s.source("next")
	if _, err := dead.Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	for seq := int64(2); seq <= 2500; seq++ {
		s.Append(t, bustest.Entry(5, seq))
	}
	for got := 0; got < 2499; {
		found, err := dead.Next(t.Context(), at(5, 1))
		if err != nil {
			t.Fatal(err)
		}
		got += len(found)
	}
	if diff := cmp.Diff(map[string]int64{"dead": 2499}, s.readers(t)); diff != "" {
		t.Fatal(diff)
	}
	// The ledger stands in the middle of what the dead one claimed.
	next.applied = at(5, 1500)
	if err := next.tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"dead": 1000}, s.readers(t)); diff != "" {
		t.Error(diff)
	}
	if found, err := next.Next(t.Context(), at(5, 2500)); err != nil || len(found) != 0 {
		t.Fatal(found, err)
	}
	if diff := cmp.Diff(map[string]int64{"dead": 0}, s.readers(t)); diff != "" {
		t.Error(diff)
	}
	if n, err := next.Pending(t.Context()); err != nil || n != 0 {
		t.Errorf("pending %d, %v", n, err)
	}
}

func TestNamesOfSilentReadersAreRemovedAndTheirOwnKept(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1))
	src := s.source("alive")
	if _, err := src.Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dead-1", "dead-2", "alive"} {
		if err := s.rdb.XGroupCreateConsumer(t.Context(), s.key, Group, name).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := src.tidy(t.Context()); err != nil || len(s.readers(t)) != 3 {
		t.Fatalf("a reader that was here just now is removed: %v, %v", s.readers(t), err)
	}
	sandboxtest.Eventually(t, deadAfter+10*time.Second, func() error {
		if err := src.tidy(t.Context()); err != nil {
			return err
		}
		if diff := cmp.Diff(map[string]int64{"alive": 0}, s.readers(t)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}

func TestAnotherTypeUnderTheLogsNameIsTorn(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	if err := s.rdb.Set(t.Context(), s.key, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	src := s.source("a")
	if _, err := src.From(t.Context(), at(5, 1)); !errors.Is(err, bus.ErrTorn) {
		t.Errorf("From: %v", err)
	}
	if _, err := src.Next(t.Context(), at(5, 1)); !errors.Is(err, bus.ErrTorn) {
		t.Errorf("Next: %v", err)
	}
}

func TestLeavingTakesTheNameAlong(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1))
	src := s.source("a")
	if _, err := src.Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	if err := src.Leave(t.Context()); err != nil || len(s.readers(t)) != 0 {
		t.Errorf("readers %v, %v", s.readers(t), err)
	}
}

func TestTheGroupIsPutAtTheLedgersPosition(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	for seq := int64(1); seq <= 10; seq++ {
		s.Append(t, bustest.Entry(5, seq))
	}
	// Somebody made the group at the end, as tutorials do: entries 1 to 10 would be skipped.
	if err := s.rdb.XGroupCreate(t.Context(), s.key, Group, "$").Err(); err != nil {
		t.Fatal(err)
	}
	src := s.source("a")
	found, err := src.From(t.Context(), at(5, 4))
	if err != nil || len(found) != 6 {
		t.Fatal(len(found), err)
	}
	if found, err = src.Next(t.Context(), at(5, 8)); err != nil || len(found) != 2 || found[0].ID != "5-9" {
		t.Errorf("Next: %v, %v", found, err)
	}
}

func TestThreeReadersOfFewEntriesSeeNoErrorAndNoWaitBeyondTheBlock(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1))
	const block = 200 * time.Millisecond
	type result struct {
		ids     []string
		longest time.Duration
		err     error
	}
	results := make(chan result, 3)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 3 {
		src := New(Config{Redis: s.rdb, Log: s.key, Consumer: fmt.Sprint("reader-", i), Block: block})
		if _, err := src.Next(ctx, at(5, 1)); err != nil {
			t.Fatal(err)
		}
		go func() {
			var r result
			for ctx.Err() == nil {
				began := time.Now()
				found, err := src.Next(t.Context(), at(5, 1))
				r.longest = max(r.longest, time.Since(began))
				if err != nil {
					r.err = err
				}
				for _, raw := range found {
					r.ids = append(r.ids, raw.ID)
				}
			}
			results <- r
		}()
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for seq := int64(2); seq <= 9; seq++ {
		<-tick.C
		s.Append(t, bustest.Entry(5, seq))
	}
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if info := s.rdb.XInfoGroups(t.Context(), s.key).Val(); len(info) != 1 || info[0].LastDeliveredID != "5-9" {
			return fmt.Errorf("group %+v", info)
		}
		return nil
	})
	cancel()
	var ids []string
	for range 3 {
		r := <-results
		if r.err != nil || r.longest > block+time.Second {
			t.Errorf("a reader waited %v, error %v", r.longest, r.err)
		}
		ids = append(ids, r.ids...)
	}
	slices.Sort(ids)
	if got := strings.Join(ids, " "); got != "5-2 5-3 5-4 5-5 5-6 5-7 5-8 5-9" {
		t.Errorf("read %s", got)
	}
}

func TestADeadConnectionIsNoticedSoonAfterTheBlock(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1))
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	src := New(Config{Redis: connect(t, proxy.Addr()), Log: s.key, Consumer: "a", Block: 50 * time.Millisecond})
	if _, err := src.Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole(true)
	began := time.Now()
	if _, err := src.Next(t.Context(), at(5, 1)); err == nil {
		t.Error("no error from a black hole")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("noticed after %v", took)
	}
}

// fill leaves no room in a Redis of the test's own; append still works, as the function library's does.
func fill(t testing.TB, s *stream) (append func(seq int64), empty func()) {
	t.Helper()
	set := func(limit string) {
		t.Helper()
		if err := s.rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	return func(seq int64) {
		t.Helper()
		const script = "#!lua flags=allow-oom\nreturn redis.call('XADD', KEYS[1], ARGV[1], 'v', '1')"
		if err := s.rdb.Eval(t.Context(), script, []string{s.key}, at(5, seq).String()).Err(); err != nil {
			t.Fatal(err)
		}
	}, func() { set("0") }
}

func TestAFullRedisIsFollowedWithTheGroupThatIsThere(t *testing.T) {
	t.Parallel()
	s := &stream{connect(t, sandboxtest.Redis(t).Addr()), "{0}:log"}
	s.Append(t, bustest.Entry(5, 1))
	if _, err := s.source("before").Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	add, _ := fill(t, s)
	add(2)
	found, err := s.source("after").Next(t.Context(), at(5, 1))
	if err != nil || len(found) != 1 || found[0].ID != "5-2" {
		t.Errorf("%v, %v", found, err)
	}
}

func TestAFullRedisWithoutAGroupIsReadWithoutOneUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	s := &stream{connect(t, sandboxtest.Redis(t).Addr()), "{0}:log"}
	s.Append(t, bustest.Entry(5, 1))
	add, empty := fill(t, s)
	src := s.source("a")
	// The ledger is behind all the while: what was brought once is not brought again.
	for seq := int64(2); seq <= 4; seq++ {
		add(seq)
		found, err := src.Next(t.Context(), at(5, 1))
		if err != nil || len(found) != 1 || found[0].ID != at(5, seq).String() {
			t.Fatalf("%v, %v, want 5-%d", found, err, seq)
		}
	}
	if found, err := src.Next(t.Context(), at(5, 4)); err != nil || len(found) != 0 {
		t.Errorf("%v, %v, want nothing", found, err)
	}
	empty()
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if found, err := src.Next(t.Context(), at(5, 1)); err != nil || len(found) != 0 {
			t.Fatalf("%v, %v, want nothing", found, err)
		}
		if !src.following {
			return errors.New("no group yet")
		}
		return nil
	})
	add(5)
	if found, err := src.Next(t.Context(), at(5, 4)); err != nil || len(found) != 1 || found[0].ID != "5-5" {
		t.Errorf("%v, %v, want 5-5", found, err)
	}
}
