package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// stalledAfter is how long a holder of a shard may wait for its own client before it may be ended, and
// stalledEvery how often that is looked at.
const (
	stalledAfter = 5 * time.Second
	stalledEvery = 100 * time.Millisecond
)

// endStalled ends the session at the root of what blocks the given one, if that session is in the middle of a
// statement, as in a COPY, and has been waiting for its client. A COMMIT never waits for its client, so none
// is ever ended; it is named all the same. A session that idles between statements ends by its own timeout.
const endStalled = `with recursive chain(pid) as (
    select unnest(pg_blocking_pids($1))
    union
    select unnest(pg_blocking_pids(chain.pid)) from chain
)
select pg_terminate_backend(a.pid) from chain join pg_stat_activity a using (pid)
where a.datname = current_database() and a.backend_type = 'client backend'
    and a.state = 'active' and a.wait_event_type = 'Client' and a.wait_event = 'ClientRead'
    and a.query_start < clock_timestamp() - $2 * interval '1 ms' and a.query !~* '^\s*(commit|end|prepare)'
    and pg_blocking_pids(a.pid) = '{}'`

// EndStalledHolder ends the session that keeps the shard's row locked, if it is in the middle of a statement
// and has waited for its own client for more than 5 s: a stopped process must not stop the shop. It waits in
// the row's queue for up to 6 s to find out who that is. Only the shard's assigned consumer or a takeover
// calls it, once per holder, and applies half the batch then. ended is false when there was nothing to end.
func (l *Ledger) EndStalledHolder(ctx context.Context, shard int) (ended bool, err error) {
	return l.endStalledHolder(ctx, shard, stalledAfter)
}

func (l *Ledger) endStalledHolder(ctx context.Context, shard int, after time.Duration) (ended bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, 2*lockTimeout)
	defer cancel()
	// A transaction, so that it is one session throughout, also behind a pooler; which one only that session can say.
	waiter, err := l.pool.BeginTx(waiting, l.bounded(pgx.TxOptions{}))
	if err != nil {
		return false, fmt.Errorf("look for who holds shard %d: %w", shard, err)
	}
	defer func() {
		giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = waiter.Rollback(giving) // nothing was changed; where it fails the connection is destroyed
	}()
	var pid uint32
	if err := waiter.QueryRow(waiting, `select pg_backend_pid()`).Scan(&pid); err != nil {
		return false, fmt.Errorf("look for who holds shard %d: %w", shard, err)
	}
	free := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(waiting, `select from shard where number = $1 for no key update`, shard)
		free <- err
	}()
	tick := time.NewTicker(stalledEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-free:
			if isSQLState(err, lockNotAvailable) {
				err = nil // held by somebody who works
			}
			return ended, err
		case <-tick.C:
		}
		if ended {
			continue // one holder a call
		}
		if ended, err = l.endAbove(waiting, pid, after); err != nil {
			cancel()
			return ended, errors.Join(fmt.Errorf("end the stalled holder of shard %d: %w", shard, err), <-free)
		}
	}
}

func (l *Ledger) endAbove(ctx context.Context, pid uint32, after time.Duration) (bool, error) {
	rows, err := l.pool.Query(ctx, endStalled, int32(pid), after.Milliseconds())
	if err != nil {
		return false, err
	}
	ended, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	return len(ended) > 0 && ended[0], err
}
