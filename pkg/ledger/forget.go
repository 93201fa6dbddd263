package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// forgetLag is how long the commit of a move may come after the moment that the move is dated with: what is younger may
// still appear behind a cursor that has passed it.
const forgetLag = 15 * time.Second

// A ForgetCursor is a place among what came to rest in a shard, in the order of time. The zero one begins where the last
// pass was kept.
type ForgetCursor struct {
	Moved time.Time
	ID    string
}

// waitingFor finds a document of the order r that is not settled, and that will look for the order's record. Told so, it is
// found by its order, and not among all that wait.
const waitingFor = `select from stock_document w
    where w.shard = r.shard and w.order_id = r.order_id and w.order_key = r.attempt and w.order_asked > 0 and w.settled is null offset 0`

// endings are the attempts and documents that came to rest between a cursor and the fence. Of an order only the newest
// attempt is in Redis. Both sources are read along an index and stop at the limit.
const endings = `select id, epoch, seq, idx, moved from (
    (select r.order_id as id, r.epoch, r.seq, r.idx, r.moved from reservation r
        where r.shard = $1 and (r.moved, r.order_id) > ($2, $3) and r.moved <= $4 and r.state <> 'held'
            and not exists (select from reservation n where n.shard = $1 and n.order_id = r.order_id and n.attempt > r.attempt offset 0)
            and not exists (` + waitingFor + `)
        order by r.moved, r.order_id limit $5)
    union all
    (select '~' || d.id, d.epoch, d.seq, d.idx, d.settled from stock_document d
        where d.shard = $1 and d.settled >= $2 and (d.settled, '~' || d.id) > ($2, $3 collate "C") and d.settled <= $4 and d.state <> 'written'
        order by d.settled, '~' || d.id limit $5)) e
order by moved, id limit $5`

// anyEnding looks for the first one before the fence would be moved; a zero cursor is where the last pass was kept.
const anyEnding = `select exists (select from reservation r
        where r.shard = $1 and (r.moved, r.order_id) > (c.moved, c.id) and r.moved <= c.bound and r.state <> 'held')
    or exists (select from stock_document d
        where d.shard = $1 and d.settled >= c.moved and (d.settled, '~' || d.id) > (c.moved, c.id collate "C") and d.settled <= c.bound and d.state <> 'written')
from (select case when $2 > reached then $2 else reached end as moved, case when $2 > reached then $3 else reached_id end as id,
        clock_timestamp() - $4::bigint * interval '1 ms' as bound
    from forgetting where shard = $1) c`

// ForgetPage lists what Redis may forget: orders that are confirmed, fulfilled or ended, and settled documents, that last
// moved longer than olderThan ago, each with the position of its last move, the oldest first, at most limit, those behind
// a cursor. next is the cursor behind the page; keep it with KeepForgotten once the page is dropped. olderThan must be
// the retention or more: a client whose order is forgotten may begin anew, and the ledger accepts that only after the
// retention.
//
// It moves the shard's fence before it lists anything, so that a document that is written from here on does not count on
// the records; what a document waits for is left out, and comes again when that document is settled. Where nothing can be
// forgotten the fence stays, and nothing is written.
func (l *Ledger) ForgetPage(ctx context.Context, shard int, olderThan time.Duration, after ForgetCursor, limit int) (page []stock.Ending, next ForgetCursor, err error) {
	if olderThan < l.retention {
		return nil, after, stock.BadField("older_than", olderThan.String(), fmt.Sprintf("use the retention of %v or more", l.retention))
	}
	if some, err := l.forgettable(ctx, shard, max(olderThan, forgetLag), after); err != nil || !some {
		return nil, after, err
	}
	var fence time.Time
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// A fence that a failover forgets would let a document count on a record that is gone.
		if err := synchronous(ctx, tx); err != nil {
			return err
		}
		if err := moveFence(ctx, tx, shard, max(olderThan, forgetLag)); err != nil {
			return err
		}
		var kept ForgetCursor
		err := tx.QueryRow(ctx, `select fence, reached, reached_id from forgetting where shard = $1`, shard).Scan(&fence, &kept.Moved, &kept.ID)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrUnknownShard
		}
		if after == (ForgetCursor{}) {
			after = kept
		}
		return err
	})
	if err != nil {
		return nil, after, fmt.Errorf("move the fence of shard %d: %w", shard, err)
	}
	rows, err := l.pool.Query(ctx, endings, shard, after.Moved, after.ID, fence, limit)
	if err != nil {
		return nil, after, fmt.Errorf("list what shard %d may forget: %w", shard, err)
	}
	var e stock.Ending
	e.Receipt.Shard = shard
	next = after
	if _, err := pgx.ForEachRow(rows, []any{&e.ID, &e.Receipt.Epoch, &e.Receipt.Seq, &e.Receipt.Index, &next.Moved}, func() error {
		page = append(page, e)
		next.ID = e.ID
		return nil
	}); err != nil {
		return nil, after, fmt.Errorf("list what shard %d may forget: %w", shard, err)
	}
	return page, next, nil
}

// forgettable looks whether there would be a page.
func (l *Ledger) forgettable(ctx context.Context, shard int, olderThan time.Duration, after ForgetCursor) (some bool, err error) {
	err = l.pool.QueryRow(ctx, anyEnding, shard, after.Moved, after.ID, olderThan.Milliseconds()).Scan(&some)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrUnknownShard
	}
	if err != nil {
		return false, fmt.Errorf("look what shard %d may forget: %w", shard, err)
	}
	return some, nil
}

// KeepForgotten keeps how far a pass came: all before the cursor is dropped. It never moves back. A pass that ends before
// it keeps its cursor lists the same once more, which does no harm.
func (l *Ledger) KeepForgotten(ctx context.Context, shard int, reached ForgetCursor) error {
	_, err := l.pool.Exec(ctx, `update forgetting set reached = $2, reached_id = $3 where shard = $1 and (reached, reached_id) < ($2, $3)`,
		shard, reached.Moved, reached.ID)
	if err != nil {
		return fmt.Errorf("keep how far shard %d was forgotten: %w", shard, err)
	}
	return nil
}

// moveFence declares what last moved longer than olderThan ago as dropped. It waits for documents that are being written
// under the old fence.
func moveFence(ctx context.Context, tx pgx.Tx, shard int, olderThan time.Duration) error {
	_, err := tx.Exec(ctx, `update forgetting set fence = greatest(fence, clock_timestamp() - $2::bigint * interval '1 ms') where shard = $1`, shard, olderThan.Milliseconds())
	if err != nil {
		return fmt.Errorf("move the fence of what Redis has forgotten: %w", err)
	}
	return nil
}
