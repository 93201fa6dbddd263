package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

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

// runReference gives orders per second and Redis' CPU microseconds per order of redis-benchmark with the
// script: 4 connections, 64 calls in each pipeline. The ids are random out of 10^9 (a larger range overflows
// to a handful of ids, which would measure replays), and their number is checked afterwards.
func runReference(ctx context.Context, rdb *redis.Client, orders int) (rate, cpu float64, err error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, 0, err
	}
	sha, err := rdb.ScriptLoad(ctx, referenceScript).Result()
	if err != nil {
		return 0, 0, err
	}
	if err := rdb.Set(ctx, "{ref}:stock", 1_000_000_000, 0).Err(); err != nil {
		return 0, 0, err
	}
	_, port, _ := strings.Cut(rdb.Options().Addr, ":")
	before, err := redisCPU(ctx, rdb)
	if err != nil {
		return 0, 0, err
	}
	command := exec.CommandContext(ctx, "redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", "4", "-P", "64", "-n", strconv.Itoa(orders), "-r", "1000000000", "-q",
		"EVALSHA", sha, "3", "{ref}:stock", "{ref}:orders", "{ref}:log", "order-__rand_int__")
	out, err := command.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("redis-benchmark (of the package redis-tools): %w", err)
	}
	after, err := redisCPU(ctx, rdb)
	if err != nil {
		return 0, 0, err
	}
	found := perSecond.FindAllStringSubmatch(string(out), -1)
	if len(found) == 0 {
		return 0, 0, fmt.Errorf("redis-benchmark said no rate: %q", out)
	}
	if rate, err = strconv.ParseFloat(found[len(found)-1][1], 64); err != nil {
		return 0, 0, err
	}
	if n := rdb.HLen(ctx, "{ref}:orders").Val(); n < int64(orders)*99/100 {
		return 0, 0, fmt.Errorf("the reference wrote %d different orders of %d: it measured replays", n, orders)
	}
	return rate, (after - before) / float64(orders) * 1e6, nil
}

// redisCPU is the CPU time that the server has used, in seconds.
func redisCPU(ctx context.Context, rdb *redis.Client) (float64, error) {
	info, err := rdb.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	var sum float64
	for line := range strings.SplitSeq(info, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

func since(began time.Time) float64 { return time.Since(began).Seconds() }
