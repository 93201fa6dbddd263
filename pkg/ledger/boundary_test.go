package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// planted makes every change of the shard's row run some SQL first.
func planted(t *testing.T, l *Ledger, sql string) {
	t.Helper()
	exec(t, l, `create function planted() returns trigger language plpgsql as $$ begin `+sql+` return new; end $$`)
	exec(t, l, `create trigger planted before update on shard for each row execute function planted()`)
}

// A position that stood beside its orders in another transaction would be wrong after every crash between the two.
func TestOrdersAndPositionAreOneTransaction(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1))))
	stored := count(t, w.l, `select count(*) from event`)
	planted(t, w.l, `if new.applied > old.applied then raise exception 'planted' using errcode = '`+deadlockDetected+`'; end if;`)
	raw := w.entry(reserve("o2", 1, lines(a, 1)), move(stock.Confirm, "o1", 1))
	if done, err := w.l.Apply(context.Background(), 0, []event.Raw{raw}); err == nil || done.Entries != 0 {
		t.Errorf("applied %+v, %v", done, err)
	}
	for table, want := range map[string]int64{
		`event`: stored, `reservation where order_id = 'o2'`: 0, `reservation where state = 'confirmed'`: 0,
		fmt.Sprintf(`stock where sku = %d and available = 9`, a): 1,
	} {
		if n := count(t, w.l, `select count(*) from `+table); n != want {
			t.Errorf("%d rows in %s, want %d: something was written without the position", n, table, want)
		}
	}
	exec(t, w.l, `drop trigger planted on shard`)
	w.apply(raw)
	w.same()
}

// A claim that a failover forgets could be given out twice, whatever the server or the role says of commits.
func TestAClaimWaitsForTheStandbysWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	planted(t, l, `if current_setting('synchronous_commit') <> 'on' then raise exception 'not synchronous'; end if;`)
	exec(t, l, `do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`)
	l.pool.Reset() // a session keeps what it began with
	claim, err := l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = l.CloseEpoch(ctx, claim)
	check(t, err)
	check(t, l.SayOpen(ctx, claim))
	halt(t, l, "an operator said so")
	again, err := l.Claim(ctx, 0, 0, true)
	check(t, err)
	check(t, l.Resume(ctx, again))
}

// An epoch ends where the ledger is when nobody can move it any more: an applier that holds the shard's row has
// still to be heard, or what it persists is called lost.
func TestAnEpochEndsWhereAnApplierUnderWayLeavesIt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	w.sku(10)
	claim, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	applier, err := w.l.pool.Begin(ctx)
	check(t, err)
	defer func() { _ = applier.Rollback(ctx) }()
	_, err = applier.Exec(ctx, `update shard set applied = applied + 1`)
	check(t, err)
	type ending struct {
		at  stock.Position
		err error
	}
	ended := make(chan ending, 1)
	go func() { // received below
		at, err := w.l.CloseEpoch(ctx, claim)
		ended <- ending{at, err}
	}()
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if count(t, w.l, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 0 {
			return fmt.Errorf("the end of the epoch does not wait")
		}
		return nil
	})
	check(t, applier.Commit(ctx))
	got := <-ended
	check(t, got.err)
	want := stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}
	if got.at != want {
		t.Errorf("it ended at %v, want %v", got.at, want)
	}
	if n := count(t, w.l, `select last_seq from epoch_end where epoch = $1`, want.Epoch); n != want.Seq {
		t.Errorf("its end was written as %d, want %d", n, want.Seq)
	}
}

// Two entries of one position in one batch: a log that was read twice, from two servers. Which of them is persisted
// may not be a matter of luck.
func TestTwoContentsOfOnePositionInABatchHalt(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	before := w.entry(reserve("o1", 1, lines(a, 1)))
	one := w.entry(reserve("o2", 1, lines(a, 1)))
	other := one
	other.At += "0"
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{before, one, one, other})
	halted := mustHalt(t, err)
	if !strings.Contains(halted.Reason, "other content") {
		t.Error(halted.Reason)
	}
	if n := count(t, w.l, `select count(*) from dead_event`); n != 1 || done.Entries > 2 {
		t.Errorf("%d entries kept as evidence, applied %+v", n, done)
	}
}

// Redis is rebuilt from a snapshot only while nothing moves: from the end of the epoch before until the new one opens.
func TestASnapshotIsOfAnEpochThatHasNotBegun(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	refused := func(when string) {
		t.Helper()
		s, err := w.l.Snapshot(ctx, w.claim)
		if err == nil {
			check(t, s.Close())
		}
		if !errors.Is(err, ErrStaleClaim) {
			t.Errorf("a snapshot %s: %v", when, err)
		}
	}
	refused("while it sells")
	claim, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	w.claim = claim
	refused("before the end of the epoch")
	_, err = w.l.CloseEpoch(ctx, claim)
	check(t, err)
	s, err := w.l.Snapshot(ctx, claim)
	check(t, err)
	check(t, s.Close())
}
