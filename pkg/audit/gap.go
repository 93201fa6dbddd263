package audit

import (
	"fmt"
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Gap is a log that lost entries before the ledger had them, and all that both stores still say about it. Fill
// reconstructs what was in it. Nothing here talks to a store.
type Gap struct {
	Shard int
	// Have is the ledger's position: the first missing entry is the next one.
	Have stock.Position
	// Continues is where the epoch before ended; an epoch whose very first entry is missing begins with it.
	Continues stock.Position
	// AtMillis is Redis' time now: what is reconstructed is not younger.
	AtMillis int64

	Entries []event.Entry                // what the log still has of this epoch beyond Have, ascending
	Records map[string]stock.Reservation // Redis' records that last moved beyond Have, documents under "~<id>"
	State   map[int64]event.Field        // Redis' figures; empty when they are gone

	Stock     map[int64]event.Field        // the ledger's at Have
	Doubt     map[int64]string             // SKUs that the ledger froze by itself
	Orders    map[string]stock.Reservation // the ledger's, of all that Entries, Records and Documents name
	Documents map[string]stock.Operation   // of documents written and not settled, by the id they have in Redis
}

// A Hole is a run of missing entries.
type Hole struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

func (h Hole) String() string { return fmt.Sprintf("%d-%d", h.First, h.Last) }

// Units are what nobody can explain of a SKU: Redis' figures minus those that the reconstruction folds to, or, where
// the fold does not get through, minus the ledger's.
type Units struct {
	SKU       int64 `json:"sku_number"`
	Available int64 `json:"available"`
	Held      int64 `json:"held"`
	Committed int64 `json:"committed"`
}

func (u Units) String() string {
	return fmt.Sprintf("SKU number %d: %+d available, %+d held, %+d committed", u.SKU, u.Available, u.Held, u.Committed)
}

// A Filling is what a gap is filled with, and how well that is proven.
type Filling struct {
	Holes   []Hole
	Entries []event.Entry // one for every missing position, ascending
	Last    int64         // the newest position of the epoch that anybody knows of
	Orders  int           // that the reconstruction moves
	Papers  int           // documents that it settles

	// Units and Doubts are what does not come out: a filling with none of either is proven. Ledger, filling and the
	// rest of the log then fold to the after-images of the rest, to Redis' figures and to Redis' records.
	Units  []Units
	Doubts []string // at most MaxDrifts
	More   int      // doubts beyond those
}

// Proven reports whether everything came out.
func (f *Filling) Proven() bool { return len(f.Units) == 0 && len(f.Doubts) == 0 }

// MarkerID is the id of the operation that marks a reconstructed entry: settings that change nothing.
func MarkerID(h Hole) string { return "~~gap:" + h.String() }

// filler is one reconstruction.
type filler struct {
	*Gap
	out     Filling
	book    *event.Book                   // orders as they stand while the log is walked; units are never short in it
	bundles map[int][]*bundle             // what was in each hole
	ofOrder map[string]lastBundle         // the newest bundle of each order
	settled map[string]bool               // documents that the rest of the log settles
	papers  map[string][]*stock.Operation // documents of an order that the rest of the log has, by order
	lost    map[string][]lostPaper        // those that lie in holes, by order
	waiting map[string]string             // a document of an order that nobody says was settled, by order
	partly  map[string]int64              // seq of the newest entry of the log that says how much of an order stands
	longer  map[string]int64              // seq of the newest entry of the log that extends a hold
	marker  int64                         // the SKU that markers name
}

// A bundle is what one order, document or SKU did in a hole. It stays together.
type bundle struct {
	phase int
	ops   []stock.Operation
	until int64 // when its hold is due, 0 = it makes none: the time of its entry has to fit
}

// lastBundle is where an order's newest bundle lies.
type lastBundle struct {
	hole int
	*bundle
}

// The phases of a hole. What happened in it in truth left a stock of zero or more behind, so this order of the same
// operations never falls below zero: all that gives comes before what takes, and what gave back its own in between.
const (
	phaseNew = iota
	phaseReceive
	phaseGive
	phaseBack
	phaseTake
	phaseWithdraw
	phaseSettings
)

// Fill reconstructs the missing entries.
func (g *Gap) Fill() Filling {
	f := &filler{
		Gap: g, book: event.NewBook(g.Shard), bundles: map[int][]*bundle{}, ofOrder: map[string]lastBundle{}, settled: map[string]bool{},
		papers: map[string][]*stock.Operation{}, lost: map[string][]lostPaper{}, waiting: map[string]string{},
		partly: map[string]int64{}, longer: map[string]int64{},
	}
	f.book.Forgetful = true
	for id := range g.Orders {
		order := g.Orders[id]
		f.book.Orders[id] = &order
	}
	f.findHoles()
	if len(f.out.Holes) == 0 {
		return f.out
	}
	f.survey()
	f.walk()
	f.endings()
	f.settings()
	f.write()
	f.prove()
	return f.out
}

func (f *filler) doubt(format string, args ...any) {
	if len(f.out.Doubts) >= MaxDrifts {
		f.out.More++
		return
	}
	f.out.Doubts = append(f.out.Doubts, fmt.Sprintf(format, args...))
}

func (f *filler) findHoles() {
	next := f.Have.Seq + 1
	for i := range f.Entries {
		if at := f.Entries[i].Seq; at > next {
			f.out.Holes = append(f.out.Holes, Hole{next, at - 1})
			next = at
		}
		next++
	}
	last := next - 1
	for _, r := range f.Records {
		last = max(last, r.Receipt.Seq)
	}
	if last >= next {
		f.out.Holes = append(f.out.Holes, Hole{next, last})
	}
	f.out.Last = last
}

// holeBefore is the newest hole in front of a position, or -1.
func (f *filler) holeBefore(seq int64) int {
	for i, h := range slices.Backward(f.out.Holes) {
		if h.Last < seq {
			return i
		}
	}
	return -1
}

// holeAt is the hole that a position lies in, or -1.
func (f *filler) holeAt(seq int64) int {
	return slices.IndexFunc(f.out.Holes, func(h Hole) bool { return h.First <= seq && seq <= h.Last })
}

// survey notes what the rest of the log, and the records of documents, say of orders before these are followed.
func (f *filler) survey() {
	for i := range f.Entries {
		e := &f.Entries[i]
		for j := range e.Ops {
			switch op := &e.Ops[j]; {
			case op.Kind == stock.Movement && !op.Refused && stock.OfOrder(op.Document):
				f.papers[op.Order.ID] = append(f.papers[op.Order.ID], op)
			case op.Kind == stock.Extend:
				f.longer[op.ID] = e.Seq
			case isOfHold(op.Kind) && len(op.Lines) > 0:
				f.partly[op.ID] = e.Seq
			}
			if op := &e.Ops[j]; op.Kind == stock.Movement || op.Kind == stock.NewSKU {
				f.settled[op.ID] = true
			}
		}
	}
	f.lostPapers()
}

// isOfHold is true for the operations that leave less of an order, or something else, when they name lines.
func isOfHold(kind stock.Kind) bool {
	switch kind {
	case stock.Confirm, stock.LateConfirm, stock.Release, stock.Replace:
		return true
	}
	return false
}

// walk follows the orders through what is left of the log. An operation that its order was not ready for says what
// must have happened to the order in the hole before.
func (f *filler) walk() {
	for i := range f.Entries {
		e := &f.Entries[i]
		for j := range e.Ops {
			op := &e.Ops[j]
			switch op.Kind {
			case stock.Movement:
				if op.Refused || !stock.OfOrder(op.Document) || op.Order.Asked == 0 {
					continue
				}
				f.readyForPaper(op, e.Seq)
			case stock.Reserve, stock.Sale, stock.Confirm, stock.LateConfirm, stock.Release, stock.Expire, stock.Extend, stock.Replace:
				f.ready(op, e.Seq)
			default:
				continue
			}
			f.follow(op, e)
		}
	}
}

// plenty of units of everything, so that only the orders are followed: whether the units come out is for the proof.
const plenty = int64(1) << 50

// follow moves the order as the operation says. One that does not fit is left as it is: the proof will not get through.
func (f *filler) follow(op *stock.Operation, e *event.Entry) {
	lines := op.Lines
	if order := f.book.Orders[op.ID]; order != nil {
		lines = append(slices.Clone(lines), order.Lines...)
	}
	for _, l := range lines {
		f.book.Stock[l.SKU] = stock.Quantities{Available: plenty, Held: plenty, Committed: plenty}
	}
	one := event.Entry{Position: e.Position, AtMillis: e.AtMillis, Ops: []stock.Operation{*op}}
	_, _ = f.book.Apply(&one, nil)
}

// ready brings an order to where the operation at seq found it.
func (f *filler) ready(op *stock.Operation, seq int64) {
	now := f.book.Orders[op.ID]
	want := stock.Reservation{ID: op.ID, State: stock.Held, Attempt: op.Attempt}
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		if now == nil || now.State != stock.Held || now.Attempt >= op.Attempt {
			return
		}
		hole := f.holeBefore(seq)
		if hole < 0 {
			f.doubt("order %s takes stock at %d while attempt %d is held", op.ID, seq, now.Attempt)
			return
		}
		f.add(op.ID, hole, []stock.Operation{{Kind: stock.Release, ID: op.ID, Attempt: now.Attempt}}, 0)
		released := *now
		released.State = stock.Released
		f.book.Orders[op.ID] = &released
		return
	case stock.LateConfirm:
		want.State = stock.Expired
	}
	f.lead(now, &want, op, seq)
}

