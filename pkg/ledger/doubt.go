package ledger

import (
	"context"
	"fmt"
)

// TellDoubt tells who repairs that a shard refused, and by what word (missing, gap, torn, …). It is a hint that
// may be repeated or lost: whoever repairs also looks by itself.
func (l *Ledger) TellDoubt(ctx context.Context, shard int, what string) error {
	if _, err := l.pool.Exec(ctx, `select pg_notify($1, $2)`, ChannelDoubt, doubtPayload(shard, what)); err != nil {
		return fmt.Errorf("tell of the doubt about shard %d: %w", shard, err)
	}
	return nil
}
