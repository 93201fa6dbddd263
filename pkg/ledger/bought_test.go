package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func by(buyer string, op stock.Operation) stock.Operation {
	op.Buyer = buyer
	return op
}

func limited(sku, n int64) stock.Operation {
	return stock.Operation{Kind: stock.Configure, ID: "~~limit", Lines: stock.Lines{{SKU: sku}}, Change: stock.Change{Opens: stock.Keep, Limit: n}}
}

func saleBy(id, buyer string, of stock.Lines) stock.Operation {
	return stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Buyer: buyer, Lines: of}
}

// boughtBy asks Postgres, as "<sku> <buyer>" → units.
func (w *teller) boughtBy(sql string) map[string]int64 {
	w.t.Helper()
	rows, err := w.l.pool.Query(context.Background(), sql)
	check(w.t, err)
	got := map[string]int64{}
	var sku, units int64
	var buyer string
	_, err = pgx.ForEachRow(rows, []any{&sku, &buyer, &units}, func() error {
		got[fmt.Sprint(sku, " ", buyer)] = units
		return nil
	})
	check(w.t, err)
	return got
}

const (
	boughtTable = `select sku, buyer, units from bought`
	// boughtTotal is what the table has to be, told without the product's own words for it.
	boughtTotal = `select l.sku, r.buyer, sum(l.fulfilled + case r.state when 'held' then l.now when 'confirmed' then l.now else 0 end)::bigint
from reservation r join reservation_line l using (shard, order_id, attempt) join stock s using (sku)
where s.buyer_limit > 0 and r.buyer <> '' group by 1, 2 having sum(l.fulfilled + case r.state when 'held' then l.now when 'confirmed' then l.now else 0 end) > 0`
)

func (w *teller) haveBought(when string, want map[string]int64) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.boughtBy(boughtTable)); diff != "" {
		w.t.Errorf("%s (-want +table):\n%s", when, diff)
	}
}

// What buyers have is what the log folds to, with everything from before the limit.
func TestWhatBuyersHaveIsHeldConfirmedAndShipped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 2), 0)
	tea, mug := w.sku(1000), w.sku(1000)
	other := newTeller(t, w.l, 1)
	far := other.sku(10)
	other.apply(other.entry(limited(far, 1)), other.entry(by("ann", reserve("f", 1, lines(far, 1)))))
	w.apply(w.entry(by("ann", reserve("a1", 1, lines(tea, 2, mug, 9))), saleBy("a2", "ann", lines(tea, 3)), saleBy("b1", "bob", lines(tea, 4)), by("cay", reserve("c1", 1, lines(tea, 5))),
		saleBy("n1", "", lines(tea, 6)), saleBy("d1", "dan", lines(tea, 2))))
	w.apply(w.entry(move(stock.Release, "c1", 1)))
	w.carried(draftOf("p1", stock.DocumentFulfil, "b1", lines(tea, 1)))
	w.carried(draftOf("p2", stock.DocumentCancel, "b1", lines(tea, 1)))
	w.carried(draftOf("p3", stock.DocumentFulfil, "a2", nil))
	w.carried(draftOf("p4", stock.DocumentReturn, "a2", lines(tea, 2))) // gives no room back
	w.carried(draftOf("p5", stock.DocumentCancel, "d1", nil))
	w.apply(w.entry(limited(tea, 9)))
	want := map[event.BuyerKey]int64{{SKU: tea, Buyer: "ann"}: 5, {SKU: tea, Buyer: "bob"}: 3}

	v, err := w.l.View(ctx, 0)
	check(t, err)
	defer v.Close()
	got := map[event.BuyerKey]int64{}
	for after, pages := (event.BuyerKey{}), 0; ; pages++ {
		page, next, err := v.Bought(ctx, after, 1)
		check(t, err)
		for k, n := range page {
			got[k] = n
		}
		if after = next; after == (event.BuyerKey{}) {
			if pages != 2 {
				t.Errorf("%d pages of one before the last", pages)
			}
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by pages (-want +got):\n%s", diff)
	}
	found, err := v.BoughtOf(ctx, []event.BuyerKey{{SKU: tea, Buyer: "ann"}, {SKU: tea, Buyer: "ann"}, {SKU: tea, Buyer: "dan"}, {SKU: mug, Buyer: "ann"}, {SKU: tea, Buyer: "zoe"}})
	if err != nil || cmp.Diff(map[event.BuyerKey]int64{{SKU: tea, Buyer: "ann"}: 5}, found) != "" {
		t.Errorf("by name: %v, %v", found, err)
	}
	claim, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, claim)
	check(t, err)
	s, err := w.l.Snapshot(ctx, claim)
	check(t, err)
	defer s.Close()
	got = map[event.BuyerKey]int64{}
	check(t, s.Bought(ctx, func(k event.BuyerKey, n int64) error {
		got[k] = n
		return nil
	}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("for a takeover (-want +got):\n%s", diff)
	}
}

