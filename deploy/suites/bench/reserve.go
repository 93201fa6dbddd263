package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// benchReserve: one hot SKU, the Go library with its whole contract, against the reference.
func benchReserve(ctx context.Context, stack *sandbox.Stack, o options) error {
	redisOptions := sandbox.RedisOptions{MaxMemory: "6gb", Fsync: o.aof}
	if o.aof == "off" {
		redisOptions = sandbox.RedisOptions{MaxMemory: "6gb", NoAOF: true}
	}
	server, err := stack.StartRedis(ctx, redisOptions)
	if err != nil {
		return err
	}
	postgres, err := stack.StartPostgres(ctx, sandbox.PostgresOptions{NoFsync: true})
	if err != nil {
		return err
	}
	defer func() { _ = postgres.Close(); _ = server.Close() }()
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL(), PoolSize: 16, Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()

	fmt.Printf("reserve, one hot SKU, AOF %s, %d rounds; reference: redis-benchmark -c 4 -P 64, EVALSHA of one reservation\n", o.aof, o.rounds)
	fmt.Printf("%8s  %12s  %12s  %-22s  %-28s  %s\n", "callers", "orders/s", "reference/s", "ratio", "Redis CPU ratio per order", "orders per call")
	name := 0
	for _, callers := range o.callers {
		var rate, reference, cpu, referenceCPU, batch figure
		for range o.rounds {
			r, c, err := runReference(ctx, rdb, o.orders)
			if err != nil {
				return err
			}
			reference, referenceCPU = append(reference, r), append(referenceCPU, c)
			name++
			r, c, b, err := runReserve(ctx, postgres, rdb, "reserve"+strconv.Itoa(name), callers, o.orders)
			if err != nil {
				return err
			}
			rate, cpu, batch = append(rate, r), append(cpu, c), append(batch, b)
		}
		fmt.Printf("%8d  %12.0f  %12.0f  %-22s  %-28s  %.0f\n", callers, rate.median(), reference.median(), rate.over(reference), cpu.over(referenceCPU), batch.median())
	}
	return nil
}

// runReserve gives orders per second, Redis' CPU microseconds per order and orders per call.
func runReserve(ctx context.Context, postgres *sandbox.Postgres, rdb *redis.Client, database string, callers, orders int) (rate, cpu, batch float64, err error) {
	if callers == 1 {
		orders /= 20
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, 0, 0, err
	}
	s, err := openShop(ctx, postgres, rdb, database, 1)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.close()
	stats := s.desk.Stats()
	calls, operations := stats.Calls.Load(), stats.Operations.Load()
	before, err := redisCPU(ctx, rdb)
	if err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	if err := reserveAll(ctx, s.desk, callers, orders); err != nil {
		return 0, 0, 0, err
	}
	took := since(began)
	after, err := redisCPU(ctx, rdb)
	if err != nil {
		return 0, 0, 0, err
	}
	if n := stats.Unclassified.Load(); n != 0 {
		return 0, 0, 0, fmt.Errorf("%d unclassified errors", n)
	}
	sent := stats.Operations.Load() - operations
	batch = float64(sent) / float64(stats.Calls.Load()-calls)
	return float64(orders) / took, (after - before) / float64(orders) * 1e6, batch, s.check(ctx, int64(orders))
}

// reserveAll reserves one unit for each of orders ids, from so many callers, and fails unless all are accepted.
func reserveAll(ctx context.Context, desk *redisstock.Desk, callers, orders int) error {
	var next, accepted atomic.Int64
	var failure atomic.Pointer[error]
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(orders) || failure.Load() != nil {
					return
				}
				op := stock.Operation{Kind: stock.Reserve, ID: "order-" + strconv.FormatInt(n+100_000_000, 10), Attempt: 1, TTL: stock.DefaultTTLMillis,
					Lines: stock.Lines{{SKU: 1, Asked: 1, Now: 1}}}
				out, err := desk.Do(ctx, 0, op)
				if err == nil && out.Code != stock.Accepted {
					err = fmt.Errorf("order %s was answered %s", op.ID, out.Code)
				}
				if err != nil {
					failure.Store(&err)
					return
				}
				accepted.Add(1)
			}
		})
	}
	all.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	if accepted.Load() != int64(orders) {
		return fmt.Errorf("%d of %d orders were accepted", accepted.Load(), orders)
	}
	return nil
}
