package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// storeAttempt stores an attempt as Apply does.
func storeAttempt(t testing.TB, l *Ledger, shard int, order string, key int64, state stock.State, dueIn time.Duration) {
	t.Helper()
	exec(t, l, `insert into reservation (shard, order_id, attempt, asked, state, buyer, expires_ms, due, epoch, seq, idx)
		values ($1, $2, $3, 1, $4, 'u7', 5000, now() + $5::interval, 3, $3, 1)`, shard, order, key, string(state), dueIn)
	exec(t, l, `insert into reservation_line (shard, order_id, attempt, sku, asked, now)
		values ($1, $2, $3, 40, 2, 2), ($1, $2, $3, 12, 5, 4)`, shard, order, key)
}

func TestLookupFindsTheNewestAttemptOfEveryShard(t *testing.T) {
	t.Parallel()
	l := open(t, 3)
	storeAttempt(t, l, 0, "o1", 1, stock.Expired, 0)
	storeAttempt(t, l, 0, "o1", 2, stock.Held, time.Minute)
	storeAttempt(t, l, 2, "o1", 1, stock.Confirmed, time.Minute)
	storeAttempt(t, l, 1, "o10", 1, stock.Held, time.Minute)
	got, err := l.Lookup(context.Background(), "o1")
	if err != nil {
		t.Fatal(err)
	}
	found := func(shard int, key int64, state stock.State) Found {
		return Found{Key: key, Reservation: stock.Reservation{
			ID: "o1", State: state, Attempt: 1, ExpiresMillis: 5000, Buyer: "u7",
			Receipt: stock.Receipt{Shard: shard, Position: stock.Position{Epoch: 3, Seq: key}, Index: 1},
			Lines:   stock.Lines{{SKU: 12, Asked: 5, Now: 4}, {SKU: 40, Asked: 2, Now: 2}},
		}}
	}
	want := []Found{found(0, 2, stock.Held), found(2, 1, stock.Confirmed)}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Found{}, "Due", "Moved")); diff != "" {
		t.Error(diff)
	}
	if len(got) == 2 && (got[0].Due.IsZero() || got[0].Moved.IsZero()) {
		t.Errorf("times are missing: %+v", got[0])
	}
	for _, order := range []string{"o2", "", "nul\x00", "o 1"} {
		if got, err := l.Lookup(context.Background(), order); len(got) != 0 || err != nil {
			t.Errorf("%q: %v, %v", order, got, err)
		}
	}
}

func TestAnAttemptIsFoundAsTheClientNumberedIt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 2)
	storeAttempt(t, l, 0, "o1", 1, stock.Released, 0)
	storeAttempt(t, l, 0, "o1", 2, stock.Confirmed, time.Minute)
	storeAttempt(t, l, 0, "o1", 3, stock.Expired, 0)
	storeAttempt(t, l, 1, "o1", 4, stock.Held, 0)
	exec(t, l, `update reservation set asked = 2 where attempt = 2`) // the third is the first of another life
	for attempt, want := range map[int64]stock.State{1: stock.Expired, 2: stock.Confirmed, 3: ""} {
		got, there, err := l.Attempt(ctx, 0, "o1", attempt)
		if err != nil || there != (want != "") || got.Reservation.State != want {
			t.Errorf("attempt %d: %+v, %v, %v", attempt, got, there, err)
		}
		if there && (got.Reservation.Attempt != attempt || len(got.Reservation.Lines) != 2 || got.Reservation.Buyer != "u7") {
			t.Errorf("attempt %d: %+v", attempt, got)
		}
	}
	for _, order := range []string{"o2", "nul\x00"} {
		if _, there, err := l.Attempt(ctx, 0, order, 1); there || err != nil {
			t.Errorf("%q: %v, %v", order, there, err)
		}
	}
}

