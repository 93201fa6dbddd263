package consumerapp

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/consumer/internal/apply"
	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/bus/streambus"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// replaceTime is how soon a consumer that died or stopped must be replaced.
const replaceTime = 5 * time.Second

func TestADeadAndAStoppedConsumerAreReplacedAndNothingIsAppliedTwice(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 4)
	a, b := s.consume("a"), s.consume("b")
	a.ready()
	b.ready()
	s.owns("a", 2, replaceTime)
	s.owns("b", 2, replaceTime)
	for _, shelf := range s.shelves {
		shelf.sell(50)
	}
	s.persisted(10 * time.Second)

	a.Kill()
	s.owns("b", 4, replaceTime)
	for _, shelf := range s.shelves {
		shelf.sell(50)
	}
	s.persisted(10 * time.Second)

	c := s.consume("c")
	c.ready()
	s.owns("c", 2, replaceTime)
	check(t, b.Pause())
	s.owns("c", 4, replaceTime)
	for _, shelf := range s.shelves {
		shelf.sell(50)
	}
	s.persisted(10 * time.Second)

	check(t, b.Resume()) // and finds that others were faster
	for _, shelf := range s.shelves {
		shelf.sell(50)
	}
	s.persisted(10 * time.Second)
	s.owns("b", 2, 2*replaceTime)
	if _, body := c.get("/metrics"); !strings.Contains(body, "stockpipe_consumer_entries_total") {
		t.Errorf("metrics: %s", body)
	}
}

func TestAStopFinishesGivesUpAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 2)
	c := s.consume("a", "--block", "5s") // it waits in a read most of the time
	c.ready()
	s.owns("a", 2, replaceTime)
	selling, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		for i := range 300 {
			s.shelves[i%2].sell(1)
			if i == 100 {
				close(selling)
			}
		}
	}()
	<-selling
	began := time.Now()
	check(t, c.Signal(syscall.SIGTERM))
	<-c.Done()
	if took := time.Since(began); took > stopGrace || c.Err() != nil {
		t.Errorf("stopped after %v: %v\n%s", took, c.Err(), c.err.text())
	}
	if owners := s.owners(); len(owners) != 0 {
		t.Errorf("still assigned: %v", owners)
	}
	<-written
	for _, shelf := range s.shelves {
		if names := s.rdb.XInfoConsumers(t.Context(), shelf.key(), streambus.Group).Val(); len(names) != 0 {
			t.Errorf("names in the group: %+v", names)
		}
	}
	s.consume("b")
	s.persisted(15 * time.Second)
}

func TestAWaitingReadEndsSoonAfterTheSignal(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	c := s.consume("a", "--block", "1s")
	s.persisted(20 * time.Second)
	began := time.Now()
	check(t, c.Signal(syscall.SIGINT))
	<-c.Done()
	if took := time.Since(began); took > 4*time.Second || c.Err() != nil {
		t.Errorf("stopped after %v: %v", took, c.Err())
	}
}

func TestALogThatIsDeletedUnderItsReadersIsReportedCalmlyAndTakenUpAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	shelf := s.shelves[0]
	c := s.consume("a")
	s.persisted(20 * time.Second)

	var mu sync.Mutex
	var doubts []string
	listening := make(chan struct{}, 16)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.ledger.Listen(ctx, func(h ledger.Heard) {
			mu.Lock()
			defer mu.Unlock()
			if h.Channel != "" {
				doubts = append(doubts, h.Payload)
			}
			select {
			case listening <- struct{}{}:
			default:
			}
		}, ledger.ChannelDoubt)
	}()
	defer func() { cancel(); <-over }()
	<-listening

	before := len(c.said(""))
	check(t, s.rdb.Del(t.Context(), shelf.key()).Err())
	began := time.Now()
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(doubts, "0 missing") || time.Since(began) < 4*time.Second {
			return fmt.Errorf("doubts %v", doubts)
		}
		return nil
	})
	lines, seconds := len(c.said(""))-before, time.Since(began).Seconds()
	if float64(lines) > 1+seconds {
		t.Errorf("%d lines in %.1f s:\n%s", lines, seconds, c.err.text())
	}
	mu.Lock()
	if len(doubts) > 12 {
		t.Errorf("%d reports in %.1f s", len(doubts), seconds)
	}
	mu.Unlock()
	if n := s.rdb.Exists(t.Context(), shelf.key()).Val(); n != 0 {
		t.Error("the consumer made a log")
	}
	shelf.takeover(nil)
	shelf.sell(10)
	s.persisted(2 * time.Second)
}

func TestWhatWasWrittenWhileNobodyReadIsAppliedInOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	s.shelves[0].sell(2500)
	// The tutorial's group, which would skip everything.
	check(t, s.rdb.XGroupCreate(t.Context(), s.shelves[0].key(), streambus.Group, "$").Err())
	s.consume("a")
	s.persisted(20 * time.Second)
}

