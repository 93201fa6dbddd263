package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	if p := w.pruned(30*24*time.Hour, 2); p.Attempts != 3 || p.Lines != 3 {
		t.Errorf("pruned %+v, want gone, the first of late, undone", p)
	}
	w.apply(w.entry(returned.Operation()))
	broken := func() []Violation {
		v, err := w.l.View(ctx, 0)
		check(t, err)
		defer v.Close()
		found, err := v.Invariants(ctx, time.Hour)
		check(t, err)
		return found
	}
	if found := broken(); len(found) > 0 {
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
	if diff := cmp.Diff([]string{"held held", "late confirmed", "rare released", "sent fulfilled", "sold confirmed"}, left); diff != "" {
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
	if found := broken(); len(found) > 0 {
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
