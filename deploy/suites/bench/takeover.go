package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// measureTakeover takes a shard over, with Redis as it was and with Redis emptied, and gives how long it was closed:
// from the fence until Postgres says open.
func measureTakeover(ctx context.Context, b *bench) error {
	bounds := []*goal{atMost(250), atMost(1500)} // ms
	return b.withRedis(ctx, func(_ *sandbox.Redis, rdb *redis.Client) error {
		for i, open := range b.size.open {
			var kept, emptied figure
			err := b.withShop(ctx, rdb, 1, b.size.skus, func(s *shop) (err error) {
				kept, emptied, err = s.closedTimes(ctx, open)
				return err
			})
			if err != nil {
				return fmt.Errorf("%d open orders: %w", open, err)
			}
			name := fmt.Sprintf("takeover/%d", open)
			b.report.add(name, "closed, Redis had been emptied", "ms", emptied, bounds[i])
			b.report.add(name, "closed, Redis had everything", "ms", kept, bounds[i])
		}
		return nil
	})
}

// closedTimes makes so many open orders, and then takes the shard over in rounds.
func (s *shop) closedTimes(ctx context.Context, open int) (kept, emptied figure, err error) {
	c, err := s.gather(ctx, zipfLoad, open)
	if err != nil {
		return nil, nil, err
	}
	_, told, err := c.run(ctx, 256, open)
	if err != nil {
		return nil, nil, err
	}
	if err := s.catchUp(ctx); err != nil {
		return nil, nil, err
	}
	for range s.bench.rounds {
		report, err := s.takeOver(ctx, 0)
		if err != nil {
			return nil, nil, err
		}
		if report.Put > 0 || report.Deleted > 0 || report.GivenUp > 0 {
			return nil, nil, wrong("a takeover of a Redis that had everything put %d, deleted %d, gave up %d", report.Put, report.Deleted, report.GivenUp)
		}
		kept = append(kept, millis(report.Closed))
		if err := s.rdb.FlushAll(ctx).Err(); err != nil {
			return nil, nil, err
		}
		if report, err = s.takeOver(ctx, 0); err != nil {
			return nil, nil, err
		}
		if report.Put < open || report.GivenUp > 0 {
			return nil, nil, wrong("a takeover of an empty Redis put %d of %d orders, gave up %d", report.Put, open, report.GivenUp)
		}
		emptied = append(emptied, millis(report.Closed))
	}
	if err := s.verify(ctx, told); err != nil {
		return nil, nil, err
	}
	// Everything that Redis has now came from the ledger: all of it is compared.
	if err := s.analyze(ctx); err != nil {
		return nil, nil, err
	}
	_, err = s.sweep(ctx, 0, auditPage)
	return kept, emptied, err
}
