package producerapp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// A shop is a producer on a Redis and a database of its own, behind a fault proxy, with a consumer by hand.
type shop struct {
	*testing.T
	*api.Client
	ops      string
	rdb      *redis.Client // past the proxy
	proxy    *faultproxy.Proxy
	ledger   *ledger.Ledger
	config   Config
	shards   int
	consumer *consumer
}

// A consumer rests from the moment that rest returns.
type consumer struct {
	mu      sync.Mutex
	resting bool
}

func (c *consumer) rest(resting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resting = resting
}

func (c *consumer) work(apply func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.resting {
		apply()
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[V any](t testing.TB) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		check(t, err)
		return v
	}
}

// settings are those of a producer on the given servers.
func settings(t testing.TB, redisURL, postgresURL string, more ...string) Config {
	t.Helper()
	var c Config
	_, err := config.ParseArgs(Name, Description, &c, append([]string{
		"--redis-url", redisURL, "--postgres-url", postgresURL, "--listen", freeAddress(t), "--ops-listen", freeAddress(t),
		"--log-level", "error", "--redis-prefix", sandboxtest.Prefix(t),
	}, more...), io.Discard)
	check(t, err)
	return c
}

// ports are given out one after the other, from below the range that the system takes ports for connections from: the
// producer binds its address later, and a connection of a test beside it must not have taken it by then.
var ports = func() *atomic.Int64 {
	var next atomic.Int64
	next.Store(rand.Int64N(1000))
	return &next
}()

func freeAddress(t testing.TB) string {
	t.Helper()
	const first, many, tries = 20_000, 12_000, 1000
	for range tries {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+ports.Add(1)*7%many))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func openShop(t *testing.T, shards int) *shop {
	t.Helper()
	return openShopWith(t, shards)
}

// openShopWith gives the producer more flags.
func openShopWith(t *testing.T, shards int, flags ...string) *shop {
	t.Helper()
	server := sandboxtest.Redis(t)
	direct := must[*redis.Client](t)(redisstock.Connect(redisstock.Options{URL: server.URL(), Timeout: 5 * time.Second}))
	t.Cleanup(func() { direct.Close() })
	proxy := sandboxtest.Proxy(t, direct.Options().Addr)
	database := sandboxtest.Database(t, migrations.Up)
	l := must[*ledger.Ledger](t)(ledger.Open(t.Context(), ledger.Config{URL: database, Name: "test"}))
	t.Cleanup(l.Close)
	check(t, l.Init(t.Context(), shards))
	c := settings(t, "redis://"+proxy.Addr()+"/0", database, flags...)
	s := &shop{T: t, rdb: direct, proxy: proxy, ledger: l, config: c, shards: shards, consumer: &consumer{},
		Client: api.NewClient("http://" + c.API.Addr), ops: "http://" + c.Ops.Addr}
	s.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	t.Cleanup(s.HTTP.CloseIdleConnections)
	s.takeover()
	s.consume()
	s.run()
	return s
}

func (s *shop) shard(n int) *redisstock.Shard {
	return redisstock.NewShard(s.rdb, s.config.Redis.Prefix, n)
}

// present is the epoch by Postgres, for a desk beside the producer.
type present struct{ ledger *ledger.Ledger }

func (p present) Epoch(shard int) stock.Epoch {
	row, err := p.ledger.Shard(context.Background(), shard)
	if err != nil {
		return stock.Epoch{Shard: shard, Reason: "ledger"}
	}
	return stock.Epoch{
		Shard: shard, Ledger: p.ledger.ID(), Epoch: row.Epoch, Applied: row.Applied, Library: row.Library, Open: true,
	}
}

func (p present) Doubt(int, string) {}

// desk decides beside the producer, as the reconciler does.
func (s *shop) desk() *redisstock.Desk {
	d := redisstock.NewDesk(s.rdb, s.config.Redis.Prefix, present{s.ledger})
	s.Cleanup(d.Close)
	return d
}

// takeover opens every shard.
func (s *shop) takeover() {
	s.Helper()
	for n := range s.shards {
		_, err := takeover.Run(s.Context(), redisstock.NewOpener(s.shard(n), redisstock.Unsafe{}), ledger.NewOpener(s.ledger), takeover.Options{Shard: n, Operator: true})
		check(s, err)
	}
}

// consume applies the log until the test ends.
func (s *shop) consume() {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for n := range s.shards {
		work.Go(func() {
			for ctx.Err() == nil {
				s.consumer.work(func() { s.applyOnce(ctx, n) })
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	s.Cleanup(func() {
		cancel()
		work.Wait()
	})
}

// applyOnce may meet a takeover or an empty Redis: it is asked again.
func (s *shop) applyOnce(ctx context.Context, n int) {
	row, err := s.ledger.Shard(ctx, n)
	if err != nil {
		return
	}
	raws, err := s.shard(n).Range(ctx, row.Position(), 1000)
	if err == nil && len(raws) > 0 {
		_, err = s.ledger.Apply(ctx, n, raws)
	}
	if halted := new(ledger.HaltedError); errors.As(err, &halted) {
		s.Errorf("the consumer halts: %v", err)
	}
}

// run starts the producer and waits until it is ready.
func (s *shop) run() {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, s.config) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("the producer ended with %v", err)
		}
	})
	s.ready(true)
}

func (s *shop) ready(want bool) {
	s.Helper()
	sandboxtest.Eventually(s, 10*time.Second, func() error {
		status, body, err := get(s.ops + "/readyz")
		if err == nil && (status == 200) != want {
			err = fmt.Errorf("ready answers %d %s", status, body)
		}
		return err
	})
}

func get(url string) (int, string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// quantities are the live and the persisted figures of a SKU, once they agree.
func (s *shop) quantities(sku string) api.Quantities {
	s.Helper()
	var got api.Stock
	sandboxtest.Eventually(s, 5*time.Second, func() error {
		var err error
		if got, err = s.Stock(s.Context(), sku); err != nil {
			return err
		}
		if got.Redis == nil || got.Ledger == nil || got.Redis.Quantities != got.Ledger.Quantities {
			return fmt.Errorf("Redis has %+v, Postgres %+v", got.Redis, got.Ledger)
		}
		return nil
	})
	return got.Redis.Quantities
}

func problemOf(t testing.TB, err error) *api.Problem {
	t.Helper()
	var p *api.Problem
	if !errors.As(err, &p) {
		t.Fatalf("%v is no problem", err)
	}
	return p
}
