package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

const year = 365 * 24 * time.Hour

// pruned goes through all steps.
func (w *teller) pruned(olderThan time.Duration, limit int) (sum Pruned) {
	w.t.Helper()
	for {
		p, err := w.l.Prune(context.Background(), w.shard, olderThan, sum.Next, limit)
		check(w.t, err)
		sum.Attempts, sum.Lines, sum.Looked, sum.Next = sum.Attempts+p.Attempts, sum.Lines+p.Lines, sum.Looked+p.Looked, p.Next
		if p.Looked < limit {
			return sum
		}
	}
}

// broken lists the invariants that do not hold.
func (w *teller) broken() []Violation {
	w.t.Helper()
	v, err := w.l.View(context.Background(), w.shard)
	check(w.t, err)
	defer v.Close()
	found, err := v.Invariants(context.Background(), time.Hour)
	check(w.t, err)
	return found
}

// forgotten lets Redis forget all that came to rest by now.
func (w *teller) forgotten() {
	w.t.Helper()
	w.aged(w.l.Retention() + time.Minute)
	_, next, err := w.l.ForgetPage(context.Background(), w.shard, w.l.Retention(), ForgetCursor{}, 100)
	check(w.t, err)
	check(w.t, w.l.KeepForgotten(context.Background(), w.shard, next))
}

func (w *teller) keys(id string) (keys []string) {
	w.t.Helper()
	rows, err := w.l.pool.Query(context.Background(), `select attempt || ' asked ' || asked || ' ' || state from reservation where order_id = $1 order by attempt`, id)
	check(w.t, err)
	keys, err = pgx.CollectRows(rows, pgx.RowTo[string])
	check(w.t, err)
	return keys
}

// An order whose earlier attempt is older than a later one: pruned one by one, its next life would get a key below what
// is left of this one, and its hold would never be found.
func TestAnOrderIsPrunedWhole(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea, mug := w.sku(1000), w.sku(1000)
	month := 30 * 24 * time.Hour
	w.apply(w.entry(reserve("f", 1, lines(tea, 1))))
	w.apply(w.entry(move(stock.Release, "f", 1)))
	w.aged(2 * month)
	w.apply(w.entry(reserve("f", 2, lines(tea, 2))))
	w.apply(w.entry(move(stock.Release, "f", 2)))
	w.forgotten()
	exec(t, w.l, `update forgetting set reached = now() - interval '1 s'`)
	if p := w.pruned(month, 100); p.Attempts != 0 {
		t.Errorf("pruned %+v: the second attempt is too young", p)
	}
	delete(w.book.Orders, "f")
	w.apply(w.entry(reserve("f", 1, lines(tea, 3))))
	if diff := cmp.Diff([]string{"1 asked 1 released", "2 asked 2 released", "3 asked 1 held"}, w.keys("f")); diff != "" {
		t.Error(diff)
	}
	if found := w.stands("f"); found.Reservation.State != stock.Held {
		t.Errorf("the order stands as %+v", found)
	}
	w.apply(w.entry(move(stock.Release, "f", 1)))
	// Of this one only the first attempt is kept by its limit.
	w.apply(w.entry(limited(mug, 9)), w.entry(reserve("g", 1, lines(mug, 1))), w.entry(move(stock.Release, "g", 1)),
		w.entry(reserve("g", 2, lines(tea, 1))), w.entry(move(stock.Release, "g", 2)))
	w.aged(3 * month)
	exec(t, w.l, `update forgetting set reached = now() - interval '1 s'`)
	plan, planLines, err := w.l.PrunePlan(context.Background(), 0, month)
	check(t, err)
	if p := w.pruned(month, 100); p.Attempts != 3 || p.Lines != 3 || plan != 3 || planLines != 3 {
		t.Errorf("pruned %+v, planned %d with %d lines, want all three", p, plan, planLines)
	}
	if diff := cmp.Diff([]string{"1 asked 1 released", "2 asked 2 released"}, w.keys("g")); diff != "" {
		t.Error(diff)
	}
	delete(w.book.Orders, "f")
	w.apply(w.entry(reserve("f", 1, lines(tea, 1))))
	w.same()
	if found := w.broken(); len(found) > 0 {
		t.Errorf("broken: %v", found)
	}
}

