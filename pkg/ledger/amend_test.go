package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// results names what stands afterwards of some lines.
func results(kind stock.Kind, id string, of ...int64) stock.Operation {
	op := move(kind, id, 1)
	for i := 0; i < len(of); i += 2 {
		op.Lines = append(op.Lines, stock.Line{SKU: of[i], Now: of[i+1]})
	}
	return op
}

// Every row is as the log folds to, whether the order was there before or began in the same batch.
func TestPartsOfAnOrderMoveByThemselves(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint("one batch ", together), func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			tea, mug, jam := w.sku(100), w.sku(100), w.sku(100)
			var raws []event.Raw
			step := func(ops ...stock.Operation) {
				raws = append(raws, w.entry(ops...))
				if !together {
					w.apply(raws[len(raws)-1])
					w.same()
				}
			}
			partial := reserve("part", 1, stock.Lines{{SKU: tea, Asked: 9, Now: 2}, {SKU: mug, Asked: 1, Now: 0}})
			partial.Partial = true
			step(partial, reserve("conf", 1, lines(tea, 3, mug, 2)), reserve("late", 1, lines(tea, 3, mug, 2)),
				reserve("free", 1, lines(tea, 3, mug, 2)), reserve("swap", 1, lines(tea, 3, mug, 2)), reserve("long", 1, lines(tea, 1)))
			step(results(stock.Confirm, "conf", tea, 1), results(stock.Release, "free", tea, 1, mug, 0), move(stock.Expire, "late", 1))
			step(results(stock.LateConfirm, "late", mug, 1))
			swap := move(stock.Replace, "swap", 1)
			swap.Lines = lines(mug, 5, jam, 7)
			step(swap)
			again := move(stock.Replace, "swap", 1)
			again.Lines = lines(tea, 4, mug, 5)
			long := move(stock.Extend, "long", 1)
			long.Until = w.clock + 90_000
			step(again, long)
			step(move(stock.Release, "free", 1))
			w.apply(raws...)
			w.same()
			want := stock.Lines{{SKU: tea, Asked: 3, Now: 4}, {SKU: mug, Asked: 2, Now: 5}}
			if diff := cmp.Diff(want, w.stands("swap").Reservation.Lines); diff != "" {
				t.Errorf("replaced twice:\n%s", diff)
			}
			if diff := cmp.Diff(stock.Lines{{SKU: tea, Asked: 9, Now: 2}, {SKU: mug, Asked: 1}}, w.stands("part").Reservation.Lines); diff != "" {
				t.Errorf("taken in part:\n%s", diff)
			}
		})
	}
}

// A hold that was made longer is due by Postgres' clock after what it had left by Redis', wherever that clock stands.
func TestAnExtendedHoldIsDueByBothClocks(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.apply(w.entry(reserve("o", 1, lines(tea, 1))))
	w.clock += 30_000
	long := move(stock.Extend, "o", 1)
	long.Until = w.clock + 3_600_000
	w.apply(w.entry(long), w.entry(reserve("new", 1, lines(tea, 1))), w.entry(stock.Operation{Kind: stock.Extend, ID: "new", Attempt: 1, Until: w.clock + 3_600_000}))
	for _, id := range []string{"o", "new"} {
		got := w.stands(id)
		left := time.Until(got.Due)
		if got.Reservation.ExpiresMillis != long.Until || left < 58*time.Minute || left > 61*time.Minute {
			t.Errorf("%s is due in %v, expires %d", id, left, got.Reservation.ExpiresMillis)
		}
	}
	w.same()
}

// A document of an order whose record is gone changes the order's row, and neither the position by which Redis would
// drop the record nor the time by which the client may begin again.
func TestADocumentOfAForgottenOrderLeavesItForgotten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	w := newTeller(t, l, 0)
	tea := w.sku(20)
	w.sold("o", lines(tea, 4))
	sold := w.at
	exec(t, l, `update reservation set moved = now() - interval '25 hours'`)
	_, _, err := l.ForgetPage(ctx, 0, l.Retention(), ForgetCursor{}, 10)
	check(t, err)
	parcel := w.written(draftOf("p", stock.DocumentFulfil, "o", lines(tea, 1)))
	if parcel.Order != (stock.OrderRef{ID: "o", Key: 1}) {
		t.Errorf("it counts on a record: %+v", parcel.Order)
	}
	// The client begins anew in the same batch, and the rest of the old order is cancelled behind that.
	cancel := w.written(draftOf("c", stock.DocumentCancel, "o", nil))
	delete(w.book.Orders, "o")
	w.apply(w.entry(parcel.Operation()), w.entry(reserve("o", 1, lines(tea, 2))), w.entry(cancel.Operation()))
	w.same()
	found, err := l.Attempts(ctx, 0, "o", 10)
	check(t, err)
	if len(found) != 2 || found[0].Reservation.State != stock.Fulfilled || found[0].Reservation.Receipt.Position != sold ||
		time.Since(found[0].Moved) < 24*time.Hour || cmp.Diff(stock.Lines{{SKU: tea, Asked: 4, Fulfilled: 1}}, found[0].Reservation.Lines) != "" {
		t.Errorf("the old one: %+v", found)
	}
	if found[1].Reservation.State != stock.Held || found[1].Key != 2 || found[1].Reservation.Attempt != 1 {
		t.Errorf("the new one: %+v", found[1])
	}
	if q := w.quantities(tea); q != (stock.Quantities{Available: 17, Held: 2}) {
		t.Errorf("%v", q)
	}
	// A return of the older one finds it by its key.
	back := draftOf("r", stock.DocumentReturn, "o", lines(tea, 1))
	back.Order.Attempt = 1
	if _, _, err := l.WriteDocument(ctx, back); err == nil {
		t.Error("attempt 1 is the newest life's: it is held")
	}
}

