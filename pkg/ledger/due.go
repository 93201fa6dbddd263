package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxCounted is where Overdue stops counting.
const MaxCounted = 100_000

// A DueHold is a hold whose time has come by Postgres' clock. Redis has the second word (protocol K).
type DueHold struct {
	OrderID       string
	Attempt       int64 // as asked, what an expire must name
	ExpiresMillis int64 // Redis time at which Redis agrees, milliseconds since 1970
	Due           time.Time
	Key           int64 // of its row
}

// Due lists holds of a shard that are due, the oldest first, at most limit, those behind after (nil for the
// first page): a hold that Redis does not find due yet must not hide the next ones.
func (l *Ledger) Due(ctx context.Context, shard, limit int, after *DueHold) ([]DueHold, error) {
	if after == nil {
		after = &DueHold{}
	}
	rows, err := l.pool.Query(ctx, dueHolds, shard, limit, after.Due, after.OrderID)
	if err != nil {
		return nil, fmt.Errorf("list the due holds of shard %d: %w", shard, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DueHold])
	if err != nil {
		return nil, fmt.Errorf("list the due holds of shard %d: %w", shard, err)
	}
	return found, nil
}

// dueHolds walks the index reservation_due and stops at the limit.
const dueHolds = `
	select order_id, asked, expires_ms, due, attempt from reservation
	where shard = $1 and state = 'held' and due <= now() and (due, order_id) > ($3, $4)
	order by due, order_id limit $2`

// Overdue counts holds of a shard that have been due for longer than by; it stops at MaxCounted.
func (l *Ledger) Overdue(ctx context.Context, shard int, by time.Duration) (int64, error) {
	var n int64
	err := l.pool.QueryRow(ctx, `
		select count(*) from (
			select 1 from reservation
			where shard = $1 and state = 'held' and due <= now() - $2::interval limit $3) late`,
		shard, by, MaxCounted).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the overdue holds of shard %d: %w", shard, err)
	}
	return n, nil
}