// lead brings an order to a standing that an operation at seq needs, unless it is there.
func (f *filler) lead(now, want *stock.Reservation, op *stock.Operation, seq int64) {
	hole := f.holeBefore(seq)
	if now != nil && now.State == want.State && now.Attempt == want.Attempt {
		// It may still have been made longer, or other lines of it, before: then its record says so.
		if r, there := f.Records[want.ID]; there && r.Attempt == want.Attempt && now.State == stock.Held && hole >= 0 && f.describe(want, now, seq) {
			f.bring(hole, now, want)
		}
		return
	}
	if hole < 0 {
		f.doubt("order %s is moved at %d and was not there", want.ID, seq)
		return
	}
	if !f.describe(want, now, seq) {
		f.doubt("order %s is moved at %d under attempt %d, and nobody knows any more what it was (%c)", want.ID, seq, want.Attempt, op.Kind)
		return
	}
	f.bring(hole, now, want)
}

// describe finds what an attempt consisted of: in Redis' record of it, or, a late confirm being the next attempt of
// the same lines, of the next; else in the attempt itself as it stood before, or in the one before that, whose lines a
// client repeats. The record says how much stood, and until when, where nothing behind seq has changed that. The proof
// has the last word.
func (f *filler) describe(want, now *stock.Reservation, seq int64) bool {
	same := now != nil && now.Attempt == want.Attempt
	r, there := f.Records[want.ID]
	switch {
	case there && r.Attempt >= want.Attempt && r.Attempt <= want.Attempt+1:
		r = f.before(r)
		want.Buyer, want.Lines, want.ExpiresMillis = r.Buyer, r.Lines, r.ExpiresMillis
		switch partly := f.partly[want.ID] >= seq; {
		case partly && same:
			want.Lines = now.Lines
		case partly:
			want.Lines = asked(r.Lines)
		}
		if same && f.longer[want.ID] >= seq {
			want.ExpiresMillis = now.ExpiresMillis
		}
	case same:
		want.Buyer, want.Lines, want.ExpiresMillis = now.Buyer, now.Lines, now.ExpiresMillis
	case now != nil:
		want.Buyer, want.Lines, want.ExpiresMillis = now.Buyer, asked(now.Lines), now.ExpiresMillis
	}
	return len(want.Lines) > 0
}

