//go:build unix

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// connect is a session of a Postgres.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), statement); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t *testing.T, conn *pgx.Conn, question string) (answer T) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), question).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// has waits until a session sees so many rows.
func has(t *testing.T, conn *pgx.Conn, rows int) {
	t.Helper()
	sandboxtest.Eventually(t, 20*time.Second, func() error {
		var found int
		err := conn.QueryRow(context.Background(), "select count(*) from line").Scan(&found)
		if err == nil && found != rows {
			err = fmt.Errorf("%d rows, want %d", found, rows)
		}
		return err
	})
}

func TestPromotedStandbyLacksWhatCameWhileItsPathWasCut(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.OwnPostgres(t)
	before := connect(t, primary.URL(""))
	execute(t, before, "create table line (n int)")
	execute(t, before, "insert into line values (1)")
	path := sandboxtest.Proxy(t, primary.Addr())
	standby := sandboxtest.Standby(t, primary, sandbox.StandbyOptions{Upstream: path.Addr()})
	after := connect(t, standby.URL(""))
	execute(t, before, "insert into line values (2)")
	has(t, after, 2)

	path.BlackHole(true)
	execute(t, before, "insert into line values (3)")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(context.Background()); err != nil {
		t.Fatal(err)
	}
	has(t, after, 2)
	execute(t, after, "insert into line values (4)")
	if timeline := ask[int64](t, after, "select timeline_id from pg_control_checkpoint()"); timeline < 1 {
		t.Errorf("timeline %d", timeline)
	}
	if name := ask[string](t, after, "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"); name != "00000002" {
		t.Errorf("the promoted standby writes timeline %s", name)
	}
	if err := standby.Promote(context.Background()); !errors.Is(err, sandbox.ErrNoStandby) {
		t.Errorf("promoted twice: %v", err)
	}
	// It stays a primary when it starts again.
	if err := standby.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	if ask[bool](t, connect(t, standby.URL("")), "select pg_is_in_recovery()") {
		t.Error("the promoted standby follows again after a restart")
	}
}

func TestCommitWaitsForItsSynchronousStandby(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary := sandboxtest.OwnPostgres(t, sandbox.PostgresOptions{Settings: map[string]string{"synchronous_standby_names": "second"}})
	path := sandboxtest.Proxy(t, primary.Addr())
	standby := sandboxtest.Standby(t, primary, sandbox.StandbyOptions{Upstream: path.Addr(), KnownAs: "second"})
	conn := connect(t, primary.URL(""))
	execute(t, conn, "create table line (n int)")
	path.BlackHole(true)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(short, "insert into line values (1)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a commit whose standby hears nothing ended with %v", err)
	}
	path.BlackHole(false)
	execute(t, connect(t, primary.URL("")), "insert into line values (2)")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, connect(t, standby.URL("")), "select count(*) from line where n = 2"); n != 1 {
		t.Error("the promoted standby lacks what was committed synchronously")
	}
}

func TestThePostgresOfTheUserIsNeitherCopiedNorPromoted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	stack, err := sandbox.Open(ctx, sandbox.Config{PostgresURL: sandboxtest.Postgres(t).URL("")})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	theirs, err := stack.StartPostgres(ctx, sandbox.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stack.StartStandby(ctx, theirs, sandbox.StandbyOptions{}); !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("copied: %v", err)
	}
	if err := theirs.Promote(ctx); !errors.Is(err, sandbox.ErrForeign) {
		t.Errorf("promoted: %v", err)
	}
}
