package audit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A past is a log as the library would have written it, all of it.
type past struct {
	entries []event.Entry
	papers  map[string]stock.Operation
}

const pastStart = 1_700_000_000_000 // ms

// write folds one more entry, if the book takes it.
func (p *past) write(book *event.Book, ops ...stock.Operation) bool {
	trial := copyOf(book)
	e := event.Entry{Position: stock.Position{Epoch: epoch, Seq: int64(len(p.entries) + 1)}, AtMillis: pastStart + int64(len(p.entries))*1000, Ops: ops}
	if _, err := trial.Apply(&e, nil); err != nil {
		return false
	}
	if _, err := book.Apply(&e, nil); err != nil {
		panic(err)
	}
	e.After = imageOf(&e, book)
	p.entries = append(p.entries, e)
	return true
}

func copyOf(b *event.Book) *event.Book {
	c := event.NewBook(b.Shard)
	maps.Copy(c.Stock, b.Stock)
	maps.Copy(c.Settings, b.Settings)
	maps.Copy(c.Orders, b.Orders)
	return c
}

// step makes up one operation that may be possible now.
func step(r *rand.Rand, book *event.Book, papers map[string]stock.Operation) stock.Operation {
	id := fmt.Sprint("o", r.IntN(25))
	attempt := int64(1)
	if now := book.Orders[id]; now != nil {
		if attempt = now.Attempt; now.State.Ended() && r.IntN(2) == 0 {
			attempt++
		}
	}
	lines := stock.Lines{{SKU: 1, Asked: 1 + r.Int64N(3)}}
	if r.IntN(3) == 0 {
		lines = append(lines, stock.Line{SKU: 2, Asked: 1 + r.Int64N(2)})
	}
	for i := range lines {
		lines[i].Now = lines[i].Asked
	}
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: attempt, TTL: 60_000 + r.Int64N(600_000), Buyer: "b" + id, Lines: lines}
	case 4:
		return stock.Operation{Kind: stock.Sale, ID: id, Attempt: attempt, Lines: lines}
	case 5, 6:
		return stock.Operation{Kind: stock.Confirm, ID: id, Attempt: attempt}
	case 7:
		return stock.Operation{Kind: stock.Release, ID: id, Attempt: attempt}
	case 8, 9:
		return stock.Operation{Kind: stock.Expire, ID: id, Attempt: attempt}
	case 10:
		return stock.Operation{Kind: stock.LateConfirm, ID: id, Attempt: attempt}
	}
	doc := stock.Operation{Kind: stock.Movement, ID: fmt.Sprint("~d", len(papers)), Document: "adjust", Reason: "x", Deadline: pastStart,
		Lines: stock.Lines{{SKU: 1, Asked: r.Int64N(9) - 4}}}
	if doc.Lines[0].Asked == 0 {
		doc.Lines[0].Asked = 1
	}
	doc.Lines[0].Now = doc.Lines[0].Asked
	return doc
}

// lost makes a gap of a random history: entries from first to last are gone, the ledger stands before first.
func lost(r *rand.Rand) (Gap, []event.Entry) {
	p := &past{papers: map[string]stock.Operation{}}
	book := event.NewBook(0)
	p.write(book, stock.Operation{Kind: stock.Opened, ID: openedID})
	p.write(book, stock.Operation{Kind: stock.NewSKU, ID: "~~open:1", Deadline: 1, SKU: "tea", Lines: stock.Lines{{SKU: 1, Asked: 30, Now: 30}}})
	p.write(book, stock.Operation{Kind: stock.NewSKU, ID: "~~open:2", Deadline: 1, SKU: "mug", Lines: stock.Lines{{SKU: 2, Asked: 10, Now: 10}}})
	have := 3 + r.IntN(15)
	gap := 1 + r.IntN(12)
	var at *event.Book
	if len(p.entries) == have {
		at = copyOf(book)
	}
	for len(p.entries) < have+gap+r.IntN(20)+1 {
		if op := step(r, book, p.papers); p.write(book, op) && op.Kind == stock.Movement {
			p.papers[op.ID] = op
		}
		if len(p.entries) == have && at == nil {
			at = copyOf(book)
		}
	}
	end := min(have+gap, len(p.entries))
	g := Gap{Have: stock.Position{Epoch: epoch, Seq: int64(have)}, AtMillis: pastStart + int64(len(p.entries))*1000, Entries: p.entries[end:],
		Records: map[string]stock.Reservation{}, State: map[int64]event.Field{}, Stock: map[int64]event.Field{}, Orders: map[string]stock.Reservation{}, Documents: map[string]stock.Operation{}}
	for id, order := range book.Orders {
		if order.Receipt.Seq > g.Have.Seq {
			g.Records[id] = *order
		}
	}
	for sku, q := range book.Stock {
		g.State[sku] = event.Field{Quantities: q}
	}
	for sku, q := range at.Stock {
		g.Stock[sku] = event.Field{Quantities: q}
	}
	for id, order := range at.Orders {
		if !strings.HasPrefix(id, "~") {
			g.Orders[id] = *order
		}
	}
	for id, op := range p.papers {
		if at.Orders[id] == nil {
			g.Documents[id] = op
		}
	}
	return g, p.entries[have:end]
}