// Each step is one batch, of entries of one operation.
func TestWhatBuyersHaveFollowsEachBatch(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea, mug := w.sku(1000), w.sku(1000)
	step := func(name string, want map[string]int64, ops ...stock.Operation) {
		t.Helper()
		var raws []event.Raw
		for _, op := range ops {
			raws = append(raws, w.entry(op))
		}
		w.apply(raws...)
		named := map[string]int64{}
		for key, n := range want {
			text, buyer, _ := strings.Cut(key, " ")
			named[fmt.Sprint(map[string]int64{"tea": tea, "mug": mug}[text], " ", buyer)] = n
		}
		w.haveBought(name, named)
		w.apply(raws...)
		w.haveBought(name+", again", named)
	}
	type m = map[string]int64
	step("no limit", m{}, saleBy("a1", "ann", lines(tea, 2, mug, 1)), by("bob", reserve("b1", 1, lines(tea, 3))))
	step("set between orders", m{"tea ann": 3, "tea bob": 3}, saleBy("a2", "ann", lines(tea, 1)), limited(tea, 9))
	step("and in front of one", m{"tea ann": 3, "tea bob": 3, "mug ann": 6}, limited(mug, 9), saleBy("a3", "ann", lines(mug, 5)))
	step("another limit", m{"tea ann": 3, "tea bob": 4, "mug ann": 6}, limited(tea, 4), by("bob", reserve("b2", 1, lines(tea, 1))))
	step("a release takes it away", m{"tea ann": 3, "tea bob": 1, "mug ann": 6}, move(stock.Release, "b1", 1))
	step("and the last leaves none", m{"tea ann": 3, "mug ann": 6}, move(stock.Expire, "b2", 1))
	step("held and given back in one", m{"tea ann": 3, "mug ann": 6}, by("cay", reserve("c1", 1, lines(tea, 1))), move(stock.Release, "c1", 1))
	step("nobody", m{"tea ann": 3, "mug ann": 6}, saleBy("n1", "", lines(tea, 1)))
	step("off", m{"mug ann": 6}, saleBy("d1", "dan", lines(tea, 1)), limited(tea, 0), saleBy("d2", "dan", lines(tea, 1)))
	step("on", m{"tea ann": 3, "tea dan": 2, "mug ann": 6}, limited(tea, 1))
	step("off and on", m{"tea ann": 3, "tea dan": 4, "mug ann": 6}, saleBy("d3", "dan", lines(tea, 1)), limited(tea, 0), saleBy("d4", "dan", lines(tea, 1)), limited(tea, 2))
	step("on and off", m{"tea ann": 3, "tea dan": 4}, limited(mug, 0), limited(mug, 3), limited(mug, 0))
	w.carried(draftOf("p1", stock.DocumentFulfil, "d1", nil))
	w.carried(draftOf("p2", stock.DocumentCancel, "d2", nil))
	step("a parcel and a cancellation", m{"tea ann": 3, "tea dan": 3}, saleBy("x", "", lines(mug, 1)))
	w.same()
}

// A SKU that is deleted keeps its limit, for its orders go on being cancelled and shipped.
func TestADeletedSKUKeepsWhatBuyersHave(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.apply(w.entry(limited(tea, 5)), w.entry(saleBy("a", "ann", lines(tea, 3))))
	w.closeForSale(tea)
	check(t, w.l.MarkDeleted(context.Background(), tea))
	w.carried(draftOf("c", stock.DocumentCancel, "a", lines(tea, 1)))
	w.haveBought("cancelled in part", map[string]int64{fmt.Sprint(tea, " ann"): 2})
	w.same()
}

