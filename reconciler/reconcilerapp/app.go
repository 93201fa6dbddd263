// Package reconcilerapp is the wiring of a reconciler: its commands, what depends on what, in which order it starts
// and stops. It is also where its log lines and its output come from.
package reconcilerapp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/pkg/takeover"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

const (
	// redisTimeout bounds one reply: a page of records or of the log may have megabytes.
	redisTimeout = 5 * time.Second
	startTime    = 15 * time.Second
	// pulseConns is the pool of turns, probes and takeovers, which must not wait behind audits.
	pulseConns = 4
	// wardenGrace covers the longest way out: a takeover in hand (8 s at most) and the turns given up (5 s).
	wardenGrace = 15 * time.Second
)

// The exit codes of commands other than once and plan.
const (
	exitDone   = 0
	exitFailed = 1
)

// Run runs one command and returns the exit code. Results go to out, logs and errors to the other.
func Run(ctx context.Context, command string, c Config, out, errs io.Writer) int {
	code, err := run(ctx, command, c, out)
	if err != nil {
		fmt.Fprintf(errs, "%s: %v\n", Name, err)
	}
	return code
}

func run(ctx context.Context, command string, c Config, out io.Writer) (int, error) {
	command, _, _ = strings.Cut(command, " ") // behind it are the names of arguments
	alone := command == "serve" || command == "once"
	if c.Once && !alone {
		return exitFailed, fmt.Errorf("--once and --plan stand alone: leave out %q", command)
	}
	ordered, isVerb := orderOf(command, c)
	if c.Plan && !alone && ordered.plan == nil && command != "prune" {
		return exitFailed, fmt.Errorf("--plan stands alone, or beside takeover, retry, repair, gapfill or prune: %q has no plan, leave one of the two out", command)
	}
	if isVerb {
		return byVerb(ctx, command, ordered, c, out)
	}
	switch {
	case c.Healthcheck:
		return exitOf(c.Access.AskReady(ctx, c.Ops))
	case command == "prune":
		return prune(ctx, c, out)
	case c.Plan || c.Once || command == "once":
		return pass(ctx, c, out)
	case command == "migrate":
		return exitOf(migrate(ctx, c, out))
	case command == "init":
		return exitOf(initialise(ctx, c, out))
	case command == "retain":
		return exitOf(retain(ctx, c, out))
	case command == "verify":
		return verify(ctx, c, out)
	case command == "explain":
		return explain(ctx, c, out)
	case command == "status":
		return exitOf(status(ctx, c, out))
	}
	return exitOf(Serve(ctx, c))
}

func exitOf(err error) (int, error) {
	if err != nil {
		return exitFailed, err
	}
	return exitDone, nil
}

func migrate(ctx context.Context, c Config, out io.Writer) error {
	url, err := c.Postgres.Connection()
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	fmt.Fprintf(out, "the database is at schema version %d\n", migrations.Version())
	return nil
}

func initialise(ctx context.Context, c Config, out io.Writer) error {
	l, err := openLedger(ctx, c, Name, pulseConns)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Init(ctx, c.Init.Shards); err != nil {
		return fmt.Errorf("init: %w: repeat it with that number, or use a new database", err)
	}
	fmt.Fprintf(out, "the ledger has %d shards; `%s serve` opens them\n", c.Init.Shards, Name)
	return nil
}

// retain changes the retention of the ledger; the connection itself is told none, or the old one would be asked for.
func retain(ctx context.Context, c Config, out io.Writer) error {
	to := c.Keep.For
	if to == 0 {
		return config.Bound("retention", to, "say what it shall be, 10s to 720h")
	}
	c.Keep.For = 0
	l, err := openLedger(ctx, c, Name, pulseConns)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.ChangeRetention(ctx, to); err != nil {
		return err
	}
	fmt.Fprintf(out, "Redis remembers what came to rest for %v; start every process with --retention %v\n", to, to)
	return nil
}

// Serve keeps all shards well until ctx ends; it logs to stderr. An error before the start names the setting and the
// remedy; nil means that it was told to stop and finished what it had in hand.
//
//	          Postgres                                   Redis
//	 turns, rows, repairs, due holds,      status, fence, put, open, samples, log
//	 documents, views                                      ▲
//	              ▲                                        │
//	              └──────────── repair.Warden ─────────────┤
//	                 ▲               │ expire, documents,  │
//	                 │               ▼ settings            │
//	ledger.Listen ───┘       redisstock.Desk ──────────────┘
//	(stockpipe_doubt, stockpipe_shard: hints to probe at once)
//
// Start: ops listener, notices, warden. Stop, in reverse: the warden ends its duties on every shard (a takeover in
// hand is finished, 8 s at most; an audit is dropped, it changes nothing; operations under way are answered or, being
// recognisable, sent again by the next) and gives its turns up, so that a standby has them within a second; then the
// notices and the ops listener go, then the desk is closed, and last the connections. Never more than wardenGrace.
func Serve(ctx context.Context, c Config) error {
	logger := c.Log.Logger("reconciler")
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
	if err := a.ledger.AgreeRetention(ctx); err != nil {
		return err
	}
	ops, err := service.Listen("ops", c.Ops.Addr, a.ops(door.Tokens), door)
	if err != nil {
		return err
	}
	logger.Info("reconciler starts", zap.String("reconciler", a.id), zap.String("ops", ops.URL()), zap.Int("shards", a.warden.Shards()),
		zap.Stringer("redis", c.Redis.URL), zap.Stringer("postgres", c.Postgres.URL), zap.String("on_tampered", c.OnTampered))
	err = service.Run(ctx,
		ops.Part(),
		service.Part{Name: "notices", Run: a.listen},
		service.Part{Name: "warden", Run: a.warden.Run, Grace: wardenGrace},
	)
	err = errors.Join(err, ops.Close())
	logger.Info("reconciler stopped", zap.String("reconciler", a.id), zap.Error(err))
	return err
}

