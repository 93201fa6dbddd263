package shoptest

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

// Prefix of the keys in Redis.
const Prefix = "sp"

// A Plan says what a shop is made of.
type Plan struct {
	Shards      int // 0: one
	Producers   int
	Consumers   int
	Reconcilers int

	Redis    sandbox.RedisOptions
	Postgres *sandbox.PostgresOptions // a Postgres of the row's own, which it may kill; nil: a database of the suite's
	Failing  bool                     // the roles are built with failpoints, see Role.Arm
	Watched  bool                     // all roles reach Postgres through Shop.LedgerPath

	Proxied bool              // the roles reach Redis through Shop.Path
	Slow    bool              // the consumers reach Postgres through Shop.LedgerPath
	Bare    bool              // the database is left empty
	Zone    string            // of the database's sessions, unless they say otherwise
	Zones   map[string]string // TZ by kind of role
	Clocks  map[string]*Clock // wall clocks by kind of role; with one, all roles are built to follow theirs
	Folder  map[string]string // of other builds of the programs, by kind of role

	Patience time.Duration // with a command of the reconciler, where two minutes are too short

	ProducerArgs   []string
	ConsumerArgs   []string
	ReconcilerArgs []string
	PostgresOf     func(kind string) string // URL for a kind of role; nil: the database's own
	RedisOf        func(kind string) string // URL for a kind of role; nil: that of Shop.Address
}

// A Shop is a whole stockpipe of one row's own: a Redis, a database, and real processes.
type Shop struct {
	T    *testing.T
	Row  *Row
	Plan Plan

	Redis    *sandbox.Redis
	Postgres *sandbox.Postgres // the row's own, or the suite's
	Address  string            // where the roles find Redis
	Path     *faultproxy.Proxy
	URL      string // of the database
	RDB      *redis.Client
	Pool     *pgxpool.Pool
	Ledger   *ledger.Ledger
	HTTP     *http.Client

	LedgerPath *faultproxy.Proxy

	Mu      sync.Mutex
	Started int
	Roles   []*Role
	Numbers map[string]int64 // SKU text → number
	Homes   map[string]int   // SKU text → shard
}

// Open makes a shop and waits until it would sell.
func Open(r *Row, p Plan) *Shop {
	r.T.Helper()
	s := Found(r, p)
	s.StartAll()
	s.AwaitReady()
	return s
}