// asked are the lines as they were asked for.
func asked(lines stock.Lines) stock.Lines {
	out := make(stock.Lines, 0, len(lines))
	for _, l := range lines {
		if l.Asked > 0 {
			out = append(out, stock.Line{SKU: l.SKU, Asked: l.Asked, Now: l.Asked})
		}
	}
	return out
}

// endings explains the records whose last transition lies in a hole.
func (f *filler) endings() {
	for _, id := range slices.Sorted(maps.Keys(f.Records)) {
		r := f.Records[id]
		hole := f.holeAt(r.Receipt.Seq)
		switch {
		case hole < 0:
		case id[0] == '~':
			f.paper(hole, &r)
		case len(f.lost[id]) == 0:
			f.bring(hole, f.book.Orders[id], &r)
		}
	}
	f.settlePapers()
}

// bring adds what led an order from one standing to another.
func (f *filler) bring(hole int, now, to *stock.Reservation) {
	ops, ok := path(now, to)
	if !ok {
		f.doubt("order %s is %s under attempt %d in Redis, which no operation leads to from %s", to.ID, to.State, to.Attempt, standing(now))
		return
	}
	if len(ops) == 0 {
		return
	}
	if id, waits := f.waiting[to.ID]; waits && slices.ContainsFunc(ops, isGuess) {
		f.doubt("order %s has less than was asked for, and document %s of it waits: nobody knows which of the two took it", to.ID, id)
		return
	}
	// What an order gives back comes before what it takes: others may have taken the one, and given the other.
	if at := slices.IndexFunc(ops, takesUnits); at > 0 {
		f.add(to.ID, hole, ops[:at], to.ExpiresMillis)
		ops = ops[at:]
	}
	f.add(to.ID, hole, ops, to.ExpiresMillis)
	f.out.Orders++
	stands := *to
	f.book.Orders[to.ID] = &stands
}

func takesUnits(op stock.Operation) bool { return op.Kind.Takes() }

// isGuess is true for what may also have been a document, or what may have been a document instead.
func isGuess(op stock.Operation) bool {
	return op.Partial || isOfHold(op.Kind) && len(op.Lines) > 0
}

func standing(r *stock.Reservation) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s under attempt %d", r.State, r.Attempt)
}

// add notes a bundle in the phase that its net effect on what is available asks for.
func (f *filler) add(order string, hole int, ops []stock.Operation, until int64) {
	b := &bundle{phase: phaseGive, ops: ops}
	takes, gives := false, false
	for i := range ops {
		switch ops[i].Kind {
		case stock.Reserve, stock.Extend:
			takes, b.until = takes || ops[i].Kind == stock.Reserve, until
		case stock.Sale, stock.LateConfirm, stock.Replace:
			takes = true
		case stock.Release, stock.Expire:
			gives = gives || takes // its own, taken in the same hole
		}
	}
	switch {
	case takes && gives:
		b.phase = phaseBack
	case takes:
		b.phase = phaseTake
	}
	f.bundles[hole] = append(f.bundles[hole], b)
	f.ofOrder[order] = lastBundle{hole, b}
}
