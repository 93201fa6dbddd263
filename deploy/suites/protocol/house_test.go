package protocol

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// fewHistories is how many a machine plays unless -rapid.checks says otherwise: seconds, not hours.
const fewHistories = "6"

// long is set when somebody chose how many histories to play: then every mutant is tried, too.
var long bool

func TestMain(m *testing.M) {
	flag.Parse()
	long = os.Getenv("RAPID_CHECKS") != ""
	flag.Visit(func(f *flag.Flag) { long = long || f.Name == "rapid.checks" })
	if !long {
		if err := flag.Set("rapid.checks", fewHistories); err != nil {
			panic(err)
		}
	}
	sandboxtest.Main(m)
}

// houseShards is how many shards the house of a machine has: each history takes new ones, then it begins again.
const houseShards = 128

// restartLimit bounds the restart of a server on a busy machine.
const restartLimit = time.Minute

// A house is the servers and the wiring of one test: a Redis and a database of its own, a desk, and who opens and
// persists. It decides when that happens; nothing runs by itself.
type house struct {
	t      testing.TB
	text   string // of the function library
	server *sandbox.Redis
	rdb    *redis.Client
	ledger *ledger.Ledger
	url    string // of the ledger's database
	desk   *redisstock.Desk
	shards []*redisstock.Shard

	skew atomic.Int64 // milliseconds by which the library's clock is ahead of TIME

	mu     sync.Mutex
	epochs map[int]stock.Epoch
}

// newHouse starts one with a function library of the given text; its shards are not open yet.
func newHouse(t testing.TB, text string, shards int) *house {
	t.Helper()
	h := &house{t: t, text: text, server: sandboxtest.Redis(t)}
	var err error
	h.rdb, err = redisstock.Connect(redisstock.Options{URL: h.server.URL(), Name: "protocol", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.rdb.Close() })
	for n := range shards {
		h.shards = append(h.shards, redisstock.NewShard(h.rdb, "sp", n))
	}
	h.renew()
	return h
}

// renew begins again with an empty ledger and an empty Redis.
func (h *house) renew() {
	h.t.Helper()
	ctx := context.Background()
	h.url = sandboxtest.Database(h.t, migrations.Up)
	l, err := ledger.Open(ctx, ledger.Config{URL: h.url, Name: "protocol", MaxConns: 8})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(l.Close)
	if err := errors.Join(l.Init(ctx, len(h.shards)), h.rdb.FlushAll(ctx).Err()); err != nil {
		h.t.Fatal(err)
	}
	if h.ledger != nil {
		h.ledger.Close()
	}
	h.ledger = l
	// A desk serves one ledger all its life: what it learnt of an epoch means nothing in another's.
	h.desk = redisstock.NewDesk(h.rdb, "sp", h)
	h.t.Cleanup(h.desk.Close)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epochs = map[int]stock.Epoch{}
}

// withClock changes the one line of the library that reads the time, and adds the function that sets it.
func withClock(t testing.TB, text string) string {
	t.Helper()
	text = swap(t, text, "local VERSION = '1'", "local VERSION = '1'\nlocal skew = 0")
	text = swap(t, text, "return t[1] * 1000 + floor(t[2] / 1000)", "return t[1] * 1000 + floor(t[2] / 1000) + skew")
	return text + `
redis.register_function('stockpipe_1_skew', function(_, args) skew = tonumber(args[1]) return 'OK' end)
`
}

// swap replaces one line of a text and insists that it stands there once.
func swap(t testing.TB, text, line, by string) string {
	t.Helper()
	if n := strings.Count(text, line); n != 1 {
		t.Fatalf("the library has %d times in place of once: %s", n, line)
	}
	return strings.Replace(text, line, by, 1)
}

// tick moves the library's clock ahead.
func (h *house) tick(ctx context.Context, d time.Duration) error {
	h.skew.Add(d.Milliseconds())
	return h.setClock(ctx)
}

