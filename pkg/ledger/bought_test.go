package ledger

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func by(buyer string, op stock.Operation) stock.Operation {
	op.Buyer = buyer
	return op
}

// What buyers have is what the log folds to, with everything from before the limit.
func TestWhatBuyersHaveIsHeldConfirmedAndShipped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 2), 0)
	tea, mug := w.sku(1000), w.sku(1000)
	other := newTeller(t, w.l, 1)
	far := other.sku(10)
	limit := func(sku, n int64) stock.Operation {
		return stock.Operation{Kind: stock.Configure, ID: "~~limit", Lines: stock.Lines{{SKU: sku}}, Change: stock.Change{Opens: stock.Keep, Limit: n}}
	}
	other.apply(other.entry(limit(far, 1)), other.entry(by("ann", reserve("f", 1, lines(far, 1)))))
	sale := func(id, buyer string, of stock.Lines) stock.Operation {
		return stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Buyer: buyer, Lines: of}
	}
	w.apply(w.entry(by("ann", reserve("a1", 1, lines(tea, 2, mug, 9))), sale("a2", "ann", lines(tea, 3)), sale("b1", "bob", lines(tea, 4)), by("cay", reserve("c1", 1, lines(tea, 5))),
		sale("n1", "", lines(tea, 6)), sale("d1", "dan", lines(tea, 2))))
	w.apply(w.entry(move(stock.Release, "c1", 1)))
	w.carried(draftOf("p1", stock.DocumentFulfil, "b1", lines(tea, 1)))
	w.carried(draftOf("p2", stock.DocumentCancel, "b1", lines(tea, 1)))
	w.carried(draftOf("p3", stock.DocumentFulfil, "a2", nil))
	w.carried(draftOf("p4", stock.DocumentReturn, "a2", lines(tea, 2))) // gives no room back
	w.carried(draftOf("p5", stock.DocumentCancel, "d1", nil))
	w.apply(w.entry(limit(tea, 9)))
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
