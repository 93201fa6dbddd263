package event_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"pgregory.net/rapid"
)

const at = 1_790_000_000_000

// entry makes the entry seq of epoch 5 out of the text of its operations.
func entry(t testing.TB, seq int64, ops string) *event.Entry {
	t.Helper()
	parsed, err := event.ParseOperations(ops)
	if err != nil {
		t.Fatal(err)
	}
	return &event.Entry{Position: stock.Position{Epoch: 5, Seq: seq}, AtMillis: at, Ops: parsed}
}

// play folds a scenario: each line an entry's operations and what a SKU and an order are after it, or "poison".
//
//	<operations>  ->  <sku> <available>|<held>|<committed>, <id> <record> …
func play(t *testing.T, scenario string) {
	t.Helper()
	book, seq := event.NewBook(0), int64(0)
	for line := range strings.Lines(scenario) {
		line = strings.TrimSpace(line)
		ops, want, ok := strings.Cut(line, " -> ")
		if !ok {
			continue
		}
		seq++
		_, err := book.Apply(entry(t, seq, strings.TrimSpace(ops)), nil)
		want = strings.TrimSpace(want)
		if why, poison := strings.CutPrefix(want, "poison"); poison {
			var bad *event.PoisonError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), strings.TrimSpace(why)) {
				t.Errorf("%s: %v", line, err)
			}
			return // the book is half-way now
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for part := range strings.SplitSeq(want, ", ") {
			name, text, _ := strings.Cut(part, " ")
			var sku int64
			got := "none"
			if _, err := fmt.Sscan(name, &sku); err == nil {
				got = event.Field{Quantities: book.Stock[sku], Settings: book.Settings[sku]}.String()
			} else if r := book.Orders[name]; r != nil {
				got = event.FormatRecord(r)
			}
			if got != text {
				t.Fatalf("%s: %s is %s", line, name, got)
			}
		}
	}
}

const shelf = "N1|1=10|tea ~~open:1;N1|2=5|cup ~~open:2 -> 1 10|0|0, 2 5|0|0, ~~open:1 d|5-1-0|0|0||1=+10, ~~open:2 d|5-1-1|0|0||2=+5\n"

