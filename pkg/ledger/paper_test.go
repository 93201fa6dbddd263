package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func receive(id string, of stock.Lines) stock.Operation {
	return stock.Operation{Kind: stock.Movement, ID: "~" + id, Document: stock.DocumentReceive, Reason: "po", Deadline: farAway, Lines: of}
}

func newSKU(number, units int64, text string) stock.Operation {
	return stock.Operation{Kind: stock.NewSKU, ID: fmt.Sprintf("~~open:%d", number), SKU: text, Deadline: farAway, Lines: lines(number, units)}
}

func TestDocumentsThatPostgresLostAreWrittenAgainFromTheirEntries(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	w := newTeller(t, l, 0)
	tea := w.sku(10)
	refused := receive("too-much", lines(tea, -99))
	refused.Document, refused.Refused = stock.DocumentAdjust, true
	raws := []event.Raw{
		w.entry(newSKU(7, 5, "jam}")),
		w.entry(receive("in", lines(tea, 3, 7, 1)), refused),
		w.entry(reserve("o", 1, lines(7, 2))),
		w.entry(newSKU(9, 0, "none"), receive("more", lines(9, 4))),
	}
	w.apply(raws...)
	w.same()
	want := map[string]Document{
		"~open:7": {Kind: stock.DocumentOpening, SKU: "jam}", State: DocumentApplied, Lines: lines(7, 5)},
		"~open:9": {Kind: stock.DocumentOpening, SKU: "none", State: DocumentApplied, Lines: lines(9, 0)},
		"in":      {Kind: stock.DocumentReceive, Reason: "po", State: DocumentApplied, Lines: lines(tea, 3, 7, 1)},
		"too-much": {
			Kind: stock.DocumentAdjust, Reason: "po", State: DocumentRefused, Lines: lines(tea, -99),
		},
		"more": {Kind: stock.DocumentReceive, Reason: "po", State: DocumentApplied, Lines: lines(9, 4)},
	}
	for id, d := range want {
		got, err := l.Document(context.Background(), id)
		check(t, err)
		if got.Settled.IsZero() || got.Receipt.Epoch != w.at.Epoch {
			t.Errorf("%s is settled at %v by %v", id, got.Settled, got.Receipt)
		}
		d.ID, d.DeadlineMillis, d.Rebuilt, d.Written, d.Settled, d.Receipt = id, farAway, true, got.Written, got.Settled, got.Receipt
		if diff := cmp.Diff(d, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	// Repeats are answered as ever: the shop's note is gone, and is no reason to call it another document.
	n := NewDocument{ID: "in", Kind: stock.DocumentReceive, Reason: "po", Note: "gate 4", Lines: []stock.Line{{SKU: tea, Asked: 3}, {SKU: 7, Asked: 1}}, DeadlineMillis: farAway}
	if doc, created, err := l.WriteDocument(context.Background(), n); err != nil || created || doc.State != DocumentApplied {
		t.Errorf("the repeat: %+v, created %v, %v", doc, created, err)
	}
	if doc, created, err := l.WriteOpening(context.Background(), "jam}", 5, 0, farAway); err != nil || created || doc.ID != "~open:7" {
		t.Errorf("the repeated opening: %+v, created %v, %v", doc, created, err)
	}
	n.Lines[0].Asked = 4
	var conflict *ConflictError
	if _, _, err := l.WriteDocument(context.Background(), n); !errors.As(err, &conflict) || conflict.Field != "lines" {
		t.Errorf("other lines under its id: %v", err)
	}
}

func TestADocumentWrittenOnceMoreIsSettledIfItIsTheSame(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	w := newTeller(t, l, 0)
	tea := w.sku(10)
	n := NewDocument{ID: "in", Kind: stock.DocumentReceive, Reason: "again", Note: "gate 4", Lines: []stock.Line{{SKU: tea, Asked: 3}}, DeadlineMillis: farAway + 5}
	_, created, err := l.WriteDocument(context.Background(), n)
	check(t, err)
	w.apply(w.entry(receive("in", lines(tea, 3))))
	w.same()
	doc, err := l.Document(context.Background(), "in")
	check(t, err)
	if !created || doc.State != DocumentApplied || doc.Rebuilt || doc.Note != "gate 4" {
		t.Errorf("created %v: %+v", created, doc)
	}
}

// halts applies an entry that must halt the shard with a reason that says all of what.
func (w *teller) halts(raw event.Raw, what ...string) {
	w.t.Helper()
	_, err := w.l.Apply(context.Background(), w.shard, []event.Raw{raw})
	var halted *HaltedError
	if !errors.As(err, &halted) {
		w.t.Fatalf("it was applied: %v", err)
	}
	for _, part := range what {
		if !strings.Contains(halted.Reason, part) {
			w.t.Errorf("the reason does not say %s: %s", part, halted.Reason)
		}
	}
}

func TestWhatTheLogAndTheTableTellDifferentlyHaltsAndNamesBoth(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		before func(w *teller, tea int64)
		op     func(tea int64) stock.Operation
		want   []string
	}{
		"other lines": {
			func(w *teller, tea int64) { w.write("in", tea, 4) },
			func(tea int64) stock.Operation { return receive("in", lines(tea, 3)) },
			[]string{`"units":4`, `"units":3`},
		},
		"other kind": {
			func(w *teller, tea int64) { w.write("in", tea, 3) },
			func(tea int64) stock.Operation {
				op := receive("in", lines(tea, 3))
				op.Document = stock.DocumentAdjust
				return op
			},
			[]string{"receive", "adjust"},
		},
		"text alive under another number": {
			func(w *teller, _ int64) {
				_, _, err := w.l.WriteOpening(context.Background(), "jam", 5, 0, farAway)
				check(w.t, err)
			},
			func(int64) stock.Operation { return newSKU(70, 5, "jam") },
			[]string{`"jam"`, "number 2", "number 70"},
		},
		"number of another text": {
			func(w *teller, _ int64) {
				_, _, err := w.l.WriteOpening(context.Background(), "jam", 5, 0, farAway)
				check(w.t, err)
			},
			func(int64) stock.Operation { return newSKU(2, 5, "mug") },
			[]string{"number 2", `"jam"`, `"mug"`},
		},
		"settled before": {
			func(w *teller, tea int64) { w.apply(w.entry(receive("in", lines(tea, 3)))) },
			func(tea int64) stock.Operation { return receive("in", lines(tea, 3)) },
			[]string{"applied by entry"},
		},
		"written for another shard": {
			func(w *teller, _ int64) {
				doc, _, err := w.l.WriteOpening(context.Background(), "far", 5, 1, farAway)
				check(w.t, err)
				w.write("in", doc.Lines[0].SKU, 3)
			},
			func(tea int64) stock.Operation { return receive("in", lines(tea, 3)) },
			[]string{"shard 1"},
		},
		"an order's id": {
			func(*teller, int64) {},
			func(tea int64) stock.Operation {
				op := receive("in", lines(tea, 3))
				op.ID = "in"
				return op
			},
			[]string{"no document's id"},
		},
		"an opening under another number's id": {
			func(*teller, int64) {},
			func(int64) stock.Operation {
				op := newSKU(70, 5, "jam")
				op.ID = "~~open:71"
				return op
			},
			[]string{"no document's id"},
		},
		"an unknown SKU": {
			func(*teller, int64) {},
			func(int64) stock.Operation { return receive("in", lines(70, 3)) },
			[]string{"70"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t, 2)
			w := newTeller(t, l, 0)
			tea := w.sku(10)
			row.before(w, tea)
			e := event.Entry{Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}, AtMillis: w.clock, Ops: []stock.Operation{row.op(tea)}}
			documents := count(t, l, `select count(*) from stock_document`)
			w.halts(e.Raw(), row.want...)
			if after := count(t, l, `select count(*) from stock_document`); after != documents {
				t.Errorf("%d documents became %d", documents, after)
			}
			if settled := count(t, l, `select count(*) from stock_document where epoch = $1 and seq = $2`, e.Epoch, e.Seq); settled != 0 {
				t.Errorf("%d documents were settled by it", settled)
			}
		})
	}
}

