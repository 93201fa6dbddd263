package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func counting(id string, of stock.Lines, asOf AsOf) NewDocument {
	return NewDocument{ID: id, Kind: stock.DocumentCount, Reason: "year", Lines: of, AsOf: asOf, DeadlineMillis: farAway}
}

// TestACountIsOfItsMoment: 120 are counted at a moment, and 30 are sold and shipped before the count is posted.
func TestACountIsOfItsMoment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea, mug := w.sku(123), w.sku(5)
	w.clock += 1000
	w.apply(w.entry(reserve("before", 1, lines(tea, 1))))
	moment, at := w.at, w.clock
	w.clock += 1000
	for i := range 3 {
		id := fmt.Sprint("o", i)
		w.sold(id, lines(tea, 11))
		w.carried(draftOf("p-"+id, stock.DocumentFulfil, id, lines(tea, 10)))
		w.carried(draftOf("c-"+id, stock.DocumentCancel, id, lines(tea, 1)))
	}
	w.carried(NewDocument{ID: "in", Kind: stock.DocumentReceive, Reason: "r", Lines: lines(tea, 7, mug, 1), DeadlineMillis: farAway})
	w.carried(draftOf("back", stock.DocumentReturn, "o0", lines(tea, 2)))

	first := w.carried(counting("n1", lines(tea, 120), AsOf{Position: moment}))
	if cmp.Diff(lines(tea, -3), first.Lines) != "" || cmp.Diff(lines(tea, 120), first.Units) != "" || first.AsOf != moment {
		t.Errorf("%+v", first)
	}
	w.same()
	if q := w.quantities(tea); q.OnHand() != 120-30+7+2 {
		t.Errorf("%d on hand", q.OnHand())
	}
	// The same shelf counted again as of the same moment finds the books right by now.
	again := w.carried(counting("n2", lines(tea, 120), AsOf{Millis: at}))
	if cmp.Diff(lines(tea, 0), again.Lines) != "" || again.AsOf != moment {
		t.Errorf("%+v", again)
	}
	w.same()
	// A takeover ends the epoch; positions of it stay moments, and the order of moments stays.
	w.takeover()
	third := w.carried(counting("n3", lines(tea, 100, mug, 4), AsOf{}))
	if cmp.Diff(lines(tea, 1, mug, -2), third.Lines) != "" {
		t.Errorf("%+v", third)
	}
	w.same()
	var older *CountError
	if _, _, err := w.l.WriteDocument(ctx, counting("n4", lines(tea, 120), AsOf{Position: moment})); !errors.As(err, &older) ||
		older.Why != CountOlder || older.Last != third.AsOf || older.SKU != tea {
		t.Errorf("an older count: %v", err)
	}
	// Each of them is answered for ever, whatever is posted since.
	for _, n := range []NewDocument{counting("n1", lines(tea, 120), AsOf{Position: moment}), counting("n2", lines(tea, 120), AsOf{Millis: at}), counting("n3", lines(tea, 100, mug, 4), AsOf{})} {
		if doc, created, err := w.l.WriteDocument(ctx, n); err != nil || created || doc.State != DocumentApplied {
			t.Errorf("the repeat of %s: %v", n.ID, err)
		}
		n.Lines = lines(tea, 119)
		var conflict *ConflictError
		if _, _, err := w.l.WriteDocument(ctx, n); !errors.As(err, &conflict) || conflict.Field != "lines" {
			t.Errorf("another number under %s: %v", n.ID, err)
		}
		n.Lines, n.AsOf = lines(tea, 120), AsOf{Millis: 7}
		if _, _, err := w.l.WriteDocument(ctx, n); !errors.As(err, &conflict) {
			t.Errorf("another moment under %s: %v", n.ID, err)
		}
	}
}

func TestOneCountOfASKUIsInFlight(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea, mug := w.sku(10), w.sku(10)
	first := w.written(counting("n1", lines(tea, 9, mug, 9), AsOf{}))
	var flying *CountError
	if _, _, err := w.l.WriteDocument(ctx, counting("n2", lines(mug, 8), AsOf{})); !errors.As(err, &flying) || flying.Why != CountInFlight || flying.Document != "n1" {
		t.Errorf("a second one: %v", err)
	}
	refused := first.Operation()
	refused.Refused = true
	w.apply(w.entry(refused))
	// A count that was refused corrected nothing: an older moment is as good as ever.
	w.carried(counting("n2", lines(mug, 8), AsOf{Position: stock.Position{Epoch: w.at.Epoch, Seq: 3}}))
	w.same()
}