func TestADocumentOfAnOrderThatIsNotThereHalts(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*stock.Operation){
		"no such order":     func(op *stock.Operation) { op.Order.ID = "none" },
		"no such attempt":   func(op *stock.Operation) { op.Order.Key = 2 },
		"more than it has":  func(op *stock.Operation) { op.Lines = lines(op.Lines[0].SKU, -3) },
		"refused, and none": func(op *stock.Operation) { op.Order.ID, op.Refused = "none", true },
		"returned, and none": func(op *stock.Operation) {
			op.Document, op.Order.ID, op.Lines = stock.DocumentReturn, "none", lines(op.Lines[0].SKU, 1)
		},
		"never shipped": func(op *stock.Operation) { op.Document, op.Lines = stock.DocumentReturn, lines(op.Lines[0].SKU, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			tea := w.sku(10)
			w.sold("o", lines(tea, 2))
			w.sold("more", lines(tea, 2)) // so that the sum of the SKU does not tell
			op := stock.Operation{
				Kind: stock.Movement, ID: "~d", Document: stock.DocumentFulfil, Reason: "r", Deadline: farAway,
				Lines: lines(tea, -1), Order: stock.OrderRef{ID: "o", Key: 1, Asked: 1},
			}
			spoil(&op)
			raw := event.Entry{Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}, AtMillis: w.clock, Ops: []stock.Operation{op}}.Raw()
			w.halts(raw)
			if n := count(t, w.l, `select count(*) from stock_document where id = 'd'`); n != 0 {
				t.Error("its document was written again")
			}
		})
	}
}

// Postgres lost the documents in a failover of its own, and the log still has their entries.
func TestLostDocumentsOfOrdersAreWrittenAgainFromTheirEntries(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.sold("o", lines(tea, 4))
	order := stock.OrderRef{ID: "o", Key: 1, Asked: 1}
	document := func(id, kind, buyer string, units int64) stock.Operation {
		return stock.Operation{
			Kind: stock.Movement, ID: "~" + id, Document: kind, Reason: "r", Deadline: farAway, Buyer: buyer,
			Lines: lines(tea, units), Order: order,
		}
	}
	refused := document("no", stock.DocumentFulfil, "", -4)
	refused.Refused = true
	counted := document("n", stock.DocumentCount, "", 5)
	counted.Order = stock.OrderRef{}
	w.apply(w.entry(document("p", stock.DocumentFulfil, "", -3), refused), w.entry(document("c", stock.DocumentCancel, "b", 1)),
		w.entry(document("r", stock.DocumentReturn, "", 1), document("s", stock.DocumentReturn, "", 0)), w.entry(counted))
	w.same()
	for _, n := range []NewDocument{
		draftOf("p", stock.DocumentFulfil, "o", lines(tea, 3)), draftOf("c", stock.DocumentCancel, "o", nil),
		draftOf("r", stock.DocumentReturn, "o", lines(tea, 1)), counting("n", lines(tea, 12), AsOf{}),
	} {
		n.Note, n.Reason = "gone with the row", "r"
		doc, created, err := w.l.WriteDocument(ctx, n)
		if err != nil || created || doc.State != DocumentApplied || !doc.Rebuilt {
			t.Errorf("the repeat of %s: %+v, %v, %v", n.ID, doc, created, err)
		}
	}
	if got := w.stands("o"); got.Reservation.State != stock.Fulfilled {
		t.Errorf("%+v", got)
	}
	if doc, err := w.l.Document(ctx, "n"); err != nil || doc.AsOf != w.at {
		t.Errorf("the count is as of %v, its own entry is %v (%v)", doc.AsOf, w.at, err)
	}
}