// Figures that are only counted are counted anew where they do not fit: a shard does not halt on them.
func TestWhatSomebodyElseChangedOfWhatBuyersHaveIsCountedAnew(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"gone": `delete from bought where buyer = 'ann'`,
		"less": `update bought set units = 1 where buyer = 'ann'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			tea := w.sku(10)
			w.apply(w.entry(limited(tea, 5)), w.entry(by("ann", reserve("a", 1, lines(tea, 2))), saleBy("b", "bob", lines(tea, 1)), by("ann", reserve("c", 1, lines(tea, 3)))))
			exec(t, w.l, sql)
			if len(w.broken()) == 0 {
				t.Error("nothing is broken")
			}
			w.apply(w.entry(move(stock.Release, "a", 1)))
			w.haveBought("released", map[string]int64{fmt.Sprint(tea, " ann"): 3, fmt.Sprint(tea, " bob"): 1})
			w.same()
		})
	}
}

// What a batch changes is added to what stands, and nothing is counted: else a sale would read a million orders a batch.
func TestABatchAddsToWhatStandsAndCountsNothing(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.apply(w.entry(limited(tea, 5)), w.entry(by("ann", reserve("a", 1, lines(tea, 2)))))
	exec(t, w.l, `update bought set units = 100`)
	w.apply(w.entry(limited(tea, 6)), w.entry(saleBy("b", "ann", lines(tea, 3))))
	w.haveBought("more", map[string]int64{fmt.Sprint(tea, " ann"): 103})
	w.apply(w.entry(move(stock.Release, "a", 1)))
	w.haveBought("less", map[string]int64{fmt.Sprint(tea, " ann"): 101})
}

// What buyers have costs an audit what it reads, not what stands behind it.
func TestAPageOfWhatBuyersHaveReadsThatPage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	exec(t, w.l, `insert into bought (shard, sku, buyer, units) select 0, 7, 'b' || n, 1 from generate_series(1, 20000) n`)
	exec(t, w.l, `analyze bought`)
	rows, err := w.l.pool.Query(ctx, `explain (analyze, timing off, costs off) `+boughtPage, 0, 7, "b15", 100)
	check(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(t, err)
	text := strings.Join(plan, "\n")
	if strings.Contains(text, "Sort") || !strings.Contains(text, "bought_pkey") || !strings.Contains(text, "actual rows=100") || strings.Contains(text, "Filter") {
		t.Errorf("a page is read so:\n%s", text)
	}
}

// A rule that cannot break checks nothing.
func TestEachRuleOfDocumentsBreaksByItself(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	w.sold("o", lines(tea, 4))
	w.carried(draftOf("p", stock.DocumentFulfil, "o", lines(tea, 3)))
	w.carried(draftOf("r", stock.DocumentReturn, "o", lines(tea, 1)))
	w.same()
	for rule, c := range map[string]struct{ sql, undo string }{
		RuleShipped:       {`update reservation_line set fulfilled = 2`, `update reservation_line set fulfilled = 3`},
		RuleReturned:      {`update reservation_line set returned = 0`, `update reservation_line set returned = 1`},
		RuleEnded:         {`update reservation set state = 'fulfilled'`, `update reservation set state = 'confirmed'`},
		RuleCommitted:     {`update reservation_line set now = 2`, `update reservation_line set now = 1`},
		RuleShipped + "'": {`update stock_document set order_key = 2 where id = 'p'`, `update stock_document set order_key = 1 where id = 'p'`},
	} {
		exec(t, w.l, c.sql)
		v, err := w.l.View(ctx, 0)
		check(t, err)
		found, err := v.Invariants(ctx, 1<<40)
		check(t, err)
		check(t, v.Close())
		told := false
		for _, x := range found {
			told = told || fmt.Sprint(x.Rule, "'") == rule || x.Rule == rule
		}
		if !told {
			t.Errorf("%s did not break: %v", rule, found)
		}
		exec(t, w.l, c.undo)
	}
	w.same()
}
