package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// MaxPruned bounds what one step of Prune looks at, in orders.
const MaxPruned = 10_000

// A PruneCursor is a place among the orders of a shard, in the order of their newest attempt's last move; the zero one
// begins.
type PruneCursor struct {
	Moved time.Time
	ID    string
}

// Pruned is what one step of Prune did.
type Pruned struct {
	Attempts int64 // deleted
	Lines    int64 // of them
	Looked   int   // orders that the step went over, deleted or not
	Next     PruneCursor
}

const (
	// oldOrders walks the index of the last move, and takes an order by its newest attempt. Whoever has that locked is
	// writing a document of it.
	oldOrders = `select r.order_id, r.moved, r.state in (` + over + `)
from reservation r
where r.shard = $1 and (r.moved, r.order_id) > ($2, $3)
    and r.moved < (select least(reached, now() - $4::bigint * interval '1 ms') from forgetting where shard = $1)
    and not exists (select from reservation n where n.shard = $1 and n.order_id = r.order_id and n.attempt > r.attempt offset 0)
order by r.moved, r.order_id limit $5 for update skip locked`

	// oldAttempts locks the attempts of them that may go.
	oldAttempts = `select x.order_id, x.attempt from unnest($2::text[]) v(id), lateral (select r.order_id, r.attempt from reservation r
    where r.shard = $1 and r.order_id = v.id and r.state in (` + over + `)
        and r.moved < (select least(reached, now() - $3::bigint * interval '1 ms') from forgetting where shard = $1)
    for update skip locked) x`

	// over are the states of an attempt that may go. One that has to stay has a line of a SKU with a limit, or a document
	// in flight: the order and the key of the attempt close these two.
	over      = `'released', 'expired', 'cancelled', 'fulfilled'`
	unlimited = `not exists (select from reservation_line l, stock s where l.shard = $1 and s.sku = l.sku and s.buyer_limit > 0 and l.order_id = `
	unasked   = `not exists (select from stock_document d where d.shard = $1 and d.settled is null and d.order_id = `

	// pruneOrders comes behind the locks, in a snapshot of its own: a document that was written before them is seen. What
	// buyers have of a SKU with a limit is checked against its orders, and counted from them anew, for ever. An order goes with all its attempts or stays
	// with all: the next one's key is found from what is there.
	pruneOrders = `with old as materialized (
    select v.id, v.key from unnest($2::text[], $3::bigint[]) v(id, key)
    where ` + unlimited + `v.id and l.attempt = v.key offset 0) and ` + unasked + `v.id and d.order_key = v.key offset 0)
), whole as materialized (
    select old.id, old.key from old, (select o.id from old o group by o.id
        having count(*) = (select count(*) from reservation r where r.shard = $1 and r.order_id = o.id)) w
    where w.id = old.id
), lines as (
    delete from reservation_line l using (select x.ctid from whole,
        lateral (select ctid from reservation_line where shard = $1 and order_id = whole.id and attempt = whole.key offset 0) x) y
    where l.ctid = y.ctid returning 1
), papers as (
    update stock_document d set pruned = true from (select x.ctid from whole,
        lateral (select ctid from stock_document where shard = $1 and order_id = whole.id and order_key = whole.key offset 0) x) y
    where d.ctid = y.ctid
), attempts as (
    delete from reservation r using (select x.ctid from whole,
        lateral (select ctid from reservation where shard = $1 and order_id = whole.id and attempt = whole.key offset 0) x) y
    where r.ctid = y.ctid returning 1
)
select (select count(*) from attempts), (select count(*) from lines)`
)

// Prune is one step through the orders of a shard whose last move is older than olderThan, the oldest first: it goes
// over at most limit of them (MaxPruned) behind a cursor and deletes those of which every attempt ended or was
// fulfilled, with all their attempts and lines. Call it with the next cursor until it has looked at fewer than limit.
// olderThan must be above the retention. It leaves what is held or confirmed, what has a line of a SKU with a limit, what
// a document is in flight for, and what no pass of ForgetPage has gone by. Documents, events and outcomes stay: every document's id keeps its answer, and history
// its digests. An order that is gone takes no more returns.
func (l *Ledger) Prune(ctx context.Context, shard int, olderThan time.Duration, after PruneCursor, limit int) (p Pruned, err error) {
	if olderThan <= l.retention {
		return p, stock.BadField("older_than", olderThan.String(), fmt.Sprintf("keep orders for longer than the retention of %v", l.retention))
	}
	if limit < 1 || limit > MaxPruned {
		return p, stock.BadField("limit", fmt.Sprint(limit), fmt.Sprintf("go over 1 to %d orders in one step", MaxPruned))
	}
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		p, err = pruneStep(ctx, tx, shard, olderThan, after, limit)
		return err
	})
	if err != nil {
		return Pruned{Next: after}, fmt.Errorf("prune the orders of shard %d: %w", shard, err)
	}
	return p, nil
}

func pruneStep(ctx context.Context, tx pgx.Tx, shard int, olderThan time.Duration, after PruneCursor, limit int) (Pruned, error) {
	p := Pruned{Next: after}
	var number int64
	err := tx.QueryRow(ctx, `select number from shard where number = $1 for no key update`, shard).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, ErrUnknownShard
	}
	if err != nil {
		return p, err
	}
	rows, err := tx.Query(ctx, oldOrders, shard, after.Moved, after.ID, olderThan.Milliseconds(), limit)
	if err != nil {
		return p, err
	}
	var orders []string
	var ended bool
	if _, err := pgx.ForEachRow(rows, []any{&p.Next.ID, &p.Next.Moved, &ended}, func() error {
		p.Looked++
		if ended {
			orders = append(orders, p.Next.ID)
		}
		return nil
	}); err != nil || len(orders) == 0 {
		return p, err
	}
	if rows, err = tx.Query(ctx, oldAttempts, shard, orders, olderThan.Milliseconds()); err != nil {
		return p, err
	}
	var ids []string
	var keys []int64
	var id string
	var key int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &key}, func() error {
		ids, keys = append(ids, id), append(keys, key)
		return nil
	}); err != nil {
		return p, err
	}
	return p, tx.QueryRow(ctx, pruneOrders, shard, ids, keys).Scan(&p.Attempts, &p.Lines)
}
