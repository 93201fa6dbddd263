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
	switch r.IntN(20) {
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
	case 11, 12, 13, 14, 15, 16, 17, 18:
		return lifeStep(r, book, papers, id, lines)
	}
	doc := stock.Operation{Kind: stock.Movement, ID: fmt.Sprint("~d", len(papers)), Document: "adjust", Reason: "x", Deadline: pastStart,
		Lines: stock.Lines{{SKU: 1, Asked: r.Int64N(9) - 4}}}
	if doc.Lines[0].Asked == 0 {
		doc.Lines[0].Asked = 1
	}
	doc.Lines[0].Now = doc.Lines[0].Asked
	return doc
}

// lifeStep makes up one of the operations that change a part of an order.
func lifeStep(r *rand.Rand, book *event.Book, papers map[string]stock.Operation, id string, lines stock.Lines) stock.Operation {
	now := book.Orders[id]
	if now == nil || now.State.Ended() && now.State != stock.Expired {
		op := stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: 60_000 + r.Int64N(600_000), Buyer: "b" + id, Lines: lines, Partial: true}
		if now != nil {
			op.Attempt = now.Attempt + 1
		}
		if lines[0].Now = r.Int64N(lines[0].Asked + 1); lines.Units() == 0 {
			lines[0].Now = 1
		}
		return op
	}
	results := func() (out stock.Lines) {
		for _, l := range now.Lines {
			if r.IntN(2) == 0 {
				out = append(out, stock.Line{SKU: l.SKU, Now: r.Int64N(l.Now + 1)})
			}
		}
		return out
	}
	op := stock.Operation{ID: id, Attempt: now.Attempt}
	switch now.State {
	case stock.Held:
		switch r.IntN(4) {
		case 0:
			op.Kind, op.Lines = stock.Confirm, results()
		case 1:
			op.Kind, op.Lines = stock.Release, results()
		case 2:
			op.Kind, op.Until = stock.Extend, now.ExpiresMillis+1+r.Int64N(600_000)
		case 3:
			op.Kind, op.Lines = stock.Replace, asked(lines)
		}
	case stock.Expired:
		op.Kind, op.Lines = stock.LateConfirm, results()
	default:
		op = stock.Operation{Kind: stock.Movement, ID: fmt.Sprint("~d", len(papers)), Document: stock.DocumentCancel, Reason: "x", Deadline: pastStart,
			Buyer: now.Buyer, Order: stock.OrderRef{ID: id, Key: now.Attempt, Asked: now.Attempt}}
		for _, l := range now.Lines {
			if l.Now > 0 {
				op.Lines = append(op.Lines, stock.Line{SKU: l.SKU, Asked: 1 + r.Int64N(l.Now)})
			}
		}
		if r.IntN(2) == 0 {
			op.Document, op.Buyer = stock.DocumentFulfil, ""
			for i := range op.Lines {
				op.Lines[i].Asked = -op.Lines[i].Asked
			}
		}
		for i := range op.Lines {
			op.Lines[i].Now = op.Lines[i].Asked
		}
		if len(op.Lines) == 0 {
			op.Kind = 0 // nothing is left of it
		}
	}
	return op
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
		op := step(r, book, p.papers)
		if _, err := event.ParseBody(string(event.AppendBody(nil, &op))); err != nil {
			continue // of nothing
		}
		if p.write(book, op) && op.Kind == stock.Movement {
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
	const histories = 2500
	proven := 0
	for seed := range uint64(histories) {
		g, gone := lost(rand.New(rand.NewPCG(seed, 1)))
		f := g.Fill()
		if len(gone) == 0 {
			continue
		}
		if !f.Proven() || len(f.Entries) != len(gone) {
			// That must be doubted, and nothing else may be.
			if f.Proven() || !hidden(&g, gone) {
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
	t.Logf("%d of %d gaps were filled", proven, histories)
	if proven < histories*8/10 {
		t.Errorf("only %d of %d gaps were filled", proven, histories)
	}
}

// hidden reports whether the rest of the log changed again, in a part or for another attempt, what the gap had changed of
// an order, or whether an attempt followed one that a document had ended in the gap: then what it was in between stands
// nowhere.
func hidden(g *Gap, gone []event.Entry) bool {
	touched, papered := map[string]int64{}, map[string]int64{}
	for i := range gone {
		for j := range gone[i].Ops {
			op := &gone[i].Ops[j]
			if op.Attempt > 0 {
				touched[op.ID] = op.Attempt
			}
			if op.Order.ID != "" {
				papered[op.Order.ID] = op.Order.Asked
			}
			if ended, is := papered[op.ID]; is && op.Attempt > ended {
				return true
			}
		}
	}
	for i := range g.Entries {
		for j := range g.Entries[i].Ops {
			op := &g.Entries[i].Ops[j]
			attempt, is := touched[op.ID]
			if is && (op.Attempt > attempt || op.Kind == stock.Extend || isOfHold(op.Kind) && len(op.Lines) > 0) {
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

// Settings that were lost come back, but for what the rest of the log sets anyway.
func TestSettingsThatWereLostArePutBack(t *testing.T) {
	t.Parallel()
	was, is := stock.Settings{OpensMillis: 5, Limit: 3}, stock.Settings{OpensMillis: 7, Closed: true, Limit: 9}
	later := stock.Change{Opens: 7, Frozen: stock.Off, Limit: stock.Keep}
	g := Gap{Have: stock.Position{Epoch: epoch, Seq: 3}, AtMillis: pastStart,
		Entries: []event.Entry{{Position: stock.Position{Epoch: epoch, Seq: 5}, AtMillis: pastStart, Ops: []stock.Operation{set(1, later)}}},
		State:   map[int64]event.Field{1: {Settings: is}}, Stock: map[int64]event.Field{1: {Settings: was}}}
	f := g.Fill()
	if !f.Proven() || len(f.Entries) != 1 || len(f.Entries[0].Ops) != 2 {
		t.Fatalf("%+v", f)
	}
	if got, want := f.Entries[0].Ops[0].Change, (stock.Change{Opens: stock.Keep, Closed: stock.On, Limit: 9}); got != want {
		t.Errorf("put back %+v, want %+v", got, want)
	}
	if got := later.Apply(f.Entries[0].Ops[0].Change.Apply(was)); got != is {
		t.Errorf("it comes to %+v", got)
	}
}
