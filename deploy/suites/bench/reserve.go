package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// loadRound is what one round of a load and its reference brought.
type loadRound struct {
	rate, reference float64 // a second
	cpu             float64 // of Redis for an operation, over the reference's
	batch           float64 // operations of one call
}

// measure runs the load from each number of callers, each round beside its reference.
func (l load) measure(ctx context.Context, b *bench) error {
	b.report.remark("reference: redis-benchmark -c 4 -P 64, EVALSHA of one reservation; same server settings, rounds interleaved.")
	if l.zipf {
		b.report.remark("zipf, mixed: %d SKUs, exponent %.1f.", b.size.skus, zipfExponent)
	}
	if l.mixed {
		b.report.remark("mixed: of six operations three reserve, one confirms, one releases and one expires.")
	}
	return b.withRedis(ctx, func(_ *sandbox.Redis, rdb *redis.Client) error {
		for _, callers := range b.size.callers {
			var rate, reference, cpu, batch figure
			for round := range b.rounds {
				r, err := l.round(ctx, b, rdb, callers)
				if err != nil {
					return fmt.Errorf("%d callers, round %d: %w", callers, round+1, err)
				}
				rate, reference = append(rate, r.rate), append(reference, r.reference)
				cpu, batch = append(cpu, r.cpu), append(batch, r.batch)
			}
			name := fmt.Sprintf("%s/%d", l.name, callers)
			var wanted *goal
			if callers == 256 {
				wanted = l.goal
			}
			b.report.add(name, "rate over the reference's", "×", rate.over(reference), wanted)
			b.report.add(name, "operations", "/s", rate, nil)
			b.report.add(name, "reference", "/s", reference, nil)
			b.report.add(name, "Redis CPU over the reference's", "×", cpu, nil)
			b.report.add(name, "operations of one call", "", batch, nil)
		}
		return nil
	})
}

func (l load) round(ctx context.Context, b *bench, rdb *redis.Client, callers int) (out loadRound, err error) {
	orders := b.size.orders
	if callers == 1 {
		orders = b.size.lone
	}
	var cost usage
	if out.reference, cost, err = runReference(ctx, rdb, b.size.orders); err != nil {
		return out, err
	}
	return out, b.withShop(ctx, rdb, 1, l.skus(b), func(s *shop) error {
		steps := orders / l.stepOps()
		c, err := s.gather(ctx, l, steps)
		if err != nil {
			return err
		}
		stats := s.desk.Stats()
		calls, operations := stats.Calls.Load(), stats.Operations.Load()
		before, err := readUsage(ctx, rdb)
		if err != nil {
			return err
		}
		rate, told, err := c.run(ctx, callers, steps)
		if err != nil {
			return err
		}
		after, err := readUsage(ctx, rdb)
		if err != nil {
			return err
		}
		out.rate = rate
		out.cpu = after.perOrder(before, steps*l.stepOps()).cpu / cost.cpu
		out.batch = float64(stats.Operations.Load()-operations) / float64(stats.Calls.Load()-calls)
		return s.verify(ctx, told)
	})
}