func TestOperationsMoveUnits(t *testing.T) {
	t.Parallel()
	for name, scenario := range map[string]string{
		"hold and confirm": `
			R900000|1|1=4,2=1 A,u1 -> 1 6|4|0, 2 4|1|0, A h|5-2-0|1|1790000900000|u1|1=4,2=1
			C1 A                   -> 1 6|0|4, 2 4|0|1, A c|5-3-0|1|1790000900000|u1|1=4,2=1`,
		"hold and release": `
			R900000|1|1=4 A -> 1 6|4|0, A h|5-2-0|1|1790000900000||1=4
			X1 A            -> 1 10|0|0, A r|5-3-0|1|1790000900000||1=4
			R900000|2|2=5 A -> 1 10|0|0, 2 0|5|0, A h|5-4-0|2|1790000900000||2=5`,
		"hold, expire, confirm late as the next attempt": `
			R1000|1|1=4 A -> 1 6|4|0, A h|5-2-0|1|1790000001000||1=4
			E1 A          -> 1 10|0|0, A e|5-3-0|1|1790000001000||1=4
			L1 A          -> 1 6|0|4, A c|5-4-0|2|1790000001000||1=4`,
		"sale": `
			S|1|1=10 A,u1 -> 1 0|0|10, A c|5-2-0|1|0|u1|1=10`,
		"several in one entry": `
			R900000|1|1=2 A B;S|1|1=1 C;C1 A;X1 B -> 1 7|0|3, A c|5-2-3|1|1790000900000||1=2, B r|5-2-4|1|1790000900000||1=2, C c|5-2-2|1|0||1=1`,
		"documents": `
			M1|receive|delivery|1=+5,2=+1 ~r1 -> 1 15|0|0, 2 6|0|0, ~r1 d|5-2-0|0|0||1=+5,2=+1
			M1|adjust|damage|1=-15 ~a1        -> 1 0|0|0, ~a1 d|5-3-0|0|0||1=-15
			m1|adjust|damage|1=-1 ~a2         -> 1 0|0|0, ~a2 n|5-4-0|0|0||1=-1`,
		"settings": `
			T1|-|+f|- ~~t             -> 1 10|0|0|0|f|0, ~~t none
			T1|1790000000001|+c|- ~~t -> 1 10|0|0|1790000000001|fc|0
			T1|-||5 ~~t               -> 1 10|0|0|1790000000001|fc|5
			T1|-|-f|- ~~t             -> 1 10|0|0|1790000000001|c|5
			T1|-||- ~~t               -> 1 10|0|0|1790000000001|c|5
			T1|0|-c|0 ~~t             -> 1 10|0|0`,
		"a part is confirmed, the rest given back": `
			R900000|1|1=4,2=2 A   -> 1 6|4|0, 2 3|2|0
			C1|1=3 A              -> 1 7|0|3, 2 5|0|0, A c|5-3-0|1|1790000900000||1=4:3,2=2:0`,
		"all is confirmed by naming it": `
			R900000|1|1=4,2=2 A   -> 1 6|4|0
			C1|1=4,2=2 A          -> 1 6|0|4, 2 3|0|2, A c|5-3-0|1|1790000900000||1=4,2=2`,
		"a part is confirmed late": `
			R1000|1|1=4,2=2 A     -> 1 6|4|0
			E1 A                  -> 1 10|0|0
			L1|2=1 A              -> 1 10|0|0, 2 4|0|1, A c|5-4-0|2|1790000001000||1=4:0,2=2:1`,
		"a part is released, then the rest": `
			R900000|1|1=4,2=2 A   -> 1 6|4|0
			X1|1=1 A              -> 1 9|1|0, 2 3|2|0, A h|5-3-0|1|1790000900000||1=4:1,2=2
			X1|1=0 A              -> 1 10|0|0, 2 3|2|0, A h|5-4-0|1|1790000900000||1=4:0,2=2
			X1|2=0 A              -> 1 10|0|0, 2 5|0|0, A r|5-5-0|1|1790000900000||1=4:0,2=2`,
		"released whole by naming it": `
			R900000|1|1=4 A       -> 1 6|4|0
			X1|1=0 A              -> 1 10|0|0, A r|5-3-0|1|1790000900000||1=4`,
		"what a part gave back is not confirmed late": `
			R1000|1|1=4 A         -> 1 6|4|0
			X1|1=1 A              -> 1 9|1|0
			E1 A                  -> 1 10|0|0, A e|5-4-0|1|1790000001000||1=4:1
			L1 A                  -> 1 9|0|1, A c|5-5-0|2|1790000001000||1=4:1`,
		"held longer": `
			R900000|1|1=4 A       -> 1 6|4|0
			U1|1790000900001 A    -> 1 6|4|0, A h|5-3-0|1|1790000900001||1=4`,
		"replaced": `
			R900000|1|1=4 A       -> 1 6|4|0
			P1|1=9,2=1 A          -> 1 1|9|0, 2 4|1|0, A h|5-3-0|1|1790000900000||1=4:9,2=0:1
			P1|2=5 A              -> 1 10|0|0, 2 0|5|0, A h|5-4-0|1|1790000900000||1=4:0,2=0:5
			P1|1=4 A              -> 1 6|4|0, 2 5|0|0, A h|5-5-0|1|1790000900000||1=4
			C1 A                  -> 1 6|0|4, A c|5-6-0|1|1790000900000||1=4`,
		"its own units are available to a replace": `
			R900000|1|1=10 A      -> 1 0|10|0
			P1|1=7 A              -> 1 3|7|0
			P1|1=10 A             -> 1 0|10|0, A h|5-4-0|1|1790000900000||1=10`,
		"a line that a replace brought is released": `
			R900000|1|1=4 A       -> 1 6|4|0
			P1|1=4,2=2 A          -> 2 3|2|0
			X1|2=0 A              -> 2 5|0|0, A h|5-4-0|1|1790000900000||1=4`,
		"partial": `
			R900000|1|1=20:10,2=2|p A,u1 -> 1 0|10|0, 2 3|2|0, A h|5-2-0|1|1790000900000|u1|1=20:10,2=2
			S|1|1=1:0,2=5:3|p B          -> 1 0|10|0, 2 0|2|3, B c|5-3-0|1|0||1=1:0,2=5:3
			X1 A                         -> 1 10|0|0, 2 2|0|3, A r|5-4-0|1|1790000900000|u1|1=20:10,2=2`,
		"shipped in parcels": `
			S|1|1=3,2=1 A                           -> 1 7|0|3
			M1|fulfil|p|1=-1|A|1|1 ~f1              -> 1 7|0|2, 2 4|0|1, ~f1 d|5-3-0|0|0||1=-1, A c|5-3-0|1|0||1=3:2:1,2=1
			M1|cancel|p|2=+1|A|1|1 ~c1,u1           -> 1 7|0|2, 2 5|0|0, A c|5-4-0|1|0||1=3:2:1,2=1:0
			m1|fulfil|p|1=-9|A|1|1 ~f2              -> 1 7|0|2, ~f2 n|5-5-0|0|0||1=-9, A c|5-4-0|1|0||1=3:2:1,2=1:0
			M1|fulfil|p|1=-2|A|1|1 ~f3              -> 1 7|0|0, A f|5-6-0|1|0||1=3:0:3,2=1:0
			M1|return|p|1=+1|A|1|1 ~r1              -> 1 8|0|0, A f|5-6-0|1|0||1=3:0:3,2=1:0`,
		"cancelled in parts, then begun again": `
			S|1|1=3 A                               -> 1 7|0|3
			M1|cancel|p|1=+1|A|1|1 ~c1;M1|cancel|p|1=+2|A|1|1 ~c2 -> 1 10|0|0, A x|5-3-1|1|0||1=3:0
			R900000|2|1=1 A                         -> 1 9|1|0, A h|5-4-0|2|1790000900000||1=1`,
		"the last parcel after a cancellation, of a line that a replace brought": `
			R900000|1|1=3 A;P1|1=3,2=2 A;C1 A       -> 1 7|0|3, 2 3|0|2
			M1|cancel|p|2=+2|A|1|1 ~c1              -> 2 5|0|0, A c|5-3-0|1|1790000900000||1=3
			M1|fulfil|p|1=-3|A|1|1 ~f1              -> 1 7|0|0, A f|5-4-0|1|1790000900000||1=3:0:3`,
		"a document moves the stock when the record is not the one that it means": `
			S|1|1=3 A;S|1|2=1 B;R900000|1|1=1 C     -> 1 6|1|3
			M1|fulfil|p|1=-1|A|2|2 ~1               -> 1 6|1|2, A c|5-2-0|1|0||1=3
			M1|fulfil|p|1=-1|A|2|0 ~2               -> 1 6|1|1, A c|5-2-0|1|0||1=3
			M1|cancel|p|1=+1|B|1|1 ~3               -> 1 7|1|0, B c|5-2-1|1|0||2=1
			M1|cancel|p|2=+1|Z|1|1 ~4               -> 2 5|0|0, Z none
			S|1|2=2 D                               -> 2 3|0|2
			M1|fulfil|p|2=-1|C|1|1 ~5               -> 2 3|0|1, C h|5-2-2|1|1790000900000||1=1`,
		"a document that is more than its record has": `
			S|1|1=1 A;S|1|1=5 B                     -> 1 4|0|6
			M1|fulfil|p|1=-2|A|1|1 ~1               -> 1 4|0|4, A c|5-2-0|1|0||1=1`,
		"counts": `
			M1|count|c|1=-3,2=+0 ~c -> 1 7|0|0, 2 5|0|0, ~c d|5-2-0|0|0||1=-3,2=+0`,
		"opened": `
			S|1|1=1 A -> 1 9|0|1`,
		"known to the ledger, not to the book": `
			R900000|3|1=1|k A -> 1 9|1|0, A h|5-2-0|3|1790000900000||1=1`,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); play(t, shelf+scenario) })
	}
}

