package audit

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// settings adds, to the last hole, the settings of SKUs that Redis has and that nothing left of the log sets. What the
// log sets behind the hole has the last word, whatever stands in front of it.
func (f *filler) settings() {
	now := map[int64]stock.Settings{}
	for sku, field := range f.Stock {
		now[sku] = field.Settings
	}
	for i := range f.Entries {
		for j := range f.Entries[i].Ops {
			if op := &f.Entries[i].Ops[j]; op.Kind == stock.Configure {
				now[op.Lines[0].SKU] = op.Change.Apply(now[op.Lines[0].SKU])
			}
		}
	}
	last := len(f.out.Holes) - 1
	for _, sku := range slices.Sorted(maps.Keys(f.State)) {
		change := between(now[sku], f.State[sku].Settings)
		if change != stock.Kept && f.Doubt[sku] == "" {
			f.bundles[last] = append(f.bundles[last], &bundle{phase: phaseSettings, ops: []stock.Operation{configure("~~gap:set", sku, change)}})
		}
	}
}

// between leads from some settings to others.
func between(now, want stock.Settings) stock.Change {
	change := stock.Kept
	if now.OpensMillis != want.OpensMillis {
		change.Opens = want.OpensMillis
	}
	if now.Limit != want.Limit {
		change.Limit = want.Limit
	}
	change.Frozen, change.Closed = switched(now.Frozen, want.Frozen), switched(now.Closed, want.Closed)
	return change
}

func switched(now, want bool) stock.Switch {
	switch {
	case now == want:
		return stock.KeepIt
	case want:
		return stock.On
	}
	return stock.Off
}

func configure(id string, sku int64, change stock.Change) stock.Operation {
	return stock.Operation{Kind: stock.Configure, ID: id, Lines: stock.Lines{{SKU: sku}}, Change: change}
}

// write puts the bundles of each hole into entries, one for each missing position: the first ones carry what was
// reconstructed, the others and whatever has room carry the marker.
func (f *filler) write() {
	for i, hole := range f.out.Holes {
		next := hole.First
		put := func(at int64, ops []stock.Operation) {
			f.out.Entries = append(f.out.Entries, event.Entry{
				Position: stock.Position{Epoch: f.Have.Epoch, Seq: next}, AtMillis: at, Ops: ops,
			})
			next++
		}
		latest := f.latest(hole)
		if next == 1 {
			put(latest, []stock.Operation{{Kind: stock.Opened, ID: openedID, Continues: f.Continues}})
		}
		for _, page := range pages(f.bundles[i], latest) {
			if next > hole.Last {
				f.doubt("what was reconstructed of %s does not fit into so few entries", hole)
				break
			}
			put(page.at, page.ops)
		}
		for next <= hole.Last {
			put(latest, nil)
		}
	}
}

// openedID is the id of the operation that opens an epoch, as the library writes it.
const openedID = "~~open"

// latest is the newest time that an entry of a hole can have had.
func (f *filler) latest(hole Hole) int64 {
	for i := range f.Entries {
		if f.Entries[i].Seq > hole.Last {
			return f.Entries[i].AtMillis
		}
	}
	return f.AtMillis
}

// A page is one entry to be.
type page struct {
	at  int64
	ops []stock.Operation
}

// pages orders bundles by phase and cuts them into entries. All operations of an entry have one time, and a hold's
// time to live is counted from it: it has to lie within bounds for each.
func pages(bundles []*bundle, latest int64) []page {
	slices.SortStableFunc(bundles, func(a, b *bundle) int { return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.until, b.until)) })
	var all []page
	var one page
	var first, last int64 // of the times at which the page's holds are due
	flush := func() {
		if len(one.ops) == 0 {
			return
		}
		one.at = latest
		if first != 0 {
			one.at = min(latest, first-stock.MinTTLMillis)
		}
		for i := range one.ops {
			if op := &one.ops[i]; op.Kind == stock.Reserve {
				op.TTL -= one.at
			}
		}
		all, one, first, last = append(all, one), page{}, 0, 0
	}
	for _, b := range bundles {
		low, high := first, last
		if b.until != 0 {
			low, high = b.until, max(last, b.until)
			if first != 0 {
				low = min(first, b.until)
			}
		}
		tooWide := low != 0 && high-min(latest, low-stock.MinTTLMillis) > stock.MaxTTLMillis
		if len(one.ops)+len(b.ops) > stock.MaxCallOps || tooWide && len(one.ops) > 0 {
			flush()
			low, high = b.until, b.until
		}
		first, last = low, high
		for _, op := range b.ops {
			if op.Kind == stock.Reserve {
				op.TTL = b.until // until the page's time is known
			}
			one.ops = append(one.ops, op)
		}
	}
	flush()
	return all
}

