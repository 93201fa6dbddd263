package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stockpipe/stockpipe/migrations"
)

// The channels of NOTIFY. A notice is a hint only: whoever listens also polls.
const (
	channelApplied = "stockpipe_applied" // "<shard> <epoch> <applied>", after each batch
	channelShard   = "stockpipe_shard"   // "<shard>", after each change of a shard's state or epoch
	channelDoubt   = "stockpipe_doubt"   // "<shard> <class>", from whoever saw a shard refuse
)

// Bounds of every session. A stopped process must not stop the shop: one that went silent inside a
// transaction is ended by Postgres, and nobody waits for a row lock without an end.
const (
	idleInTransaction = 5 * time.Second
	lockTimeout       = 6 * time.Second
	connectTimeout    = 5 * time.Second
)

const (
	defaultMaxConns  = 8
	defaultRetention = 24 * time.Hour
)

// Config says which ledger, and who asks.
type Config struct {
	URL       string        // postgres://…; it may hold a password and is never shown
	Name      string        // application_name, what an operator sees in pg_stat_activity
	MaxConns  int32         // connections at most; 0 = 8
	Retention time.Duration // how long ended and confirmed orders stay known to Redis; 0 = as the ledger has it, or 24 h
	Pooled    bool          // a pooler that hands out sessions by transaction (pgbouncer) stands in between
}

// A Ledger is a pool of connections to the primary. Safe for concurrent use.
type Ledger struct {
	pool      *pgxpool.Pool
	id        string
	retention time.Duration
	pooled    bool
}

// Open connects and refuses a Postgres that would break a promise: one that cannot be reached
// (*UnreachableError), a standby or asynchronous commits (*SettingError), an unmigrated database
// (*migrations.BehindError). Each error says what to do. Close the Ledger when done.
func Open(ctx context.Context, config Config) (*Ledger, error) {
	settings, err := pgxpool.ParseConfig(config.URL)
	if err != nil {
		return nil, urlError(err)
	}
	settings.MaxConns = config.MaxConns
	if settings.MaxConns <= 0 {
		settings.MaxConns = defaultMaxConns
	}
	settings.ConnConfig.ConnectTimeout = connectTimeout
	settings.ConnConfig.DialFunc = dial
	settings.ConnConfig.RuntimeParams["application_name"] = config.Name
	if config.Pooled {
		throughPooler(settings.ConnConfig)
	} else {
		ofOwnSession(settings.ConnConfig)
	}
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("prepare the Postgres connections: %w", err)
	}
	l := &Ledger{pool: pool, retention: config.Retention, pooled: config.Pooled}
	if l.retention <= 0 {
		l.retention = defaultRetention
	}
	if err := l.check(ctx, config.Retention); err != nil {
		pool.Close()
		return nil, err
	}
	return l, nil
}

// urlError says what is wrong with a URL. The parser's own error may repeat it, and with it the password, so only the
// name of a file that cannot be read is taken from it.
func urlError(err error) error {
	remedy := "write it as postgres://user@host:port/database, with sslmode=verify-full and sslrootcert=FILE for TLS that is verified"
	var file *fs.PathError
	if errors.As(err, &file) {
		remedy = fmt.Sprintf("%v: name a file that this user may read", file)
	}
	return &SettingError{Setting: "the Postgres URL", Value: "unreadable", Remedy: remedy}
}

func (l *Ledger) check(ctx context.Context, retention time.Duration) error {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		if isPooler(err) && !l.pooled {
			return errPooler()
		}
		at := l.pool.Config().ConnConfig
		return &UnreachableError{Address: fmt.Sprintf("%s:%d", at.Host, at.Port), Err: plainConnectError(err)}
	}
	defer conn.Release()
	var standby bool
	var commit, bound string
	err = conn.QueryRow(ctx, `select pg_is_in_recovery(), current_setting('synchronous_commit'), (extract(epoch from current_setting('lock_timeout')::interval) * 1000)::bigint::text`).
		Scan(&standby, &commit, &bound)
	if err != nil {
		return fmt.Errorf("read the settings of Postgres: %w", err)
	}
	if !l.pooled && bound != fmt.Sprint(lockTimeout.Milliseconds()) {
		return errPooler() // one that was told to ignore what a session asks for
	}
	if standby {
		return &SettingError{Setting: "pg_is_in_recovery()", Value: "true", Remedy: "connect to the primary, not to a standby"}
	}
	if commit == "off" {
		return &SettingError{Setting: "synchronous_commit", Value: commit, Remedy: "set it to on, for the server or for this database and role: with off, a crash takes back what was answered as persisted"}
	}
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	var agreed int64
	if err := conn.QueryRow(ctx, `select id, coalesce(retention_ms, 0) from ledger`).Scan(&l.id, &agreed); err != nil {
		return fmt.Errorf("read the ledger's id: %w", err)
	}
	return l.checkRetention(retention, agreed)
}

// plainConnectError leaves out the wrapper that repeats user and database.
func plainConnectError(err error) error {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		if inner := connect.Unwrap(); inner != nil {
			return inner
		}
	}
	return err
}

// ID is the random id of this ledger, a part of the token that Redis compares.
func (l *Ledger) ID() string { return l.id }

// Close ends every connection. It waits for those in use.
func (l *Ledger) Close() { l.pool.Close() }

// A SettingError is a start-up check that failed: it names the setting, its present value and the remedy.
type SettingError struct {
	Setting string
	Value   string
	Remedy  string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("Postgres: %s is %s: %s", e.Setting, e.Value, e.Remedy)
}

// An UnreachableError means that no connection could be made.
type UnreachableError struct {
	Address string // host:port, nothing else of the URL
	Err     error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("Postgres at %s does not answer: %v: start it, or correct the URL", e.Address, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// inTx runs work in one transaction and commits it. The commit has no deadline: with a synchronous standby a
// cancelled wait makes it visible before it is safe. An error of the commit is wrapped in errCommit: its
// outcome is unknown.
func (l *Ledger) inTx(ctx context.Context, options pgx.TxOptions, work func(pgx.Tx) error) error {
	tx, err := l.pool.BeginTx(ctx, l.bounded(options))
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return errors.Join(err, ignoreClosed(tx.Rollback(context.WithoutCancel(ctx))))
	}
	if err := tx.Commit(context.WithoutCancel(ctx)); err != nil {
		return commitError(err)
	}
	return nil
}

// errCommit marks an error after which a transaction may be committed or not.
var errCommit = errors.New("the outcome of the commit is unknown")

func ignoreClosed(err error) error {
	if err == nil || errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return fmt.Errorf("roll back: %w", err)
}
