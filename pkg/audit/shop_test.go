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

	limited int64 // SKU with a limit per buyer, which is counted

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
	s.limited = s.skus[0]
	s.set(s.limited, stock.Change{Opens: stock.Keep, Limit: 100})
	s.consume()
	s.takeover()
	return s
}

// set changes settings of a SKU.
func (s *shop) set(sku int64, change stock.Change) {
	s.t.Helper()
	out, err := s.desk.Do(ctx, 0, stock.Operation{Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: sku}}, Change: change})
	s.must(err)
	if out.Code != stock.Accepted {
		s.t.Fatalf("%+v", out)
	}
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
			var open []stock.Operation
			for !s.stop.Load() {
				op := s.next(&open)
				out, err := s.desk.Do(ctx, 0, op)
				if err == nil && out.Code == stock.Accepted {
					s.accepted.Add(1)
				}
				if err == nil && out.Code == stock.Conflict && len(op.Lines) == 0 { // results may be above what stands
					s.t.Errorf("%+v: %+v", op, out)
				}
				time.Sleep(pace) // or a small machine does nothing else
			}
		})
	}
}

func (s *shop) sku() int64 { return s.skus[rand.IntN(len(s.skus))] }

func (s *shop) next(open *[]stock.Operation) stock.Operation {
	roll := rand.IntN(14)
	if roll < 7 && len(*open) > 0 {
		i := rand.IntN(len(*open))
		op := s.goOn((*open)[i], roll)
		if op.Kind == stock.Confirm && rand.IntN(2) == 0 {
			(*open)[i].Kind = stock.Confirm // and is shipped or cancelled later
		} else if op.Kind != stock.Extend && op.Kind != stock.Replace {
			*open = append((*open)[:i], (*open)[i+1:]...)
		}
		return op
	}
	return s.begin(open, roll-7)
}

// goOn moves an order that was reserved, or confirmed.
func (s *shop) goOn(order stock.Operation, roll int) stock.Operation {
	op := stock.Operation{ID: order.ID, Attempt: 1}
	first := stock.Lines{{SKU: order.Lines[0].SKU, Now: 1}}
	switch {
	case order.Kind == stock.Confirm:
		kind := []string{stock.DocumentFulfil, stock.DocumentCancel}[roll%2]
		doc, _, err := s.ledger.WriteDocument(ctx, ledger.NewDocument{ID: fmt.Sprintf("doc-%d", s.orders.Add(1)), Kind: kind, Reason: "test",
			Order: ledger.DocumentOrder{ID: order.ID}, Lines: []stock.Line{{SKU: first[0].SKU, Asked: 1}}, DeadlineMillis: s.ledger.Deadline(time.Now().UnixMilli())})
		if err == nil {
			return doc.Operation()
		}
		// It is not persisted yet, or was not confirmed.
		op.Kind = stock.Confirm
	case roll < 2:
		op.Kind = stock.Confirm
		if rand.IntN(3) == 0 {
			op.Lines = first
		}
	case roll < 4:
		op.Kind = stock.Release
		if rand.IntN(3) == 0 {
			op.Lines = first
		}
	case roll == 4:
		op.Kind, op.Until = stock.Extend, time.Now().Add(time.Hour).UnixMilli()
	default:
		op.Kind = stock.Replace
		op.Lines, _ = stock.Canonical([]stock.Line{{SKU: s.sku(), Asked: 1}, {SKU: s.sku(), Asked: 1}}, 10)
	}
	return op
}

func (s *shop) begin(open *[]stock.Operation, roll int) stock.Operation {
	switch {
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
		change := stock.Kept
		change.Frozen = []stock.Switch{stock.On, stock.Off, stock.Off}[rand.IntN(3)]
		return stock.Operation{Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: s.sku()}}, Change: change}
	}
	id := fmt.Sprintf("o-%d", s.orders.Add(1))
	lines, err := stock.Canonical([]stock.Line{{SKU: s.sku(), Asked: 1}, {SKU: s.sku(), Asked: 2}}, 10)
	if err != nil {
		s.t.Errorf("lines: %v", err)
	}
	buyer := fmt.Sprintf("b%d@x", rand.IntN(20))
	if roll == 6 {
		return stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Buyer: buyer, Lines: lines}
	}
	op := stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: stock.DefaultTTLMillis, Buyer: buyer, Lines: lines, Partial: roll == 0}
	*open = append(*open, op)
	return op
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

// letters checks that the traffic had every operation in it, so that what was compared is not only the simple part.
func (s *shop) letters() {
	s.t.Helper()
	seen := map[string]bool{}
	for after := (stock.Position{}); ; {
		page, err := s.shard.Range(ctx, after, 1000)
		s.must(err)
		if len(page) == 0 {
			break
		}
		for _, raw := range page {
			e, err := raw.Parse()
			s.must(err)
			after = e.Position
			for i := range e.Ops {
				op := &e.Ops[i]
				name := string(op.Kind)
				switch {
				case op.Kind == stock.Movement:
					name = op.Document
				case op.Partial && op.Lines.Units() > 0:
					name += "p"
				case len(op.Lines) > 0 && (op.Kind == stock.Confirm || op.Kind == stock.Release):
					name += "|"
				}
				seen[name] = true
			}
		}
	}
	for _, want := range []string{"R", "Rp", "S", "C", "C|", "X", "X|", "U", "P", "T", stock.DocumentAdjust, stock.DocumentFulfil, stock.DocumentCancel} {
		if !seen[want] {
			s.t.Errorf("there was no %s in %v", want, seen)
		}
	}
}

// anyPersisted picks an order that Redis and the ledger have.
func (s *shop) anyPersisted() string {
	s.t.Helper()
	for range 100 {
		id := s.anyOrder()
		found, err := s.ledger.Lookup(ctx, id)
		s.must(err)
		if len(found) > 0 {
			return id
		}
	}
	s.t.Fatal("no order is persisted")
	return ""
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
