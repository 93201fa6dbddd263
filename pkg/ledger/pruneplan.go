package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// prunable counts what pruneAttempts would delete, in all steps.
const prunable = `select count(*), coalesce(sum((select count(*) from reservation_line l where l.shard = $1 and l.order_id = r.order_id and l.attempt = r.attempt)), 0)::bigint
from reservation r
where r.shard = $1 and r.moved < (select least(reached, now() - $2::bigint * interval '1 ms') from forgetting where shard = $1)
    and r.state in ('released', 'expired', 'cancelled', 'fulfilled')
    and not exists (select from reservation_line l, stock s
        where l.shard = $1 and l.order_id = r.order_id and l.attempt = r.attempt and s.sku = l.sku and s.buyer_limit > 0)
    and not exists (select from stock_document d
        where d.shard = $1 and d.order_id = r.order_id and d.order_key = r.attempt and d.state = 'written')`

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