func (h *house) setClock(ctx context.Context) error {
	if !strings.Contains(h.text, "stockpipe_1_skew") {
		return nil
	}
	return h.rdb.FCall(ctx, "stockpipe_1_skew", nil, h.skew.Load()).Err()
}

// now is the time by which the library decides.
func (h *house) now(ctx context.Context, shard int) (int64, error) {
	s, err := h.shards[shard].Status(ctx)
	return s.AtMillis, err
}

// opener is a shard as a takeover sees it, only that it loads the house's library.
type opener struct {
	*redisstock.Opener
	house *house
}

func (o *opener) Load(ctx context.Context, _ int) error {
	err := o.house.rdb.FunctionLoad(ctx, o.house.text).Err()
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	return o.house.setClock(ctx)
}

// takeover opens a shard and answers what it did.
func (h *house) takeover(ctx context.Context, shard int) (takeover.Report, error) {
	r := &opener{redisstock.NewOpener(h.shards[shard], redisstock.Unsafe{}), h}
	report, err := takeover.Run(ctx, r, ledger.NewOpener(h.ledger), takeover.Options{Shard: shard})
	if err != nil {
		return report, err
	}
	return report, h.learn(ctx, shard)
}

// learn reads what a producer must know of a shard.
func (h *house) learn(ctx context.Context, shard int) error {
	row, err := h.ledger.Shard(ctx, shard)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epochs[shard] = stock.Epoch{
		Shard: shard, Ledger: h.ledger.ID(), Epoch: row.Epoch, Applied: row.Applied, Library: row.Library,
		Open: row.State == ledger.StateOpen, Reason: row.State,
	}
	return nil
}

// Epoch is the newest that was learnt.
func (h *house) Epoch(shard int) stock.Epoch {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epochs[shard]
}

// Doubt needs nothing: tests say when a takeover comes.
func (h *house) Doubt(int, string) {}

// apply persists up to most entries that follow the ledger's position.
func (h *house) apply(ctx context.Context, shard, most int) (int, error) {
	row, err := h.ledger.Shard(ctx, shard)
	if err != nil {
		return 0, err
	}
	batch, err := h.shards[shard].Range(ctx, row.Position(), most)
	if err != nil || len(batch) == 0 {
		return 0, err
	}
	if _, err := h.ledger.Apply(ctx, shard, batch); err != nil {
		return 0, fmt.Errorf("apply %d entries from %s on: %w", len(batch), batch[0].ID, err)
	}
	return len(batch), h.learn(ctx, shard)
}

// catchUp persists all that there is.
func (h *house) catchUp(ctx context.Context, shard int) error {
	for {
		if n, err := h.apply(ctx, shard, 500); n == 0 || err != nil {
			return err
		}
	}
}

// restart ends Redis as a crash would, and waits until it answers again.
func (h *house) restart() error {
	ctx, cancel := context.WithTimeout(context.Background(), restartLimit)
	defer cancel()
	if err := h.server.Kill(); err != nil {
		return err
	}
	if err := h.server.Restart(ctx); err != nil {
		return err
	}
	for h.rdb.Ping(ctx).Err() != nil { // connections of before are found dead one by one
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// audited compares the stores as the reconciler does; an error lists what differs. A SKU whose limit nobody has counted
// yet is told by the audit, too, because that needs a takeover: it must be one of those that are expected.
func (h *house) audited(ctx context.Context, shard int, uncounted ...int64) error {
	r, err := audit.Sweep(ctx, ledger.NewAuditor(h.ledger, 0), redisstock.NewSampler(h.shards[shard]), audit.Options{Shard: shard})
	if err != nil {
		return err
	}
	r.Drifts = slices.DeleteFunc(r.Drifts, func(d audit.Drift) bool {
		return d.Class == takeover.Uncounted && slices.Contains(uncounted, d.SKU)
	})
	if !r.Clean() {
		return fmt.Errorf("the audit of shard %d found %v (compared: %v)", shard, r.Drifts, r.Compared)
	}
	return nil
}
