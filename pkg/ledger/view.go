package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A View is the ledger of one shard at one moment, for an audit: whatever it is asked, however much later, it
// answers as of then. It idles at most 60 s between questions. Not safe for concurrent use; Close it.
type View struct {
	tx        *pgxpool.Tx
	shard     Shard
	retention int64 // milliseconds
}

// View begins one.
func (l *Ledger) View(ctx context.Context, shard int) (*View, error) {
	tx, err := l.beginReading(ctx)
	if err != nil {
		return nil, err
	}
	v := &View{tx: tx, retention: l.retention.Milliseconds()}
	if v.shard, err = readShard(ctx, tx, shard); err != nil {
		return nil, errors.Join(err, endReading(ctx, tx))
	}
	return v, nil
}

// Shard is the shard's row, its position above all.
func (v *View) Shard() Shard { return v.shard }

// Close ends the view's transaction.
func (v *View) Close() error { return endReading(context.Background(), v.tx) }

// Stock is what the ledger has of every SKU of the shard, in the form of Redis' fields.
func (v *View) Stock(ctx context.Context) (map[int64]event.Field, error) {
	fields := map[int64]event.Field{}
	err := eachField(ctx, v.tx, v.shard.Number, func(sku int64, f event.Field) error {
		fields[sku] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the stock of shard %d: %w", v.shard.Number, err)
	}
	return fields, nil
}

// eachDatedOrder is eachOrder for rows that have the time of the last move as their tenth column.
func eachDatedOrder(rows pgx.Rows, shard int, each func(r *stock.Reservation, moved time.Time)) error {
	var told, moved time.Time
	return gather(rows, &told, shard, func() { moved = told }, func(r *stock.Reservation) error {
		each(r, moved)
		return nil
	})
}

// selectDated is selectNewest with the time of the last move.
const selectDated = newestOf + `x.moved` + andLines

// Orders are the newest attempts of the orders with these ids, numbered as asked. An id without one is absent.
func (v *View) Orders(ctx context.Context, ids []string) (map[string]stock.Reservation, error) {
	orders := make(map[string]stock.Reservation, len(ids))
	err := v.dated(ctx, ids, func(r *stock.Reservation, _ time.Time) { orders[r.ID] = *r })
	return orders, err
}

func (v *View) dated(ctx context.Context, ids []string, each func(r *stock.Reservation, moved time.Time)) error {
	rows, err := v.tx.Query(ctx, selectDated, v.shard.Number, compacted(append([]string(nil), ids...)))
	if err == nil {
		err = eachDatedOrder(rows, v.shard.Number, each)
	}
	if err != nil {
		return fmt.Errorf("read orders of shard %d: %w", v.shard.Number, err)
	}
	return nil
}

const selectPage = `select x.order_id, x.attempt, x.asked, x.state, x.buyer, x.expires_ms, x.epoch, x.seq, x.idx, x.moved, l.sku, l.asked, l.now, l.fulfilled
from (select * from reservation r where ` + insideRetention + ` and r.order_id > $3 order by r.order_id limit $4) x,
    lateral (select * from reservation_line l where l.shard = $1 and l.order_id = x.order_id and l.attempt = x.attempt order by l.sku offset 0) l
order by x.order_id, l.sku`

// byKey goes before a page: on a table without statistics Postgres would rather sort all that lies behind the cursor
// than read one page from the key. byCost takes it back, for the invariants join whole tables in the same transaction.
var (
	byKey  = []string{`set local enable_sort to off`, `set local enable_bitmapscan to off`}
	byCost = []string{`set local enable_sort to default`, `set local enable_bitmapscan to default`}
)

// Page is the orders inside the retention that follow the id after, by id, at most limit: an audit that cannot
// look at all of them at once goes round.
func (v *View) Page(ctx context.Context, after string, limit int) ([]stock.Reservation, error) {
	var orders []stock.Reservation
	var queue pgx.Batch
	v.queuePage(&queue, after, limit, func(r *stock.Reservation, _ time.Time) { orders = append(orders, *r) })
	if err := v.tx.SendBatch(ctx, &queue).Close(); err != nil {
		return nil, fmt.Errorf("read a page of orders of shard %d: %w", v.shard.Number, err)
	}
	return orders, nil
}

func (v *View) queuePage(queue *pgx.Batch, after string, limit int, each func(r *stock.Reservation, moved time.Time)) {
	for _, setting := range byKey {
		queue.Queue(setting)
	}
	queue.Queue(selectPage, v.shard.Number, v.retention, after, limit).Query(func(rows pgx.Rows) error {
		return eachDatedOrder(rows, v.shard.Number, each)
	})
	for _, setting := range byCost {
		queue.Queue(setting)
	}
}

// Freeze stops a SKU and says why, in the ledger only; the freeze in Redis is an operation of its own. A doubt
// that stands already is kept. It takes its turn behind whoever holds the shard's row, up to 6 s.
func (l *Ledger) Freeze(ctx context.Context, sku int64, doubt string) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockShardOf+`(select shard from stock where sku = $1) for no key update`, sku); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update stock set frozen = true, doubt = case when doubt = '' then $2 else doubt end where sku = $1`, sku, printable(doubt))
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrUnknownSKU
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("freeze SKU number %d: %w", sku, err)
	}
	return nil
}

// lockShardOf comes first wherever a row that Apply updates is changed beside it. Apply finds rows by their
// place in one snapshot: a row that is changed before Apply has locked it would be one too few for it, and a
// second time poison.
const lockShardOf = `select from shard where number = `
