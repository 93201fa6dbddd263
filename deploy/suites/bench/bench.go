package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// A size says how much each measurement does.
type size struct {
	rounds  int
	durable bool          // Postgres syncs what it commits
	callers []int         // of each load
	orders  int           // of a load at 64 and 256 callers
	lone    int           // of a load with one caller
	skus    int           // that the Zipf loads choose from
	cost    int           // orders for the cost of each batch size
	persist int           // orders that the consumer persists
	pace    []int         // orders a second for the lag
	paceFor time.Duration // how long each pace lasts
	open    []int         // open orders at a takeover
	ending  int           // holds ending a second
	endFor  time.Duration // how long they go on ending
	records int           // that a sweep compares
	burst   int           // orders written beside audits
}

var (
	whole = size{
		durable: true, callers: []int{1, 64, 256},
		rounds: 5, orders: 60_000, lone: 5_000, skus: 1000, cost: 50_000, persist: 100_000,
		pace: []int{1000, 10_000}, paceFor: 3 * time.Second, open: []int{10_000, 100_000},
		ending: 10_000, endFor: 4 * time.Second, records: 100_000, burst: 60_000,
	}
	tiny = size{
		rounds: 1, callers: []int{1, 256}, orders: 2000, lone: 100, skus: 50, cost: 1000, persist: 2000,
		pace: []int{500}, paceFor: 400 * time.Millisecond, open: []int{500},
		ending: 500, endFor: 500 * time.Millisecond, records: 1000, burst: 1000,
	}
)

// An experiment is one measurement with everything that it compares itself to.
type experiment struct {
	name  string
	about string
	run   func(context.Context, *bench) error
}

var experiments = []experiment{
	{"hot", "reserve one hot SKU, the Go library with its whole contract, against the leanest single script", hotLoad.measure},
	{"zipf", "reserve one SKU of many, drawn by Zipf's law, against the leanest single script", zipfLoad.measure},
	{"mixed", "reserve, confirm, release and expire, SKUs by Zipf's law, against the leanest single script", mixedLoad.measure},
	{"cost", "what an order costs Redis, by batch size: processor time, append-only file, memory", measureCost},
	{"shards", "4 shards against 1 on the same servers", measureShards},
	{"consumer", "persist the log, against raw COPY of the same rows", measureConsumer},
	{"lag", "from Redis' acceptance until the order is known to be persisted, with a consumer process", measureLag},
	{"takeover", "how long a shard with open orders is closed by a takeover", measureTakeover},
	{"expiry", "how late holds end, with a consumer process and a reconciler process", measureExpiry},
	{"audit", "a sweep over all records, and what audits cost the writers", measureAudit},
}

func names() []string {
	var all []string
	for _, e := range experiments {
		all = append(all, e.name)
	}
	return all
}

func chosen(only *regexp.Regexp) []experiment {
	var some []experiment
	for _, e := range experiments {
		if only.MatchString(e.name) {
			some = append(some, e)
		}
	}
	return some
}

// A bench is one run: the servers that all measurements share, and what was found.
type bench struct {
	options
	plant    func(context.Context, *shop) error
	progress io.Writer
	report   report

	stack    *sandbox.Stack
	postgres *sandbox.Postgres
	programs string // folder of the built roles, once one was needed
	shops    int    // opened so far, for the names of their databases
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

// template is the migrated database that every shop's is copied from.
const template = "bench_template"

// startPostgres starts the one Postgres of all measurements, durable as a shop's would be. Checkpoints are kept out
// of the rounds: they would hit one side of a comparison and not the other.
func (b *bench) startPostgres(ctx context.Context) error {
	var err error
	b.postgres, err = b.stack.StartPostgres(ctx, sandbox.PostgresOptions{SharedBuffers: "512MB", NoFsync: !b.size.durable,
		Settings: map[string]string{"max_wal_size": "8GB", "checkpoint_timeout": "30min"}})
	if err != nil {
		return err
	}
	url, err := b.postgres.CreateDatabase(ctx, template)
	if err != nil {
		return err
	}
	return migrations.Up(ctx, url)
}

// startRedis starts a Redis for one measurement and connects to it. Its append-only file is never rewritten: a
// rewrite in the middle of a round would be counted as the round's own.
func (b *bench) startRedis(ctx context.Context) (*sandbox.Redis, *redis.Client, error) {
	o := sandbox.RedisOptions{MaxMemory: "6gb", Fsync: b.aof, ExtraArgs: []string{"--auto-aof-rewrite-percentage", "0"}}
	if b.aof == "off" {
		o.Fsync, o.NoAOF = "", true
	}
	server, err := b.stack.StartRedis(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL(), PoolSize: 32, Timeout: 30 * time.Second})
	if err != nil {
		_ = server.Close()
		return nil, nil, err
	}
	return server, rdb, nil
}

// withRedis gives a measurement a Redis of its own.
func (b *bench) withRedis(ctx context.Context, work func(*sandbox.Redis, *redis.Client) error) error {
	server, rdb, err := b.startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close(); _ = server.Close() }()
	return work(server, rdb)
}

// nextName is the name of one more database.
func (b *bench) nextName() string {
	b.shops++
	return "bench" + strconv.Itoa(b.shops)
}
