package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// entriesPerBatch is what one transaction of either side takes: about 20 entries of up to 128 orders.
const entriesPerBatch = 20

// measureConsumer lets the ledger apply a log of one-line reserves, and one of a mixed load; raw COPY writes the same
// rows into the same tables with the same indexes, batch by batch, on one connection with synchronous_commit on.
func measureConsumer(ctx context.Context, b *bench) error {
	cases := []struct {
		name string
		load load
		goal *goal
	}{
		{"consumer/hot", hotLoad, atLeast(0.8)},
		{"consumer/mixed", mixedLoad, atLeast(0.45)},
	}
	b.report.remark("consumer: raw COPY writes an order once, as it stands in the end; the ledger writes and then changes it.")
	return b.withRedis(ctx, func(_ *sandbox.Redis, rdb *redis.Client) error {
		for _, of := range cases {
			var rate, reference figure
			for round := range b.rounds {
				err := b.withShop(ctx, rdb, 1, of.load.skus(b), func(s *shop) error {
					r, c, err := consumerRound(ctx, b, s, of.load)
					rate, reference = append(rate, r), append(reference, c)
					return err
				})
				if err != nil {
					return fmt.Errorf("%s, round %d: %w", of.name, round+1, err)
				}
			}
			b.report.add(of.name, "rate over raw COPY's", "×", rate.over(reference), of.goal)
			b.report.add(of.name, "operations", "/s", rate, nil)
			b.report.add(of.name, "raw COPY", "/s", reference, nil)
		}
		return nil
	})
}

func consumerRound(ctx context.Context, b *bench, s *shop, l load) (rate, reference float64, err error) {
	steps := b.size.persist / l.stepOps()
	c, err := s.gather(ctx, l, steps)
	if err != nil {
		return 0, 0, err
	}
	row, err := s.ledger.Shard(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	_, told, err := c.run(ctx, 256, steps)
	if err != nil {
		return 0, 0, err
	}
	raws, err := s.readLog(ctx, 0, row.Position())
	if err != nil {
		return 0, 0, err
	}
	apply := func() error { return s.applyAll(ctx, raws) }
	took, err := timed(apply)
	if err != nil {
		return 0, 0, err
	}
	operations := float64(steps * l.stepOps())
	if err := s.verify(ctx, told); err != nil {
		return 0, 0, err
	}
	copied, err := s.copyRows(ctx, row.Position(), raws, len(told))
	return operations / took, operations / copied, err
}

func (s *shop) applyAll(ctx context.Context, raws []event.Raw) error {
	for at := 0; at < len(raws); at += entriesPerBatch {
		if _, err := s.ledger.Apply(ctx, 0, raws[at:min(at+entriesPerBatch, len(raws))]); err != nil {
			return err
		}
	}
	return nil
}

// spans are the first and last position of each transaction of the reference. They are those of the ledger's own.
func spans(raws []event.Raw) ([]span, error) {
	var all []span
	for at := 0; at < len(raws); at += entriesPerBatch {
		first, err := stock.ParsePosition(raws[at].ID)
		if err != nil {
			return nil, err
		}
		all = append(all, span{first.Epoch, first.Seq, first.Seq + int64(min(entriesPerBatch, len(raws)-at)) - 1})
	}
	return all, nil
}

// A span is some neighbouring entries of one epoch, both ends included.
type span struct{ epoch, first, last int64 }
