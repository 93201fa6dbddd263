package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A shop is shard 0 of a fresh ledger, opened by a real takeover.
type shop struct {
	ledger *ledger.Ledger
	shard  *redisstock.Shard
	desk   *redisstock.Desk
	epoch  stock.Epoch
}

// Epoch and Doubt make the shop its own stock.Epochs: one takeover, no other.
func (s *shop) Epoch(int) stock.Epoch { return s.epoch }
func (s *shop) Doubt(int, string)     {}

// openShop makes database name, opens its shard on rdb and fills in the SKUs, already applied to the ledger.
func openShop(ctx context.Context, postgres *sandbox.Postgres, rdb *redis.Client, name string, skus int) (*shop, error) {
	url, err := postgres.CreateDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, url); err != nil {
		return nil, err
	}
	s := &shop{}
	if s.ledger, err = ledger.Open(ctx, ledger.Config{URL: url, Name: "bench"}); err != nil {
		return nil, err
	}
	if err := s.ledger.Init(ctx, 1); err != nil {
		return nil, err
	}
	s.shard = redisstock.NewShard(rdb, "sp", 0)
	opener := redisstock.NewOpener(s.shard, redisstock.Unsafe{AOF: true})
	report, err := takeover.Run(ctx, opener, ledger.NewOpener(s.ledger), takeover.Options{Shard: 0})
	if err != nil {
		return nil, err
	}
	s.epoch = stock.Epoch{Ledger: s.ledger.ID(), Epoch: report.Epoch, Library: redisstock.LibraryVersion, Open: true}
	s.desk = redisstock.NewDesk(rdb, "sp", s)
	now, err := s.shard.Time(ctx)
	if err != nil {
		return nil, err
	}
	for i := range skus {
		doc, _, err := s.ledger.WriteOpening(ctx, fmt.Sprintf("sku-%d", i), 999_999_999, 0, s.ledger.Deadline(now.UnixMilli()))
		if err != nil {
			return nil, err
		}
		if out, err := s.desk.Do(ctx, 0, doc.Operation()); err != nil || out.Code != stock.Accepted {
			return nil, fmt.Errorf("new SKU: %v %w", out.Code, err)
		}
	}
	return s, s.catchUp(ctx)
}

// catchUp applies the rest of the log to the ledger.
func (s *shop) catchUp(ctx context.Context) error {
	row, err := s.ledger.Shard(ctx, 0)
	if err != nil {
		return err
	}
	at := row.Position()
	for {
		raws, err := s.shard.Range(ctx, at, 1000)
		if err != nil || len(raws) == 0 {
			return err
		}
		applied, err := s.ledger.Apply(ctx, 0, raws)
		if err != nil {
			return err
		}
		at = applied.Position
	}
}

// check compares what Redis holds of SKU number 1 with what was sold, and the ledger after catching up.
func (s *shop) check(ctx context.Context, sold int64) error {
	field, _, err := s.shard.Field(ctx, 1)
	if err != nil {
		return err
	}
	if want := (stock.Quantities{Available: 999_999_999 - sold, Held: sold}); field.Quantities != want {
		return fmt.Errorf("sold %d, but Redis has %s", sold, field.Quantities)
	}
	return nil
}

func (s *shop) close() {
	s.desk.Close()
	s.ledger.Close()
}

// readLog is the log after a position, parsed only by whom it is given to.
func (s *shop) readLog(ctx context.Context, after stock.Position) ([]event.Raw, error) {
	var all []event.Raw
	for {
		raws, err := s.shard.Range(ctx, after, 5000)
		if err != nil || len(raws) == 0 {
			return all, err
		}
		all = append(all, raws...)
		if after, err = stock.ParsePosition(raws[len(raws)-1].ID); err != nil {
			return nil, err
		}
	}
}
