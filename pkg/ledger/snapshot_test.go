package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// closedSnapshot closes the teller's epoch and reads everything that a takeover would put.
func closedSnapshot(t *testing.T, w *teller) (fields map[int64]event.Field, records map[string]string) {
	t.Helper()
	ctx := context.Background()
	c, err := w.l.Claim(ctx, w.shard, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
	s, err := w.l.Snapshot(ctx, c)
	check(t, err)
	defer func() { check(t, s.Close()) }()
	fields, records = map[int64]event.Field{}, map[string]string{}
	check(t, s.Stock(ctx, func(page map[int64]event.Field) error {
		maps.Copy(fields, page)
		return nil
	}))
	check(t, s.Records(ctx, func(page []takeover.Record) error {
		if len(page) == 0 || len(page) > pageSize {
			t.Errorf("a page of %d", len(page))
		}
		for _, r := range page {
			if _, twice := records[r.ID]; twice {
				t.Errorf("%s comes twice", r.ID)
			}
			records[r.ID] = r.Text
		}
		return nil
	}))
	return fields, records
}

func TestASnapshotIsWhatTheLogFoldsTo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a, b := w.sku(1_000_000), w.sku(50)
	for i := range 5 {
		var ops []stock.Operation
		for j := range 250 {
			ops = append(ops, reserve(fmt.Sprintf("o%d-%d", i, j), 1, lines(a, int64(j+1))))
		}
		w.apply(w.entry(ops...))
	}
	w.apply(w.entry(move(stock.Confirm, "o0-0", 1), move(stock.Release, "o0-1", 1), move(stock.Expire, "o0-2", 1)))
	w.apply(w.entry(reserve("o0-1", 2, lines(a, 1, b, 2)), move(stock.LateConfirm, "o0-2", 1)))
	doc, _, err := w.l.WriteDocument(ctx, NewDocument{ID: "d1", Kind: stock.DocumentAdjust, Reason: "r", Lines: lines(b, -3), DeadlineMillis: w.clock})
	check(t, err)
	_, _, err = w.l.WriteDocument(ctx, NewDocument{ID: "pending", Kind: stock.DocumentAdjust, Reason: "r", Lines: lines(b, -3), DeadlineMillis: w.clock})
	check(t, err)
	w.apply(w.entry(doc.Operation(), stock.Operation{Kind: stock.Configure, ID: "~~t", Lines: stock.Lines{{SKU: b}}, Change: stock.Change{Opens: stock.Keep, Closed: stock.On, Limit: stock.Keep}}))

	fields, records := closedSnapshot(t, w)
	wantFields := map[int64]event.Field{}
	for sku, q := range w.book.Stock {
		wantFields[sku] = event.Field{Quantities: q, Settings: w.book.Settings[sku]}
	}
	if diff := gocmp.Diff(wantFields, fields); diff != "" {
		t.Errorf("stock (-log +snapshot):\n%s", diff)
	}
	want := map[string]string{}
	for id, r := range w.book.Orders {
		want[id] = event.FormatRecord(r)
	}
	if diff := gocmp.Diff(want, records); diff != "" {
		t.Errorf("records (-log +snapshot):\n%s", diff)
	}
}

func TestASnapshotLeavesOutWhatRedisHasForgotten(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("held", 1, lines(a, 1)), reserve("gone", 1, lines(a, 1)), reserve("again", 1, lines(a, 1)),
		stock.Operation{Kind: stock.Sale, ID: "sold", Attempt: 1, Lines: lines(a, 1)}))
	w.apply(w.entry(move(stock.Release, "gone", 1), move(stock.Release, "again", 1)))
	exec(t, w.l, `update reservation set moved = now() - interval '25 hours'`)
	exec(t, w.l, `update stock_document set settled = now() - interval '25 hours'`)
	w.book.Forgetful = true
	w.apply(w.entry(reserve("again", 1, lines(a, 2))))
	_, records := closedSnapshot(t, w)
	want := map[string]string{
		"held":  event.FormatRecord(w.book.Orders["held"]),
		"again": event.FormatRecord(w.book.Orders["again"]), // under the attempt as asked
	}
	if diff := gocmp.Diff(want, records); diff != "" {
		t.Errorf("records (-want +snapshot):\n%s", diff)
	}
}

