package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

func TestMain(m *testing.M) { sandboxtest.Main(m) }

var ctx = context.Background()

// A shop is one living shard: a Redis, a ledger, some SKUs, and writers and consumers that a test starts.
type shop struct {
	t       testing.TB
	url     string
	server  *sandbox.Redis
	rdb     *redis.Client
	shard   *redisstock.Shard
	ledger  *ledger.Ledger
	auditor *ledger.Auditor
	desk    *redisstock.Desk
	skus    []int64

	busy     sync.WaitGroup
	stop     atomic.Bool
	accepted atomic.Int64
	orders   atomic.Int64
	epoch    atomic.Pointer[stock.Epoch]
}

func openShop(t testing.TB, skus int) *shop {
	t.Helper()
	s := &shop{t: t, url: sandboxtest.Database(t, migrations.Up), server: sandboxtest.Redis(t)}
	l, err := ledger.Open(ctx, ledger.Config{URL: s.url, Name: "test", MaxConns: 12})
	s.must(err)
	t.Cleanup(l.Close)
	s.ledger, s.auditor = l, ledger.NewAuditor(l, 0)
	s.must(l.Init(ctx, 1))
	s.rdb, err = redisstock.Connect(redisstock.Options{URL: s.server.URL(), Name: "test", Timeout: 5 * time.Second})
	s.must(err)
	t.Cleanup(func() { s.rdb.Close() })
	s.shard = redisstock.NewShard(s.rdb, "sp", 0)
	s.desk = redisstock.NewDesk(s.rdb, "sp", s)
	t.Cleanup(s.desk.Close)
	t.Cleanup(s.quiet)
	s.takeover()
	for i := range skus {
		doc, _, err := l.WriteOpening(ctx, fmt.Sprintf("sku %d", i), 5000, 0, l.Deadline(time.Now().UnixMilli()))
		s.must(err)
		s.skus = append(s.skus, doc.Lines[0].SKU)
		_, err = s.desk.Do(ctx, 0, doc.Operation())
		s.must(err)
	}
	s.consume()
	return s
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) takeover() {
	s.t.Helper()
	_, err := takeover.Run(ctx, redisstock.NewOpener(s.shard, redisstock.Unsafe{}), ledger.NewOpener(s.ledger), takeover.Options{})
	s.must(err)
	s.learn()
}

// learn reads the epoch that the desk uses.
func (s *shop) learn() {
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	s.epoch.Store(&stock.Epoch{Ledger: s.ledger.ID(), Epoch: row.Epoch, Library: row.Library, Open: row.State == ledger.StateOpen, Reason: row.State})
}

func (s *shop) Epoch(int) stock.Epoch { return *s.epoch.Load() }
func (s *shop) Doubt(int, string)     {}

// pace is how long a caller thinks between two operations.
const pace = 5 * time.Millisecond

// write starts callers that do whatever a shop does, until quiet.
func (s *shop) write(callers int) {
	for range callers {
		s.busy.Go(func() {
			var open []string
			for !s.stop.Load() {
				op := s.next(&open)
				out, err := s.desk.Do(ctx, 0, op)
				if err == nil && out.Code == stock.Accepted {
					s.accepted.Add(1)
				}
				if err == nil && out.Code == stock.Conflict {
					s.t.Errorf("%+v: %+v", op, out)
				}
				time.Sleep(pace) // or a small machine does nothing else
			}
		})
	}
}

func (s *shop) sku() int64 { return s.skus[rand.IntN(len(s.skus))] }

