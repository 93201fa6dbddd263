package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// batches are the operations of one call whose cost is measured. A Desk makes its batches as the load does, so here
// the library is called without one.
var batches = []int{1, 10, 50}

// lanes is how many calls are under way at a time: as many as a Desk has.
const lanes = 2

// farAway is a deadline that no call meets, in Redis time.
const farAway = 9_000_000_000_000

// measureCost gives what one reserve of a hot SKU costs Redis by batch size, beside what the leanest single script
// costs in pipelines of 64 calls.
func measureCost(ctx context.Context, b *bench) error {
	return b.withRedis(ctx, func(_ *sandbox.Redis, rdb *redis.Client) error {
		costs := make([][]usage, len(batches))
		var references []usage
		for round := range b.rounds {
			_, cost, err := runReference(ctx, rdb, b.size.cost)
			if err != nil {
				return err
			}
			references = append(references, cost)
			for i, batch := range batches {
				cost, err := costOf(ctx, b, rdb, batch)
				if err != nil {
					return fmt.Errorf("batch %d, round %d: %w", batch, round+1, err)
				}
				costs[i] = append(costs[i], cost)
			}
		}
		reference := column(references, func(u usage) float64 { return u.cpu })
		for i, batch := range batches {
			name := fmt.Sprintf("cost/%d", batch)
			cpu := column(costs[i], func(u usage) float64 { return u.cpu })
			var wanted *goal
			if batch == 50 {
				wanted = atMost(0.3)
			}
			b.report.add(name, "Redis CPU over the reference's", "×", cpu.over(reference), wanted)
			b.report.add(name, "Redis CPU an order", "µs", cpu, nil)
			addBytes(b, name, costs[i])
		}
		b.report.add("cost/reference", "Redis CPU an order", "µs", reference, nil)
		addBytes(b, "cost/reference", references)
		return nil
	})
}

func addBytes(b *bench, name string, costs []usage) {
	if b.aof != "off" {
		b.report.add(name, "append-only file an order", "B", column(costs, func(u usage) float64 { return u.aof }), nil)
	}
	b.report.add(name, "memory an order, log untrimmed", "B", column(costs, func(u usage) float64 { return u.memory }), nil)
}

func column(costs []usage, of func(usage) float64) figure {
	var f figure
	for _, u := range costs {
		f = append(f, of(u))
	}
	return f
}

// costOf reserves in calls of exactly so many operations.
func costOf(ctx context.Context, b *bench, rdb *redis.Client, batch int) (cost usage, err error) {
	return cost, b.withShop(ctx, rdb, 1, 1, func(s *shop) error {
		orders := b.size.cost / (lanes * batch) * lanes * batch
		before, err := readUsage(ctx, rdb)
		if err != nil {
			return err
		}
		told := make([][]ticket, lanes)
		errs := make([]error, lanes)
		var all sync.WaitGroup
		for lane := range lanes {
			all.Go(func() { told[lane], errs[lane] = s.callAll(ctx, lane, orders/lanes, batch) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		after, err := readUsage(ctx, rdb)
		if err != nil {
			return err
		}
		cost = after.perOrder(before, orders)
		return s.verify(ctx, append(told[0], told[1]...))
	})
}

// callAll makes one call after the other, all of the same size.
func (s *shop) callAll(ctx context.Context, lane, orders, batch int) (told []ticket, err error) {
	keys := s.shards[0].Keys()
	sku := s.skus[0][0]
	ops := make([]stock.Operation, batch)
	for n := 0; n < orders; n += batch {
		for i := range ops {
			id := "order-" + strconv.Itoa(100_000_000*(lane+1)+n+i)
			ops[i] = stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: stock.DefaultTTLMillis, Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}}
			told = append(told, ticket{id: id, sku: sku, state: stock.Held})
		}
		said, err := s.rdb.FCall(ctx, fmt.Sprintf("stockpipe_%d_apply", redisstock.LibraryVersion), []string{keys.State, keys.Orders, keys.Buyers, keys.Log},
			s.Epoch(0).Token(), 0, farAway, event.AppendOperations(nil, ops)).Text()
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(said, "OK ") || !strings.HasSuffix(said, "\n*") {
			return nil, wrong("a call of %d reserves was answered %q", batch, said)
		}
	}
	return told, nil
}
