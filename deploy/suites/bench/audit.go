package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// measureAudit sweeps a shard that holds still, and audits one that is written to and persisted, one audit right
// after the other, beside the same writing without audits. Whatever such an audit finds is a false alarm.
func measureAudit(ctx context.Context, b *bench) error {
	b.report.remark("audit: writers, audits and the consumer share this machine's processors; a shop's do not.")
	return b.withRedis(ctx, func(server *sandbox.Redis, rdb *redis.Client) error {
		return b.withShop(ctx, rdb, 1, b.size.skus, func(s *shop) error {
			c, err := s.gather(ctx, zipfLoad, b.size.records)
			if err != nil {
				return err
			}
			_, told, err := c.run(ctx, 256, b.size.records)
			if err != nil {
				return err
			}
			if err := s.catchUp(ctx); err != nil {
				return err
			}
			if err := s.analyze(ctx); err != nil {
				return err
			}
			sweep, err := s.sweeps(ctx)
			if err != nil {
				return err
			}
			b.report.add("audit/sweep", "records of either side, with all rules", "/s", sweep, atLeast(5000))
			w := &watched{crowd: c, told: told}
			if err := s.withRoles(ctx, server, func() error { return w.rounds(ctx) }, consumer); err != nil {
				return err
			}
			b.report.add("audit/run", "one audit beside writers, p50", "ms", w.middle, nil)
			b.report.add("audit/run", "one audit beside writers, p99", "ms", w.slow, nil)
			b.report.add("audit/run", "audits of one round", "", w.audits, nil)
			b.report.add("audit/writers", "rate beside audits over without", "×", w.beside.over(w.alone), nil)
			b.report.add("audit/writers", "without audits", "/s", w.alone, nil)
			return s.verify(ctx, w.told)
		})
	})
}

// sweeps gives the records a second of a whole sweep at the default page, round by round.
func (s *shop) sweeps(ctx context.Context) (figure, error) {
	var rate figure
	for range s.bench.rounds {
		var report audit.Report
		took, err := timed(func() (err error) {
			report, err = s.sweep(ctx, 0, audit.DefaultPage)
			return err
		})
		if err != nil {
			return nil, err
		}
		if report.Orders < s.bench.size.records {
			return nil, wrong("a sweep over %d orders compared %d", s.bench.size.records, report.Orders)
		}
		rate = append(rate, float64(s.bench.size.records)/took)
	}
	return rate, nil
}

// watched is writers with and without audits beside them.
type watched struct {
	*crowd
	told          []ticket
	cursor        audit.Cursor
	alone, beside figure // writers' rates, a second
	audits        figure // of one round
	middle, slow  figure // ms
}

// rounds alternates, so that a machine whose speed drifts does not matter.
func (w *watched) rounds(ctx context.Context) error {
	for round := range w.shop.bench.rounds {
		for _, audited := range []bool{round%2 == 0, round%2 != 0} {
			if err := w.round(ctx, audited); err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
		}
	}
	return nil
}

// round writes one burst from 64 callers, and waits until the consumer has persisted it.
func (w *watched) round(ctx context.Context, audited bool) error {
	var took []float64
	var failed error
	auditing, stop := context.WithCancel(ctx)
	defer stop()
	var auditor sync.WaitGroup
	if audited {
		auditor.Go(func() { took, failed = w.auditUntil(auditing) })
	}
	w.begun.Store(0)
	rate, told, err := w.run(ctx, 64, w.shop.bench.size.burst)
	stop()
	auditor.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	w.told = append(w.told, told...)
	if !audited {
		w.alone = append(w.alone, rate)
	} else {
		w.beside, w.audits = append(w.beside, rate), append(w.audits, float64(len(took)))
		w.middle, w.slow = append(w.middle, percentile(50, took)), append(w.slow, percentile(99, took))
	}
	return w.shop.awaitPersisted(ctx)
}

// auditUntil audits page after page and gives how long each took in milliseconds. The one under way when ctx ends is
// finished.
func (w *watched) auditUntil(ctx context.Context) (took []float64, err error) {
	finish := context.WithoutCancel(ctx)
	auditor, sampler := ledger.NewAuditor(w.shop.ledger, 0), redisstock.NewSampler(w.shop.shards[0])
	for len(took) == 0 || ctx.Err() == nil {
		began := time.Now()
		report, err := audit.Run(finish, auditor, sampler, audit.Options{Cursor: w.cursor, SkipInvariants: true})
		if err := w.shop.judge(report, err); err != nil {
			return nil, fmt.Errorf("beside writers: %w", err)
		}
		took, w.cursor = append(took, millis(time.Since(began))), report.Cursor
	}
	return took, nil
}

// awaitPersisted returns when the consumer has come to the end of the log.
func (s *shop) awaitPersisted(ctx context.Context) error {
	for until := time.Now().Add(endPatience); ; {
		row, err := s.ledger.Shard(ctx, 0)
		if err != nil {
			return err
		}
		rest, err := s.shards[0].Range(ctx, row.Position(), 1)
		if err != nil || len(rest) == 0 {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("the consumer did not come to the end of the log within %v", endPatience)
		}
		if err := pause(ctx, peekEvery); err != nil {
			return err
		}
	}
}
