package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A pooler that hands out sessions by transaction gives every transaction another session. So nothing may be left in
// one: no settings, no prepared statements, no locks, no subscriptions. The bounds that a session of our own has come
// with each transaction instead, and who would listen looks.

// pollEvery is how often a shard is looked at where nobody can listen: about what a confirm waits longer then.
const pollEvery = 50 * time.Millisecond

// ofOwnSession sets the bounds of every session.
func ofOwnSession(c *pgx.ConnConfig) {
	for name, value := range map[string]string{
		"timezone":                            "UTC",
		"idle_in_transaction_session_timeout": fmt.Sprint(idleInTransaction.Milliseconds()),
		"lock_timeout":                        fmt.Sprint(lockTimeout.Milliseconds()),
		// A plan made for nobody's values compares whole tables while statistics are missing.
		"plan_cache_mode": "force_custom_plan",
	} {
		c.RuntimeParams[name] = value
	}
}

// throughPooler asks for nothing that a pooler would refuse. Statements are described once for each connection and
// sent whole each time, without a name; such a one is always planned for its values.
func throughPooler(c *pgx.ConnConfig) {
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
}

// localBounds are the bounds of one transaction, as one statement of a batch, or many of a begin.
var (
	localBounds = fmt.Sprintf(`select set_config('idle_in_transaction_session_timeout', '%d', true), set_config('lock_timeout', '%d', true)`,
		idleInTransaction.Milliseconds(), lockTimeout.Milliseconds())
	setBounds = fmt.Sprintf(`set local idle_in_transaction_session_timeout = %d; set local lock_timeout = %d`,
		idleInTransaction.Milliseconds(), lockTimeout.Milliseconds())
)

// queueBounds puts the bounds into the transaction that a batch is, or begins.
func (l *Ledger) queueBounds(batch *pgx.Batch) {
	if l.pooled {
		batch.Queue(localBounds)
	}
}

// bounded puts them into the begin of a transaction.
func (l *Ledger) bounded(options pgx.TxOptions) pgx.TxOptions {
	if !l.pooled {
		return options
	}
	begin := "begin"
	if options.IsoLevel != "" {
		begin += " isolation level " + string(options.IsoLevel)
	}
	if options.AccessMode != "" {
		begin += " " + string(options.AccessMode)
	}
	options.BeginQuery = begin + "; " + setBounds
	return options
}

// isPooler knows the answer of one that refuses a setting of the session.
func isPooler(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == "08P01" && strings.Contains(answer.Message, "startup parameter")
}

func errPooler() error {
	return &SettingError{Setting: "what answers", Value: "a pooler", Remedy: "producers and consumers work through one with --postgres-mode=pooled; migrations and the reconciler need the address of Postgres itself"}
}

// A sight of a shard is what notices would tell of it.
type sight struct {
	number         int
	epoch, applied int64
	state          string
}

// listenByPolling says what Listen would have heard, by looking every 50 ms.
func (l *Ledger) listenByPolling(ctx context.Context, hear func(Heard), channels []string) error {
	if slices.Contains(channels, ChannelDoubt) {
		return fmt.Errorf("listen to %s: %w", ChannelDoubt, errPooler())
	}
	known := map[int]sight{}
	blind := true // everything may have happened
	pause := listenFirst
	for ctx.Err() == nil {
		seen, err := l.look(ctx)
		if err != nil {
			blind = true
			wait(ctx, pause)
			pause = min(2*pause, listenLongest)
			continue
		}
		pause = listenFirst
		if blind {
			hear(Heard{})
		}
		for _, s := range seen {
			was := known[s.number]
			known[s.number] = s
			if blind {
				continue
			}
			if slices.Contains(channels, ChannelShard) && (s.state != was.state || s.epoch != was.epoch) {
				hear(Heard{Channel: ChannelShard, Payload: fmt.Sprint(s.number)})
			}
			if slices.Contains(channels, ChannelApplied) && (s.epoch != was.epoch || s.applied != was.applied) {
				hear(Heard{Channel: ChannelApplied, Payload: fmt.Sprintf("%d %d %d", s.number, s.epoch, s.applied)})
			}
		}
		blind = false
		wait(ctx, pollEvery)
	}
	return nil
}

func (l *Ledger) look(ctx context.Context) ([]sight, error) {
	ctx, cancel := context.WithTimeout(ctx, listenLimit)
	defer cancel()
	rows, err := l.pool.Query(ctx, `select number, epoch, applied, state from shard order by number limit 1024`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sight, err error) {
		err = row.Scan(&s.number, &s.epoch, &s.applied, &s.state)
		return s, err
	})
}
