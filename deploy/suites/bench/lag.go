package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// pacers is how many orders of a paced load can be under way. When all are, the load falls behind its pace, which
// the figures show.
const pacers = 2048

// measureLag reserves at a steady pace, whatever the answers take, and gives how long after Redis' acceptance a
// caller knows that its order is persisted. That is what ack=persisted waits for.
func measureLag(ctx context.Context, b *bench) error {
	return b.withRedis(ctx, func(server *sandbox.Redis, rdb *redis.Client) error {
		for _, pace := range b.size.pace {
			var middle, slow, reached figure
			for round := range b.rounds {
				err := b.withShop(ctx, rdb, 1, 1, func(s *shop) error {
					lags, rate, err := s.lags(ctx, server, pace)
					if err != nil {
						return err
					}
					middle, slow, reached = append(middle, percentile(50, lags)), append(slow, percentile(99, lags)), append(reached, rate)
					return nil
				})
				if err != nil {
					return fmt.Errorf("%d orders a second, round %d: %w", pace, round+1, err)
				}
			}
			name := fmt.Sprintf("lag/%d", pace)
			b.report.add(name, "accepted → known to be persisted, p50", "ms", middle, nil)
			b.report.add(name, "accepted → known to be persisted, p99", "ms", slow, nil)
			b.report.add(name, "pace that was reached", "/s", reached, nil)
		}
		return nil
	})
}

// lags gives the lag of each order in milliseconds, and the orders a second that were made.
func (s *shop) lags(ctx context.Context, server *sandbox.Redis, pace int) (lags []float64, rate float64, err error) {
	watch := ledger.NewWatch(s.ledger, ledger.WatchConfig{})
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	var watched error
	watcher.Go(func() { watched = watch.Run(watching) })
	defer func() {
		stop()
		watcher.Wait()
	}()
	orders := pace * int(s.bench.size.paceFor/time.Millisecond) / 1000
	lags = make([]float64, orders)
	told := make([]ticket, orders)
	var seconds float64
	err = s.withRoles(ctx, server, func() error {
		select {
		case <-watch.Ready():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		seconds, err = paced(ctx, pace, orders, func(n int) error {
			receipt, err := s.reserveOne(ctx, &told[n], n, stock.DefaultTTLMillis)
			if err != nil {
				return err
			}
			accepted := time.Now()
			standing, err := watch.Wait(ctx, receipt)
			if err != nil || standing != stock.StandingPersisted {
				return wrong("order %d stands as %q (%v) after the wait for Postgres", n, standing, err)
			}
			lags[n] = millis(time.Since(accepted))
			return nil
		})
		return err
	}, consumer)
	if err != nil {
		return nil, 0, err
	}
	if watched != nil {
		return nil, 0, watched
	}
	return lags, float64(orders) / seconds, s.verify(ctx, told)
}

// reserveOne reserves one unit of the first SKU under the id of a number.
func (s *shop) reserveOne(ctx context.Context, t *ticket, n int, ttlMillis int64) (stock.Receipt, error) {
	*t = ticket{id: fmt.Sprintf("order-%d", 100_000_000+n), sku: s.skus[0][0]}
	out, err := s.desk.Do(ctx, 0, stock.Operation{Kind: stock.Reserve, ID: t.id, Attempt: 1, TTL: ttlMillis, Lines: stock.Lines{{SKU: t.sku, Asked: 1, Now: 1}}})
	if err != nil {
		return stock.Receipt{}, fmt.Errorf("reserve %s: %w", t.id, err)
	}
	if out.Code != stock.Accepted {
		return stock.Receipt{}, wrong("the reserve of %s was answered %s", t.id, out.Code)
	}
	t.state = stock.Held
	return out.Receipt, nil
}

// paced does n pieces of work at a steady pace, each begun at its own time, and gives the seconds until the last one
// was begun. A piece that is done late does not delay the others.
func paced(ctx context.Context, perSecond, n int, work func(n int) error) (seconds float64, err error) {
	var next, last atomic.Int64
	var failure atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for range min(pacers, n) {
		all.Go(func() {
			for failure.Load() == nil {
				mine := next.Add(1) - 1
				if mine >= int64(n) {
					return
				}
				at := time.Duration(mine) * time.Second / time.Duration(perSecond)
				err := pause(ctx, at-time.Since(began))
				if mine == int64(n)-1 {
					last.Store(int64(time.Since(began)))
				}
				if err == nil {
					err = work(int(mine))
				}
				if err != nil {
					failure.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failure.Load(); err != nil {
		return 0, *err
	}
	return time.Duration(last.Load()).Seconds() + 1/float64(perSecond), nil
}
