package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// referenceScript is the leanest reservation that still has an order id and an event: what one would write
// without this product, one call an order.
const referenceScript = `local n = redis.call('GET', KEYS[1])
if tonumber(n) < 1 then return 0 end
if redis.call('HSETNX', KEYS[2], ARGV[1], '1') == 0 then return 2 end
redis.call('DECR', KEYS[1])
redis.call('XADD', KEYS[3], '*', 'o', ARGV[1], 'q', '1')
return 1`

var perSecond = regexp.MustCompile(`([0-9.]+) requests per second`)

// runReference gives orders per second, and what one order cost Redis, of redis-benchmark with the script: 4
// connections, 64 calls in each pipeline. The ids are random out of 10^9 (a larger range overflows to a handful of
// ids, which would measure replays), and their number is checked afterwards.
func runReference(ctx context.Context, rdb *redis.Client, orders int) (rate float64, cost usage, err error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, cost, err
	}
	sha, err := rdb.ScriptLoad(ctx, referenceScript).Result()
	if err != nil {
		return 0, cost, err
	}
	if err := rdb.Set(ctx, "{ref}:stock", 1_000_000_000, 0).Err(); err != nil {
		return 0, cost, err
	}
	_, port, _ := strings.Cut(rdb.Options().Addr, ":")
	before, err := readUsage(ctx, rdb)
	if err != nil {
		return 0, cost, err
	}
	command := exec.CommandContext(ctx, "redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", "4", "-P", "64", "-n", strconv.Itoa(orders), "-r", "1000000000", "-q",
		"EVALSHA", sha, "3", "{ref}:stock", "{ref}:orders", "{ref}:log", "order-__rand_int__")
	out, err := command.Output()
	if err != nil {
		return 0, cost, fmt.Errorf("redis-benchmark (of the package redis-tools): %w", err)
	}
	after, err := readUsage(ctx, rdb)
	if err != nil {
		return 0, cost, err
	}
	found := perSecond.FindAllStringSubmatch(string(out), -1)
	if len(found) == 0 {
		return 0, cost, fmt.Errorf("redis-benchmark said no rate: %q", out)
	}
	if rate, err = strconv.ParseFloat(found[len(found)-1][1], 64); err != nil {
		return 0, cost, err
	}
	if n := rdb.HLen(ctx, "{ref}:orders").Val(); n < int64(orders)*99/100 {
		return 0, cost, fmt.Errorf("the reference wrote %d different orders of %d: it measured replays", n, orders)
	}
	return rate, after.perOrder(before, orders), nil
}

// usage is what a Redis has used since its start, or what one order used.
type usage struct {
	cpu    float64 // µs, user and system
	aof    float64 // bytes written to the append-only file
	memory float64 // bytes
}

// readUsage asks the server.
func readUsage(ctx context.Context, rdb *redis.Client) (usage, error) {
	text, err := rdb.InfoMap(ctx, "cpu", "memory", "persistence").Result()
	if err != nil {
		return usage{}, fmt.Errorf("ask Redis what it used: %w", err)
	}
	var failed error
	number := func(section, name string) float64 {
		value, there := text[section][name]
		if !there && strings.HasPrefix(name, "aof_") {
			return 0 // no append-only file
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			failed = fmt.Errorf("INFO of Redis: %s is %q", name, value)
		}
		return n
	}
	u := usage{
		cpu:    1e6 * (number("CPU", "used_cpu_user") + number("CPU", "used_cpu_sys")),
		aof:    number("Persistence", "aof_current_size"),
		memory: number("Memory", "used_memory"),
	}
	return u, failed
}

func (u usage) perOrder(before usage, orders int) usage {
	n := float64(orders)
	return usage{(u.cpu - before.cpu) / n, (u.aof - before.aof) / n, (u.memory - before.memory) / n}
}
