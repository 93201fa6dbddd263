package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const prefix = "sp"

// A plan says what a shop is made of.
type plan struct {
	shards      int // 0: one
	producers   int
	consumers   int
	reconcilers int

	redis   sandbox.RedisOptions
	proxied bool              // the roles reach Redis through shop.path
	slow    bool              // the consumers reach Postgres through shop.ledgerPath
	bare    bool              // the database is left empty
	zone    string            // of the database's sessions, unless they say otherwise
	zones   map[string]string // TZ by kind of role

	producerArgs   []string
	consumerArgs   []string
	reconcilerArgs []string
	postgresOf     func(kind string) string // URL for a kind of role; nil: the database's own
}

// A shop is a whole stockpipe of one row's own: a Redis, a database, and real processes.
type shop struct {
	t    *testing.T
	row  *row
	plan plan

	redis   *sandbox.Redis
	address string // where the roles find Redis
	path    *faultproxy.Proxy
	url     string // of the database
	rdb     *redis.Client
	pool    *pgxpool.Pool
	ledger  *ledger.Ledger
	http    *http.Client

	ledgerPath *faultproxy.Proxy

	mu      sync.Mutex
	started int
	roles   []*role
	numbers map[string]int64 // SKU text → number
	homes   map[string]int   // SKU text → shard
}

// open makes a shop and waits until it would sell.
func open(r *row, p plan) *shop {
	r.t.Helper()
	s := found(r, p)
	s.startAll()
	s.awaitReady()
	return s
}

// found makes everything but the processes.
func found(r *row, p plan) *shop {
	t := r.t
	t.Helper()
	p.shards = max(p.shards, 1)
	s := &shop{t: t, row: r, plan: p, numbers: map[string]int64{}, homes: map[string]int{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 512}
	s.http = &http.Client{Transport: &tap{transport}}
	t.Cleanup(transport.CloseIdleConnections)

	if p.redis.MaxMemory == "" {
		p.redis.MaxMemory = "1gb"
	}
	s.redis = sandboxtest.Redis(t, p.redis)
	s.address = s.redis.Addr()
	if p.proxied {
		s.path = sandboxtest.Proxy(t, s.redis.Addr())
		s.address = s.path.Addr()
	}
	s.rdb = s.connect(s.redis.Addr())
	if p.bare {
		s.url = sandboxtest.Database(t, nil)
	} else {
		s.url = sandboxtest.Database(t, migrations.Up)
	}
	var err error
	s.pool, err = pgxpool.New(t.Context(), s.url)
	need(t, err)
	t.Cleanup(s.pool.Close)
	if p.zone != "" {
		s.exec(fmt.Sprintf("alter database %q set timezone = '%s'", s.pool.Config().ConnConfig.Database, p.zone))
	}
	if p.slow {
		s.slowConsumers()
	}
	if !p.bare {
		s.openLedger()
		need(t, s.ledger.Init(t.Context(), p.shards))
	}
	t.Cleanup(s.close)
	return s
}

func (s *shop) openLedger() {
	s.t.Helper()
	var err error
	s.ledger, err = ledger.Open(s.t.Context(), ledger.Config{URL: s.url, Name: "e2e", MaxConns: 4})
	need(s.t, err)
	s.t.Cleanup(s.ledger.Close)
}

func (s *shop) startAll() {
	s.t.Helper()
	for range s.plan.reconcilers {
		s.start(reconciler)
	}
	for range s.plan.consumers {
		s.start(consumer)
	}
	for range s.plan.producers {
		s.start(producer)
	}
}

// slowConsumers puts a proxy between the consumers and Postgres.
func (s *shop) slowConsumers() {
	s.t.Helper()
	config := s.pool.Config().ConnConfig
	s.ledgerPath = sandboxtest.Proxy(s.t, fmt.Sprintf("%s:%d", config.Host, config.Port))
	through := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", config.User, config.Password, s.ledgerPath.Addr(), config.Database)
	s.plan.postgresOf = func(kind string) string {
		if kind == consumer {
			return through
		}
		return s.url
	}
}

func (s *shop) connect(address string) *redis.Client {
	s.t.Helper()
	rdb, err := redisstock.Connect(redisstock.Options{URL: "redis://" + address + "/0", Name: "e2e", PoolSize: 8, Timeout: 10 * time.Second})
	need(s.t, err)
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// awaitReady waits until every living role says that it can do its work.
func (s *shop) awaitReady() {
	s.t.Helper()
	sandboxtest.Eventually(s.t, patience, func() error {
		var errs []error
		for _, r := range s.living("") {
			errs = append(errs, r.ready())
		}
		return errors.Join(errs...)
	})
}

// living are the roles of a kind, or of all, that run.
func (s *shop) living(kind string) []*role {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.roles), func(r *role) bool { return kind != "" && r.kind != kind || !r.alive() })
}

// killAll ends all roles of a kind by SIGKILL.
func (s *shop) killAll(kind string) {
	s.t.Helper()
	for _, r := range s.living(kind) {
		r.kill()
	}
}

