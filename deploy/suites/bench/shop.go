package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	prefix  = "sp"
	opening = 999_999_999 // units of every SKU
	// openers is how many SKUs are made at a time.
	openers = 8
	// logPage is how many entries are read at a time.
	logPage = 1000
	// dropTime bounds the clean-up of one database.
	dropTime = 10 * time.Second
)

// A shop is a fresh ledger whose shards were opened on one Redis by real takeovers.
type shop struct {
	bench  *bench
	name   string // of its database
	url    string
	rdb    *redis.Client
	ledger *ledger.Ledger
	shards []*redisstock.Shard
	desk   *redisstock.Desk
	skus   [][]int64 // numbers, by shard

	mu     sync.Mutex
	epochs []stock.Epoch
}

// Epoch and Doubt make the shop its own stock.Epochs: it knows every takeover, because it makes them.
func (s *shop) Epoch(shard int) stock.Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[shard]
}

// Doubt does nothing: nobody else takes over.
func (s *shop) Doubt(int, string) {}

// openShop empties Redis and opens shards there with skus SKUs each, which the ledger has persisted already.
func (b *bench) openShop(ctx context.Context, rdb *redis.Client, shards, skus int) (*shop, error) {
	s := &shop{bench: b, name: b.nextName(), rdb: rdb, epochs: make([]stock.Epoch, shards), skus: make([][]int64, shards)}
	if err := s.open(ctx, skus); err != nil {
		s.close()
		return nil, fmt.Errorf("open a shop: %w", err)
	}
	return s, nil
}

func (s *shop) open(ctx context.Context, skus int) (err error) {
	if err := s.rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if s.url, err = s.bench.postgres.CloneDatabase(ctx, template, s.name); err != nil {
		return err
	}
	if s.ledger, err = ledger.Open(ctx, ledger.Config{URL: s.url, Name: "bench", MaxConns: openers}); err != nil {
		return err
	}
	if err := s.ledger.Init(ctx, len(s.epochs)); err != nil {
		return err
	}
	s.desk = redisstock.NewDesk(s.rdb, prefix, s)
	for n := range s.epochs {
		s.shards = append(s.shards, redisstock.NewShard(s.rdb, prefix, n))
		if _, err := s.takeOver(ctx, n); err != nil {
			return err
		}
		if err := s.makeSKUs(ctx, n, skus); err != nil {
			return err
		}
	}
	return s.catchUp(ctx)
}

// takeOver makes one takeover of a shard and goes on under its epoch.
func (s *shop) takeOver(ctx context.Context, shard int) (takeover.Report, error) {
	opener := redisstock.NewOpener(s.shards[shard], redisstock.Unsafe{AOF: s.bench.aof == "off"})
	report, err := takeover.Run(ctx, opener, ledger.NewOpener(s.ledger), takeover.Options{Shard: shard})
	if err != nil {
		return report, fmt.Errorf("take shard %d over: %w", shard, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epochs[shard] = stock.Epoch{Shard: shard, Ledger: s.ledger.ID(), Epoch: report.Epoch, Library: redisstock.LibraryVersion, Open: true}
	return report, nil
}

// makeSKUs makes the SKUs of a shard, several at a time, by their opening documents.
func (s *shop) makeSKUs(ctx context.Context, shard, count int) error {
	now, err := s.shards[shard].Time(ctx)
	if err != nil {
		return err
	}
	s.skus[shard] = make([]int64, count)
	errs := make([]error, openers)
	var all sync.WaitGroup
	for w := range openers {
		all.Go(func() {
			for i := w; i < count && errs[w] == nil; i += openers {
				var doc ledger.Document
				doc, _, errs[w] = s.ledger.WriteOpening(ctx, fmt.Sprintf("sku-%d-%d", shard, i), opening, shard, s.ledger.Deadline(now.UnixMilli()))
				if errs[w] != nil {
					return
				}
				errs[w] = s.do(ctx, &ticket{id: doc.ID, shard: shard}, doc.Operation(), stock.Done)
				s.skus[shard][i] = doc.Lines[0].SKU
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// catchUp applies the rest of every shard's log to the ledger, the shards side by side.
func (s *shop) catchUp(ctx context.Context) error {
	errs := make([]error, len(s.shards))
	var all sync.WaitGroup
	for n := range s.shards {
		all.Go(func() { errs[n] = s.catchUpShard(ctx, n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *shop) catchUpShard(ctx context.Context, shard int) error {
	row, err := s.ledger.Shard(ctx, shard)
	if err != nil {
		return err
	}
	at := row.Position()
	for {
		raws, err := s.shards[shard].Range(ctx, at, logPage)
		if err != nil || len(raws) == 0 {
			return err
		}
		applied, err := s.ledger.Apply(ctx, shard, raws)
		if err != nil {
			return err
		}
		at = applied.Position
	}
}

// readLog is a shard's log after a position, parsed only by whom it is given to.
func (s *shop) readLog(ctx context.Context, shard int, after stock.Position) ([]event.Raw, error) {
	var all []event.Raw
	for {
		raws, err := s.shards[shard].Range(ctx, after, logPage)
		if err != nil || len(raws) == 0 {
			return all, err
		}
		all = append(all, raws...)
		if after, err = stock.ParsePosition(raws[len(raws)-1].ID); err != nil {
			return nil, err
		}
	}
}

// close ends what the shop opened and drops its database, so that a long run does not fill the disk.
func (s *shop) close() {
	if s.desk != nil {
		s.desk.Close()
	}
	if s.ledger != nil {
		s.ledger.Close()
		s.bench.drop(s.name)
	}
}

// drop is best effort: the stack's folder goes at the end anyway.
func (b *bench) drop(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), dropTime)
	defer cancel()
	if err := b.postgres.DropDatabase(ctx, name); err != nil {
		b.say("drop database %s: %v", strconv.Quote(name), err)
	}
}

// withShop gives a round a shop of its own.
func (b *bench) withShop(ctx context.Context, rdb *redis.Client, shards, skus int, work func(*shop) error) error {
	s, err := b.openShop(ctx, rdb, shards, skus)
	if err != nil {
		return err
	}
	defer s.close()
	return work(s)
}

var _ stock.Epochs = (*shop)(nil)
