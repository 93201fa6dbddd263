package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// MaxPruned bounds what one step of Prune looks at, in attempts.
const MaxPruned = 10_000

// A PruneCursor is a place among the attempts of a shard, in the order of their last move; the zero one begins.
type PruneCursor struct {
	Moved   time.Time
	ID      string
	Attempt int64
}

// Pruned is what one step of Prune did.
type Pruned struct {
	Attempts int64 // deleted
	Lines    int64 // of them
	Looked   int   // attempts that the step went over, deleted or not
	Next     PruneCursor
}

const (
	// oldAttempts walks the index of the last move. Whoever has one locked is writing a document of it.
	oldAttempts = `select r.order_id, r.attempt, r.moved, r.state in ('released', 'expired', 'cancelled', 'fulfilled')
from reservation r
where r.shard = $1 and (r.moved, r.order_id, r.attempt) > ($2, $3, $4)
    and r.moved < (select least(reached, now() - $5::bigint * interval '1 ms') from forgetting where shard = $1)
order by r.moved, r.order_id, r.attempt limit $6 for update skip locked`

	// pruneAttempts comes behind the locks, in a snapshot of its own: a document that was written before them is seen. What
	// buyers have of a SKU with a limit is counted from its orders for ever.
	pruneAttempts = `with old as materialized (
    select v.id, v.key from unnest($2::text[], $3::bigint[]) v(id, key)
    where not exists (select from reservation_line l, stock s
            where l.shard = $1 and l.order_id = v.id and l.attempt = v.key and s.sku = l.sku and s.buyer_limit > 0 offset 0)
        and not exists (select from stock_document d
            where d.shard = $1 and d.order_id = v.id and d.order_key = v.key and d.settled is null offset 0)
), lines as (
    delete from reservation_line l using (select x.ctid from old,
        lateral (select ctid from reservation_line where shard = $1 and order_id = old.id and attempt = old.key offset 0) x) y
    where l.ctid = y.ctid returning 1
), papers as (
    update stock_document d set pruned = true from (select x.ctid from old,
        lateral (select ctid from stock_document where shard = $1 and order_id = old.id and order_key = old.key offset 0) x) y
    where d.ctid = y.ctid
), attempts as (
    delete from reservation r using (select x.ctid from old,
        lateral (select ctid from reservation where shard = $1 and order_id = old.id and attempt = old.key offset 0) x) y
    where r.ctid = y.ctid returning 1
)
select (select count(*) from attempts), (select count(*) from lines)`
)

// Prune is one step through the attempts of a shard whose last move is older than olderThan, the oldest first: it goes
// over at most limit of them (MaxPruned) behind a cursor and deletes those that ended or were fulfilled, with their
// lines. Call it with the next cursor until it has looked at fewer than limit. olderThan must be above the retention. It
// leaves what is held or confirmed, what has a line of a SKU with a limit, what a document is in flight for, and what no
// pass of ForgetPage has gone by. Documents, events and outcomes stay: every document's id keeps its answer, and history
// its digests. An order that is gone takes no more returns.
func (l *Ledger) Prune(ctx context.Context, shard int, olderThan time.Duration, after PruneCursor, limit int) (p Pruned, err error) {
	if olderThan <= l.retention {
		return p, stock.BadField("older_than", olderThan.String(), fmt.Sprintf("keep orders for longer than the retention of %v", l.retention))
	}
	if limit < 1 || limit > MaxPruned {
		return p, stock.BadField("limit", fmt.Sprint(limit), fmt.Sprintf("go over 1 to %d attempts in one step", MaxPruned))
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
	rows, err := tx.Query(ctx, oldAttempts, shard, after.Moved, after.ID, after.Attempt, olderThan.Milliseconds(), limit)
	if err != nil {
		return p, err
	}
	var ids []string
	var keys []int64
	var over bool
	if _, err := pgx.ForEachRow(rows, []any{&p.Next.ID, &p.Next.Attempt, &p.Next.Moved, &over}, func() error {
		p.Looked++
		if over {
			ids, keys = append(ids, p.Next.ID), append(keys, p.Next.Attempt)
		}
		return nil
	}); err != nil || len(ids) == 0 {
		return p, err
	}
	return p, tx.QueryRow(ctx, pruneAttempts, shard, ids, keys).Scan(&p.Attempts, &p.Lines)
}