// close takes the processes down; the servers go by themselves. A row that broke shows what they said last.
func (s *shop) close() {
	for _, kind := range []string{producer, consumer, reconciler} {
		var wait sync.WaitGroup
		for _, r := range s.living(kind) {
			wait.Go(func() {
				_ = r.process.Resume()
				if r.process.Stop(stopGrace) != nil && !s.t.Failed() {
					s.t.Errorf("%s ended with %v: %s", r.name, r.process.Err(), r.log.tail())
				}
			})
		}
		wait.Wait()
	}
	if s.t.Failed() {
		for _, r := range s.roles {
			s.t.Logf("%s (%v): %s", r.name, r.process.Err(), r.log.tail())
		}
	}
}

// client calls the nth producer that lives, once: what comes back is what this row is about.
func (s *shop) client(n int) *api.Client {
	producers := s.living(producer)
	if len(producers) == 0 {
		return &api.Client{Base: "http://127.0.0.1:1", HTTP: s.http, Tries: 1}
	}
	return &api.Client{Base: producers[n%len(producers)].api, HTTP: s.http, Tries: 1}
}

// patient is a client that asks again, as a shop would.
func (s *shop) patient(n int) *api.Client {
	c := s.client(n)
	c.Tries = 50
	return c
}

// supply creates SKUs with the same opening and waits until Postgres has them.
func (s *shop) supply(units int64, skus ...string) {
	s.t.Helper()
	for _, sku := range skus {
		document, err := s.patient(0).Create(s.t.Context(), sku, api.OpeningRequest{Opening: units})
		need(s.t, err)
		if document.State != "applied" || document.Level != api.Persisted {
			s.drain()
		}
		known, err := s.ledger.SKU(s.t.Context(), sku)
		need(s.t, err)
		s.mu.Lock()
		s.numbers[sku], s.homes[sku] = known.Number, known.Shard
		s.mu.Unlock()
	}
}

// exec runs SQL.
func (s *shop) exec(sql string, arguments ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), sql, arguments...)
	need(s.t, err)
}

// one reads one value by SQL.
func one[T any](s *shop, sql string, arguments ...any) T {
	s.t.Helper()
	var value T
	need(s.t, s.pool.QueryRow(s.t.Context(), sql, arguments...).Scan(&value))
	return value
}

func (s *shop) shard(n int) *redisstock.Shard { return redisstock.NewShard(s.rdb, prefix, n) }
func (s *shop) keys(sku string) redisstock.Keys {
	return redisstock.NewKeys(prefix, s.homes[sku])
}

// inRedis and inPostgres are the quantities of a SKU as available|held|committed.
func (s *shop) inRedis(sku string) string {
	s.t.Helper()
	text, err := s.rdb.HGet(s.t.Context(), s.keys(sku).State, strconv.FormatInt(s.numbers[sku], 10)).Result()
	if err != nil {
		return err.Error()
	}
	field, err := event.ParseField(text)
	need(s.t, err)
	return quantities(field.Quantities)
}

func (s *shop) inPostgres(sku string) string {
	s.t.Helper()
	known, err := s.ledger.Stock(s.t.Context(), sku)
	need(s.t, err)
	return quantities(known.Quantities)
}

func quantities(q stock.Quantities) string {
	return fmt.Sprintf("%d|%d|%d", q.Available, q.Held, q.Committed)
}

// shelf checks a SKU in both stores.
func (s *shop) shelf(sku, want string) {
	s.t.Helper()
	if got := s.inRedis(sku); got != want {
		s.t.Errorf("%s in Redis is %s, want %s", sku, got, want)
	}
	if got := s.inPostgres(sku); got != want {
		s.t.Errorf("%s in Postgres is %s, want %s", sku, got, want)
	}
}

// lag is the sum of entries that Postgres has not reached, or an error while the two are in different epochs.
func (s *shop) lag(ctx context.Context) (int64, error) {
	rows, err := s.ledger.Shards(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, row := range rows {
		status, err := s.shard(row.Number).Status(ctx)
		if err != nil {
			return 0, err
		}
		if status.Epoch != row.Epoch || row.State != ledger.StateOpen {
			return 0, fmt.Errorf("shard %d: Redis has epoch %d, Postgres %d (%s %s)", row.Number, status.Epoch, row.Epoch, row.State, row.Reason)
		}
		sum += max(0, status.Seq-row.Applied)
	}
	return sum, nil
}

// drain waits until Postgres has everything.
func (s *shop) drain() {
	s.t.Helper()
	sandboxtest.Eventually(s.t, 2*patience, func() error {
		lag, err := s.lag(s.t.Context())
		if err == nil && lag != 0 {
			err = fmt.Errorf("Postgres is %d entries behind", lag)
		}
		return err
	})
}

// epoch is that of a shard in Postgres.
func (s *shop) epoch(shard int) int64 {
	s.t.Helper()
	row, err := s.ledger.Shard(s.t.Context(), shard)
	need(s.t, err)
	return row.Epoch
}
