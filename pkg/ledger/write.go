package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The set-based updates. Rows are found by their index first: joined by columns, Postgres would compare every
// row with the whole batch while statistics are missing, at a fiftieth of the speed.
const (
	updateOrders = `update reservation r set state = y.after, epoch = $7, seq = y.seq, idx = y.idx, moved = now()
from (select x.ctid, v.after, v.seq, v.idx
    from unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $8::bigint[]) v(id, key, before, after, seq, idx),
        lateral (select ctid from reservation where shard = $1 and order_id = v.id and attempt = v.key and state = v.before offset 0) x) y
where r.ctid = y.ctid`

	updateStock = `update stock s set available = y.available, held = y.held, committed = y.committed
from (select x.ctid, v.available, v.held, v.committed
    from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) v(sku, available, held, committed),
        lateral (select ctid from stock where sku = v.sku and shard = $1 offset 0) x) y
where s.ctid = y.ctid`

	insertStock = `insert into stock (sku, shard, available, held, committed)
select v.sku, $1, v.available, v.held, v.committed
from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) v(sku, available, held, committed)`

	updateSigns = `update stock s set opens_ms = y.opens_ms, frozen = y.frozen, closed = y.closed, buyer_limit = y.buyer_limit, doubt = y.doubt
from (select x.ctid, v.opens_ms, v.frozen, v.closed, v.buyer_limit, v.doubt
    from unnest($2::bigint[], $3::bigint[], $4::bool[], $5::bool[], $6::bigint[], $7::text[]) v(sku, opens_ms, frozen, closed, buyer_limit, doubt),
        lateral (select ctid from stock where sku = v.sku and shard = $1 offset 0) x) y
where s.ctid = y.ctid`

	settlePapers = `update stock_document d set state = y.after, epoch = $4, seq = y.seq, idx = y.idx, settled = now()
from (select x.ctid, v.after, v.seq, v.idx
    from unnest($2::text[], $3::text[], $5::bigint[], $6::bigint[]) v(id, after, seq, idx),
        lateral (select ctid from stock_document where id = v.id and shard = $1 and state = 'written' offset 0) x) y
where d.ctid = y.ctid`

	advance = `update shard set applied = $3 where number = $1 and epoch = $2 and applied = $4 and state <> 'halted'`
)

// write puts the fold into the tables: new rows by COPY, then all updates in one round trip.
func (t *transaction) write(ctx context.Context, reached stock.Position) error {
	f := t.fold
	if err := t.send(ctx, eventColumns, &f.rows); err != nil {
		return err
	}
	reservations, lines := f.orderRows()
	if err := t.send(ctx, reservationColumns, &reservations); err != nil {
		return err
	}
	if err := t.send(ctx, lineColumns, &lines); err != nil {
		return err
	}
	u := updates{shard: t.batch.shard}
	u.stock(f)
	u.signs(f)
	u.orders(f, reached.Epoch)
	u.amendments(f)
	u.lines(f)
	u.bought(f, t.batch.short)
	u.papers(f, reached.Epoch)
	u.queue(1, "the shard's position", advance, t.batch.shard, reached.Epoch, reached.Seq, t.have.Seq)
	u.batch.Queue(`select pg_notify($1, $2)`, channelApplied, fmt.Sprintf("%d %d %d", t.batch.shard, reached.Epoch, reached.Seq))
	return t.conn.SendBatch(ctx, &u.batch).Close()
}

// updates are statements that must each find a known number of rows.
type updates struct {
	shard int
	batch pgx.Batch
}

func (u *updates) queue(rows int, what, sql string, args ...any) {
	u.batch.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(rows) {
			return fmt.Errorf("%w: %d of %d rows of %s", errShort, tag.RowsAffected(), rows, what)
		}
		return nil
	})
}

// stock writes the SKUs whose quantities changed, by number.
func (u *updates) stock(f *fold) {
	slices.Sort(f.opened)
	u.quantities(f, insertStock, "new stock", f.opened)
	var changed []int64
	for _, s := range f.loaded {
		if f.book.Stock[s.sku] != s.Quantities {
			changed = append(changed, s.sku)
		}
	}
	slices.Sort(changed)
	u.quantities(f, updateStock, "stock", changed)
}

func (u *updates) quantities(f *fold, sql, what string, skus []int64) {
	if len(skus) == 0 {
		return
	}
	n := len(skus)
	numbers := make([]int64, 3*n)
	available, held, committed := numbers[:n:n], numbers[n:2*n:2*n], numbers[2*n:]
	for i, sku := range skus {
		q := f.book.Stock[sku]
		available[i], held[i], committed[i] = q.Available, q.Held, q.Committed
	}
	u.queue(n, what, sql, u.shard, skus, available, held, committed)
}

func (u *updates) signs(f *fold) {
	skus := compacted(f.signed)
	// A mismatch of a SKU that the ledger does not have is told, but there is no row to freeze.
	skus = slices.DeleteFunc(skus, func(sku int64) bool { _, have := f.book.Stock[sku]; return !have })
	if len(skus) == 0 {
		return
	}
	n := len(skus)
	opens, limits := make([]int64, n), make([]int64, n)
	frozen, closed, doubts := make([]bool, n), make([]bool, n), make([]string, n)
	for i, sku := range skus {
		s := f.signs[sku]
		opens[i], frozen[i], closed[i], limits[i], doubts[i] = s.OpensMillis, s.Frozen, s.Closed, s.Limit, s.doubt
	}
	u.queue(n, "the settings of stock", updateSigns, u.shard, skus, opens, frozen, closed, limits, doubts)
}

// orders writes the transitions of attempts that were there before, by order id.
func (u *updates) orders(f *fold, epoch int64) {
	if len(f.moves) == 0 {
		return
	}
	ids := slices.Sorted(maps.Keys(f.moves))
	n := len(ids)
	keys, seqs, indexes := make([]int64, n), make([]int64, n), make([]int64, n)
	before, after := make([]string, n), make([]string, n)
	for i, id := range ids {
		m := f.moves[id]
		keys[i], seqs[i], indexes[i] = m.key, m.after.Receipt.Seq, int64(m.after.Receipt.Index)
		before[i], after[i] = string(m.before.State), string(m.after.State)
	}
	u.queue(n, "reservations", updateOrders, u.shard, ids, keys, before, after, seqs, epoch, indexes)
	u.holds(f, ids)
}

func (u *updates) papers(f *fold, epoch int64) {
	if len(f.settle) == 0 {
		return
	}
	slices.SortFunc(f.settle, func(a, b settlement) int { return strings.Compare(a.id, b.id) })
	n := len(f.settle)
	ids, after := make([]string, n), make([]string, n)
	seqs, indexes := make([]int64, n), make([]int64, n)
	for i, s := range f.settle {
		ids[i], after[i], seqs[i], indexes[i] = s.id, s.state, s.at.Seq, int64(s.at.Index)
	}
	u.queue(n, "documents", settlePapers, u.shard, ids, after, epoch, seqs, indexes)
}