// everything gives all shards to whoever asks.
type everything struct{ shards []int }

func (e everything) Assign(context.Context, string, time.Duration) ([]int, error) {
	return e.shards, nil
}
func (e everything) Leave(context.Context, string) error { return nil }

func TestTwoOwnersAtOnceApplyEachOrderOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	proxy := sandboxtest.Proxy(t, sandboxtest.Postgres(t).Addr())
	slow := strings.Replace(s.base, sandboxtest.Postgres(t).Addr(), proxy.Addr(), 1)
	var stops []func()
	for i, url := range []string{s.base, slow} {
		var c Config
		_, err := config.ParseArgs(Name, Description, &c, append(s.args(fmt.Sprint("owner-", i)), "--postgres-url", url), nil)
		check(t, err)
		a, err := open(t.Context(), c, zap.NewNop())
		check(t, err)
		m := apply.NewMetrics(metrics.New("test"))
		a.sharing.Assigner = everything{[]int{0}}
		a.sharing.Loops.Metrics = m
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { defer close(over); _ = a.sharing.Run(ctx) }()
		stops = append(stops, sync.OnceFunc(func() { cancel(); <-over; a.close() }))
		t.Cleanup(stops[i])
	}
	proxy.Delay(50 * time.Millisecond)
	s.shelves[0].sell(500)
	s.persisted(30 * time.Second)
	for _, stop := range stops {
		stop()
	}
	if held := s.shelves[0].book.Stock[s.shelves[0].sku].Held; held != 500 {
		t.Errorf("%d held", held)
	}
	row, err := s.ledger.Shard(t.Context(), 0)
	check(t, err)
	if row.State != ledger.StateOpen {
		t.Errorf("the shard is %s: %s", row.State, row.Reason)
	}
}

func TestAForeignEntryHaltsTheShardAndClosesRedis(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 2)
	check(t, redisstock.LoadLibrary(t.Context(), s.rdb, redisstock.LibraryVersion))
	s.consume("a")
	s.persisted(20 * time.Second)
	bad := s.shelves[0]
	check(t, s.rdb.Do(t.Context(), "XADD", bad.key(), fmt.Sprintf("%d-%d", bad.at.Epoch, bad.at.Seq+1), "hello", "wor\x00ld").Err())
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		row, err := s.ledger.Shard(t.Context(), 0)
		if err != nil || row.State != ledger.StateHalted {
			return fmt.Errorf("shard %+v, %w", row, err)
		}
		status, err := redisstock.NewShard(s.rdb, s.prefix, 0).Status(t.Context())
		if err != nil || status.Mode != "closed" || status.Fence != "same" || status.Epoch != row.Claim {
			return fmt.Errorf("redis %+v, %w", status, err)
		}
		return nil
	})
	s.shelves = s.shelves[1:]
	s.shelves[0].sell(20) // the other shard goes on
	s.persisted(10 * time.Second)
}

func TestReadinessFollowsTheServers(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	s := newShop(t, server.URL(), 1)
	c := s.consume("a")
	c.ready()
	check(t, server.Pause())
	sandboxtest.Eventually(t, 15*time.Second, func() error {
		status, body := c.get("/readyz")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, `"redis"`) || strings.Contains(body, `"postgres"`) {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	check(t, server.Resume())
	c.ready()
	s.shelves[0].sell(10)
	s.persisted(15 * time.Second)
}

func TestWhatIsMissingAtTheStartIsNamedWithItsRemedy(t *testing.T) {
	t.Parallel()
	none := sandboxtest.Database(t, migrations.Up)
	empty := sandboxtest.NamedDatabase(t, "unmigrated", nil)
	gone := sandboxtest.Redis(t)
	goneURL := gone.URL()
	check(t, gone.Stop())
	s := newShop(t, sharedRedis(t), 1)
	for fact, c := range map[string]struct {
		args []string
		want []string
	}{
		"no shards":       {[]string{"--postgres-url", none}, []string{"stockpipe-reconciler init"}},
		"unmigrated":      {[]string{"--postgres-url", empty}, []string{"migrate"}},
		"no Postgres":     {[]string{"--postgres-url", "postgres://u:hidden@127.0.0.1:1/x"}, []string{"Postgres at 127.0.0.1:1"}},
		"no Redis":        {[]string{"--redis-url", goneURL}, []string{"Redis at redis://", "--redis-url"}},
		"an open address": {[]string{"--ops-listen", "0.0.0.0:0"}, []string{"127.0.0.1"}},
	} {
		var settings Config
		_, err := config.ParseArgs(Name, Description, &settings, append(s.args("a"), c.args...), nil)
		if err == nil {
			err = Run(t.Context(), settings)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%s: %v does not name %q", fact, err, want)
			}
		}
	}
}
