package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// prunable counts what Prune would delete, in all steps: the orders whose newest attempt is old, and of which no attempt
// has to stay.
const prunable = `with bound as materialized (
    select least(reached, now() - $2::bigint * interval '1 ms') as at from forgetting where shard = $1
), old as materialized (
    select r.order_id as id from reservation r
    where r.shard = $1 and r.moved < (select at from bound) and r.state in (` + over + `)
        and not exists (select from reservation n where n.shard = $1 and n.order_id = r.order_id and n.attempt > r.attempt offset 0)
        and not exists (select from reservation k where k.shard = $1 and k.order_id = r.order_id and not (
            k.state in (` + over + `) and k.moved < (select at from bound)
            and ` + unlimited + `k.order_id and l.attempt = k.attempt offset 0) and ` + unasked + `k.order_id and d.order_key = k.attempt offset 0)) offset 0)
)
select coalesce(sum((select count(*) from reservation r where r.shard = $1 and r.order_id = old.id)), 0)::bigint,
    coalesce(sum((select count(*) from reservation_line l where l.shard = $1 and l.order_id = old.id)), 0)::bigint
from old`

// PrunePlan counts what Prune would delete of a shard now, in attempts and their lines. It changes nothing.
func (l *Ledger) PrunePlan(ctx context.Context, shard int, olderThan time.Duration) (attempts, lines int64, err error) {
	if olderThan <= l.retention {
		return 0, 0, stock.BadField("older_than", olderThan.String(), fmt.Sprintf("keep orders for longer than the retention of %v", l.retention))
	}
	if err := l.pool.QueryRow(ctx, prunable, shard, olderThan.Milliseconds()).Scan(&attempts, &lines); err != nil {
		return 0, 0, fmt.Errorf("count what could be pruned of shard %d: %w", shard, err)
	}
	return attempts, lines, nil
}
