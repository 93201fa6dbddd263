package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// MaxPromises is how many orders a refusal names, at most.
const MaxPromises = 100

// A Promise is an order that has units of a SKU which are not shipped.
type Promise struct {
	OrderID string
	Attempt int64       // as asked
	State   stock.State // held or confirmed
	Units   int64
}

// promisesOf goes by the lines of the SKU and to the key of each one's order.
const promisesOf = `select l.order_id, r.asked, r.state, l.now
from reservation_line l, lateral (select asked, state from reservation
    where shard = $1 and order_id = l.order_id and attempt = l.attempt offset 0) r
where l.shard = $1 and l.sku = $2 and l.asked >= 0 and l.now > 0 and r.state in ('held', 'confirmed')
order by l.now desc, l.order_id limit $3`

// Promises are the orders that have units of a SKU held or sold and not shipped, those with most units first, at most
// MaxPromises. It reads every line that the SKU ever had: for a refusal, not for the way of an order.
func (l *Ledger) Promises(ctx context.Context, shard int, sku int64) ([]Promise, error) {
	return promises(ctx, l.pool, int64(shard), sku)
}

func promises(ctx context.Context, db querier, shard, sku int64) ([]Promise, error) {
	rows, err := db.Query(ctx, promisesOf, shard, sku, MaxPromises)
	if err != nil {
		return nil, fmt.Errorf("list who has units of SKU number %d: %w", sku, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Promise])
	if err != nil {
		return nil, fmt.Errorf("list who has units of SKU number %d: %w", sku, err)
	}
	return found, nil
}