func TestAPageThatFailsEndsTheSnapshot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	w.sku(1)
	c, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
	s, err := w.l.Snapshot(ctx, c)
	check(t, err)
	broken := errors.New("broken")
	if err := s.Stock(ctx, func(map[int64]event.Field) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	check(t, s.Close())
}

func TestAViewStaysAtItsMoment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1)), reserve("o2", 1, lines(a, 1)), reserve("o3", 1, lines(a, 1))))
	v, err := w.l.View(ctx, 0)
	check(t, err)
	defer v.Close()
	before := *w.book.Orders["o1"]
	w.apply(w.entry(move(stock.Confirm, "o1", 1), reserve("o4", 1, lines(a, 5))))
	orders, err := v.Orders(ctx, []string{"o1", "o4", "o1"})
	check(t, err)
	if diff := gocmp.Diff(map[string]stock.Reservation{"o1": before}, orders); diff != "" {
		t.Error(diff)
	}
	var ids []string
	for after := ""; ; {
		page, err := v.Page(ctx, after, 2)
		check(t, err)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			ids = append(ids, r.ID)
		}
		after = page[len(page)-1].ID
	}
	if diff := gocmp.Diff([]string{"o1", "o2", "o3"}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestEveryInvariantCanBreak(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("o1", 1, lines(a, 2)), stock.Operation{Kind: stock.Sale, ID: "s1", Attempt: 1, Lines: lines(a, 3)}))
	w.apply(w.entry(reserve("o2", 1, lines(a, 1))))
	w.apply(w.entry(limited(a, 9), by("ann", reserve("o3", 1, lines(a, 4)))))
	w.same()
	exec(t, w.l, `update stock set held = held + 1, committed = committed - 1 where sku = $1`, a)
	exec(t, w.l, `delete from event where epoch = $1 and seq = $2`, w.at.Epoch, w.at.Seq-1)
	exec(t, w.l, `update stock_document set state = 'written'`)
	exec(t, w.l, `update bought set units = 5, buyer = case buyer when 'b' then 'bob' else buyer end`)
	exec(t, w.l, `insert into bought (shard, sku, buyer, units) values (0, $1, 'zoe', 1)`, a+1)
	exec(t, w.l, `update reservation set due = now() - interval '90 s' where order_id = 'o1'`)
	v, err := w.l.View(ctx, 0)
	check(t, err)
	defer v.Close()
	broken, err := v.Invariants(ctx, time.Minute)
	check(t, err)
	for i := range broken {
		if broken[i].Rule == RuleOverdue {
			if broken[i].Ledger < 90_000 {
				t.Errorf("%v", broken[i])
			}
			broken[i].Ledger = 0
		}
	}
	want := []Violation{
		{Rule: RuleHeld, SKU: a, Ledger: 8, Computed: 7},
		{Rule: RuleCommitted, SKU: a, Ledger: 2, Computed: 3},
		{Rule: RuleEvents, ID: fmt.Sprint(w.at.Epoch), Ledger: w.at.Seq, Computed: 1 - w.at.Seq},
		{Rule: RuleDocuments, ID: OpeningID(a), Ledger: 0, Computed: 1},
		{Rule: RuleBought, SKU: a, ID: "ann", Ledger: 5, Computed: 4},
		{Rule: RuleBought, SKU: a, ID: "b", Ledger: 0, Computed: 3},
		{Rule: RuleBought, SKU: a, ID: "bob", Ledger: 5, Computed: 0},
		{Rule: RuleBought, SKU: a + 1, ID: "zoe", Ledger: 1, Computed: 0},
		{Rule: RuleOverdue, ID: "o1", Computed: 60_000},
	}
	if diff := gocmp.Diff(want, broken); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	exec(t, w.l, `delete from event where epoch = $1 and seq = $2`, w.at.Epoch, w.at.Seq)
}
