package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Found is an attempt of an order in one shard, as it is persisted.
type Found struct {
	Reservation stock.Reservation // Attempt is the attempt as asked
	Key         int64             // of its row: not the attempt where a record was dropped after retention, or an order began with a later attempt
	Due         time.Time         // by Postgres' clock; zero when never
	Moved       time.Time         // when its last transition was persisted
}

// Lookup finds the newest attempt of an order in every shard that has one, by shard, with its lines. An order
// that no shard has is an empty answer and no error. It reads the primary: a new attempt is built on it.
func (l *Ledger) Lookup(ctx context.Context, order string) ([]Found, error) {
	if stock.CheckOrderID("order_id", order) != nil {
		return nil, nil // no such id was ever stored
	}
	found, err := l.find(ctx, order, lookup, order)
	if err != nil {
		return nil, fmt.Errorf("look up order %s: %w", order, err)
	}
	return found, nil
}

// Attempt finds one attempt of an order in one shard, as the client numbered it, with its lines; false where the shard
// has none. Of two lives of an order, the second begun after Redis had forgotten the first, it is the newer one's.
func (l *Ledger) Attempt(ctx context.Context, shard int, order string, attempt int64) (Found, bool, error) {
	if stock.CheckOrderID("order_id", order) != nil {
		return Found{}, false, nil // no such id was ever stored
	}
	found, err := l.find(ctx, order, attemptOf, shard, order, attempt)
	if err != nil {
		return Found{}, false, fmt.Errorf("look up attempt %d of order %s: %w", attempt, order, err)
	}
	if len(found) == 0 {
		return Found{}, false, nil
	}
	return found[0], true, nil
}

// What find reads: the rows r of reservation that a query picks, each with its lines.
const (
	selectFound = `
	select r.shard, r.attempt, r.asked, r.state, r.buyer, r.expires_ms, r.due, r.epoch, r.seq, r.idx, r.moved,
	       coalesce(n.sku, '{}'), coalesce(n.asked, '{}'), coalesce(n.now, '{}'), coalesce(n.fulfilled, '{}')
	from `
	withLines = `
	cross join lateral (
		select array_agg(sku order by sku) as sku, array_agg(asked order by sku) as asked, array_agg(now order by sku) as now,
		       array_agg(fulfilled order by sku) as fulfilled
		from reservation_line where shard = r.shard and order_id = r.order_id and attempt = r.attempt) n`

	// lookup goes shard by shard, for the key begins with the shard: asked for the order alone, Postgres would
	// read the whole index.
	lookup = selectFound + `shard s
	cross join lateral (
		select * from reservation where shard = s.number and order_id = $1 order by attempt desc limit 1) r` + withLines + `
	order by r.shard`

	attemptOf = selectFound + `(
		select * from reservation where shard = $1 and order_id = $2 and asked = $3 order by attempt desc limit 1) r` + withLines

	attemptsOf = selectFound + `(
		select * from reservation where shard = $1 and order_id = $2 order by attempt limit $3) r` + withLines + `
	order by r.attempt`
)

func (l *Ledger) find(ctx context.Context, order, sql string, args ...any) ([]Found, error) {
	rows, err := l.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Found, error) { return scanFound(row, order) })
}

func scanFound(row pgx.CollectableRow, order string) (Found, error) {
	f := Found{Reservation: stock.Reservation{ID: order}}
	r := &f.Reservation
	var due *time.Time
	var skus, asked, now, fulfilled []int64
	err := row.Scan(&r.Receipt.Shard, &f.Key, &r.Attempt, &r.State, &r.Buyer, &r.ExpiresMillis, &due,
		&r.Receipt.Epoch, &r.Receipt.Seq, &r.Receipt.Index, &f.Moved, &skus, &asked, &now, &fulfilled)
	if err != nil {
		return f, err
	}
	if due != nil {
		f.Due = *due
	}
	for i := range skus {
		r.Lines = append(r.Lines, stock.Line{SKU: skus[i], Asked: asked[i], Now: now[i], Fulfilled: fulfilled[i]})
	}
	return f, nil
}
