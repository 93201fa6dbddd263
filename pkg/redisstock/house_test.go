package redisstock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

const testLedger = "led"

// Names of the newest version's functions.
var (
	fnApply  = newest.apply
	fnSettle = newest.settle
	fnFence  = newest.fence
	fnOpen   = newest.open
)

// A shop is one opened shard with a Desk, for tests.
type shop struct {
	t     testing.TB
	rdb   *redis.Client
	desk  *Desk
	shard *Shard
	epoch atomic.Int64
	doubt chan string
}

// Epoch and Doubt make the shop its own stock.Epochs.
func (s *shop) Epoch(shard int) stock.Epoch {
	return stock.Epoch{Shard: shard, Ledger: testLedger, Epoch: s.epoch.Load(), Library: LibraryVersion, Open: true}
}

func (s *shop) Doubt(_ int, what string) {
	select {
	case s.doubt <- what:
	default:
	}
}

// openShop opens shard 0 on the server at addr under epoch 5 and connects the Desk through via (or directly).
func openShop(t testing.TB, addr, via string) *shop {
	t.Helper()
	if via == "" {
		via = addr
	}
	s := &shop{t: t, rdb: connect(t, via), doubt: make(chan string, 64)}
	prefix := sandboxtest.Prefix(t)
	direct := connect(t, addr)
	if err := LoadLibrary(t.Context(), direct, LibraryVersion); err != nil {
		t.Fatal(err)
	}
	s.shard = NewShard(direct, prefix, 0)
	s.desk = NewDesk(s.rdb, prefix, s)
	s.open(5)
	t.Cleanup(s.desk.Close)
	return s
}

func connect(t testing.TB, addr string) *redis.Client {
	t.Helper()
	rdb, err := Connect(Options{URL: "redis://" + addr + "/0", PoolSize: 32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// open fences and opens the shard under an epoch, as a takeover with nothing to put does.
func (s *shop) open(epoch int64) {
	s.t.Helper()
	keys := s.shard.keys.list()
	ctx := context.Background()
	if _, err := s.shard.call(ctx, fnFence, keys, token(testLedger, epoch), "nonce", LibraryVersion, ""); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.shard.call(ctx, fnOpen, keys, token(testLedger, epoch), "nonce", 0, "0-0"); err != nil {
		s.t.Fatal(err)
	}
	s.epoch.Store(epoch)
}

func (s *shop) do(op stock.Operation) stock.Outcome {
	s.t.Helper()
	out, err := s.desk.Do(context.Background(), 0, op)
	if err != nil {
		s.t.Fatalf("%c of %s: %v", op.Kind, op.ID, err)
	}
	return out
}

func (s *shop) sku(number, opening int64) {
	s.t.Helper()
	op := stock.Operation{Kind: stock.NewSKU, ID: fmt.Sprintf("~~open:%d", number), SKU: "tea", Deadline: farAway,
		Lines: stock.Lines{{SKU: number, Asked: opening, Now: opening}}}
	if got := s.do(op); got.Code != stock.Accepted {
		s.t.Fatalf("new SKU: %+v", got)
	}
}

const farAway = 9_000_000_000_000

func reserve(id string, lines ...stock.Line) stock.Operation {
	for i := range lines {
		lines[i].Now = lines[i].Asked
	}
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: 900_000, Lines: lines}
}

func move(kind stock.Kind, id string) stock.Operation {
	return stock.Operation{Kind: kind, ID: id, Attempt: 1}
}

func one(sku, quantity int64) stock.Line { return stock.Line{SKU: sku, Asked: quantity, Now: quantity} }

func (s *shop) field(sku int64) stock.Quantities {
	s.t.Helper()
	f, _, err := s.shard.Field(context.Background(), sku)
	if err != nil {
		s.t.Fatal(err)
	}
	return f.Quantities
}

// log reads the whole log of the shard's present epoch.
func (s *shop) log() []event.Entry {
	s.t.Helper()
	var out []event.Entry
	after := stock.Position{}
	for {
		raws, err := s.shard.Range(context.Background(), after, 1000)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(raws) == 0 {
			return out
		}
		for _, raw := range raws {
			e, err := raw.Parse()
			if err != nil {
				s.t.Fatal(err)
			}
			out = append(out, e)
			after = e.Position
		}
	}
}

// replay folds the log and fails unless it says exactly what Redis holds.
func (s *shop) replay() *event.Book {
	s.t.Helper()
	book := event.NewBook(0)
	for i, e := range s.log() {
		if e.Seq != int64(i+1) && e.Epoch == s.epoch.Load() {
			s.t.Fatalf("gap in the log: entry %d is %s", i+1, e.Position)
		}
		off, err := book.Apply(&e, nil)
		if err != nil || len(off) > 0 {
			s.t.Fatalf("replay of %s: %v %v", e.Position, off, err)
		}
	}
	for sku, q := range book.Stock {
		if got := s.field(sku); got != q {
			s.t.Fatalf("SKU %d: Redis %v, log %v", sku, got, q)
		}
	}
	for id, r := range book.Orders {
		got, err := s.rdb.HGet(context.Background(), s.shard.keys.Orders, id).Result()
		if err != nil || got != event.FormatRecord(r) {
			s.t.Fatalf("record of %s: Redis %q (%v), log %q", id, got, err, event.FormatRecord(r))
		}
	}
	return book
}
