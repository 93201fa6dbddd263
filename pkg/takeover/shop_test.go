package takeover_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

var ctx = context.Background()

// A shop is one shard with its Redis, its ledger and one SKU, driven by hand: nothing is consumed or taken
// over unless the test does it.
type shop struct {
	t      testing.TB
	url    string // of the database
	server *sandbox.Redis
	rdb    *redis.Client
	shard  *redisstock.Shard
	opener *redisstock.Opener
	desk   *redisstock.Desk
	ledger *ledger.Ledger
	seals  *ledger.Opener
	sku    int64
}

const opening = 1000 // units of the shop's SKU

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{t: t, url: sandboxtest.Database(t, migrations.Up)}
	// Databases of tests are copies of one template; ledgers have an id of their own.
	s.sql(`update ledger set id = replace(gen_random_uuid()::text, '-', '')`)
	l, err := ledger.Open(ctx, ledger.Config{URL: s.url, Name: "test"})
	s.must(err)
	t.Cleanup(l.Close)
	s.ledger, s.seals = l, ledger.NewOpener(l)
	s.must(l.Init(ctx, 1))
	s.server = sandboxtest.Redis(t)
	s.use(s.server)
	return s
}

// use points the shop at a Redis.
func (s *shop) use(server *sandbox.Redis) {
	s.t.Helper()
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL(), Name: "test"})
	s.must(err)
	s.t.Cleanup(func() { rdb.Close() })
	s.server, s.rdb, s.shard = server, rdb, redisstock.NewShard(rdb, "sp", 0)
	s.opener = redisstock.NewOpener(s.shard, redisstock.Unsafe{})
	s.desk = redisstock.NewDesk(rdb, "sp", s)
	s.t.Cleanup(s.desk.Close)
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Epoch answers straight from Postgres, so that the desk is never behind it.
func (s *shop) Epoch(shard int) stock.Epoch {
	row, err := s.ledger.Shard(ctx, shard)
	if err != nil {
		return stock.Epoch{Shard: shard, Reason: "stale"}
	}
	return stock.Epoch{Shard: shard, Ledger: s.ledger.ID(), Epoch: row.Epoch, Applied: row.Applied, Library: row.Library,
		Open: row.State == ledger.StateOpen, Reason: row.State}
}

func (s *shop) Doubt(int, string) {}

func (s *shop) takeover(o takeover.Options) takeover.Report {
	s.t.Helper()
	r, err := takeover.Run(ctx, s.opener, s.seals, o)
	s.must(err)
	return r
}

// stocked opens the shop and puts its SKU on sale, persisted.
func (s *shop) stocked() *shop {
	s.t.Helper()
	s.takeover(takeover.Options{})
	doc, _, err := s.ledger.WriteOpening(ctx, "tea", opening, 0, s.now()+60_000)
	s.must(err)
	s.sku = doc.Lines[0].SKU
	s.accept(doc.Operation())
	s.consume()
	return s
}

func (s *shop) now() int64 {
	s.t.Helper()
	now, err := s.shard.Time(ctx)
	s.must(err)
	return now.UnixMilli()
}

func (s *shop) reserve(id string, units int64) stock.Receipt {
	s.t.Helper()
	return s.accept(s.order(id, units))
}

func (s *shop) order(id string, units int64) stock.Operation {
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: stock.DefaultTTLMillis,
		Lines: stock.Lines{{SKU: s.sku, Asked: units, Now: units}}}
}

func (s *shop) accept(op stock.Operation) stock.Receipt {
	s.t.Helper()
	out, err := s.desk.Do(ctx, 0, op)
	s.must(err)
	if out.Code != stock.Accepted {
		s.t.Fatalf("%s: %+v", op.ID, out)
	}
	return out.Receipt
}

// refuses checks that the shop does not sell.
func (s *shop) refuses(id string) {
	s.t.Helper()
	out, err := s.desk.Do(ctx, 0, s.order(id, 1))
	if err == nil {
		s.t.Fatalf("it sold %s: %+v", id, out)
	}
}

// consume persists the whole log.
func (s *shop) consume() {
	s.t.Helper()
	for {
		row, err := s.ledger.Shard(ctx, 0)
		s.must(err)
		batch, err := s.shard.Range(ctx, row.Position(), 100)
		s.must(err)
		if len(batch) == 0 {
			return
		}
		_, err = s.ledger.Apply(ctx, 0, batch)
		s.must(err)
	}
}

func (s *shop) probe() takeover.Finding {
	s.t.Helper()
	f, err := takeover.Probe(ctx, s.opener, s.seals, 0)
	s.must(err)
	return f
}

func (s *shop) standing(r stock.Receipt) stock.Standing {
	s.t.Helper()
	standing, err := s.ledger.Standing(ctx, r)
	s.must(err)
	return standing
}

// agrees sweeps both stores.
func (s *shop) agrees() {
	s.t.Helper()
	r, err := audit.Sweep(ctx, ledger.NewAuditor(s.ledger, 0), redisstock.NewSampler(s.shard), audit.Options{})
	s.must(err)
	for _, d := range r.Drifts {
		s.t.Error(d)
	}
	if !r.Compared || r.SKUs == 0 {
		s.t.Fatalf("the audit compared nothing: %+v", r)
	}
}

// field is the SKU's stock in Redis.
func (s *shop) field() event.Field {
	s.t.Helper()
	f, there, err := s.shard.Field(ctx, s.sku)
	s.must(err)
	if !there {
		s.t.Fatal("Redis has no such SKU")
	}
	return f
}

// sql runs what a failover of Postgres, or an operator, would do.
func (s *shop) sql(text string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(ctx, s.url)
	s.must(err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, text, args...)
	s.must(err)
}

// crash ends Redis as a power cut would, with everything that its log has been told to keep.
func (s *shop) crash() {
	s.t.Helper()
	s.must(s.server.Kill())
	s.must(s.server.Restart(ctx))
}

// backup copies the append-only files; restore brings an older copy back.
func (s *shop) backup() (dir string) {
	s.t.Helper()
	s.flushed()
	dir = filepath.Join(s.t.TempDir(), "aof")
	s.must(os.CopyFS(dir, os.DirFS(filepath.Join(s.server.Dir(), "appendonlydir"))))
	return dir
}

func (s *shop) restore(dir string) {
	s.t.Helper()
	s.must(s.server.Kill())
	live := filepath.Join(s.server.Dir(), "appendonlydir")
	s.must(os.RemoveAll(live))
	s.must(os.CopyFS(live, os.DirFS(dir)))
	s.must(s.server.Restart(ctx))
}

// flushed waits until everything written so far is in the append-only file.
func (s *shop) flushed() {
	s.t.Helper()
	s.must(s.rdb.ConfigSet(ctx, "appendfsync", "always").Err())
	s.must(s.rdb.Set(ctx, "mark", "1", 0).Err())
	s.must(s.rdb.Del(ctx, "mark").Err())
	s.must(s.rdb.ConfigSet(ctx, "appendfsync", "everysec").Err())
}

// sells checks that orders are taken again and both stores agree, now and after the log was persisted.
func (s *shop) sells(id string) {
	s.t.Helper()
	s.agrees()
	r := s.reserve(id, 1)
	s.agrees()
	s.consume()
	s.agrees()
	if got := s.standing(r); got != stock.StandingPersisted {
		s.t.Fatalf("%s is %s", id, got)
	}
	if f := s.probe(); f.Class != takeover.Healthy {
		s.t.Fatal(f)
	}
	if q := s.field(); q.OnHand() != opening {
		s.t.Fatalf("%d units on hand, %d were stocked", q.OnHand(), opening)
	}
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}
