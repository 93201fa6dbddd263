package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// spread are the numbers of shards that are compared.
var spread = []int{1, 4}

// measureShards reserves from 256 callers, one hot SKU in each shard, all shards on one Redis; and persists what was
// reserved, the shards side by side in one Postgres.
func measureShards(ctx context.Context, b *bench) error {
	return b.withRedis(ctx, func(_ *sandbox.Redis, rdb *redis.Client) error {
		reserved, persisted := make([]figure, len(spread)), make([]figure, len(spread))
		for round := range b.rounds {
			for i, shards := range spread {
				err := b.withShop(ctx, rdb, shards, 1, func(s *shop) error {
					r, p, err := shardsRound(ctx, b, s)
					reserved[i], persisted[i] = append(reserved[i], r), append(persisted[i], p)
					return err
				})
				if err != nil {
					return fmt.Errorf("%d shards, round %d: %w", shards, round+1, err)
				}
			}
		}
		b.report.add("shards", "reserve on 4 over 1, one Redis", "×", reserved[1].over(reserved[0]), nil)
		b.report.add("shards", "persist 4 over 1, one Postgres", "×", persisted[1].over(persisted[0]), nil)
		for i, shards := range spread {
			name := fmt.Sprintf("shards/%d", shards)
			b.report.add(name, "reserve", "/s", reserved[i], nil)
			b.report.add(name, "persist, the log read from Redis", "/s", persisted[i], nil)
		}
		return nil
	})
}

func shardsRound(ctx context.Context, b *bench, s *shop) (reserved, persisted float64, err error) {
	c, err := s.gather(ctx, hotLoad, b.size.orders)
	if err != nil {
		return 0, 0, err
	}
	reserved, told, err := c.run(ctx, 256, b.size.orders)
	if err != nil {
		return 0, 0, err
	}
	took, err := timed(func() error { return s.catchUp(ctx) })
	if err != nil {
		return 0, 0, err
	}
	return reserved, float64(b.size.orders) / took, s.verify(ctx, told)
}
