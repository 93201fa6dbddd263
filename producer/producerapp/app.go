// Package producerapp is the wiring of a producer: what depends on what, in which order it starts and stops.
package producerapp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/producer/internal/server"
)

const (
	// pulseConns is the pool of the heartbeat, which must not wait behind documents and look-ups.
	pulseConns = 2
	// startTime bounds the checks before the start.
	startTime = 15 * time.Second
	// deskGrace is how long calls to Redis that are under way may take after the stop.
	deskGrace = 5 * time.Second
)

// Run checks what a producer needs, and serves until ctx ends; it logs to stderr. An error before the start names
// the setting and the remedy; nil means that it was told to stop and finished what it had in hand.
//
//	HTTP ── server ── order.Clerk ──┬── redisstock.Desk ──────► Redis (decides)
//	                                │        ▲ epochs
//	                                ├── ledger.Watch ◄────────► Postgres, every 500 ms and by LISTEN (own pool)
//	                                └── ledger.Ledger ────────► Postgres: SKUs, documents, look-ups
//
// Start: ops listener, watch (ready after its first exchange), desk, API listener. Stop, in reverse: the API
// stops listening and finishes the requests in flight (5 s at most), then the desk waits for its calls to Redis,
// then the watch takes its row out of the table of producers, then the ops listener goes, and last the pools. A
// request that is cut is an unknown outcome for its caller, who sends the same order id again to another producer.
func Run(ctx context.Context, c Config) error {
	if c.Healthcheck {
		return c.Access.AskReady(ctx, c.Ops)
	}
	logger := c.Log.Logger("producer")
	defer logger.Sync() //nolint:errcheck // stderr cannot always be synced, and nobody is left to tell
	door, err := c.Access.Open(func(err error) { logger.Error("a change of the access files is not taken", zap.Error(err)) })
	if err != nil {
		return err
	}
	a, err := open(ctx, c, door.Tokens, logger)
	if err != nil {
		return err
	}
	defer a.close()
	ops, err := service.Listen("ops", c.Ops.Addr, a.ops(door.Tokens), door)
	if err != nil {
		return err
	}
	api, err := service.Listen("api", c.API.Addr, a.server, door)
	if err != nil {
		return errors.Join(err, ops.Close())
	}
	logger.Info("producer starts", zap.String("producer", a.id), zap.String("api", api.URL()), zap.String("ops", ops.URL()),
		zap.Stringer("redis", c.Redis.URL), zap.Stringer("postgres", c.Postgres.URL), zap.Int("shards", a.shards))
	err = service.Run(ctx,
		ops.Part(),
		service.Part{Name: "watch", Run: a.watch.Run, Ready: a.watch.Ready()},
		service.Part{Name: "desk", Run: a.flush, Grace: deskGrace},
		api.Part(),
	)
	err = errors.Join(err, api.Close(), ops.Close())
	logger.Info("producer stopped", zap.String("producer", a.id), zap.Error(err))
	return err
}

// app holds what was opened.
type app struct {
	id      string
	prefix  string
	shards  int
	library []int // versions of the function library that are in force
	maxAge  time.Duration
	rdb     *redis.Client
	store   *ledger.Ledger // SKUs, documents, look-ups
	pulse   *ledger.Ledger // the watch
	watch   *ledger.Watch
	desk    *redisstock.Desk
	server  *server.Server
	metrics *metrics.Registry
}

// open connects and checks. What it opened it closes again when it fails.
func open(ctx context.Context, c Config, tokens *access.Tokens, logger *zap.Logger) (_ *app, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	a := &app{id: c.id(), prefix: c.Redis.Prefix, maxAge: c.EpochMaxAge, metrics: metrics.New("producer")}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if err := a.openLedger(ctx, c); err != nil {
		return nil, err
	}
	if err := a.openRedis(ctx, c, logger); err != nil {
		return nil, err
	}
	a.watch = ledger.NewWatch(a.pulse, ledger.WatchConfig{ProducerID: a.id, Libraries: redisstock.Libraries(), MaxAge: c.EpochMaxAge})
	a.desk = redisstock.NewDesk(a.rdb, a.prefix, a.watch)
	clerk, err := a.clerk(c)
	if err != nil {
		return nil, err
	}
	a.server, err = server.New(clerk, server.NewMetrics(a.metrics, logger), server.Config{
		MaxLines: c.MaxLines, ReserveAck: order.Level(c.ReserveAck), ConfirmAck: order.Level(c.ConfirmAck), Tokens: tokens,
	})
	a.measure()
	return a, err
}

func (a *app) openLedger(ctx context.Context, c Config) error {
	url, err := c.Postgres.Connection()
	if err != nil {
		return err
	}
	if a.store, err = ledger.Open(ctx, ledger.Config{URL: url, Pooled: c.Postgres.Pooled(), Name: Name, MaxConns: c.Postgres.MaxConns, Retention: c.Keep.For}); err != nil {
		return err
	}
	if a.pulse, err = ledger.Open(ctx, ledger.Config{URL: url, Pooled: c.Postgres.Pooled(), Name: Name + " heartbeat", MaxConns: pulseConns}); err != nil {
		return err
	}
	rows, err := a.store.Shards(ctx)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.New("the ledger has no shards yet: run `stockpipe-reconciler init`")
	}
	a.shards = len(rows)
	for _, row := range rows {
		if !slices.Contains(a.library, row.Library) {
			a.library = append(a.library, row.Library)
		}
	}
	return nil
}

