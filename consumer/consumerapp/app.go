// Package consumerapp is the wiring of a consumer: what depends on what, in which order it starts and stops. It is
// also where the consumer's log lines come from.
package consumerapp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/consumer/internal/apply"
	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/bus/streambus"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	// redisTimeout bounds one reply: a page of the log may have megabytes.
	redisTimeout = 5 * time.Second
	// pulseConns is the pool of the heartbeat, which must not wait behind batches.
	pulseConns = 2
	// maxRedisConns bounds the pool; below it every shard has one connection to wait on and one to ask on.
	maxRedisConns = 2100
	// stopGrace covers the longest way out: a read that waits (--block, 5 s at most), a batch in hand (5 s), and
	// the goodbyes to Redis and Postgres (2 s each).
	stopGrace = 15 * time.Second
	// logShare is the part of maxmemory that all logs together may take: the rest is stock and orders.
	logShare = 0.1
)

// Run checks what a consumer needs, and works until ctx ends; it logs to stderr. An error before the start names
// the setting and the remedy; nil means that it was told to stop and finished what it had in hand.
//
//	           Redis log {n}                       Postgres
//	               │ From, Next                        ▲  ▲
//	               ▼                                   │  │ Assign every second (own pool)
//	streambus.Source ──► apply.Loop n ── Apply ── ledger  │
//	                         ▲      │                     │
//	                started by      └─ halted ──► redisstock Fence
//	                         │                            │
//	                  apply.Sharing ──────────────────────┘
//	                         ▲ wakes loops
//	                  ledger.Listen (stockpipe_shard, a connection of its own)
//
// Start: ops listener, notices, sharing. Stop, in reverse: sharing ends its loops, each after the read that waits
// (--block) or the batch in hand (5 s at most; nothing is lost, what was read and not committed is read again by the
// next consumer), gives its assignments up, and only then the notices and the ops listener go, and last the
// connections. With the defaults that takes about a second, and never more than stopGrace.
func Run(ctx context.Context, c Config) error {
	if c.Healthcheck {
		return c.Access.AskReady(ctx, c.Ops)
	}
	logger := c.Log.Logger("consumer")
	defer logger.Sync() //nolint:errcheck // stderr cannot always be synced, and nobody is left to tell
	door, err := c.Access.Open(func(err error) { logger.Error("a change of the access files is not taken", zap.Error(err)) })
	if err != nil {
		return err
	}
	a, err := open(ctx, c, logger)
	if err != nil {
		return err
	}
	defer a.close()
	ops, err := service.Listen("ops", c.Ops.Addr, a.ops(door.Tokens), door)
	if err != nil {
		return err
	}
	logger.Info("consumer starts", zap.String("consumer", a.id), zap.String("ops", ops.URL()),
		zap.Stringer("redis", c.Redis.URL), zap.Stringer("postgres", c.Postgres.URL))
	err = service.Run(ctx,
		ops.Part(),
		service.Part{Name: "notices", Run: a.listen},
		service.Part{Name: "sharing", Run: a.sharing.Run, Ready: a.sharing.Ready(), Grace: stopGrace},
	)
	logger.Info("consumer stopped", zap.String("consumer", a.id), zap.Error(err))
	return err
}

// app holds what was opened.
type app struct {
	id      string
	prefix  string
	rdb     *redis.Client
	work    *ledger.Ledger // batches
	pulse   *ledger.Ledger // heartbeats, doubts, checks
	metrics *metrics.Registry
	sharing *apply.Sharing
	voice   *voice
}