func (s *shop) next(open *[]string) stock.Operation {
	pick := func() string {
		i := rand.IntN(len(*open))
		id := (*open)[i]
		*open = append((*open)[:i], (*open)[i+1:]...)
		return id
	}
	roll := rand.IntN(10)
	switch {
	case roll < 2 && len(*open) > 0:
		return stock.Operation{Kind: stock.Confirm, ID: pick(), Attempt: 1}
	case roll < 4 && len(*open) > 0:
		return stock.Operation{Kind: stock.Release, ID: pick(), Attempt: 1}
	case roll == 4:
		kind, units := stock.DocumentAdjust, int64(rand.IntN(9)-20_000*rand.IntN(2))
		if units == 0 {
			units = 1
		}
		doc, _, err := s.ledger.WriteDocument(ctx, ledger.NewDocument{ID: fmt.Sprintf("doc-%d", s.orders.Add(1)), Kind: kind, Reason: "test",
			Lines: []stock.Line{{SKU: s.sku(), Asked: units}}, DeadlineMillis: s.ledger.Deadline(time.Now().UnixMilli())})
		if err != nil {
			s.t.Errorf("write a document: %v", err)
		}
		return doc.Operation()
	case roll == 5 && rand.IntN(4) == 0:
		return stock.Operation{Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: s.sku()}}, Settings: stock.Settings{Frozen: rand.IntN(3) == 0}}
	}
	id := fmt.Sprintf("o-%d", s.orders.Add(1))
	lines, err := stock.Canonical([]stock.Line{{SKU: s.sku(), Asked: 1}, {SKU: s.sku(), Asked: 2}}, 10)
	if err != nil {
		s.t.Errorf("lines: %v", err)
	}
	if roll == 9 {
		return stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Buyer: "b@x", Lines: lines}
	}
	*open = append(*open, id)
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: stock.DefaultTTLMillis, Lines: lines}
}

// apply persists what the log has, up to a number of entries; it reports how many there were.
func (s *shop) apply(count int) (int, error) {
	row, err := s.ledger.Shard(ctx, 0)
	if err != nil {
		return 0, err
	}
	batch, err := s.shard.Range(ctx, row.Position(), count)
	if err != nil || len(batch) == 0 {
		return 0, err
	}
	_, err = s.ledger.Apply(ctx, 0, batch)
	return len(batch), err
}

func (s *shop) consume() {
	s.t.Helper()
	for n := 1; n > 0; {
		var err error
		n, err = s.apply(200)
		s.must(err)
	}
}

// consumers start appliers; with trim they cut the log right below what is applied, far closer than a shop
// would.
func (s *shop) consumers(n int, trim bool) {
	for range n {
		s.busy.Go(func() {
			for !s.stop.Load() {
				// A takeover in between gives gaps and entries of another epoch: the next look finds the way.
				did, _ := s.apply(1 + rand.IntN(200))
				if did == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	if trim {
		s.busy.Go(func() {
			for !s.stop.Load() {
				if row, err := s.ledger.Shard(ctx, 0); err == nil {
					s.rdb.XTrimMinID(ctx, s.shard.Keys().Log, row.Position().String())
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

func (s *shop) quiet() {
	s.stop.Store(true)
	s.busy.Wait()
	s.stop.Store(false)
}

func (s *shop) audit(o audit.Options) audit.Report {
	s.t.Helper()
	r, err := audit.Run(ctx, s.auditor, redisstock.NewSampler(s.shard), o)
	s.must(err)
	return r
}

func (s *shop) sweep(page int) audit.Report {
	s.t.Helper()
	r, err := audit.Sweep(ctx, s.auditor, redisstock.NewSampler(s.shard), audit.Options{Page: page})
	s.must(err)
	return r
}

func (s *shop) clean() audit.Report {
	s.t.Helper()
	r := s.sweep(0)
	for _, d := range r.Drifts {
		s.t.Error(d)
	}
	if !r.Compared {
		s.t.Fatalf("nothing was compared: %+v", r)
	}
	return r
}

func (s *shop) sql(text string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(ctx, s.url)
	s.must(err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, text, args...)
	s.must(err)
}

// anyOrder is the id of some record in Redis.
func (s *shop) anyOrder() string {
	s.t.Helper()
	for range 100 {
		id, err := s.rdb.HRandField(ctx, s.shard.Keys().Orders, 1).Result()
		s.must(err)
		if len(id) == 1 && !strings.HasPrefix(id[0], "~") {
			return id[0]
		}
	}
	s.t.Fatal("no order in Redis")
	return ""
}