func TestWhatContradictsTheBookIsPoison(t *testing.T) {
	t.Parallel()
	const held, sold, released, expired = "R900000|1|1=1 A -> 1 9|1|0\n", "S|1|1=1 A -> 1 9|0|1\n", "R900000|1|1=1 A;X1 A -> 1 10|0|0\n", "R900000|1|1=1 A;E1 A -> 1 10|0|0\n"
	for _, scenario := range []string{
		"S|1|1=11 A -> poison -1 available", "S|1|3=1 A -> poison unknown SKU number 3", "R900000|1|1=1,3=1 A -> poison unknown SKU number 3",
		"C1 A -> poison unknown order", "X1 A -> poison unknown order", "E1 A -> poison unknown order", "L1 A -> poison unknown order",
		"N1|1=5|tea ~~open:9 -> poison exists already", "N1|3=5|tea ~~open:1 -> poison exists already", "T3|-|+f|- ~~t -> poison unknown SKU number 3", "O4-1 ~~open -> poison first entry only",
		"M1|adjust|x|1=-11 ~a -> poison -1 available", "M1|adjust|x|3=+1 ~a -> poison unknown SKU", "M1|receive|x|1=+1 ~a ~a -> poison settled already", "M1|receive|x|1=+1 ~a;m1|receive|x|1=+1 ~a -> poison settled already",
		"S|1|1=1 A A -> poison is confirmed", "R900000|1|1=1 A A -> poison is held",
		held + "R900000|2|1=1 A -> poison is held", held + "S|2|1=1 A -> poison is held", held + "C2 A -> poison under attempt 1", held + "X2 A -> poison under attempt 1", held + "L1 A -> poison is held",
		sold + "C1 A -> poison is confirmed", sold + "X1 A -> poison is confirmed", sold + "E1 A -> poison is confirmed", sold + "L1 A -> poison is confirmed", sold + "R900000|2|1=1 A -> poison is confirmed",
		released + "C1 A -> poison is released", released + "X1 A -> poison is released", released + "E1 A -> poison is released", released + "L1 A -> poison is released", released + "S|1|1=1 A -> poison cannot take stock again",
		expired + "C1 A -> poison is expired", expired + "X1 A -> poison is expired", expired + "E1 A -> poison is expired", expired + "R900000|1|1=1 A -> poison cannot take stock again", expired + "S|2|1=11 A -> poison -1 available",
		"U1|1 A -> poison unknown order", "P1|1=1 A -> poison unknown order", "C1|1=1 A -> poison unknown order", "S|1|1=20:11|p A -> poison -1 available",
		"M1|fulfil|x|1=-1|A|1|1 ~f -> poison -1 committed", "M1|cancel|x|1=+1|A|1|1 ~c -> poison -1 committed", "M1|fulfil|x|3=-1|A|1|1 ~f -> poison unknown SKU", "M1|count|x|1=-11 ~c -> poison -1 available",
		held + "C1|1=2 A -> poison more than the 1", held + "C1|2=0 A -> poison no line of SKU number 2", held + "C1|1=0 A -> poison nothing would be confirmed", held + "X1|1=1 A -> poison nothing would be released", held + "X1|1=2 A -> poison more than the 1",
		held + "X1|1=0,2=0 A -> poison no line of SKU number 2", held + "C2|1=1 A -> poison under attempt 1", held + "U1|1790000900000 A -> poison lasts until", held + "U2|1790000900001 A -> poison under attempt 1", held + "P2|1=2 A -> poison under attempt 1",
		held + "P1|1=1 A -> poison these lines already", held + "P1|1=11 A -> poison -1 available", held + "P1|1=1,3=1 A -> poison unknown SKU",
		sold + "U1|1790000900001 A -> poison is confirmed", sold + "P1|1=2 A -> poison is confirmed", sold + "X1|1=0 A -> poison is confirmed", released + "U1|1790000900001 A -> poison is released", released + "P1|1=2 A -> poison is released",
		expired + "U1|1790000900001 A -> poison is expired", expired + "P1|1=2 A -> poison is expired", expired + "L1|1=2 A -> poison more than the 1", expired + "L1|1=0 A -> poison nothing would be confirmed", expired + "L1|2=1 A -> poison no line of SKU number 2",
		sold + "M1|fulfil|x|1=-1|A|1|1 ~f;S|2|1=1 A -> poison is fulfilled", sold + "M1|cancel|x|1=+1|A|1|1 ~f;S|1|1=1 A -> poison cannot take stock again",
	} {
		play(t, shelf+scenario)
	}
}