// Found makes everything but the processes.
func Found(r *Row, p Plan) *Shop {
	t := r.T
	t.Helper()
	p.Shards = max(p.Shards, 1)
	s := &Shop{T: t, Row: r, Plan: p, Numbers: map[string]int64{}, Homes: map[string]int{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 512}
	s.HTTP = &http.Client{Transport: &tap{transport}}
	t.Cleanup(transport.CloseIdleConnections)

	if p.Redis.MaxMemory == "" {
		p.Redis.MaxMemory = "1gb"
	}
	s.Redis = sandboxtest.Redis(t, p.Redis)
	s.Address = s.Redis.Addr()
	if p.Proxied {
		s.Path = sandboxtest.Proxy(t, s.Redis.Addr())
		s.Address = s.Path.Addr()
	}
	s.RDB = s.Connect(s.Redis.Addr())
	s.database()
	var err error
	s.Pool, err = pgxpool.New(t.Context(), s.URL)
	Need(t, err)
	t.Cleanup(s.Pool.Close)
	if p.Zone != "" {
		s.Exec(fmt.Sprintf("alter database %q set timezone = '%s'", s.Pool.Config().ConnConfig.Database, p.Zone))
	}
	switch {
	case p.Watched:
		s.divert(Producer, Consumer, Reconciler)
	case p.Slow:
		s.divert(Consumer)
	}
	if !p.Bare {
		s.OpenLedger()
		Need(t, s.Ledger.Init(t.Context(), p.Shards))
	}
	t.Cleanup(s.Close)
	return s
}

// OpenLedger connects the row itself.
func (s *Shop) OpenLedger() {
	s.T.Helper()
	var err error
	s.Ledger, err = ledger.Open(s.T.Context(), ledger.Config{URL: s.URL, Name: "suite", MaxConns: 4})
	Need(s.T, err)
	s.T.Cleanup(s.Ledger.Close)
}

// StartAll starts the processes of the plan.
func (s *Shop) StartAll() {
	s.T.Helper()
	for range s.Plan.Reconcilers {
		s.Start(Reconciler)
	}
	for range s.Plan.Consumers {
		s.Start(Consumer)
	}
	for range s.Plan.Producers {
		s.Start(Producer)
	}
}

// database makes the row's database.
func (s *Shop) database() {
	s.T.Helper()
	switch {
	case s.Plan.Postgres != nil:
		s.Postgres = sandboxtest.OwnPostgres(s.T, *s.Plan.Postgres)
		var err error
		s.URL, err = s.Postgres.CreateDatabase(s.T.Context(), "shop")
		Need(s.T, err)
		if !s.Plan.Bare {
			Need(s.T, migrations.Up(s.T.Context(), s.URL))
		}
	case s.Plan.Bare:
		s.Postgres, s.URL = sandboxtest.Postgres(s.T), sandboxtest.Database(s.T, nil)
	default:
		s.Postgres, s.URL = sandboxtest.Postgres(s.T), sandboxtest.Database(s.T, migrations.Up)
	}
}

// divert leads roles of some kinds to Postgres through a proxy.
func (s *Shop) divert(kinds ...string) {
	s.T.Helper()
	config := s.Pool.Config().ConnConfig
	s.LedgerPath = sandboxtest.Proxy(s.T, fmt.Sprintf("%s:%d", config.Host, config.Port))
	through := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", config.User, config.Password, s.LedgerPath.Addr(), config.Database)
	s.Plan.PostgresOf = func(kind string) string {
		if slices.Contains(kinds, kind) {
			return through
		}
		return s.URL
	}
}

// Connect is a client of a Redis, for the row itself.
func (s *Shop) Connect(address string) *redis.Client {
	s.T.Helper()
	rdb, err := redisstock.Connect(redisstock.Options{URL: "redis://" + address + "/0", Name: "suite", PoolSize: 8, Timeout: 10 * time.Second})
	Need(s.T, err)
	s.T.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// AwaitReady waits until every living role says that it can do its work.
func (s *Shop) AwaitReady() {
	s.T.Helper()
	sandboxtest.Eventually(s.T, Patience, func() error {
		var errs []error
		for _, r := range s.Living("") {
			errs = append(errs, r.Ready())
		}
		return errors.Join(errs...)
	})
}

// Living are the roles of a kind, or of all, that run.
func (s *Shop) Living(kind string) []*Role {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.Roles), func(r *Role) bool { return kind != "" && r.Kind != kind || !r.Alive() })
}

// KillAll ends all roles of a kind by SIGKILL.
func (s *Shop) KillAll(kind string) {
	s.T.Helper()
	for _, r := range s.Living(kind) {
		r.Kill()
	}
}

// Close takes the processes down; the servers go by themselves. A row that broke shows what they said last.
func (s *Shop) Close() {
	for _, kind := range []string{Producer, Consumer, Reconciler} {
		var wait sync.WaitGroup
		for _, r := range s.Living(kind) {
			wait.Go(func() {
				_ = r.Process.Resume()
				if r.Process.Stop(StopGrace) != nil && !s.T.Failed() {
					s.T.Errorf("%s ended with %v: %s", r.Name, r.Process.Err(), r.Log.Tail())
				}
			})
		}
		wait.Wait()
	}
	if s.T.Failed() {
		for _, r := range s.Roles {
			s.T.Logf("%s (%v): %s", r.Name, r.Process.Err(), r.Log.Tail())
		}
	}
}

// Client calls the nth producer that lives, once: what comes back is what this row is about.
func (s *Shop) Client(n int) *api.Client {
	producers := s.Living(Producer)
	if len(producers) == 0 {
		return &api.Client{Base: "http://127.0.0.1:1", HTTP: s.HTTP, Tries: 1}
	}
	return &api.Client{Base: producers[n%len(producers)].API, HTTP: s.HTTP, Tries: 1}
}