// An order may begin with a later attempt, or leave some out. Its next life still has the newest key.
func TestTheNewestRowHasTheHighestKey(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(1000)
	lives := [][]int64{{2}, {1, 5}, {1, 2}, {9}, {1}}
	for _, life := range lives {
		for i, attempt := range life {
			op := reserve("f", attempt, lines(tea, 1))
			op.Known = attempt > 1 && i == 0
			w.apply(w.entry(op))
			w.apply(w.entry(move(stock.Release, "f", attempt)))
		}
		w.forgotten()
		delete(w.book.Orders, "f")
	}
	want := []string{"1 asked 2 released", "2 asked 1 released", "5 asked 5 released", "6 asked 1 released", "7 asked 2 released", "9 asked 9 released", "10 asked 1 released"}
	if diff := cmp.Diff(want, w.keys("f")); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyWhatEndedAndIsForgottenIsPruned(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea, rare := w.sku(1000), w.sku(100)
	w.apply(w.entry(reserve("held", 1, lines(tea, 1)), reserve("gone", 1, lines(tea, 1)), reserve("late", 1, lines(tea, 1)), reserve("rare", 1, lines(rare, 1))))
	w.apply(w.entry(move(stock.Release, "gone", 1), move(stock.Release, "rare", 1), move(stock.Expire, "late", 1)))
	w.apply(w.entry(move(stock.LateConfirm, "late", 1)))
	w.sold("sold", lines(tea, 1))
	w.sold("sent", lines(tea, 2, rare, 1))
	w.sold("undone", lines(tea, 1))
	w.sold("shipped", lines(tea, 2))
	for _, id := range []string{"sent", "shipped"} {
		w.carried(draftOf("p-"+id, stock.DocumentFulfil, id, nil))
	}
	w.carried(draftOf("c", stock.DocumentCancel, "undone", nil))
	w.apply(w.entry(stock.Operation{Kind: stock.Configure, ID: "~~limit", Lines: stock.Lines{{SKU: rare}}, Change: stock.Change{Opens: stock.Keep, Limit: 2}}))
	w.same()
	w.aged(year)
	if p := w.pruned(30*24*time.Hour, 100); p.Attempts != 0 {
		t.Errorf("pruned what Redis may still know: %+v", p)
	}
	w.idsOf(3)
	_, next, err := w.l.ForgetPage(ctx, 0, w.l.Retention(), ForgetCursor{}, 100)
	check(t, err)
	check(t, w.l.KeepForgotten(ctx, 0, next))
	exec(t, w.l, `update forgetting set reached = now() - interval '2 days'`)
	if p := w.pruned(2*year, 100); p.Attempts != 0 {
		t.Errorf("pruned what is younger: %+v", p)
	}
	returned := w.written(draftOf("r", stock.DocumentReturn, "shipped", lines(tea, 1)))
	if p := w.pruned(30*24*time.Hour, 2); p.Attempts != 2 || p.Lines != 2 {
		t.Errorf("pruned %+v, want gone, undone", p)
	}
	w.apply(w.entry(returned.Operation()))
	if found := w.broken(); len(found) > 0 {
		t.Errorf("broken: %v", found)
	}
	if p := w.pruned(30*24*time.Hour, 2); p.Attempts != 1 || p.Lines != 1 {
		t.Errorf("pruned %+v, want what came back meanwhile", p)
	}
	var left []string
	rows, err := w.l.pool.Query(ctx, `select order_id || ' ' || state from reservation order by 1`)
	check(t, err)
	for rows.Next() {
		var id string
		check(t, rows.Scan(&id))
		left = append(left, id)
	}
	check(t, rows.Err())
	if diff := cmp.Diff([]string{"held held", "late confirmed", "late expired", "rare released", "sent fulfilled", "sold confirmed"}, left); diff != "" {
		t.Error(diff)
	}
	if n := count(t, w.l, `select count(*) from reservation_line l where not exists (select from reservation r where (r.order_id, r.attempt) = (l.order_id, l.attempt))`); n != 0 {
		t.Errorf("%d lines without an order", n)
	}
	// Its documents keep their answers, and its id may begin a life of its own.
	if doc, created, err := w.l.WriteDocument(ctx, draftOf("p-shipped", stock.DocumentFulfil, "shipped", nil)); err != nil || created || doc.State != DocumentApplied {
		t.Errorf("the repeat: %+v, %v, %v", doc, created, err)
	}
	delete(w.book.Orders, "shipped")
	w.sold("shipped", lines(tea, 3))
	w.carried(draftOf("p-anew", stock.DocumentFulfil, "shipped", lines(tea, 1)))
	if found := w.broken(); len(found) > 0 {
		t.Errorf("broken by the second life: %v", found)
	}
}

func TestPruningIsBounded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	var bad *stock.FieldError
	for name, call := range map[string]func() error{
		"older_than": func() error { _, err := l.Prune(ctx, 0, l.Retention(), PruneCursor{}, 1); return err },
		"limit":      func() error { _, err := l.Prune(ctx, 0, 2*l.Retention(), PruneCursor{}, MaxPruned+1); return err },
		"limit ":     func() error { _, err := l.Prune(ctx, 0, 2*l.Retention(), PruneCursor{}, 0); return err },
	} {
		if err := call(); !errors.As(err, &bad) || fmt.Sprint(bad.Field, " ") != name+" " && bad.Field != name[:len(name)-1] {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Prune(ctx, 9, 2*l.Retention(), PruneCursor{}, 1); !errors.Is(err, ErrUnknownShard) {
		t.Error(err)
	}
}