// write writes a document as a client would, without sending it.
func (w *teller) write(id string, sku, units int64) {
	w.t.Helper()
	_, _, err := w.l.WriteDocument(context.Background(), NewDocument{
		ID: id, Kind: stock.DocumentReceive, Reason: "po", Lines: []stock.Line{{SKU: sku, Asked: units}}, DeadlineMillis: farAway,
	})
	check(w.t, err)
}

// TestTheSameDocumentWrittenWhileItIsRebuiltIsOneRow lets a client's own transaction stand between the applier's look
// at the table and its write.
func TestTheSameDocumentWrittenWhileItIsRebuiltIsOneRow(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	w := newTeller(t, l, 0)
	tea := w.sku(10)
	raw := w.entry(receive("in", lines(tea, 3)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tx, err := l.pool.Begin(ctx)
	check(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `insert into stock_document (id, shard, kind, reason, note, lines, deadline_ms)
		values ('in', 0, 'receive', 'po', 'gate 4', $1, 1)`, movementJSON(lines(tea, 3)))
	check(t, err)
	var beside sync.WaitGroup
	beside.Go(func() {
		if _, err := l.Apply(ctx, 0, []event.Raw{raw}); err != nil {
			t.Error(err)
		}
	})
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if count(t, l, `select count(*) from pg_locks where not granted and database is null and locktype = 'transactionid'`) == 0 {
			return errors.New("the applier does not wait for the client")
		}
		return nil
	})
	check(t, tx.Commit(ctx))
	beside.Wait()
	doc, err := l.Document(ctx, "in")
	check(t, err)
	if doc.State != DocumentApplied || doc.Rebuilt || doc.Note != "gate 4" {
		t.Errorf("%+v", doc)
	}
	w.same()
}

func TestANumberInUseIsNeverGivenAgain(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	ctx := context.Background()
	w := newTeller(t, l, 0)
	w.apply(w.entry(newSKU(40, 5, "jam")))
	seen := map[int64]bool{40: true}
	for _, text := range []string{"a", "b"} {
		doc, _, err := l.WriteOpening(ctx, text, 1, 0, farAway)
		check(t, err)
		if n := doc.Lines[0].SKU; n <= 40 || seen[n] {
			t.Errorf("%s got number %d", text, n)
		}
		seen[doc.Lines[0].SKU] = true
	}
	// Also where the sequence was left behind what is in use while the numbers were looked at.
	exec(t, l, `select setval('sku_number_seq', 40)`)
	exec(t, l, `insert into sku (number, shard, sku, opening) overriding system value values (1000000, 0, 'far', 0)`)
	if doc, created, err := l.WriteOpening(ctx, "c", 1, 0, farAway); err != nil || !created || doc.Lines[0].SKU <= 1_000_000 {
		t.Errorf("%+v, created %v, %v", doc, created, err)
	}
}

func TestConcurrentOpeningsOfManySKUsAllGetANumber(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 10 {
				if i == 5 {
					exec(t, l, `select setval('sku_number_seq', 1)`)
				}
				if _, created, err := l.WriteOpening(context.Background(), fmt.Sprintf("s%d-%d", worker, i), 1, 0, farAway); err != nil || !created {
					t.Errorf("created %v, %v", created, err)
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, l, `select count(distinct number) from sku`); n != 80 {
		t.Errorf("%d numbers of 80", n)
	}
}