func TestAReplaceCannotMakeAnOrderLongerThanARecordMayBe(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	for sku := range int64(2 * stock.MaxOrderLines) {
		book.Stock[sku+1] = stock.Quantities{Available: 9}
	}
	first := strings.ReplaceAll(manyLines(stock.MaxOrderLines), "=1", "=2")
	if _, err := book.Apply(entry(t, 1, "R900000|1|"+first+" A;P1|"+manyLines(stock.MaxOrderLines)+" A"), nil); err != nil {
		t.Fatal(err)
	}
	_, err := book.Apply(entry(t, 2, fmt.Sprintf("P1|%d=1 A", stock.MaxOrderLines+1)), nil)
	if err == nil || !strings.Contains(err.Error(), "1501 lines") {
		t.Error(err)
	}
}

func TestAForgetfulBookTakesAnEndedAttemptAgain(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	book.Forgetful = true
	for i, ops := range []string{"N1|1=10|tea ~~open:1", "R900000|1|1=4 A;X1 A", "R900000|1|1=3 A"} {
		if _, err := book.Apply(entry(t, int64(i+1), ops), nil); err != nil {
			t.Fatal(err)
		}
	}
	if q := book.Stock[1]; q != (stock.Quantities{Available: 7, Held: 3}) {
		t.Error(q)
	}
	if _, err := book.Apply(entry(t, 4, "R900000|1|1=3 A"), nil); err == nil {
		t.Error("an open attempt was taken twice")
	}
}