// openRedis checks the server that is to sell. A library that is missing is no error: the first takeover loads it,
// and until then the producer answers 503 and is not ready.
func (a *app) openRedis(ctx context.Context, c Config, logger *zap.Logger) error {
	url, err := c.Redis.Connection()
	if err != nil {
		return err
	}
	roots, err := c.Redis.Roots()
	if err != nil {
		return err
	}
	if a.rdb, err = redisstock.Connect(redisstock.Options{URL: url, RootCAs: roots, Name: Name, PoolSize: c.RedisConns}); err != nil {
		return err
	}
	err = redisstock.CheckServer(ctx, a.rdb, c.Unsafe.checks())
	var setting *redisstock.SettingError
	switch {
	case errors.As(err, &setting):
		return err
	case err != nil:
		return fmt.Errorf("ask Redis at %v: %w: start it, or correct --redis-url", c.Redis.URL, err)
	}
	for _, version := range a.library {
		err = redisstock.CheckLibrary(ctx, a.rdb, version)
		var library *redisstock.LibraryError
		if errors.As(err, &library) && library.Missing {
			logger.Warn("nothing is sold yet: "+library.Error(), zap.Stringer("redis", c.Redis.URL))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) clerk(c Config) (*order.Clerk, error) {
	catalog := ledger.NewCatalog(a.store, 0)
	papers := &documents{a.store}
	return order.NewClerk(order.Parts{
		Desk: a.desk, Epochs: a.watch,
		Catalog:   &skus{catalog},
		Receipts:  &receipts{a.watch, a.store},
		Orders:    &orders{a.store},
		Records:   newRecords(a.rdb, a.prefix, a.shards, a.watch),
		Documents: papers, Papers: papers, Counts: papers,
		Shelves: &shelves{a.store},
		Figures: &figures{a.store, a.watch},
		Shards:  a.shards, MaxLines: c.MaxLines,
	})
}

// flush is the desk's part of the stop: nobody calls it any more, and the calls under way come home.
func (a *app) flush(ctx context.Context) error {
	<-ctx.Done()
	a.desk.Close()
	return nil
}

// measure exposes what the desk and the watch count.
func (a *app) measure() {
	s := a.desk.Stats()
	a.metrics.CounterFunc("desk_calls_total", "Calls of the function library; operations by calls is the size of a batch.", func() float64 { return float64(s.Calls.Load()) })
	a.metrics.CounterFunc("desk_operations_total", "Operations sent in calls of the function library.", func() float64 { return float64(s.Operations.Load()) })
	a.metrics.CounterFunc("desk_repeats_total", "Operations sent again after an unknown outcome.", func() float64 { return float64(s.Repeats.Load()) })
	a.metrics.CounterFunc("desk_unknown_total", "Operations answered unknown.", func() float64 { return float64(s.Unknown.Load()) })
	a.metrics.CounterFunc("desk_refused_total", "Calls that Redis refused as a whole.", func() float64 { return float64(s.Refused.Load()) })
	a.metrics.CounterFunc("desk_unclassified_total", "Errors of Redis that no rule knows: must stay 0.", func() float64 { return float64(s.Unclassified.Load()) })
	a.metrics.GaugeFunc("epoch_age_seconds", "Seconds since the last exchange with Postgres; beyond --epoch-max-age nothing is sold.", func() float64 { return a.watch.Age().Seconds() })
}

// ops is ready when the producer would sell: Postgres was heard in time, and on every shard the very library that
// decides orders says that this server process was opened under the epoch that Postgres names.
func (a *app) ops(tokens *access.Tokens) *service.Ops {
	o := service.NewOps(a.metrics.Handler(), tokens)
	o.Check("postgres", func(context.Context) error {
		if age := a.watch.Age(); age > a.maxAge {
			return fmt.Errorf("no exchange for %v (%w): check that Postgres runs", age.Round(time.Millisecond), a.watch.Err())
		}
		return nil
	})
	o.Check("redis", func(ctx context.Context) error {
		for n := range a.shards {
			status, err := redisstock.NewShard(a.rdb, a.prefix, n).Status(ctx)
			if err != nil {
				return err
			}
			e := a.watch.Epoch(n)
			switch {
			case !slices.Contains(redisstock.Libraries(), int64(e.Library)):
				return fmt.Errorf("shard %d: %w", n, &redisstock.LibraryError{Version: e.Library, Unknown: true})
			case !e.Open:
				return fmt.Errorf("shard %d is not open: %s", n, e.Reason)
			case !status.Loaded:
				return fmt.Errorf("shard %d: the function library is not loaded: a takeover will load it", n)
			case !status.Open() || status.Token != e.Token():
				return fmt.Errorf("shard %d: Redis has epoch %d, mode %q, fence %s; Postgres has epoch %d: a takeover will open it", n, status.Epoch, status.Mode, status.Fence, e.Epoch)
			}
		}
		return nil
	})
	return o
}

// close ends the connections; what was never opened is skipped.
func (a *app) close() {
	if a.rdb != nil {
		a.rdb.Close()
	}
	for _, l := range []*ledger.Ledger{a.store, a.pulse} {
		if l != nil {
			l.Close()
		}
	}
}
