package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// lockSeconds is how often, and lockTries how many times, a process that starts beside another one asks for
// the migration lock: two minutes in all.
const (
	lockSeconds = 1
	lockTries   = 120
)

// undefinedTable is what Postgres answers where nothing was migrated yet.
const undefinedTable = "42P01"

// protocolViolation is what a pooler answers to a setting that it does not know.
const protocolViolation = "08P01"

// Up brings the database at url to the newest embedded version, under a session lock: any number of processes
// may start at once, one migrates and the others find it done. Each migration is one transaction and the lock
// dies with its session, so a process that is killed half-way leaves the work to the next. It fails when the
// lock is not free within two minutes, and with ErrPooler through one that hands out sessions by transaction.
func Up(ctx context.Context, url string) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The parser's own error may repeat the URL, and with it the password.
		return errors.New("read the Postgres URL: want postgres://user@host:port/database")
	}
	config.RuntimeParams["application_name"] = "stockpipe-migrate"
	// A session of our own takes this over; a pooler refuses it or leaves it out.
	config.RuntimeParams[sessionSetting] = sessionValue
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := ownSession(ctx, db); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockSeconds, lockTries))
	if err != nil {
		return fmt.Errorf("prepare the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("read the embedded migrations: %w", err)
	}
	// A start beside others must not cost the lock's full second where there is nothing to do.
	err = check(func(to *int64) error { return db.QueryRowContext(ctx, newest).Scan(to) })
	var behind *BehindError
	if err == nil || errors.As(err, &behind) && behind.Have > behind.Want {
		return err
	}
	return upUnderLock(ctx, provider)
}

// ErrPooler means that the session is not ours: a lock would be left with whoever gets it next.
var ErrPooler = errors.New("a pooler answers there, and migrations need a session of their own: name the address of Postgres itself")

const (
	sessionSetting = "idle_in_transaction_session_timeout"
	sessionValue   = "1h"
)

func ownSession(ctx context.Context, db *sql.DB) error {
	var value string
	err := db.QueryRowContext(ctx, `select current_setting('`+sessionSetting+`')`).Scan(&value)
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == protocolViolation && strings.Contains(answer.Message, "startup parameter") || err == nil && value != sessionValue {
		return ErrPooler
	}
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	return nil
}

func upUnderLock(ctx context.Context, provider *goose.Provider) error {
	ctx, cancel := context.WithTimeout(ctx, 2*lockSeconds*lockTries*time.Second)
	defer cancel()
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database to version %d: %w", Version(), err)
	}
	return nil
}

// newest is the version that goose's table says the database has.
const newest = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`

// Version is the newest embedded version.
func Version() int64 {
	var version int64
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			version = max(version, n)
		}
	}
	return version
}

// A BehindError says that the database is not at the version of this build.
type BehindError struct {
	Have int64 // 0: nothing was ever migrated
	Want int64
}

func (e *BehindError) Error() string {
	if e.Have > e.Want {
		return fmt.Sprintf("the database is at schema version %d, this build knows %d: upgrade this program", e.Have, e.Want)
	}
	return fmt.Sprintf("the database is at schema version %d, this build needs %d: run `stockpipe-reconciler migrate`", e.Have, e.Want)
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check is nil when the database is exactly at the embedded version, else a *BehindError with the remedy, or
// the error of asking.
func Check(ctx context.Context, db Querier) error {
	return check(func(to *int64) error { return db.QueryRow(ctx, newest).Scan(to) })
}

func check(read func(to *int64) error) error {
	var have int64
	var answer *pgconn.PgError
	if err := read(&have); errors.As(err, &answer) && answer.Code == undefinedTable {
		have = 0
	} else if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if want := Version(); have != want {
		return &BehindError{Have: have, Want: want}
	}
	return nil
}
