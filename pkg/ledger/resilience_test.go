package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A trigger can raise what only a rare moment would.
func raising(t *testing.T, l *Ledger, state string, times int) {
	t.Helper()
	exec(t, l, `create sequence raised`)
	exec(t, l, fmt.Sprintf(`create function raise() returns trigger language plpgsql as $$
begin
    if nextval('raised') <= %d then raise exception 'planted' using errcode = '%s'; end if;
    return new;
end $$`, times, state))
	exec(t, l, `create trigger raising before insert on reservation for each row execute function raise()`)
}

func TestADeadlockOrSerializationFailureIsRetriedAndAppliedOnce(t *testing.T) {
	t.Parallel()
	for _, state := range []string{serializationFailure, deadlockDetected} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			a := w.sku(10)
			raising(t, w.l, state, 2)
			if done := w.apply(w.entry(reserve("o1", 1, lines(a, 1)))); done.Entries != 1 {
				t.Errorf("applied %+v", done)
			}
			w.same()
		})
	}
}

func TestEndlessConflictsAreAnErrorAndNothingIsApplied(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	raising(t, w.l, deadlockDetected, 1_000_000)
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{w.entry(reserve("o1", 1, lines(a, 1)))})
	if !isSQLState(err, deadlockDetected) || done.Entries != 0 {
		t.Errorf("applied %+v, %v", done, err)
	}
	if s, err := w.l.Shard(context.Background(), 0); err != nil || s.State != StateOpen {
		t.Errorf("%+v, %v: a conflict is not poison", s, err)
	}
}

func TestALostReplyToTheCommitIsLookedUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	direct := sandboxtest.Database(t, migrations.Up)
	w := newTeller(t, openURL(t, direct, 1), 0)
	a := w.sku(100)
	u, err := url.Parse(direct)
	check(t, err)
	proxy := sandboxtest.Proxy(t, u.Host)
	u.Host = proxy.Addr()
	l, err := Open(ctx, Config{URL: u.String(), MaxConns: 2})
	check(t, err)
	defer l.Close()
	proxy.CutAfterExecution(faultproxy.Contains("commit\x00"))
	done, err := l.Apply(ctx, 0, []event.Raw{w.entry(reserve("o1", 1, lines(a, 1)))})
	check(t, err)
	if done.Position != w.at || proxy.Fired() != 1 {
		t.Errorf("applied %+v after %d faults, want to know of %v", done, proxy.Fired(), w.at)
	}
	w.same()
}

func TestARowThatIsNotThereHaltsOnlyTheSecondTime(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1))))
	// The rows are read, but not found when they are to be moved.
	exec(t, w.l, `create function hide() returns trigger language plpgsql as $$ begin return null; end $$`)
	exec(t, w.l, `create trigger hiding before update on reservation for each row execute function hide()`)
	ok, bad := w.entry(reserve("o2", 1, lines(a, 1))), w.entry(move(stock.Confirm, "o1", 1))
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{ok, bad})
	halted := mustHalt(t, err)
	if done.Entries != 1 || !strings.Contains(halted.Reason, "fewer rows") {
		t.Errorf("applied %+v, %s", done, halted.Reason)
	}
}

func TestAHolderThatStoppedInsideACopyIsEnded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	config := w.l.pool.Config().ConnConfig.Copy()
	holder, err := pgx.ConnectConfig(ctx, config)
	check(t, err)
	defer holder.Close(ctx)
	_, err = holder.Exec(ctx, `begin`)
	check(t, err)
	_, err = holder.Exec(ctx, `select from shard where number = 0 for no key update`)
	check(t, err)
	r, wr := io.Pipe()
	copied := make(chan error, 1)
	go func() {
		_, err := holder.PgConn().CopyFrom(ctx, r, "copy event from stdin")
		copied <- err
	}()
	ended, err := w.l.endStalledHolder(ctx, 0, 200*time.Millisecond)
	if !ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	check(t, wr.Close())
	if err := <-copied; err == nil {
		t.Error("the holder went on")
	}
	w.apply(w.entry(reserve("o1", 1, lines(a, 1))))
	w.same()
}

func TestAHolderThatWorksIsNotEnded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	holder, err := pgx.ConnectConfig(ctx, l.pool.Config().ConnConfig.Copy())
	check(t, err)
	defer holder.Close(ctx)
	worked := make(chan error, 1)
	_, err = holder.Exec(ctx, `begin`)
	check(t, err)
	_, err = holder.Exec(ctx, `select from shard where number = 0 for no key update`)
	check(t, err)
	go func() {
		_, err := holder.Exec(ctx, `select pg_sleep(1)`)
		if err == nil {
			_, err = holder.Exec(ctx, `commit`)
		}
		worked <- err
	}()
	if ended, err := l.endStalledHolder(ctx, 0, 100*time.Millisecond); ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	check(t, <-worked)
}

func TestALockedShardIsToldAsHeld(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	exec(t, w.l, `alter database `+pgx.Identifier{w.l.pool.Config().ConnConfig.Database}.Sanitize()+` set idle_in_transaction_session_timeout = 0`)
	holder, err := pgx.Connect(ctx, w.l.pool.Config().ConnString())
	check(t, err)
	defer holder.Close(ctx)
	_, err = holder.Exec(ctx, `begin`)
	check(t, err)
	_, err = holder.Exec(ctx, `select from shard where number = 0 for no key update`)
	check(t, err)
	_, err = w.l.Apply(ctx, 0, []event.Raw{w.entry(reserve("o1", 1, lines(a, 1)))})
	var held *HeldError
	if !errors.As(err, &held) {
		t.Errorf("told as %v", err)
	}
}

// Joined by columns, the planner would compare every row with the whole batch before the first analyze.
func TestTransitionsFindTheirRowsByIndexBeforeAnyAnalyze(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	exec(t, w.l, `alter table reservation set (autovacuum_enabled = off)`)
	exec(t, w.l, `alter table stock set (autovacuum_enabled = off)`)
	a := w.sku(1_000_000)
	for i := range 20 {
		var ops []stock.Operation
		for j := range 250 {
			ops = append(ops, reserve(fmt.Sprintf("o%d-%d", i, j), 1, lines(a, 1)))
		}
		w.apply(w.entry(ops...))
	}
	ids := make([]string, 1000)
	ones, texts, confirmed := make([]int64, 1000), make([]string, 1000), make([]string, 1000)
	for i := range ids {
		ids[i], ones[i], texts[i], confirmed[i] = fmt.Sprintf("o%d-%d", i%20, i/20), 1, "held", "confirmed"
	}
	for name, c := range map[string]struct {
		sql   string
		args  []any
		index string
	}{
		"orders": {updateOrders, []any{0, ids, ones, texts, confirmed, ones, int64(1), ones}, "reservation_pkey"},
		"newest": {selectNewest, []any{0, ids, int64(1000)}, "reservation_pkey"},
		"stock":  {updateStock, []any{0, ones, ones, ones, ones}, "Index Scan using stock_"},
	} {
		tx, err := w.l.pool.Begin(ctx)
		check(t, err)
		rows, err := tx.Query(ctx, `explain `+c.sql, c.args...)
		check(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		check(t, err)
		check(t, tx.Rollback(ctx))
		text := strings.Join(plan, "\n")
		if !strings.Contains(text, c.index) || strings.Contains(text, "Seq Scan") || strings.Contains(text, "Hash Join") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