func TestAWrongAfterImageIsNamedAndNotBelieved(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	e := entry(t, 1, "N1|1=10|tea ~~open:1")
	e.After = []event.After{{SKU: 1, Quantities: stock.Quantities{Available: 11}}, {SKU: 9, Quantities: stock.Quantities{Available: 1}}}
	off, err := book.Apply(e, nil)
	want := []event.Mismatch{
		{SKU: 1, Position: e.Position, Ours: stock.Quantities{Available: 10}, Redis: stock.Quantities{Available: 11}},
		{SKU: 9, Position: e.Position, Redis: stock.Quantities{Available: 1}},
	}
	if diff := cmp.Diff(want, off); diff != "" || err != nil || book.Stock[1].Available != 10 {
		t.Errorf("%v, %v\n%s", err, book.Stock, diff)
	}
	if text := off[0].String(); !strings.Contains(text, "10 available") || !strings.Contains(text, "11 available") {
		t.Error(text)
	}
}

func TestAChangeLeavesWhatWasBeforeAlone(t *testing.T) {
	t.Parallel()
	book := event.NewBook(7)
	var changes []event.Change
	for i, ops := range []string{"N1|1=10|tea ~~open:1", "R900000|1|1=4 A", "C1 A;T1|-|+c|- ~~t"} {
		if _, err := book.Apply(entry(t, int64(i+1), ops), func(c event.Change) { changes = append(changes, c) }); err != nil {
			t.Fatal(err)
		}
	}
	made, confirmed, set := changes[1], changes[2], changes[3]
	if made.Before != nil || confirmed.Before != made.After || made.After.State != stock.Held || confirmed.After.State != stock.Confirmed {
		t.Errorf("%+v, %+v", made, confirmed)
	}
	if confirmed.Receipt != (stock.Receipt{Shard: 7, Position: stock.Position{Epoch: 5, Seq: 3}}) || set.Receipt.Index != 1 || set.After != nil {
		t.Errorf("%+v, %+v", confirmed, set)
	}
}

func TestNeedsNamesWhatTheEntriesDidNotMake(t *testing.T) {
	t.Parallel()
	entries := []event.Entry{
		*entry(t, 2, "C1 A B;R900000|1|1=1 C"), *entry(t, 3, "X1 C;E1 A;L1 D;S|2|1=1 A;M1|adjust|x|1=+1 ~d"),
		*entry(t, 4, "U1|9 E C;P1|1=1 F;M1|fulfil|x|1=-1|G|1|1 ~f;m1|cancel|x|1=+1|H|1|1 ~g;M1|return|x|1=+1|D|1|0 ~h;M1|return|x|1=+1 ~i"),
	}
	if diff := cmp.Diff([]string{"A", "B", "D", "E", "F", "G", "H"}, event.Needs(entries)); diff != "" {
		t.Error(diff)
	}
}

func TestAnEpochIsOpenedByItsFirstEntryOnly(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	if _, err := book.Apply(entry(t, 1, "O4-17 ~~open"), nil); err != nil {
		t.Error(err)
	}
	if _, err := book.Apply(entry(t, 1, "N1|1=1|a ~~o;O4-17 ~~open"), nil); err == nil {
		t.Error("opened behind another operation")
	}
}

// Units cannot leave the range in which every reader holds them exactly.
func TestStockBeyondItsBoundIsPoison(t *testing.T) {
	t.Parallel()
	for _, full := range []stock.Quantities{{Available: stock.MaxStockQuantity}, {Available: 1, Committed: stock.MaxStockQuantity - 1}, {Available: math.MaxInt64}} {
		book := event.NewBook(0)
		book.Stock[1] = full
		var poison *event.PoisonError
		if _, err := book.Apply(entry(t, 2, "M1|receive|x|1=+1 ~r"), nil); !errors.As(err, &poison) {
			t.Errorf("%v took a unit more: %v", full, err)
		}
	}
}

