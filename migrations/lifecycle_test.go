package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// older gives a database at an older version, and the provider that got it there.
func older(t *testing.T, version int64) (url string, db *sql.DB, provider *goose.Provider) {
	t.Helper()
	url = sandboxtest.Database(t, nil)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if provider, err = goose.NewProvider(goose.DialectPostgres, db, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(context.Background(), version); err != nil {
		t.Fatal(err)
	}
	return url, db, provider
}

// A table with years of orders is not written anew, nor read through, while a shop waits.
func TestTheLifecycleComesToADatabaseWithRowsWithoutWritingThemAnew(t *testing.T) {
	t.Parallel()
	url, db, provider := older(t, 3)
	exec := func(statement string) error {
		_, err := db.Exec(statement)
		return err
	}
	for _, statement := range []string{
		`insert into shard (number) values (0), (1)`,
		`insert into sku (shard, sku, opening) values (0, 'tea', 10)`,
		`insert into stock (sku, shard, available, held, committed) values (1, 0, 5, 3, 2)`,
		`insert into reservation (shard, order_id, attempt, asked, state, epoch, seq, idx) values (0, 'o', 1, 1, 'held', 1, 2, 0)`,
		`insert into reservation_line (shard, order_id, attempt, sku, asked, now) values (0, 'o', 1, 1, 3, 3)`,
		`insert into stock_document (id, shard, kind, lines, deadline_ms, state, epoch, seq, idx, settled)
			values ('~open:1', 0, 'opening', '[{"sku": 1, "units": 10}]', 1, 'applied', 1, 1, 0, now())`,
	} {
		if err := exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	files := func() string {
		var all string
		err := db.QueryRow(`select string_agg(relname || '=' || pg_relation_filenode(oid), ' ' order by relname) from pg_class
			where relname in ('reservation', 'reservation_line', 'stock', 'stock_document', 'event')`).Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := files()
	if err := migrations.Up(context.Background(), url); err != nil {
		t.Fatal(err)
	}
	if after := files(); after != before {
		t.Errorf("tables were written anew: %s became %s", before, after)
	}
	for statement, want := range map[string]int64{
		`select count(*) from reservation_line where asked = 3 and now = 3 and fulfilled = 0 and returned = 0`:      1,
		`select count(*) from stock where counted_epoch = 0 and counted_seq = 0`:                                    1,
		`select count(*) from stock_document where order_id is null and not whole and not pruned and as_asked = ''`: 1,
		`select count(*) from forgetting`: 2,
		`select count(*) from pg_index where indexrelid = 'reservation_line_sku'::regclass and indisvalid`:   1,
		`select count(*) from pg_index where indrelid = 'stock_document'::regclass and indisvalid`:           5,
		`select count(*) from pg_constraint where conrelid = 'reservation_line'::regclass and contype = 'c'`: 4,
		`select count(*) from goose_db_version where version_id > 3 and is_applied`:                          migrations.Version() - 3,
	} {
		if got := query(t, url, statement); got != want {
			t.Errorf("%s: %d, want %d", statement, got, want)
		}
	}
	for _, statement := range []string{
		`update reservation_line set asked = -1`, `update reservation_line set fulfilled = -1`,
		`update reservation_line set fulfilled = 1, returned = 2`, `update reservation_line set returned = -1`,
	} {
		var answer *pgconn.PgError
		if err := exec(statement); !errors.As(err, &answer) || answer.Code != "23514" {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if err := exec(`update reservation_line set asked = 0, fulfilled = 2, returned = 2`); err != nil {
		t.Error(err)
	}
	if err := exec(`update reservation_line set asked = 3`); err != nil {
		t.Error(err)
	}
	if _, err := provider.DownTo(context.Background(), 3); err != nil {
		t.Errorf("and back: %v", err)
	}
	if err := migrations.Up(context.Background(), url); err != nil {
		t.Errorf("and again: %v", err)
	}
}

// An index that was left half built, because somebody was killed beside it, is not taken for one.
func TestAnIndexThatWasLeftHalfBuiltIsBuiltAnew(t *testing.T) {
	t.Parallel()
	url, db, _ := older(t, 4)
	for _, statement := range []string{
		`create index reservation_line_sku on reservation_line (shard, sku)`,
		`update pg_index set indisvalid = false where indexrelid = 'reservation_line_sku'::regclass`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrations.Up(context.Background(), url); err != nil {
		t.Fatal(err)
	}
	if n := query(t, url, `select count(*) from pg_index where indexrelid = 'reservation_line_sku'::regclass and indisvalid`); n != 1 {
		t.Error("the index is of no use")
	}
}

// What buyers have was counted from the orders before there was a table of it: what stands comes along.
func TestWhatBuyersHaveIsCountedFromTheOrdersThatStand(t *testing.T) {
	t.Parallel()
	url, db, provider := older(t, 6)
	for _, statement := range []string{
		`insert into shard (number) values (0), (1)`,
		`insert into sku (shard, sku, opening) values (0, 'tea', 10), (0, 'cup', 10), (1, 'jam', 10)`,
		`insert into stock (sku, shard, available, held, committed, buyer_limit) values (1, 0, 5, 3, 2, 9), (2, 0, 5, 3, 2, 0), (3, 1, 5, 3, 2, 1)`,
		`insert into reservation (shard, order_id, attempt, asked, state, buyer, epoch, seq, idx) values
			(0, 'a', 1, 1, 'released', 'ann', 1, 2, 0), (0, 'a', 2, 2, 'held', 'ann', 1, 2, 0), (0, 'b', 1, 1, 'confirmed', 'ann', 1, 2, 0),
			(0, 'c', 1, 1, 'fulfilled', 'bob', 1, 2, 0), (0, 'd', 1, 1, 'cancelled', 'cay', 1, 2, 0), (0, 'e', 1, 1, 'held', '', 1, 2, 0),
			(1, 'a', 1, 1, 'held', 'Ann', 1, 2, 0), (0, 'f', 1, 1, 'expired', 'dan', 1, 2, 0)`,
		`insert into reservation_line (shard, order_id, attempt, sku, asked, now, fulfilled) values
			(0, 'a', 1, 1, 7, 7, 0), (0, 'a', 2, 1, 2, 2, 0), (0, 'a', 2, 2, 4, 4, 0), (0, 'b', 1, 1, 5, 1, 3), (0, 'c', 1, 1, 5, 0, 5),
			(0, 'd', 1, 1, 5, 0, 0), (0, 'e', 1, 1, 1, 1, 0), (1, 'a', 1, 3, 8, 8, 0), (0, 'f', 1, 1, 6, 6, 0)`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, again := range []bool{false, true} {
		if err := migrations.Up(context.Background(), url); err != nil {
			t.Fatal(err)
		}
		var all string
		if err := db.QueryRow(`select string_agg(concat_ws(' ', shard, sku, buyer, units), ', ' order by shard, sku, buyer) from bought`).Scan(&all); err != nil {
			t.Fatal(err)
		}
		if want := "0 1 ann 6, 0 1 bob 5, 1 3 Ann 8"; all != want {
			t.Errorf("counted %q, want %q", all, want)
		}
		if again {
			return
		}
		if _, err := provider.DownTo(context.Background(), 6); err != nil {
			t.Fatal(err)
		}
	}
}