// open connects and checks. What it opened it closes again when it fails.
func open(ctx context.Context, c Config, logger *zap.Logger) (_ *app, err error) {
	a := &app{id: c.id(), prefix: c.Redis.Prefix, metrics: metrics.New("consumer"), voice: newVoice(logger)}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	shards, err := a.openLedger(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := a.openRedis(ctx, c, shards); err != nil {
		return nil, err
	}
	a.sharing = apply.NewSharing(apply.SharingConfig{
		Consumer: a.id, Assigner: a.pulse, Heartbeat: ledger.AssignmentHeartbeat, TTL: ledger.DefaultAssignmentTTL,
		Changed: func(shards []int) { logger.Info("shards of this consumer", zap.Ints("shards", shards)) },
		Loops: apply.Config{
			Ledger: a.work, Open: a.reader(c), Doubt: a.pulse.TellDoubt, Fence: a.fence,
			Owns: a.owns, LogKeep: c.LogKeep, LogShare: logShare / float64(shards),
			Batch: c.Batch, Metrics: apply.NewMetrics(a.metrics), Tell: a.voice.tell,
		},
	})
	return a, nil
}

func (a *app) openLedger(ctx context.Context, c Config) (shards int, err error) {
	url, err := c.Postgres.Connection()
	if err != nil {
		return 0, err
	}
	if a.work, err = ledger.Open(ctx, ledger.Config{URL: url, Pooled: c.Postgres.Pooled(), Name: Name, MaxConns: c.Postgres.MaxConns, Retention: c.Keep.For}); err != nil {
		return 0, err
	}
	if a.pulse, err = ledger.Open(ctx, ledger.Config{URL: url, Pooled: c.Postgres.Pooled(), Name: Name + " heartbeat", MaxConns: pulseConns}); err != nil {
		return 0, err
	}
	rows, err := a.work.Shards(ctx)
	if err != nil {
		return 0, err
	}
	if len(rows) == 0 {
		return 0, errors.New("the ledger has no shards yet: run `stockpipe-reconciler init`")
	}
	return len(rows), nil
}

// openRedis checks only what a reader of the log depends on; whether stock may be sold there is the business of
// producers and takeovers.
func (a *app) openRedis(ctx context.Context, c Config, shards int) error {
	url, err := c.Redis.Connection()
	if err != nil {
		return err
	}
	roots, err := c.Redis.Roots()
	if err != nil {
		return err
	}
	a.rdb, err = redisstock.Connect(redisstock.Options{
		URL: url, RootCAs: roots, Name: Name, PoolSize: min(2*shards+4, maxRedisConns), Timeout: redisTimeout,
	})
	if err != nil {
		return err
	}
	err = redisstock.CheckServer(ctx, a.rdb, redisstock.Unsafe{Eviction: true, Memory: true, AOF: true, Replicas: true})
	var setting *redisstock.SettingError
	if err != nil && !errors.As(err, &setting) {
		return fmt.Errorf("the Redis at %v does not answer: %w: start it, or correct --redis-url", c.Redis.URL, err)
	}
	return err
}

func (a *app) reader(c Config) func(shard int) apply.Reader {
	return func(shard int) apply.Reader {
		return streambus.New(streambus.Config{
			Redis: a.rdb, Log: redisstock.NewKeys(a.prefix, shard).Log, Consumer: a.id, Block: c.Block, Count: int64(c.Batch),
		})
	}
}

// fence closes Redis behind a shard that was halted just now, so that nothing more is accepted after the entry that
// cannot be applied. A Redis that has a later epoch already is closed by whoever claimed that.
func (a *app) fence(ctx context.Context, shard int, claim ledger.Claim) error {
	seal := takeover.Seal{Shard: shard, Ledger: a.work.ID(), Epoch: claim.Epoch, Nonce: claim.Nonce}
	err := redisstock.NewOpener(redisstock.NewShard(a.rdb, a.prefix, shard), redisstock.Unsafe{}).Fence(ctx, seal, false)
	if errors.Is(err, takeover.ErrSuperseded) {
		return nil
	}
	return err
}

// owns tells whether this Redis was opened by this ledger under the epoch.
func (a *app) owns(ctx context.Context, shard int, epoch int64) (bool, error) {
	status, err := redisstock.NewShard(a.rdb, a.prefix, shard).Status(ctx)
	return err == nil && status.Ledger == a.work.ID() && status.Epoch == epoch, err
}

// listen wakes the loops when the ledger says that a shard changed; a connection made anew wakes all.
func (a *app) listen(ctx context.Context) error {
	return a.pulse.Listen(ctx, func(h ledger.Heard) {
		shard, err := strconv.Atoi(h.Payload)
		if err != nil {
			shard = -1
		}
		a.sharing.Notice(shard)
	}, ledger.ChannelShard)
}

// ops is ready when both servers answer and the heartbeat holds.
func (a *app) ops(tokens *access.Tokens) *service.Ops {
	o := service.NewOps(a.metrics.Handler(), tokens)
	o.Check("postgres", func(ctx context.Context) error {
		_, err := a.pulse.Now(ctx)
		return err
	})
	o.Check("redis", func(ctx context.Context) error { return a.rdb.Ping(ctx).Err() })
	o.Check("assignments", func(context.Context) error { return a.sharing.Check() })
	return o
}

// close ends the connections; what was never opened is skipped.
func (a *app) close() {
	if a.rdb != nil {
		a.rdb.Close()
	}
	for _, l := range []*ledger.Ledger{a.work, a.pulse} {
		if l != nil {
			l.Close()
		}
	}
}