// prove folds ledger, filling and the rest of the log, and compares with whatever Redis still says. On the way the
// reconstructed entries get their markers and after-images.
func (f *filler) prove() {
	book := event.NewBook(f.Shard)
	book.Forgetful = true
	for sku, field := range f.Stock {
		book.Stock[sku] = field.Quantities
		if field.Settings != (stock.Settings{}) {
			book.Settings[sku] = field.Settings
		}
	}
	for id := range f.Orders {
		order := f.Orders[id]
		book.Orders[id] = &order
	}
	off := map[int64]event.Mismatch{}
	images := map[int64]bool{} // SKUs with an after-image behind the last hole
	filled, rest := f.out.Entries, f.Entries
	behind := f.out.Holes[len(f.out.Holes)-1].Last
	for seq := f.Have.Seq + 1; seq <= f.out.Last; seq++ {
		var e *event.Entry
		made := len(filled) > 0 && filled[0].Seq == seq
		if made {
			e, filled = &filled[0], filled[1:]
			f.mark(e, book)
			if _, err := e.Raw().Parse(); err != nil {
				f.doubt("entry %s cannot be written: %v", e.Position, err)
			}
		} else {
			e, rest = &rest[0], rest[1:]
		}
		wrong, err := book.Apply(e, nil)
		var poison *event.PoisonError
		if errors.As(err, &poison) {
			f.doubt("%v", poison)
			f.netUnits()
			return
		}
		if made {
			e.After = imageOf(e, book)
			continue
		}
		for _, m := range wrong {
			if _, first := off[m.SKU]; !first {
				off[m.SKU] = m
			}
		}
		for _, a := range e.After {
			images[a.SKU] = images[a.SKU] || seq > behind
		}
	}
	f.compareUnits(book, off, images)
	f.compareRecords(book)
}

// mark adds the marker to a reconstructed entry that has room. It names a SKU that the fold has by then.
func (f *filler) mark(e *event.Entry, book *event.Book) {
	if len(e.Ops) >= stock.MaxCallOps || len(e.Ops) == 1 && e.Ops[0].Kind == stock.Opened {
		return
	}
	hole := f.out.Holes[f.holeAt(e.Seq)]
	if f.marker == 0 && len(book.Stock) > 0 {
		f.marker = slices.Min(slices.Collect(maps.Keys(book.Stock)))
	}
	sku := f.marker
	for i := range e.Ops {
		if op := &e.Ops[i]; sku == 0 && op.Kind == stock.NewSKU {
			sku = op.Lines[0].SKU
		}
	}
	if sku == 0 {
		f.doubt("entry %s cannot be reconstructed: the shard has no SKU at all there", e.Position)
		return
	}
	e.Ops = append(e.Ops, configure(MarkerID(hole), sku, stock.Kept))
}

// imageOf is the after-image of the SKUs that an entry moved.
func imageOf(e *event.Entry, book *event.Book) []event.After {
	touched := map[int64]bool{}
	for i := range e.Ops {
		op := &e.Ops[i]
		if op.Kind == stock.Configure {
			continue
		}
		lines := op.Lines
		if order := book.Orders[op.ID]; order != nil && op.Kind != stock.Movement {
			lines = append(slices.Clone(lines), order.Lines...)
		}
		for _, l := range lines {
			touched[l.SKU] = true
		}
	}
	var image []event.After
	for _, sku := range slices.Sorted(maps.Keys(touched)) {
		image = append(image, event.After{SKU: sku, Quantities: book.Stock[sku]})
	}
	return image
}

// netUnits is for a fold that does not get through: all that happened beyond the ledger's position, by the newest
// figures that there are.
func (f *filler) netUnits() {
	redis := map[int64]stock.Quantities{}
	for i := range f.Entries {
		for _, a := range f.Entries[i].After {
			redis[a.SKU] = a.Quantities
		}
	}
	for sku, field := range f.State {
		redis[sku] = field.Quantities
	}
	for _, sku := range slices.Sorted(maps.Keys(redis)) {
		if u := difference(sku, redis[sku], f.Stock[sku].Quantities); u != (Units{SKU: sku}) {
			f.out.Units = append(f.out.Units, u)
		}
	}
}

// compareUnits lists what does not come out. A SKU that the rest of the log touches is judged by its after-images,
// any other by what Redis has now: a figure that was edited since is another trouble.
func (f *filler) compareUnits(book *event.Book, off map[int64]event.Mismatch, images map[int64]bool) {
	units := map[int64]Units{}
	for sku, m := range off {
		units[sku] = difference(sku, m.Redis, m.Ours)
	}
	for sku, field := range f.State {
		if !images[sku] && units[sku] == (Units{}) && field.Quantities != book.Stock[sku] {
			units[sku] = difference(sku, field.Quantities, book.Stock[sku])
		}
	}
	if len(f.State) > 0 {
		for sku, ours := range book.Stock {
			if _, there := f.State[sku]; !there {
				f.doubt("SKU number %d (%s) is gone from Redis", sku, ours)
			}
		}
	} else {
		f.doubt("Redis has no figures any more, so nothing proves the reconstruction")
	}
	for _, sku := range slices.Sorted(maps.Keys(units)) {
		if f.Doubt[sku] != "" {
			continue // its figures disagreed before anything was lost
		}
		f.out.Units = append(f.out.Units, units[sku])
	}
}

func difference(sku int64, redis, ours stock.Quantities) Units {
	return Units{SKU: sku, Available: redis.Available - ours.Available, Held: redis.Held - ours.Held, Committed: redis.Committed - ours.Committed}
}

// compareRecords looks for records that the fold does not lead to. Positions inside a hole are not compared: what was
// reconstructed stands at the hole's beginning.
func (f *filler) compareRecords(book *event.Book) {
	for _, id := range slices.Sorted(maps.Keys(f.Records)) {
		r := f.Records[id]
		ours := book.Orders[id]
		if ours == nil {
			f.doubt("%s: Redis has %s, and nothing leads to it", id, event.FormatRecord(&r))
			continue
		}
		folded := *ours
		if f.holeAt(r.Receipt.Seq) >= 0 {
			folded.Receipt = r.Receipt
		}
		if have, want := event.FormatRecord(&r), event.FormatRecord(&folded); have != want {
			f.doubt("%s: Redis has %s, the reconstruction folds to %s", id, have, want)
		}
	}
}