// plan explains a query on tables that were never analysed, with many rows in them.
func plan(t testing.TB, l *Ledger, sql string, args ...any) string {
	t.Helper()
	exec(t, l, `insert into reservation (shard, order_id, attempt, asked, state, due, epoch, seq, idx)
		select n % 4, 'x' || n, 1, 1, case when n % 10 = 0 then 'held' else 'confirmed' end, now() + n * interval '1 ms', 1, n, 0
		from generate_series(1, 20000) n`)
	exec(t, l, `insert into stock_document (id, shard, kind, lines, state, deadline_ms)
		select 'd' || n, n % 4, 'receive', '[]', case when n % 1000 = 0 then 'written' else 'applied' end, 1 from generate_series(1, 20000) n`)
	exec(t, l, `insert into outcome (order_id, code) select 'x' || n, 'lost' from generate_series(1, 20000) n`)
	rows, err := l.pool.Query(context.Background(), "explain "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestLookupGoesByTheKeyInAFreshTable(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	text := plan(t, l, lookup, "x77")
	if !strings.Contains(text, "reservation_pkey") || strings.Contains(text, "Seq Scan on reservation") ||
		!strings.Contains(text, "(order_id = 'x77'::text)") || !strings.Contains(text, "shard = s.number") {
		t.Error(text)
	}
}

func TestDueGoesByItsIndexInAFreshTable(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	text := plan(t, l, dueHolds, 1, 100, time.Now(), "x5")
	if !strings.Contains(text, "reservation_due") || strings.Contains(text, "Seq Scan") {
		t.Error(text)
	}
}

func TestPagesGoByTheirIndexesInFreshTables(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	text := plan(t, l, pendingDocuments, 1, time.Second, "d5", 10)
	if !strings.Contains(text, "stock_document_written") || strings.Contains(text, "stock_document_pkey") {
		t.Error(text)
	}
	text = plan(t, open(t, 4), outcomesOfOrder, "x5", 10)
	if !strings.Contains(text, "outcome_once") || strings.Contains(text, "outcome_pkey") {
		t.Error(text)
	}
}

func TestDueHoldsComeOldestFirstPageByPage(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	for i := range 5 {
		storeAttempt(t, l, 0, fmt.Sprint("late", i), 1, stock.Held, time.Duration(i-60)*time.Second)
	}
	// Equal times, so that only the id orders them.
	exec(t, l, `update reservation set due = (select min(due) from reservation) where order_id in ('late1', 'late2')`)
	storeAttempt(t, l, 0, "early", 1, stock.Held, time.Hour)
	storeAttempt(t, l, 0, "sold", 1, stock.Confirmed, -time.Hour)
	storeAttempt(t, l, 1, "other", 1, stock.Held, -time.Hour)
	var ids []string
	var after *DueHold
	for {
		page, err := l.Due(context.Background(), 0, 2, after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, h := range page {
			ids = append(ids, h.OrderID)
			if h.Attempt != 1 || h.Key != 1 || h.ExpiresMillis != 5000 {
				t.Errorf("%+v", h)
			}
		}
		after = &page[len(page)-1]
	}
	if diff := cmp.Diff([]string{"late0", "late1", "late2", "late3", "late4"}, ids); diff != "" {
		t.Error(diff)
	}
	for by, want := range map[time.Duration]int64{0: 5, 58 * time.Second: 3, time.Hour: 0} {
		if got, err := l.Overdue(context.Background(), 0, by); got != want || err != nil {
			t.Errorf("overdue by %v: %d, %v; want %d", by, got, err, want)
		}
	}
}

func TestAnOutcomeToldAgainIsOneRow(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	lost := Outcome{Shard: 1, OrderID: "o1", Attempt: 2, Code: OutcomeLost, Detail: json.RawMessage(`{"receipt": "1.3.7.0"}`)}
	rejected := Outcome{Shard: -1, OrderID: "o1", Attempt: 1, Code: OutcomeRejected}
	for i := range 3 {
		again := lost
		if i > 0 {
			again.Detail = json.RawMessage(fmt.Sprintf(`{"available": %d}`, i))
		}
		for _, o := range []Outcome{again, rejected} {
			if err := l.RecordOutcome(context.Background(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := l.Outcomes(context.Background(), "o1", 10)
	if err != nil {
		t.Fatal(err)
	}
	rejected.Detail = json.RawMessage(`{}`)
	if diff := cmp.Diff([]Outcome{rejected, lost}, got, cmpopts.IgnoreFields(Outcome{}, "ID", "Recorded")); diff != "" {
		t.Error(diff)
	}
	if first, err := l.Outcomes(context.Background(), "o1", 1); len(first) != 1 || err != nil {
		t.Errorf("%v, %v", first, err)
	}
	var bad *stock.FieldError
	for _, o := range []Outcome{{OrderID: "o 1", Attempt: 1, Code: "lost"}, {OrderID: "o1", Code: "lost"}, {OrderID: "o1", Attempt: 1}} {
		if err := l.RecordOutcome(context.Background(), o); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestARepairKeepsItsEvidence(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	ctx := context.Background()
	r := Repair{Shard: 1, Class: "rewound", Verb: "takeover", By: "r1", Before: json.RawMessage(`{"seq": 4}`)}
	id, err := l.BeginRepair(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	open, err := l.Repairs(ctx, 1, 10)
	if err != nil || len(open) != 1 || !open[0].Ended.IsZero() {
		t.Fatalf("%+v, %v", open, err)
	}
	for _, after := range []string{`{"epoch": 9}`, `{"epoch": 10}`} { // the second is a repeat
		if err := l.FinishRepair(ctx, id, json.RawMessage(after)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.FinishRepair(ctx, id+1, nil); !errors.Is(err, ErrUnknownRepair) {
		t.Errorf("got %v", err)
	}
	all, err := l.Repairs(ctx, -1, 10)
	if err != nil {
		t.Fatal(err)
	}
	r.ID, r.After = id, json.RawMessage(`{"epoch": 9}`)
	if diff := cmp.Diff([]Repair{r}, all, cmpopts.IgnoreFields(Repair{}, "Began", "Ended")); diff != "" || all[0].Ended.IsZero() {
		t.Error(diff, all)
	}
	if none, err := l.Repairs(ctx, 0, 10); len(none) != 0 || err != nil {
		t.Errorf("%v, %v", none, err)
	}
}

func TestSilentProducersAreForgotten(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	ctx := context.Background()
	exec(t, l, `insert into producer (id, libraries, seen) values ('old', '{1}', now() - interval '1 hour'), ('new', '{1,2}', now())`)
	live, err := l.Producers(ctx, time.Minute)
	if err != nil || len(live) != 1 || live[0].ID != "new" {
		t.Errorf("%+v, %v", live, err)
	}
	if n, err := l.DropProducers(ctx, time.Minute); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestNowIsPostgresClock(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	got, err := l.Now(context.Background())
	if off := time.Since(time.UnixMilli(got)).Abs(); err != nil || off > time.Minute {
		t.Errorf("%d is %v off (%v)", got, off, err)
	}
}