// Patient is a client that asks again, as a shop would.
func (s *Shop) Patient(n int) *api.Client {
	c := s.Client(n)
	c.Tries = 50
	return c
}

// Supply creates SKUs with the same opening and waits until Postgres has them.
func (s *Shop) Supply(units int64, skus ...string) {
	s.T.Helper()
	for _, sku := range skus {
		document, err := s.Patient(0).Create(s.T.Context(), sku, api.OpeningRequest{Opening: units})
		Need(s.T, err)
		if document.State != "applied" || document.Level != api.Persisted {
			s.Drain()
		}
		known, err := s.Ledger.SKU(s.T.Context(), sku)
		Need(s.T, err)
		s.Mu.Lock()
		s.Numbers[sku], s.Homes[sku] = known.Number, known.Shard
		s.Mu.Unlock()
	}
}

// Exec runs SQL.
func (s *Shop) Exec(sql string, arguments ...any) {
	s.T.Helper()
	_, err := s.Pool.Exec(s.T.Context(), sql, arguments...)
	Need(s.T, err)
}

// One reads one value by SQL.
func One[T any](s *Shop, sql string, arguments ...any) T {
	s.T.Helper()
	var value T
	Need(s.T, s.Pool.QueryRow(s.T.Context(), sql, arguments...).Scan(&value))
	return value
}

// Shard reads one shard of the shop's Redis.
func (s *Shop) Shard(n int) *redisstock.Shard { return redisstock.NewShard(s.RDB, Prefix, n) }

// Keys are those of the shard that a SKU lives in.
func (s *Shop) Keys(sku string) redisstock.Keys {
	return redisstock.NewKeys(Prefix, s.Homes[sku])
}

// InRedis and inPostgres are the quantities of a SKU as available|held|committed.
func (s *Shop) InRedis(sku string) string {
	s.T.Helper()
	text, err := s.RDB.HGet(s.T.Context(), s.Keys(sku).State, strconv.FormatInt(s.Numbers[sku], 10)).Result()
	if err != nil {
		return err.Error()
	}
	field, err := event.ParseField(text)
	Need(s.T, err)
	return Quantities(field.Quantities)
}

// InPostgres is what the ledger has of a SKU, as available|held|committed.
func (s *Shop) InPostgres(sku string) string {
	s.T.Helper()
	known, err := s.Ledger.Stock(s.T.Context(), sku)
	Need(s.T, err)
	return Quantities(known.Quantities)
}

// Quantities prints available|held|committed.
func Quantities(q stock.Quantities) string {
	return fmt.Sprintf("%d|%d|%d", q.Available, q.Held, q.Committed)
}

// Shelf checks a SKU in both stores.
func (s *Shop) Shelf(sku, want string) {
	s.T.Helper()
	if got := s.InRedis(sku); got != want {
		s.T.Errorf("%s in Redis is %s, want %s", sku, got, want)
	}
	if got := s.InPostgres(sku); got != want {
		s.T.Errorf("%s in Postgres is %s, want %s", sku, got, want)
	}
}

// Lag is the sum of entries that Postgres has not reached, or an error while the two are in different epochs.
func (s *Shop) Lag(ctx context.Context) (int64, error) {
	rows, err := s.Ledger.Shards(ctx)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, row := range rows {
		status, err := s.Shard(row.Number).Status(ctx)
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

// Drain waits until Postgres has everything.
func (s *Shop) Drain() {
	s.T.Helper()
	sandboxtest.Eventually(s.T, 2*Patience, func() error {
		lag, err := s.Lag(s.T.Context())
		if err == nil && lag != 0 {
			err = fmt.Errorf("Postgres is %d entries behind", lag)
		}
		return err
	})
}

// Epoch is that of a shard in Postgres.
func (s *Shop) Epoch(shard int) int64 {
	s.T.Helper()
	row, err := s.Ledger.Shard(s.T.Context(), shard)
	Need(s.T, err)
	return row.Epoch
}
