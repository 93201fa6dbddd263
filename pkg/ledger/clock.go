package ledger

import (
	"context"
	"fmt"
)

// Now is Postgres' clock in milliseconds since 1970, for comparing it with Redis': both decide when a hold is due.
func (l *Ledger) Now(ctx context.Context) (millis int64, err error) {
	err = l.pool.QueryRow(ctx, `select (extract(epoch from clock_timestamp()) * 1000)::bigint`).Scan(&millis)
	if err != nil {
		return 0, fmt.Errorf("read Postgres' clock: %w", err)
	}
	return millis, nil
}