// What few batches do finds its rows by their key, too, before the first analyze.
func TestAmendmentsFindTheirRowsByIndexBeforeAnyAnalyze(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	for _, table := range []string{"reservation", "reservation_line", "stock", "stock_document", "forgetting", "bought"} {
		exec(t, w.l, `alter table `+table+` set (autovacuum_enabled = off)`)
	}
	tea := w.sku(1_000_000)
	exec(t, w.l, `insert into reservation (shard, order_id, attempt, asked, state, buyer, epoch, seq, idx, moved)
		select 0, 'o' || n, 1, 1, 'confirmed', 'b' || n, 1, n, 0, now() - n * interval '1 s' from generate_series(1, 20000) n`)
	exec(t, w.l, `insert into reservation_line (shard, order_id, attempt, sku, asked, now)
		select 0, 'o' || n, 1, 100 + n % 500, 5, 5 from generate_series(1, 20000) n`)
	exec(t, w.l, `insert into stock_document (id, shard, kind, lines, state, deadline_ms, order_id, order_key, order_asked, epoch, seq, settled)
		select 'd' || n, 0, 'fulfil', '[{"sku": 100, "units": -1}]', case when n % 1000 = 0 then 'written' else 'applied' end, 1, 'o' || n, 1, 1, 1, n,
		    now() - n * interval '1 s' from generate_series(1, 20000) n`)
	exec(t, w.l, `update stock set buyer_limit = 2`)
	exec(t, w.l, `insert into bought (shard, sku, buyer, units) select n % 2, 100 + n % 500, 'b' || n, 5 from generate_series(1, 20000) n`)
	const n = 500
	ids, texts, ones := make([]string, n), make([]string, n), make([]int64, n)
	for i := range ids {
		ids[i], texts[i], ones[i] = fmt.Sprint("o", i+1), "confirmed", 1
	}
	old, now := time.Now().Add(-time.Hour), time.Now()
	for name, c := range map[string]struct {
		sql  string
		args []any
		want []string
	}{
		"lines":     {updateLines, []any{0, ids, ones, ones, ones, ones}, []string{"reservation_line_pkey"}},
		"gone":      {deleteLines, []any{0, ids, ones, ones}, []string{"reservation_line_pkey"}},
		"returned":  {returnLines, []any{0, ids, ones, ones, ones}, []string{"reservation_line_pkey"}},
		"extended":  {extendHolds, []any{0, ids, ones, ones, ones}, []string{"reservation_pkey"}},
		"late":      {updateLate, []any{0, ids, ones, texts}, []string{"reservation_pkey"}},
		"kept":      {keepRecords, []any{0, ids, ones}, []string{"reservation_pkey"}},
		"counted":   {updateCounted, []any{0, ones, ones, ones}, []string{"stock_"}},
		"newest":    {selectNewest, []any{0, ids, int64(1000)}, []string{"reservation_pkey", "reservation_line_pkey"}},
		"keyed":     {selectKeyed, []any{0, ids, ones, int64(1000)}, []string{"reservation_pkey", "reservation_line_pkey"}},
		"lock":      {lockOrder, []any{0, "o7", 0, now}, []string{"reservation_pkey"}},
		"open":      {openLines, []any{0, "o7", 1}, []string{"stock_document_order", "reservation_line_pkey"}},
		"waiting":   {waitingWithRecord, []any{0, "o7", 1}, []string{"stock_document_order", "reservation_pkey"}},
		"count":     {countedStock, []any{0, []int64{tea}, 1, 19_000}, []string{"stock_document_applied"}},
		"in flight": {waitingCount, []any{0, []int64{tea}}, []string{"stock_document_written"}},
		"promises":  {promisesOf, []any{0, 101, 100}, []string{"reservation_line_sku", "reservation_pkey"}},
		"endings":   {endings, []any{0, old, "", now, 100}, []string{"reservation_moved", "stock_document_settled", "stock_document_order"}},
		"ended":     {anyEnding, []any{0, old, "", int64(1000)}, []string{"reservation_moved", "stock_document_settled"}},
		"old":       {oldOrders, []any{0, old, "", int64(1000), 100}, []string{"reservation_moved", "reservation_pkey"}},
		"attempts":  {oldAttempts, []any{0, ids, int64(1000)}, []string{"reservation_pkey"}},
		"prune":     {pruneOrders, []any{0, ids, ones}, []string{"reservation_pkey", "reservation_line_pkey", "stock_document_order"}},
		"bought":    {allBought, []any{0}, []string{"bought_pkey"}},
		"of":        {boughtOf, []any{0, ones, ids}, []string{"bought_pkey"}},
		"page":      {boughtPage, []any{0, 0, "", 100}, []string{"bought_pkey"}},
		"less":      {lessBought, []any{0, ones, ids, ones}, []string{"bought_pkey"}},
		"none":      {noneBought, []any{0, ones, ids, ones}, []string{"bought_pkey"}},
		"dropped":   {dropBought, []any{0, []int64{101, 102}}, []string{"bought_pkey"}},
		"anew":      {countBought, []any{0, []int64{101, 102}}, []string{"reservation_line_sku", "reservation_pkey"}},
		"document":  {waitingDocument, []any{0, movementOf(tea)}, []string{"stock_document_written"}},
	} {
		rows, err := w.l.pool.Query(ctx, `explain `+c.sql, c.args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text := strings.Join(plan, "\n")
		for _, index := range c.want {
			if !strings.Contains(text, index) {
				t.Errorf("%s does not go by %s:\n%s", name, index, text)
			}
		}
		for _, table := range []string{"reservation", "reservation_line", "stock_document", "bought"} {
			if strings.Contains(text, "Seq Scan on "+table+" ") {
				t.Errorf("%s reads all of %s:\n%s", name, table, text)
			}
		}
	}
}
