package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// With these a consumer that dies or stops is replaced within ttl + heartbeat: 4 s.
const (
	DefaultAssignmentTTL = 3 * time.Second
	AssignmentHeartbeat  = time.Second
)

// assignmentLock is the key of the advisory lock under which shards are dealt out; no other part uses it.
const assignmentLock = 0x73746f636b01

// An Assignment says which consumer reads a shard. It shares the work, nothing more: two consumers that both
// think so are harmless, since Apply locks the shard's row.
type Assignment struct {
	Shard    int
	Consumer string
	Until    time.Time
}

// dealShards gives consumer $1 its share for $2: the floor of shards / consumers, and one of the shards left
// over unless enough others have one. What it has comes before what is free, so nothing moves without a need,
// and two heartbeats of each consumer lead from any state to a fair one. Each row is written at most once: a
// second time in one transaction Postgres would check the foreign key, and wait for who holds the shard's row.
const dealShards = `
	with owned as (
		select c.id, count(a.shard) as n
		from consumer c
		left join assignment a on a.consumer = c.id and (a.until > clock_timestamp() or c.id = $1::text)
		group by c.id
	), size as (
		select p.n / c.n as least, p.n % c.n as extra
		from (select count(*) as n from shard) p, (select count(*) as n from owned) c
	), share as (
		select s.least + case when rich.n < s.extra then 1 else 0 end as units
		from size s, (select count(*) as n from owned o, size where o.id <> $1 and o.n > size.least) rich
	), within_reach as (
		select a.shard, row_number() over (order by a.consumer <> $1, a.shard) as place
		from assignment a
		where a.consumer = $1 or a.until <= clock_timestamp()
		or not exists (select 1 from consumer c where c.id = a.consumer)
	), dealt as (
		update assignment a set
			consumer = case when r.place <= s.units then $1 else '' end,
			until = case when r.place <= s.units then clock_timestamp() + $2::interval else to_timestamp(0) end
		from within_reach r, share s
		where a.shard = r.shard and (r.place <= s.units or a.consumer <> '')
		returning a.shard, a.consumer
	)
	select shard from dealt where consumer = $1 order by shard`

// Assign is a consumer's heartbeat. It drops consumers that were silent for ttl, gives up what this one has
// beyond its share, takes what is free up to it, renews the rest for ttl, and returns what it owns now, in
// order. Call it every AssignmentHeartbeat with a ttl of about three of them, the same for all consumers.
// Safe to repeat. After an error a consumer must take it that it owns what it owned, until ttl after its last
// success.
//
// All of it is sent at once, as one transaction under one lock: a consumer that is stopped half-way leaves no
// lock behind, because the server needs nothing more from it.
func (l *Ledger) Assign(ctx context.Context, consumer string, ttl time.Duration) ([]int, error) {
	if consumer == "" || !storable(consumer) || ttl <= 0 {
		return nil, fmt.Errorf("assign shards: give the consumer %+q a name and a ttl above 0, not %v", consumer, ttl)
	}
	batch := &pgx.Batch{}
	l.queueBounds(batch)
	batch.Queue(`select pg_advisory_xact_lock($1)`, int64(assignmentLock))
	// Postgres' clock of the moment, not of the transaction's begin: the lock may have been waited for.
	batch.Queue(`
		insert into consumer (id, seen) values ($1, clock_timestamp())
		on conflict (id) do update set seen = excluded.seen`, consumer)
	// One that was seen in the future was so before the clock was set back. If it lives it is here again at its next
	// heartbeat; if it is dead, its shards must not wait until that time has come again.
	batch.Queue(`
		delete from consumer
		where id <> $2 and seen not between clock_timestamp() - $1::interval and clock_timestamp() + $1::interval`, ttl, consumer)
	// A row for each shard stays for ever; nobody's has no consumer. So taking one is an update, which does
	// not look at the shard's row and cannot wait for who holds it.
	batch.Queue(`
		insert into assignment (shard, consumer, until)
		select s.number, '', to_timestamp(0) from shard s
		where not exists (select 1 from assignment a where a.shard = s.number)
		order by s.number`)
	batch.Queue(dealShards, consumer, ttl)
	return l.deal(ctx, batch)
}

// deal runs a batch whose last statement returns shards.
func (l *Ledger) deal(ctx context.Context, batch *pgx.Batch) (shards []int, err error) {
	results := l.pool.SendBatch(ctx, batch)
	defer func() {
		// Close reads to the end of the transaction: only then is it committed.
		if failed := results.Close(); failed != nil && err == nil {
			shards, err = nil, fmt.Errorf("assign shards: %w", failed)
		}
	}()
	for range batch.Len() - 1 {
		if _, err := results.Exec(); err != nil {
			return nil, fmt.Errorf("assign shards: %w", err)
		}
	}
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("assign shards: %w", err)
	}
	shards, err = pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("assign shards: %w", err)
	}
	return shards, nil
}

// Leave gives up all that a consumer owns, at once: the others take it with their next heartbeat. Safe to repeat.
func (l *Ledger) Leave(ctx context.Context, consumer string) error {
	batch := &pgx.Batch{}
	l.queueBounds(batch)
	batch.Queue(`select pg_advisory_xact_lock($1)`, int64(assignmentLock))
	batch.Queue(`delete from consumer where id = $1`, consumer)
	batch.Queue(`update assignment set consumer = '', until = to_timestamp(0) where consumer = $1`, consumer)
	if err := l.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("give up the shards of consumer %s: %w", consumer, err)
	}
	return nil
}

// Assignments lists who reads which shard now, by shard. A shard that nobody reads is absent.
func (l *Ledger) Assignments(ctx context.Context) ([]Assignment, error) {
	rows, err := l.pool.Query(ctx, `
		select shard, consumer, until from assignment
		where consumer <> '' and until > now() order by shard limit 1024`)
	if err != nil {
		return nil, fmt.Errorf("list the assignments: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Assignment])
	if err != nil {
		return nil, fmt.Errorf("list the assignments: %w", err)
	}
	return found, nil
}
