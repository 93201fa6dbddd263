package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// startLimit bounds the wait for a session to get where the test needs it.
const startLimit = 20 * time.Second

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func query(t *testing.T, url, statement string) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), statement).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFiveReplicasThatStartAtOnceAllSucceed(t *testing.T) {
	t.Parallel()
	for round := range 5 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			url := sandboxtest.Database(t, nil)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if err := migrations.Up(context.Background(), url); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if n := query(t, url, `select count(*) from goose_db_version where version_id > 0`); n != migrations.Version() {
				t.Errorf("%d migrations applied, want each of %d once", n, migrations.Version())
			}
			if n := query(t, url, `select count(*) from ledger`); n != 1 {
				t.Errorf("%d ledgers", n)
			}
		})
	}
}

// Whoever dies half-way leaves neither a lock nor half a schema.
func TestAMigrationThatIsKilledIsFinishedByAnother(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := sandboxtest.Database(t, nil)
	// A table of the migration's that somebody is about to make holds it up in the middle.
	blocker, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close(ctx)
	for _, statement := range []string{"begin", "create table turn (x int)"} {
		if _, err := blocker.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	first := make(chan error, 1)
	go func() { first <- migrations.Up(ctx, url) }()
	sandboxtest.Eventually(t, startLimit, func() error {
		if query(t, url, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 0 {
			return errors.New("nobody is half-way yet")
		}
		return nil
	})
	second := make(chan error, 1)
	go func() { second <- migrations.Up(ctx, url) }()
	if n := query(t, url, `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`); n != 1 {
		t.Fatalf("killed %d", n)
	}
	if err := <-first; err == nil {
		t.Error("the killed one says that it succeeded")
	}
	if _, err := blocker.Exec(ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the other one: %v", err)
	}
	if n := query(t, url, `select count(*) from ledger`); n != 1 {
		t.Errorf("%d ledgers", n)
	}
}

func TestCheckNamesTheRemedy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := sandboxtest.Database(t, nil)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var behind *migrations.BehindError
	if err := migrations.Check(ctx, conn); !errors.As(err, &behind) || behind.Have != 0 || behind.Want != migrations.Version() {
		t.Errorf("empty database: %v", err)
	}
	if err := migrations.Up(ctx, url); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(ctx, conn); err != nil {
		t.Errorf("after Up: %v", err)
	}
	if _, err := conn.Exec(ctx, `insert into goose_db_version (version_id, is_applied) values (999, true)`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(ctx, conn); !errors.As(err, &behind) || behind.Have != 999 {
		t.Errorf("newer database: %v", err)
	}
	if err := migrations.Up(ctx, url); !errors.As(err, &behind) {
		t.Errorf("a newer database was migrated: %v", err)
	}
}

func TestEveryNumberIsABigint(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", sandboxtest.Database(t, migrations.Up))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`select table_name || '.' || column_name from information_schema.columns
where table_schema = 'public' and table_name not like 'goose%' and data_type in ('integer', 'smallint', 'real', 'double precision', 'numeric')`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s is not a bigint", name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAnUnreadableURLIsNotRepeated(t *testing.T) {
	t.Parallel()
	const secret = "hush"
	err := migrations.Up(context.Background(), "postgres://u:"+secret+"@127.0.0.1:notaport/x")
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
}
