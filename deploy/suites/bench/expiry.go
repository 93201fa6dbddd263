package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const (
	// endPatience is how long after the last hold was due all must have ended.
	endPatience = 30 * time.Second
	// peekEvery is the time between two looks at whether they have.
	peekEvery = 50 * time.Millisecond
)

// lateness of every expiry, from the ledger: Redis' time of the entry, after both clocks had agreed that the hold was
// due (that is what the reconciler waits for), and after the time that the shopper was told.
const lateness = `select (e.at_ms - greatest(r.expires_ms, ceil(extract(epoch from r.due) * 1000)))::float8, (e.at_ms - r.expires_ms)::float8
from event e join reservation r on r.shard = e.shard and r.order_id = e.id
where e.shard = 0 and starts_with(e.body, 'E')`

// measureExpiry reserves at a steady pace with one time to live, so that the holds end at that pace, too, when no more
// are made.
func measureExpiry(ctx context.Context, b *bench) error {
	return b.withRedis(ctx, func(server *sandbox.Redis, rdb *redis.Client) error {
		var middle, slow, promised, ended figure
		for round := range b.rounds {
			err := b.withShop(ctx, rdb, 1, 1, func(s *shop) error {
				late, told, rate, err := s.lateness(ctx, server)
				if err != nil {
					return err
				}
				middle, slow = append(middle, percentile(50, late)), append(slow, percentile(99, late))
				promised, ended = append(promised, percentile(99, told)), append(ended, rate)
				return nil
			})
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
		name := fmt.Sprintf("expiry/%d", b.size.ending)
		b.report.add(name, "after it was due by both clocks, p50", "ms", middle, nil)
		b.report.add(name, "after it was due by both clocks, p99", "ms", slow, atMost(300))
		b.report.add(name, "after the time that was promised, p99", "ms", promised, nil)
		b.report.add(name, "holds coming due", "/s", ended, nil)
		return nil
	})
}

// lateness gives how late each hold ended in milliseconds, by both clocks and by the promise, and the holds a second
// that came due.
func (s *shop) lateness(ctx context.Context, server *sandbox.Redis) (late, promised []float64, rate float64, err error) {
	size := s.bench.size
	orders := size.ending * int(size.endFor/time.Millisecond) / 1000
	told := make([]ticket, orders)
	ttl := size.endFor + 1500*time.Millisecond
	err = s.withRoles(ctx, server, func() error {
		seconds, err := paced(ctx, size.ending, orders, func(n int) error {
			_, err := s.reserveOne(ctx, &told[n], n, ttl.Milliseconds())
			return err
		})
		if err != nil {
			return err
		}
		rate = float64(orders) / seconds
		return s.awaitEnd(ctx, ttl+endPatience)
	}, consumer, reconciler)
	if err != nil {
		return nil, nil, 0, err
	}
	for i := range told {
		told[i].state = stock.Expired
	}
	if err := s.verify(ctx, told); err != nil {
		return nil, nil, 0, err
	}
	late, promised, err = s.readLateness(ctx)
	if err == nil && len(late) != orders {
		err = wrong("%d of %d holds were ended by an expiry", len(late), orders)
	}
	return late, promised, rate, err
}

// awaitEnd returns when no unit is held.
func (s *shop) awaitEnd(ctx context.Context, patience time.Duration) error {
	for until := time.Now().Add(patience); ; {
		field, _, err := s.shards[0].Field(ctx, s.skus[0][0])
		if err != nil {
			return err
		}
		if field.Held == 0 {
			return nil
		}
		if time.Now().After(until) {
			return wrong("%d units are held %v after the last hold was due", field.Held, endPatience)
		}
		if err := pause(ctx, peekEvery); err != nil {
			return err
		}
	}
}

func (s *shop) readLateness(ctx context.Context) (late, promised []float64, err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, lateness)
	if err != nil {
		return nil, nil, err
	}
	var both, told float64
	_, err = pgx.ForEachRow(rows, []any{&both, &told}, func() error {
		late, promised = append(late, both), append(promised, told)
		return nil
	})
	return late, promised, err
}