func TestAnyGapWhoseRecordsAreThereIsFilled(t *testing.T) {
	t.Parallel()
	const histories = 4000
	proven := 0
	for seed := range uint64(histories) {
		g, gone := lost(rand.New(rand.NewPCG(seed, 1)))
		f := g.Fill()
		if len(gone) == 0 {
			continue
		}
		if !f.Proven() || len(f.Entries) != len(gone) {
			// An attempt that began in the gap with other lines and ended behind it, when another attempt followed, left
			// its lines nowhere: that must be doubted, and nothing else may be.
			if f.Proven() || !successor(&g, gone) {
				t.Fatalf("seed %d: %d entries for %d, %v %v", seed, len(f.Entries), len(gone), f.Units, f.Doubts)
			}
			continue
		}
		proven++
		for i, e := range f.Entries {
			if e.Position != gone[i].Position {
				t.Fatalf("seed %d: entry %s in place of %s", seed, e.Position, gone[i].Position)
			}
			if _, err := e.Raw().Parse(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	if proven < histories*9/10 {
		t.Errorf("only %d of %d gaps were filled", proven, histories)
	}
}

// successor reports whether an attempt of the gap was followed by another one behind it.
func successor(g *Gap, gone []event.Entry) bool {
	took := map[string]int64{}
	for i := range gone {
		for _, op := range gone[i].Ops {
			if op.Kind == stock.Reserve || op.Kind == stock.Sale {
				took[op.ID] = op.Attempt
			}
		}
	}
	for i := range g.Entries {
		for _, op := range g.Entries[i].Ops {
			if attempt, is := took[op.ID]; is && op.Attempt > attempt {
				return true
			}
		}
	}
	return false
}

// What is taken away from the evidence must be missed: a filling that is called proven without it would be a guess.
func TestAGapWithoutARecordIsNeverProven(t *testing.T) {
	t.Parallel()
	judged := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		g, gone := lost(r)
		if len(gone) == 0 {
			continue
		}
		full := g.Fill()
		if !full.Proven() {
			continue
		}
		moving := map[string]bool{}
		for _, e := range full.Entries {
			for i := range e.Ops {
				if op := &e.Ops[i]; op.Kind == stock.Reserve || op.Kind == stock.Sale || op.Kind == stock.Movement && !op.Refused {
					moving[op.ID] = true
				}
			}
		}
		for _, id := range slices.Sorted(maps.Keys(moving)) {
			rec, there := g.Records[id]
			if g.Orders[id].State == stock.Held {
				continue // one attempt in place of another of the same lines: the order is kept, and the units are the same
			}
			if !there || rec.State.Ended() || rec.Receipt.Seq > full.Holes[0].Last {
				continue // gave back all that it took, or is described behind the gap, too
			}
			less := g
			less.Records = maps.Clone(g.Records)
			delete(less.Records, id)
			judged++
			if f := less.Fill(); f.Proven() && f.Last == full.Last {
				t.Fatalf("seed %d: proven without the record of %s", seed, id)
			}
		}
	}
	if judged < 500 {
		t.Errorf("only %d were judged", judged)
	}
}

func TestFiguresThatDoNotComeOutAreCountedPerSKU(t *testing.T) {
	t.Parallel()
	g := Gap{Have: stock.Position{Epoch: epoch, Seq: 3}, AtMillis: pastStart,
		Entries: []event.Entry{{Position: stock.Position{Epoch: epoch, Seq: 5}, AtMillis: pastStart, Ops: []stock.Operation{reserve("late", 1, 1)},
			After: []event.After{{SKU: 1, Quantities: stock.Quantities{Available: 7, Held: 3}}}}},
		Records: map[string]stock.Reservation{"late": {ID: "late", State: stock.Held, Attempt: 1, Buyer: "b", ExpiresMillis: pastStart + 60_000,
			Receipt: stock.Receipt{Position: stock.Position{Epoch: epoch, Seq: 5}}, Lines: stock.Lines{{SKU: 1, Asked: 1, Now: 1}}}},
		State: map[int64]event.Field{1: {Quantities: stock.Quantities{Available: 7, Held: 3}}},
		Stock: map[int64]event.Field{1: {Quantities: stock.Quantities{Available: 10}}},
	}
	f := g.Fill()
	if f.Proven() || len(f.Units) != 1 || f.Units[0] != (Units{SKU: 1, Available: -2, Held: 2}) || len(f.Holes) != 1 || f.Holes[0] != (Hole{4, 4}) {
		t.Errorf("%+v", f)
	}
	for i := range f.Entries {
		if !strings.Contains(f.Entries[i].Raw().Ops, MarkerID(f.Holes[0])) {
			t.Errorf("no marker in %+v", f.Entries[i].Raw())
		}
	}
}

func TestWithoutRedisFiguresNothingIsProven(t *testing.T) {
	t.Parallel()
	g, gone := lost(rand.New(rand.NewPCG(7, 1)))
	g.State = nil
	if f := g.Fill(); f.Proven() || len(gone) == 0 {
		t.Errorf("%+v", f)
	}
}

func TestHoldsOfVeryDifferentTimesGetEntriesOfTheirOwn(t *testing.T) {
	t.Parallel()
	const day = int64(stock.MaxTTLMillis)
	line := stock.Lines{{SKU: 1, Asked: 1, Now: 1}}
	g := Gap{Have: stock.Position{Epoch: epoch, Seq: 3}, AtMillis: pastStart + 2*day, Records: map[string]stock.Reservation{},
		State: map[int64]event.Field{1: {Quantities: stock.Quantities{Available: 8, Held: 2}}}, Stock: map[int64]event.Field{1: {Quantities: stock.Quantities{Available: 10}}}}
	for i, until := range []int64{pastStart + 1000, pastStart + 2*day} {
		id := fmt.Sprint("o", i)
		g.Records[id] = stock.Reservation{ID: id, State: stock.Held, Attempt: 1, ExpiresMillis: until, Lines: line,
			Receipt: stock.Receipt{Position: stock.Position{Epoch: epoch, Seq: int64(4 + i)}}}
	}
	f := g.Fill()
	if !f.Proven() || len(f.Entries) != 2 || len(f.Entries[0].Ops) != 2 || len(f.Entries[1].Ops) != 2 {
		t.Fatalf("%+v", f)
	}
}
