package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// rebuilding is a shard that was closed, with so many orders of three lines each.
func rebuilding(t *testing.T, orders int) (*Ledger, Claim) {
	t.Helper()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	exec(t, w.l, `insert into reservation (shard, order_id, attempt, asked, state, buyer, epoch, seq, idx)
select 0, 'o' || lpad(i::text, 6, '0'), 1, 1, 'held', 'b' || i, 1, i, 0 from generate_series(1, $1::int) i`, orders)
	exec(t, w.l, `insert into reservation_line (shard, order_id, attempt, sku, asked, now)
select shard, order_id, 1, sku, 2, 2 from reservation, unnest(array[7, 8, 9]) sku`)
	c, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
	return w.l, c
}

// Neither the end of a page nor of a fetch, which falls between two lines of one order, loses or cuts a record.
func TestNoRecordIsLostAtTheEndOfAPage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, orders := range []int{0, 1, 333, 334, 999, 1000, 1001, 2500} {
		l, c := rebuilding(t, orders)
		s, err := l.Snapshot(ctx, c)
		check(t, err)
		var ids []string
		check(t, s.Records(ctx, func(page []takeover.Record) error {
			if len(page) == 0 || len(page) > pageSize {
				t.Errorf("%d orders: a page of %d", orders, len(page))
			}
			for _, r := range page {
				ids = append(ids, r.ID)
				if !strings.HasSuffix(r.Text, "|7=2,8=2,9=2") {
					t.Errorf("%s: %q", r.ID, r.Text)
				}
			}
			return nil
		}))
		check(t, s.Close())
		check(t, s.Close()) // once more is fine
		if len(ids) != orders || !slices.IsSorted(ids) || len(slices.Compact(ids)) != orders {
			t.Errorf("%d of %d orders", len(ids), orders)
		}
	}
}

// Redis is asked and filled between two pages. If that takes too long Postgres ends the transaction, and the reader is
// told so instead of taking what it got for all.
func TestASnapshotThatEndsBetweenTwoPagesIsAnError(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, c := rebuilding(t, 2500)
	s, err := l.Snapshot(ctx, c)
	check(t, err)
	pages := 0
	err = s.Records(ctx, func([]takeover.Record) error {
		if pages++; pages == 1 {
			exec(t, l, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()`)
		}
		return nil
	})
	if err == nil || pages > 1 {
		t.Errorf("%d pages, %v", pages, err)
	}
	_ = s.Close() // its connection is gone
}

func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	var sizes []int
	p := recordPages{page: func(page []takeover.Record) error {
		sizes = append(sizes, len(page))
		return nil
	}}
	text := strings.Repeat("x", 100_000)
	for i := range 25 {
		check(t, p.add(fmt.Sprint("o", i), text))
	}
	check(t, p.flush())
	check(t, p.flush())
	if !slices.Equal(sizes, []int{11, 11, 3}) {
		t.Errorf("pages of %v", sizes)
	}
}

func TestWhatBuyersHaveComesInPages(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, buyers := range []int{0, 1, 1000, 1001, 2500} {
		w := newTeller(t, open(t, 1), 0)
		tea := w.sku(100)
		exec(t, w.l, `update stock set buyer_limit = 9 where sku = $1`, tea)
		exec(t, w.l, `insert into bought (shard, sku, buyer, units)
select 0, $1, 'b' || lpad(i::text, 6, '0'), 2 from generate_series($2::int, 1, -1) i`, tea, buyers)
		c, err := w.l.Claim(ctx, 0, 0, false)
		check(t, err)
		_, err = w.l.CloseEpoch(ctx, c)
		check(t, err)
		s, err := NewOpener(w.l).Snapshot(ctx, takeover.Seal{Epoch: c.Epoch, Nonce: c.Nonce})
		check(t, err)
		var got []string
		check(t, s.Bought(ctx, func(page []takeover.Bought) error {
			if len(page) == 0 || len(page) > takeover.SnapshotPage {
				t.Errorf("%d buyers: a page of %d", buyers, len(page))
			}
			for _, b := range page {
				got = append(got, b.Buyer)
				if b.BuyerKey != (event.BuyerKey{SKU: tea, Buyer: b.Buyer}) || b.Units != 2 {
					t.Errorf("%+v", b)
				}
			}
			return nil
		}))
		check(t, s.Close())
		if len(got) != buyers || !slices.IsSorted(got) || len(slices.Compact(got)) != buyers {
			t.Errorf("%d of %d buyers", len(got), buyers)
		}
	}
}