// Whatever is accepted in whatever order: orders move units, only documents make or destroy them, and the counts
// of a SKU are the sums of the lines of its orders.
func TestStockIsTheSumOfItsOrders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		book, onHand := event.NewBook(0), map[int64]int64{}
		orders := map[string]*stock.Reservation{}
		stray := map[int64]int64{} // committed units that documents moved without a record
		for seq := int64(1); seq <= 40; seq++ {
			op := stock.Operation{ID: fmt.Sprint("o", rapid.IntRange(0, 4).Draw(t, "order")), Attempt: rapid.Int64Range(1, 3).Draw(t, "attempt"), TTL: 1000}
			op.Kind = stock.Kind(rapid.SampledFrom([]byte("RRSCCXXELUPPMMMN")).Draw(t, "kind"))
			op.Lines = anyLines(1, 9).Draw(t, "lines")
			for i := range op.Lines {
				op.Lines[i].SKU = int64(i + 1)
			}
			op.Lines = op.Lines[:min(3, len(op.Lines))]
			drawLifecycle(t, &op, seq)
			// What the library would refuse never gets into the log: ask a copy first.
			trial := event.NewBook(0)
			for sku, q := range book.Stock {
				trial.Stock[sku] = q
			}
			for id, r := range book.Orders {
				trial.Orders[id] = r
			}
			e := event.Entry{Position: stock.Position{Epoch: 5, Seq: seq}, AtMillis: at, Ops: []stock.Operation{op}}
			if _, err := trial.Apply(&e, nil); err != nil {
				continue
			}
			if _, err := book.Apply(&e, func(c event.Change) {
				orders[op.ID] = c.After
				if c.OrderAfter != nil {
					orders[op.Order.ID] = c.OrderAfter
				} else if stock.OfOrder(op.Document) && !op.Refused {
					stray[op.Lines[0].SKU] += op.Lines[0].Asked * map[string]int64{"fulfil": 1, "cancel": -1}[op.Document]
				}
			}); err != nil {
				t.Fatal(err)
			}
			if op.Kind == stock.NewSKU || op.Kind == stock.Movement && !op.Refused && op.Document != stock.DocumentCancel {
				onHand[op.Lines[0].SKU] += op.Lines[0].Asked
			}
			sums := map[int64]stock.Quantities{}
			for _, r := range orders {
				for _, l := range r.Lines {
					q := sums[l.SKU]
					switch r.State {
					case stock.Held:
						q.Held += l.Now
					case stock.Confirmed:
						q.Committed += l.Now
					}
					sums[l.SKU] = q
				}
			}
			for sku, q := range book.Stock {
				if q.OnHand() != onHand[sku] || q.Held != sums[sku].Held || q.Committed != sums[sku].Committed+stray[sku] || !q.Valid() {
					t.Fatalf("SKU %d is %v; on hand %d, orders sum to %v", sku, q, onHand[sku], sums[sku])
				}
			}
		}
	})
}

// drawLifecycle gives an operation of a drawn kind and order the rest of what it needs.
func drawLifecycle(t *rapid.T, op *stock.Operation, seq int64) {
	switch op.Kind {
	case stock.Confirm, stock.LateConfirm, stock.Release:
		if rapid.Bool().Draw(t, "whole") {
			op.Lines = nil
		}
		for i := range op.Lines {
			op.Lines[i].Asked, op.Lines[i].Now = 0, rapid.Int64Range(0, 3).Draw(t, "result")
		}
	case stock.Expire, stock.Extend:
		op.Lines, op.Until = nil, at+rapid.Int64Range(0, 9000).Draw(t, "until")
	case stock.Movement:
		order := stock.OrderRef{ID: op.ID, Key: op.Attempt, Asked: rapid.Int64Range(0, op.Attempt).Draw(t, "asked")}
		units := rapid.Int64Range(1, 3).Draw(t, "units")
		op.Document = rapid.SampledFrom([]string{"receive", "adjust", "count", "return", "fulfil", "fulfil", "cancel", "cancel"}).Draw(t, "document")
		switch op.Document {
		case stock.DocumentFulfil:
			op.Order, units = order, -units
		case stock.DocumentCancel:
			op.Order = order
		case stock.DocumentAdjust, stock.DocumentCount:
			units -= 2
		}
		op.ID, op.Lines = fmt.Sprint("~d", seq), stock.Lines{{SKU: op.Lines[0].SKU, Asked: units, Now: units}}
		op.Refused = rapid.IntRange(0, 3).Draw(t, "refused") == 0
	case stock.NewSKU:
		op.ID, op.Lines = fmt.Sprint("~~open:", seq), stock.Lines{{SKU: rapid.Int64Range(1, 3).Draw(t, "sku"), Asked: 20, Now: 20}}
	}
}
