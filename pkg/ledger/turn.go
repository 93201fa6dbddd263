package ledger

import (
	"context"
	"fmt"
	"time"
)

// DefaultTurnTTL is how long a turn lasts unless it is renewed.
const DefaultTurnTTL = 10 * time.Second

// TakeTurn takes the turn to repair a shard, or renews it for its holder. False means that another has it. A
// turn taken at a moment by the caller's own clock, read before the call, is over ttl after that moment. It is a
// lease: it keeps two repairers out of each other's way, while what makes a repair safe is its claim. All ask for
// the same ttl: a turn that ends later than one that begins now was given before Postgres' clock was set back, and
// is over, for its holder may be dead.
func (l *Ledger) TakeTurn(ctx context.Context, shard int, holder string, ttl time.Duration) (bool, error) {
	if holder == "" || ttl <= 0 {
		return false, fmt.Errorf("take the turn of shard %d: give a holder and a ttl above 0", shard)
	}
	// One statement: a holder that is stopped in the middle leaves no lock behind.
	tag, err := l.pool.Exec(ctx, `
		insert into turn as t (shard, holder, until) values ($1, $2, clock_timestamp() + $3::interval)
		on conflict (shard) do update set holder = excluded.holder, until = excluded.until
		where t.holder = excluded.holder or t.until not between clock_timestamp() and clock_timestamp() + $3::interval`, shard, holder, ttl)
	if err != nil {
		return false, fmt.Errorf("take the turn of shard %d: %w", shard, err)
	}
	return tag.RowsAffected() == 1, nil
}

// RenewTurn lengthens a turn that is still held. False means that it is over, even if nobody else took it:
// stop the repair, and begin again with TakeTurn.
func (l *Ledger) RenewTurn(ctx context.Context, shard int, holder string, ttl time.Duration) (bool, error) {
	tag, err := l.pool.Exec(ctx, `
		update turn set until = clock_timestamp() + $3::interval
		where shard = $1 and holder = $2 and until > clock_timestamp()`, shard, holder, ttl)
	if err != nil {
		return false, fmt.Errorf("renew the turn of shard %d: %w", shard, err)
	}
	return tag.RowsAffected() == 1, nil
}

// GiveUpTurn ends a turn before its time; another's is left alone. Safe to repeat.
func (l *Ledger) GiveUpTurn(ctx context.Context, shard int, holder string) error {
	_, err := l.pool.Exec(ctx, `update turn set until = to_timestamp(0) where shard = $1 and holder = $2`, shard, holder)
	if err != nil {
		return fmt.Errorf("give up the turn of shard %d: %w", shard, err)
	}
	return nil
}
