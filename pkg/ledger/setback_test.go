package ledger

import (
	"context"
	"testing"
	"time"
)

// TestClockSetBackKeepsNobodyWaiting: what is dated in the future was written before Postgres' clock was set back.
// Whoever wrote it may be dead, so nobody waits until that time has come again.
func TestClockSetBackKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	ctx := context.Background()
	const ttl = 10 * time.Second

	if has, err := l.TakeTurn(ctx, 0, "dead", ttl); err != nil || !has {
		t.Fatal(has, err)
	}
	if has, err := l.TakeTurn(ctx, 0, "next", ttl); err != nil || has {
		t.Fatalf("a turn was taken away from who has it: %v, %v", has, err)
	}
	exec(t, l, `update turn set until = until + interval '2 hours'`)
	if has, err := l.TakeTurn(ctx, 0, "next", ttl); err != nil || !has {
		t.Errorf("the turn of a holder from the future is kept: %v, %v", has, err)
	}

	if _, err := l.Assign(ctx, "dead", ttl); err != nil {
		t.Fatal(err)
	}
	exec(t, l, `update consumer set seen = seen + interval '2 hours'`)
	exec(t, l, `update assignment set until = until + interval '2 hours'`)
	if shards, err := l.Assign(ctx, "next", ttl); err != nil || len(shards) != 2 {
		t.Errorf("the shards of a consumer from the future are kept: %v, %v", shards, err)
	}

	exec(t, l, `insert into sku (shard, sku, opening) values (0, 'tea', 0)`)
	exec(t, l, `insert into stock_document (id, shard, kind, lines, deadline_ms, written)
		values ('paper', 0, 'receive', '[{"sku": 1, "units": 5}]', 0, now() + interval '2 hours')`)
	if papers, err := l.PendingDocuments(ctx, 0, time.Minute, "", 10); err != nil || len(papers) != 1 {
		t.Errorf("a document from the future is not finished: %v, %v", papers, err)
	}
}

// TestHoldIsOverdueByBothOfItsTimes: one that was made while a clock was wrong ends late, which is no violation.
func TestHoldIsOverdueByBothOfItsTimes(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	exec(t, l, `insert into reservation (shard, order_id, attempt, asked, state, buyer, expires_ms, due, epoch, seq, idx) values
		(0, 'late', 1, 1, 'held', '', extract(epoch from now() + interval '1 hour') * 1000, now() - interval '1 hour', 0, 1, 0),
		(0, 'overdue', 1, 1, 'held', '', extract(epoch from now() - interval '2 hours') * 1000, now() - interval '1 hour', 0, 2, 0)`)
	view, err := l.View(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	found, err := view.Invariants(context.Background(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var overdue []string
	for _, v := range found {
		if v.Rule == RuleOverdue {
			overdue = append(overdue, v.ID)
		}
	}
	if len(overdue) != 1 || overdue[0] != "overdue" {
		t.Errorf("overdue are %v", overdue)
	}
}