// app holds what was opened.
type app struct {
	id      string
	prefix  string
	ledger  *ledger.Ledger
	pulse   *ledger.Ledger // turns, probes, takeovers, readiness
	rdb     *redis.Client
	desk    *redisstock.Desk
	warden  *repair.Warden
	metrics *metrics.Registry
}

func openLedger(ctx context.Context, c Config, name string, conns int32) (*ledger.Ledger, error) {
	url, err := c.Postgres.Connection()
	if err != nil {
		return nil, err
	}
	return ledger.Open(ctx, ledger.Config{URL: url, Name: name, MaxConns: conns, Retention: c.Keep.For})
}

// open connects and checks. What it opened it closes again when it fails.
func open(ctx context.Context, c Config, logger *zap.Logger) (_ *app, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	a := &app{id: c.id(), prefix: c.Redis.Prefix, metrics: metrics.New("reconciler")}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.ledger, err = openLedger(ctx, c, Name, c.Postgres.MaxConns); err != nil {
		return nil, err
	}
	if a.pulse, err = openLedger(ctx, c, Name+" pulse", pulseConns); err != nil {
		return nil, err
	}
	rows, err := a.ledger.Shards(ctx)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("the ledger has no shards yet: run `%s init`", Name)
	}
	if err := a.openRedis(ctx, c); err != nil {
		return nil, err
	}
	epochs := repair.NewEpochs(a.ledger.ID())
	a.desk = redisstock.NewDesk(a.rdb, a.prefix, epochs)
	a.warden = repair.New(repair.Config{
		Ledger: a.ledger, Pulse: a.pulse, Epochs: epochs, Desk: a.desk, Holder: a.id,
		Opener: func(n int) takeover.Redis {
			return redisstock.NewOpener(redisstock.NewShard(a.rdb, a.prefix, n), c.Unsafe.checks())
		},
		Bind: func(n int) (takeover.Redis, func()) {
			one := a.rdb.Conn()
			return redisstock.NewOpener(redisstock.NewShard(one, a.prefix, n), c.Unsafe.checks()), func() { _ = one.Close() }
		},
		Sampler:    func(n int) audit.Redis { return redisstock.NewSampler(redisstock.NewShard(a.rdb, a.prefix, n)) },
		Forgetter:  func(n int) repair.Forgetter { return redisstock.NewShard(a.rdb, a.prefix, n) },
		Key:        a.key,
		OnTampered: c.policy(), AuditEvery: c.AuditEvery, StuckAfter: c.StuckAfter,
		Metrics: repair.NewMetrics(a.metrics), Tell: newVoice(logger).tell,
	}, len(rows))
	return a, nil
}

func (a *app) openRedis(ctx context.Context, c Config) error {
	url, err := c.Redis.Connection()
	if err != nil {
		return err
	}
	roots, err := c.Redis.Roots()
	if err != nil {
		return err
	}
	if a.rdb, err = redisstock.Connect(redisstock.Options{URL: url, RootCAs: roots, Name: Name, PoolSize: c.RedisConns, Timeout: redisTimeout}); err != nil {
		return err
	}
	err = redisstock.CheckServer(ctx, a.rdb, c.Unsafe.checks())
	var setting *redisstock.SettingError
	if err != nil && !errors.As(err, &setting) {
		return fmt.Errorf("Redis at %v: %w: start it, or correct --redis-url", c.Redis.URL, err)
	}
	return err
}

// key names a part of a shard in Redis.
func (a *app) key(shard int, part string) string {
	keys := redisstock.NewKeys(a.prefix, shard)
	switch part {
	case takeover.TargetState:
		return keys.State
	case takeover.TargetOrders:
		return keys.Orders
	case takeover.TargetBuyers:
		return keys.Buyers
	case takeover.TargetLog:
		return keys.Log
	}
	return part
}

// listen probes at once when somebody saw a shard refuse, or a shard changed; a connection made anew probes all. It
// also hears when an operator's command asks for a turn.
func (a *app) listen(ctx context.Context) error {
	return a.pulse.Listen(ctx, func(h ledger.Heard) {
		shard := -1
		switch h.Channel {
		case ledger.ChannelDoubt:
			n, what, ok := ledger.ParseDoubt(h.Payload)
			if ok && what == repair.AskTurn {
				a.warden.Yield(n)
				return
			}
			if ok && what == repair.AskCount {
				a.warden.Recount(n)
				return
			}
			if ok {
				shard = n
			}
		case ledger.ChannelShard:
			if n, err := strconv.Atoi(h.Payload); err == nil {
				shard = n
			}
		}
		a.warden.Notice(shard)
	}, ledger.ChannelDoubt, ledger.ChannelShard)
}

// ops is ready when both servers answer: a standby is ready, too.
func (a *app) ops(tokens *access.Tokens) *service.Ops {
	o := service.NewOps(a.metrics.Handler(), tokens)
	o.Check("postgres", func(ctx context.Context) error {
		_, err := a.pulse.Now(ctx)
		return err
	})
	o.Check("redis", func(ctx context.Context) error { return a.rdb.Ping(ctx).Err() })
	return o
}

// close ends the desk and the connections; what was never opened is skipped.
func (a *app) close() {
	if a.desk != nil {
		a.desk.Close()
	}
	if a.rdb != nil {
		a.rdb.Close()
	}
	for _, l := range []*ledger.Ledger{a.ledger, a.pulse} {
		if l != nil {
			l.Close()
		}
	}
}
