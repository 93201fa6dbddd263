package reconcilerapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// asReconciler makes this test binary a reconciler, so that tests can kill and stop real processes.
const asReconciler = "STOCKPIPE_TEST_AS_RECONCILER"

func TestMain(m *testing.M) {
	if os.Getenv(asReconciler) == "" {
		sandboxtest.Main(m)
		return
	}
	var settings Config
	command := config.Parse(Name, Description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	code := Run(ctx, command, settings, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shop is a ledger and a Redis of its own, a desk that sells, and a hand that persists as a consumer would.
type shop struct {
	t      testing.TB
	server *sandbox.Redis
	url    string // Postgres
	ledger *ledger.Ledger
	rdb    *redis.Client
	desk   *redisstock.Desk
}

// rows asks the ledger for an epoch whenever somebody wants to know.
type rows struct{ ledger *ledger.Ledger }

func (r *rows) Epoch(shard int) stock.Epoch {
	row, err := r.ledger.Shard(context.Background(), shard)
	if err != nil {
		return stock.Epoch{Shard: shard, Reason: "stale"}
	}
	return stock.Epoch{Shard: shard, Ledger: r.ledger.ID(), Epoch: row.Epoch, Applied: row.Applied, Library: row.Library, Open: row.State == ledger.StateOpen, Reason: row.State}
}

func (r *rows) Doubt(int, string) {}

// newShop has shards that were never opened.
func newShop(t testing.TB, shards int) *shop {
	t.Helper()
	s := &shop{t: t, server: sandboxtest.Redis(t), url: sandboxtest.Database(t, migrations.Up)}
	var err error
	s.ledger, err = ledger.Open(t.Context(), ledger.Config{URL: s.url, Name: t.Name()})
	check(t, err)
	t.Cleanup(s.ledger.Close)
	if shards > 0 {
		check(t, s.ledger.Init(t.Context(), shards))
	}
	s.rdb, err = redisstock.Connect(redisstock.Options{URL: s.redisURL(), Timeout: 5 * time.Second})
	check(t, err)
	t.Cleanup(func() { s.rdb.Close() })
	s.desk = redisstock.NewDesk(s.rdb, "sp", &rows{s.ledger})
	t.Cleanup(s.desk.Close)
	return s
}

func (s *shop) redisURL() string { return "redis://" + s.server.Addr() + "/0" }

// args are the settings of a reconciler of this shop.
func (s *shop) args(more ...string) []string {
	return append([]string{"--redis-url", s.redisURL(), "--postgres-url", s.url, "--ops-listen", "127.0.0.1:0", "--log-level", "error"}, more...)
}

// run runs a command to its end.
func (s *shop) run(args ...string) (code int, out string) {
	s.t.Helper()
	code, out, _ = s.try(args...)
	return code, out
}

func (s *shop) try(args ...string) (code int, out, errs string) {
	s.t.Helper()
	var c Config
	command, err := config.ParseArgs(Name, Description, &c, s.args(args...), io.Discard)
	check(s.t, err)
	var stdout, stderr bytes.Buffer
	code = Run(s.t.Context(), command, c, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// result runs a command with --json.
func (s *shop) result(args ...string) Document {
	s.t.Helper()
	code, out, errs := s.try(append(args, "--json")...)
	var doc Document
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		s.t.Fatalf("%v: exit %d, %v: %s%s", args, code, err, out, errs)
	}
	if doc.Exit != code {
		s.t.Errorf("%v: the document says exit %d, it was %d", args, doc.Exit, code)
	}
	return doc
}

// want runs once and compares the exit code.
func (s *shop) want(exit int, args ...string) Document {
	s.t.Helper()
	doc := s.result(append([]string{"--once"}, args...)...)
	if doc.Exit != exit {
		s.t.Fatalf("%v: exit %d, want %d: %s", args, doc.Exit, exit, text(doc))
	}
	return doc
}

func text(doc Document) string {
	b, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// serve starts a reconciler; stop ends it and returns its error.
func (s *shop) serve(args ...string) (stop func() error) {
	s.t.Helper()
	var c Config
	_, err := config.ParseArgs(Name, Description, &c, s.args(append([]string{"serve"}, args...)...), io.Discard)
	check(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- Serve(ctx, c) }()
	stop = sync.OnceValue(func() error { cancel(); return <-over })
	s.t.Cleanup(func() {
		if err := stop(); err != nil {
			s.t.Error(err)
		}
	})
	return stop
}

// opened waits for an open shard above an epoch, and returns its epoch.
func (s *shop) opened(shard int, above int64, within time.Duration) int64 {
	s.t.Helper()
	var epoch int64
	sandboxtest.Eventually(s.t, within, func() error {
		row, err := s.ledger.Shard(s.t.Context(), shard)
		if err != nil {
			return err
		}
		if epoch = row.Epoch; row.State != ledger.StateOpen || epoch <= above {
			return fmt.Errorf("shard %d is %s in epoch %d", shard, row.State, row.Epoch)
		}
		return nil
	})
	return epoch
}

// sku makes a SKU with opening stock, through its document.
func (s *shop) sku(text string, units int64, shard int) int64 {
	s.t.Helper()
	doc, _, err := s.ledger.WriteOpening(s.t.Context(), text, units, shard, s.deadline())
	check(s.t, err)
	s.do(shard, doc.Operation(), stock.Accepted)
	return doc.Lines[0].SKU
}

func (s *shop) deadline() int64 {
	now, err := s.rdb.Time(s.t.Context()).Result()
	check(s.t, err)
	return s.ledger.Deadline(now.UnixMilli())
}

func (s *shop) do(shard int, op stock.Operation, want stock.Code) stock.Outcome {
	s.t.Helper()
	out, err := s.desk.Do(s.t.Context(), shard, op)
	if err != nil || out.Code != want {
		s.t.Fatalf("%c of %s: %v, %v, want %s", op.Kind, op.ID, out.Code, err, want)
	}
	return out
}

func (s *shop) hold(shard int, order string, sku, units, ttlMillis int64) {
	s.t.Helper()
	s.do(shard, stock.Operation{Kind: stock.Reserve, ID: order, Attempt: 1, TTL: ttlMillis, Lines: stock.Lines{{SKU: sku, Asked: units, Now: units}}}, stock.Accepted)
}

// persist applies the log to its end, as a consumer would.
func (s *shop) persist(shard int) {
	s.t.Helper()
	opener := redisstock.NewOpener(redisstock.NewShard(s.rdb, "sp", shard), redisstock.Unsafe{})
	for {
		row, err := s.ledger.Shard(s.t.Context(), shard)
		check(s.t, err)
		page, err := opener.Range(s.t.Context(), row.Position(), 1000)
		check(s.t, err)
		if len(page) == 0 {
			return
		}
		did, err := s.ledger.Apply(s.t.Context(), shard, page)
		check(s.t, err)
		if did.Entries == 0 {
			s.t.Fatalf("nothing of %d entries after %v was applied", len(page), row.Position())
		}
	}
}

// consume persists all shards until stopped; a shard that is being rebuilt is left alone meanwhile.
func (s *shop) consume() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			all, err := s.ledger.Shards(ctx)
			for _, row := range all {
				if err != nil || row.State != ledger.StateOpen {
					continue
				}
				opener := redisstock.NewOpener(redisstock.NewShard(s.rdb, "sp", row.Number), redisstock.Unsafe{})
				if page, err := opener.Range(ctx, row.Position(), 1000); err == nil && len(page) > 0 {
					_, _ = s.ledger.Apply(ctx, row.Number, page)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-over })
	s.t.Cleanup(stop)
	return stop
}

func (s *shop) state(shard int, sku int64) string {
	s.t.Helper()
	v, err := s.rdb.HGet(s.t.Context(), redisstock.NewKeys("sp", shard).State, fmt.Sprint(sku)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Fatal(err)
	}
	return v
}

// same compares a SKU in both stores.
func (s *shop) same(shard int, sku int64, want string) {
	s.t.Helper()
	if got := s.state(shard, sku); got != want {
		s.t.Errorf("Redis has %s of SKU %d, want %s", got, sku, want)
	}
	stocks, err := s.ledger.Stocks(s.t.Context(), []int64{sku})
	check(s.t, err)
	q := stocks[sku].Quantities
	if got := fmt.Sprintf("%d|%d|%d", q.Available, q.Held, q.Committed); !strings.HasPrefix(want, got) {
		s.t.Errorf("Postgres has %s of SKU %d, want %s", got, sku, want)
	}
}

func (s *shop) repairs() []ledger.Repair {
	s.t.Helper()
	all, err := s.ledger.Repairs(s.t.Context(), -1, 1000)
	check(s.t, err)
	slices.Reverse(all)
	return all
}

// dump is all of Redis and every table of Postgres, as text.
func (s *shop) dump() string {
	s.t.Helper()
	var b strings.Builder
	keys, err := s.rdb.Keys(s.t.Context(), "*").Result()
	check(s.t, err)
	slices.Sort(keys)
	for _, key := range keys {
		v, err := s.rdb.Dump(s.t.Context(), key).Result()
		check(s.t, err)
		fmt.Fprintf(&b, "%s %q\n", key, v)
	}
	b.WriteString(s.tables())
	return b.String()
}
