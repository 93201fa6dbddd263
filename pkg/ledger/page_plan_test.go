package ledger

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestAPageOfOrdersIsReadInTheOrderOfItsKey: on a table of which Postgres has no statistics yet, sorting everything
// behind the cursor looks as good to it as reading one page from the key, and costs as much as the table is long.
func TestAPageOfOrdersIsReadInTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	ctx := t.Context()
	_, err := l.pool.Exec(ctx, `alter table reservation set (autovacuum_enabled = off); alter table reservation_line set (autovacuum_enabled = off)`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.pool.Exec(ctx, `insert into reservation (shard, order_id, attempt, asked, state, epoch, seq, idx)
		select 0, 'o-' || n, 1, 1, 'held', 1, n, 0 from generate_series(1, 20000) n`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.pool.Exec(ctx, `insert into reservation_line (shard, order_id, attempt, sku, asked, now)
		select 0, 'o-' || n, 1, 1, 1, 1 from generate_series(1, 20000) n`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := l.View(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for _, setting := range byKey {
		if _, err := v.tx.Exec(ctx, setting); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := v.tx.Query(ctx, `explain (analyze, timing off) `+selectPage, int64(0), v.retention, "o-1", 1000)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(plan, "\n")
	if strings.Contains(text, "Bitmap Heap Scan") || strings.Contains(text, "Join Filter") || !strings.Contains(text, "rows=1000 ") {
		t.Errorf("a page of 1,000 orders is not read from the key:\n%s", text)
	}
	if _, err := v.Page(ctx, "o-1", 1000); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"enable_sort", "enable_bitmapscan"} {
		var now string
		if err := v.tx.QueryRow(ctx, "select current_setting($1)", setting).Scan(&now); err != nil || now != "on" {
			t.Errorf("after a page %s is %q, %v: the invariants would join whole tables without it", setting, now, err)
		}
	}
}