func TestACountBelowWhatIsPromisedNamesTheHolds(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	w.apply(w.entry(reserve("a", 1, lines(tea, 3)), reserve("gone", 1, lines(tea, 2))), w.entry(move(stock.Release, "gone", 1)))
	w.sold("b", lines(tea, 4))
	_, _, err := w.l.WriteDocument(context.Background(), counting("n", lines(tea, 6), AsOf{}))
	var below *CountError
	if !errors.As(err, &below) {
		t.Fatal(err)
	}
	want := CountError{
		Why: CountBelowPromised, SKU: tea, AsOf: w.at, Last: stock.Position{}, Counted: 6, OnHand: 6, Held: 3, Sold: 4,
		Promises: []Promise{{"b", 1, stock.Confirmed, 4}, {"a", 1, stock.Held, 3}},
	}
	if diff := cmp.Diff(want, *below); diff != "" {
		t.Error(diff)
	}
	w.carried(counting("n", lines(tea, 7), AsOf{}))
	w.same()
}

// Who looks at a SKU while its shard is being opened sees the beginning of an epoch.
func TestTheBeginningOfAnEpochIsAMoment(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	ended := w.closeEpoch()
	began := w.at
	if began.Seq != 0 {
		t.Fatalf("the epoch began at %v", began)
	}
	w.reopen(ended)
	w.sold("o", lines(tea, 3))
	w.carried(draftOf("p", stock.DocumentFulfil, "o", nil))
	if doc := w.carried(counting("n", lines(tea, 12), AsOf{Position: began})); doc.Lines[0].Asked != 2 || doc.AsOf != began {
		t.Errorf("12 where 10 were known: %+v", doc)
	}
	w.takeover()
	if doc := w.carried(counting("n2", lines(tea, 12), AsOf{Position: stock.Position{Epoch: w.at.Epoch}})); doc.Lines[0].Asked != 3 {
		t.Errorf("12 where 9 were known: %+v", doc)
	}
	var bad *stock.FieldError
	for _, at := range []stock.Position{{Epoch: began.Epoch + 1}, {Epoch: w.at.Epoch + 1}} {
		if _, _, err := w.l.WriteDocument(context.Background(), counting("n3", lines(tea, 12), AsOf{Position: at})); !errors.As(err, &bad) {
			t.Errorf("an epoch that never was, %v: %v", at, err)
		}
	}
	w.same()
}

func TestAMomentThatIsNotPersistedIsNoMoment(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(10)
	closed := w.at
	w.takeover()
	for name, asOf := range map[string]AsOf{
		"beyond":            {Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}},
		"beyond an end":     {Position: stock.Position{Epoch: closed.Epoch, Seq: closed.Seq + 1}},
		"an epoch to come":  {Position: stock.Position{Epoch: w.at.Epoch + 1, Seq: 1}},
		"before everything": {Millis: 5},
		"both":              {Position: w.at, Millis: w.clock},
	} {
		_, _, err := w.l.WriteDocument(context.Background(), counting("n", lines(tea, 10), asOf))
		var bad *stock.FieldError
		if !errors.As(err, &bad) || bad.Field != "as_of" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.carried(counting("n", lines(tea, 10), AsOf{Position: closed}))
}

// The last entry by a time is found by halves, in every epoch.
func TestATimeMeansTheLastEntryByThen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100_000)
	at := map[int64]stock.Position{w.clock: w.at}
	for i := range 25 {
		if i == 12 {
			w.clock += 10
			w.takeover()
			at[w.clock] = w.at
		}
		w.clock += 10
		w.apply(w.entry(reserve(fmt.Sprint("o", i), 1, lines(tea, 1))))
		at[w.clock] = w.at
	}
	tx, err := w.l.pool.Begin(ctx)
	check(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	for millis, want := range at {
		for _, later := range []int64{0, 9} {
			if got, err := positionOf(ctx, tx, 0, AsOf{Millis: millis + later}); err != nil || got != want {
				t.Errorf("by %d: %v, want %v (%v)", millis+later, got, want, err)
			}
		}
	}
}
