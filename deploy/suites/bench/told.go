package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// auditPage is how many orders of each side the ending audit compares, beside all SKUs.
const auditPage = 5000

// A ticket is what a caller was last told of one order.
type ticket struct {
	id    string
	shard int
	sku   int64
	state stock.State
}

// errWrong is in every error that means a wrong answer.
var errWrong = errors.New("wrong answer")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errWrong, fmt.Sprintf(format, args...))
}

// verify ends a measurement. It compares what the callers were told, one unit an order, with both stores: every
// SKU's quantities and every order's state in Redis, and every order's state in Postgres after the rest of the log was
// applied. And it audits both stores against each other: what the callers cannot know (positions, times, the log, the
// rules within Postgres) is compared there.
func (s *shop) verify(ctx context.Context, told []ticket) error {
	if s.bench.plant != nil {
		if err := s.bench.plant(ctx, s); err != nil {
			return fmt.Errorf("plant: %w", err)
		}
	}
	if n := s.desk.Stats().Unclassified.Load(); n != 0 {
		return wrong("%d errors that no rule knows", n)
	}
	states := make(map[string]stock.State, len(told))
	for i := range told {
		if _, twice := states[told[i].id]; twice {
			return wrong("two callers were given the order %s", told[i].id)
		}
		states[told[i].id] = told[i].state
	}
	var errs []error
	for n := range s.shards {
		errs = append(errs, s.verifyStock(ctx, n, told))
	}
	errs = append(errs, s.verifyRecords(ctx, states))
	if err := s.catchUp(ctx); err != nil {
		return errors.Join(append(errs, fmt.Errorf("apply the rest of the log: %w", err))...)
	}
	for n := range s.shards {
		errs = append(errs, s.audit(ctx, n))
	}
	return errors.Join(append(errs, s.verifyLedger(ctx, states))...)
}

// verifyStock compares the SKUs of one shard in Redis.
func (s *shop) verifyStock(ctx context.Context, shard int, told []ticket) error {
	want := map[int64]stock.Quantities{}
	for _, sku := range s.skus[shard] {
		want[sku] = stock.Quantities{Available: opening}
	}
	for i := range told {
		if told[i].shard != shard {
			continue
		}
		q := want[told[i].sku]
		switch told[i].state {
		case stock.Held:
			q.Available, q.Held = q.Available-1, q.Held+1
		case stock.Confirmed:
			q.Available, q.Committed = q.Available-1, q.Committed+1
		}
		want[told[i].sku] = q
	}
	fields, err := s.shards[shard].Fields(ctx)
	if err != nil {
		return err
	}
	for sku, q := range want {
		field, err := event.ParseField(fields[sku])
		if err != nil || field.Quantities != q {
			return wrong("by the callers' lists SKU %d of shard %d has %s, Redis has %q", sku, shard, q, fields[sku])
		}
	}
	return nil
}

// verifyRecords compares every order in Redis, all shards together.
func (s *shop) verifyRecords(ctx context.Context, want map[string]stock.State) error {
	have := make(map[string]stock.State, len(want))
	for n, shard := range s.shards {
		for cursor, begun := uint64(0), false; cursor != 0 || !begun; begun = true {
			page, next, err := shard.Scan(ctx, takeover.TargetOrders, cursor, logPage)
			if err != nil {
				return err
			}
			for id, text := range page {
				record, err := event.ParseRecord(n, id, text)
				if err != nil {
					return wrong("Redis has a record that cannot be read: %v", err)
				}
				if !strings.HasPrefix(id, "~") { // the opening documents of the SKUs
					have[id] = record.State
				}
			}
			cursor = next
		}
	}
	return compare(want, have, "Redis")
}

// audit looks at one shard: the equation over all SKUs and a page of the orders of both sides, and the rules within
// Postgres.
func (s *shop) audit(ctx context.Context, shard int) error {
	return s.judge(audit.Run(ctx, ledger.NewAuditor(s.ledger, 0), redisstock.NewSampler(s.shards[shard]), audit.Options{Shard: shard, Page: auditPage}))
}

// judge is nil for a report that compared something and found nothing.
func (s *shop) judge(report audit.Report, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("audit: %w", err)
	case len(report.Drifts) > 0:
		return wrong("the audit of shard %d found %d differences, the first one: %s", report.Shard, len(report.Drifts)+report.More, report.Drifts[0])
	case !report.Clean() || report.SKUs < len(s.skus[report.Shard]) || report.Orders == 0:
		return wrong("the audit of shard %d did not compare everything: %+v", report.Shard, report)
	}
	return nil
}

// verifyLedger compares every order's state in Postgres. That its stock agrees with them is a rule of the audit.
func (s *shop) verifyLedger(ctx context.Context, want map[string]stock.State) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "select order_id, state from reservation")
	if err != nil {
		return err
	}
	have := make(map[string]stock.State, len(want))
	var id, state string
	if _, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error { have[id] = stock.State(state); return nil }); err != nil {
		return err
	}
	return compare(want, have, "Postgres")
}

// sweep compares all orders of both sides of one shard.
func (s *shop) sweep(ctx context.Context, shard, page int) (audit.Report, error) {
	report, err := audit.Sweep(ctx, ledger.NewAuditor(s.ledger, 0), redisstock.NewSampler(s.shards[shard]), audit.Options{Shard: shard, Page: page})
	if err := s.judge(report, err); err != nil {
		return report, err
	}
	if !report.LedgerSwept || !report.RedisSwept {
		return report, wrong("a sweep of shard %d ended before its end: %+v", shard, report)
	}
	return report, nil
}

// analyze makes the statistics that a server at work has, so that orders are read as there.
func (s *shop) analyze(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "analyze"); err != nil {
		return fmt.Errorf("make statistics: %w", err)
	}
	return nil
}

// compare is for what the callers were told and what a store has.
func compare(want, have map[string]stock.State, store string) error {
	for id, state := range want {
		if have[id] != state {
			return wrong("the caller of order %s was told %s, %s has %q", id, state, store, have[id])
		}
	}
	if len(have) != len(want) {
		maps.DeleteFunc(have, func(id string, _ stock.State) bool { _, known := want[id]; return known })
		for id, state := range have {
			return wrong("%s has %d orders that no caller was told of, among them %s (%s)", store, len(have), id, state)
		}
	}
	return nil
}
