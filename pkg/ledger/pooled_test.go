package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// pooled gives a direct ledger and one through a pooler that has one session for all.
func pooled(t *testing.T, settings map[string]string) (direct, through *Ledger, link string) {
	t.Helper()
	database := sandboxtest.Database(t, migrations.Up)
	if settings == nil {
		settings = map[string]string{}
	}
	pooler := sandboxtest.Pooler(t, sandbox.PoolerOptions{Target: sandboxtest.Postgres(t), Settings: settings})
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = pooler.Addr()
	through, err = Open(context.Background(), Config{URL: u.String(), Name: t.Name(), Pooled: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	return openURL(t, database, 2), through, u.String()
}

func TestAPoolerThatNobodyNamedIsRecognised(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		nil, // it refuses what a session asks for
		{"ignore_startup_parameters": "idle_in_transaction_session_timeout,lock_timeout,plan_cache_mode,extra_float_digits"},
	} {
		_, _, link := pooled(t, settings)
		l, err := Open(t.Context(), Config{URL: link, Name: "test"})
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "--postgres-mode=pooled") {
			t.Errorf("opened as direct: %v", err)
		}
		if err := migrations.Up(t.Context(), link); !errors.Is(err, migrations.ErrPooler) {
			t.Errorf("migrations: %v", err)
		}
	}
}

// One session serves everybody, so whatever one leaves in it the next would find.
func TestNothingIsLeftInASessionOfAPooler(t *testing.T) {
	t.Parallel()
	direct, l, _ := pooled(t, map[string]string{"default_pool_size": "1"})
	ctx := t.Context()
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			for round := range 5 {
				if _, err := l.Assign(ctx, fmt.Sprintf("consumer-%d", n), time.Minute); err != nil {
					t.Error(err)
				}
				if _, _, err := l.WriteOpening(ctx, fmt.Sprintf("tea-%d-%d", n, round), 5, n%2, 1); err != nil {
					t.Error(err)
				}
				if _, err := l.Shards(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	rows, err := l.pool.Query(ctx, `select name from pg_prepared_statements`)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(names) > 0 {
		t.Errorf("statements are left: %v %v", names, err)
	}
	var locks int
	var bounds string
	err = l.pool.QueryRow(ctx, `select (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
		current_setting('lock_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')`).Scan(&locks, &bounds)
	if err != nil || locks != 0 || bounds != "0 0" {
		t.Errorf("%d locks and the bounds %q are left: %v", locks, bounds, err)
	}
	var written int
	if err := direct.pool.QueryRow(ctx, `select count(*) from sku`).Scan(&written); err != nil || written != 40 {
		t.Errorf("%d SKUs are written: %v", written, err)
	}
}

func TestTheBoundsOfATransactionHoldBehindAPooler(t *testing.T) {
	t.Parallel()
	_, l, _ := pooled(t, nil)
	const ask = `select current_setting('lock_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')`
	var got string
	err := l.inTx(t.Context(), pgx.TxOptions{}, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), ask).Scan(&got) })
	if err != nil || got != "6s 5s" {
		t.Errorf("in a transaction: %q %v", got, err)
	}
	var queue pgx.Batch
	l.queueBounds(&queue)
	queue.Queue(ask).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
	got = ""
	if err := l.pool.SendBatch(t.Context(), &queue).Close(); err != nil || got != "6s 5s" {
		t.Errorf("in a batch: %q %v", got, err)
	}
	tx, err := l.beginReading(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var mode string
	err = tx.QueryRow(t.Context(), `select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only')`).Scan(&mode)
	if err := errors.Join(err, endReading(t.Context(), tx)); err != nil || mode != "repeatable read on" {
		t.Errorf("a reading transaction is %q %v", mode, err)
	}
}

// A transaction whose client went silent is ended by Postgres behind a pooler, too, and its locks go.
func TestASilentTransactionBehindAPoolerEnds(t *testing.T) {
	t.Parallel()
	direct, l, _ := pooled(t, nil)
	tx, err := l.pool.BeginTx(t.Context(), l.bounded(pgx.TxOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it was ended
	if _, err := tx.Exec(t.Context(), lockShard, 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = direct.inTx(t.Context(), pgx.TxOptions{}, func(other pgx.Tx) error {
		_, err := other.Exec(t.Context(), lockShard, 0)
		return err
	})
	if took := time.Since(began); err != nil || took < idleInTransaction/2 {
		t.Errorf("the lock is free after %v: %v", took, err)
	}
}

// Behind a pooler a client does not know its session, and who stands in the way of it is found all the same.
func TestAStalledHolderIsEndedThroughAPooler(t *testing.T) {
	t.Parallel()
	_, l, _ := pooled(t, nil)
	conn, err := l.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "begin; "+setBounds+"; select from shard where number = 0 for no key update"); err != nil {
		t.Fatal(err)
	}
	silent, speaker := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := conn.Conn().PgConn().CopyFrom(t.Context(), silent, "copy outcome from stdin")
		copied <- err
	}()
	ended, err := l.endStalledHolder(t.Context(), 0, 100*time.Millisecond)
	if err != nil || !ended {
		t.Errorf("ended %v: %v", ended, err)
	}
	speaker.Close()
	if err := <-copied; err == nil {
		t.Error("the holder goes on")
	}
}

func TestWhoCannotListenIsToldByLooking(t *testing.T) {
	t.Parallel()
	direct, l, _ := pooled(t, nil)
	var mu sync.Mutex
	var heard []Heard
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- l.Listen(ctx, func(h Heard) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, h)
		}, ChannelApplied, ChannelShard)
	}()
	await := func(want ...Heard) {
		t.Helper()
		sandboxtest.Eventually(t, 10*time.Second, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(heard, want) {
				return fmt.Errorf("heard %v, want %v", heard, want)
			}
			return nil
		})
	}
	made := Heard{}
	await(made)
	exec(t, direct, `update shard set applied = 7, epoch = 3 where number = 1`)
	await(made, Heard{ChannelShard, "1"}, Heard{ChannelApplied, "1 3 7"})
	exec(t, direct, `update shard set applied = 9 where number = 1`)
	await(made, Heard{ChannelShard, "1"}, Heard{ChannelApplied, "1 3 7"}, Heard{ChannelApplied, "1 3 9"})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := l.Listen(t.Context(), func(Heard) {}, ChannelDoubt); err == nil || !strings.Contains(err.Error(), "pooled") {
		t.Errorf("doubts behind a pooler: %v", err)
	}
}
