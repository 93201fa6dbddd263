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
	Orders    map[string]stock.Reservation // the ledger's, of all that Entries and Records name
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
	orders  map[string]*stock.Reservation // as they stand while the log is walked
	bundles map[int][]bundle              // what was in each hole
	settled map[string]bool               // documents that the rest of the log settles
	set     map[int64]bool                // SKUs whose settings the log behind the last hole sets
	marker  int64                         // the SKU that markers name
}

// A bundle is what one order, document or SKU did in a hole. It stays together.
type bundle struct {
	phase int
	ops   []stock.Operation
	until int64 // when its hold is due, 0 = it makes none: the time of its entry has to fit
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
	f := &filler{Gap: g, orders: map[string]*stock.Reservation{}, bundles: map[int][]bundle{}, settled: map[string]bool{}, set: map[int64]bool{}}
	for id := range g.Orders {
		order := g.Orders[id]
		f.orders[id] = &order
	}
	f.findHoles()
	if len(f.out.Holes) == 0 {
		return f.out
	}
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

// walk follows the orders through what is left of the log. An operation that its order was not ready for says what
// must have happened to the order in the hole before.
func (f *filler) walk() {
	last := f.out.Holes[len(f.out.Holes)-1]
	for i := range f.Entries {
		e := &f.Entries[i]
		for j := range e.Ops {
			op := &e.Ops[j]
			switch op.Kind {
			case stock.Movement, stock.NewSKU:
				f.settled[op.ID] = true
			case stock.Configure:
				if e.Seq > last.Last {
					f.set[op.Lines[0].SKU] = true
				}
			case stock.Reserve, stock.Sale, stock.Confirm, stock.LateConfirm, stock.Release, stock.Expire:
				f.ready(op, e.Seq)
				f.orders[op.ID] = after(f.orders[op.ID], op, e.AtMillis)
			}
		}
	}
}

// ready brings an order to where the operation at seq found it.
func (f *filler) ready(op *stock.Operation, seq int64) {
	now := f.orders[op.ID]
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
		f.add(hole, []stock.Operation{{Kind: stock.Release, ID: op.ID, Attempt: now.Attempt}}, 0)
		return
	case stock.LateConfirm:
		want.State = stock.Expired
	}
	if now != nil && now.State == want.State && now.Attempt == want.Attempt {
		return
	}
	hole := f.holeBefore(seq)
	if hole < 0 {
		f.doubt("order %s is moved at %d and was not there", op.ID, seq)
		return
	}
	if !f.describe(&want, now) {
		f.doubt("order %s is moved at %d under attempt %d, and nobody knows any more what it was", op.ID, seq, op.Attempt)
		return
	}
	f.bring(hole, now, &want)
}

// describe finds what an attempt consisted of: in Redis' record of it, or, a late confirm being the next attempt of
// the same lines, of the next; else in the attempt before, whose lines a client repeats. The proof has the last word.
func (f *filler) describe(want, now *stock.Reservation) bool {
	from := now
	if r, there := f.Records[want.ID]; there && r.Attempt >= want.Attempt && r.Attempt <= want.Attempt+1 {
		from = &r
	}
	if from == nil {
		return false
	}
	want.Buyer, want.Lines, want.ExpiresMillis = from.Buyer, asked(from.Lines), from.ExpiresMillis
	return len(want.Lines) > 0
}

// asked are the lines as they were asked for.
func asked(lines stock.Lines) stock.Lines {
	out := slices.Clone(lines)
	for i := range out {
		out[i].Now = out[i].Asked
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
		default:
			f.bring(hole, f.orders[id], &r)
		}
	}
}

func (f *filler) paper(hole int, r *stock.Reservation) {
	op, written := f.Documents[r.ID]
	if !written || f.settled[r.ID] {
		f.doubt("document %s was settled at %s in Redis, and no such document waits for it in the ledger", r.ID, r.Receipt.Position)
		return
	}
	op.Refused = r.State == stock.Refused && op.Kind == stock.Movement
	f.out.Papers++
	phase := phaseReceive
	switch {
	case op.Kind == stock.NewSKU:
		phase = phaseNew
	case slices.ContainsFunc(op.Lines, func(l stock.Line) bool { return l.Asked < 0 }):
		phase = phaseWithdraw
	}
	f.bundles[hole] = append(f.bundles[hole], bundle{phase: phase, ops: []stock.Operation{op}})
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
	f.add(hole, ops, to.ExpiresMillis)
	stands := *to
	f.orders[to.ID] = &stands
}

func standing(r *stock.Reservation) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s under attempt %d", r.State, r.Attempt)
}

// add notes a bundle in the phase that its net effect on what is available asks for.
func (f *filler) add(hole int, ops []stock.Operation, until int64) {
	b := bundle{phase: phaseGive, ops: ops}
	takes, gives := false, false
	for i := range ops {
		switch ops[i].Kind {
		case stock.Reserve:
			takes, b.until = true, until
		case stock.Sale, stock.LateConfirm:
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
	f.out.Orders++
	f.bundles[hole] = append(f.bundles[hole], b)
}

// path is the shortest run of operations between two standings of one order.
func path(now, to *stock.Reservation) (ops []stock.Operation, ok bool) {
	last := map[stock.State]stock.Kind{stock.Confirmed: stock.Confirm, stock.Released: stock.Release, stock.Expired: stock.Expire}
	move := func(kind stock.Kind, attempt int64) stock.Operation {
		return stock.Operation{Kind: kind, ID: to.ID, Attempt: attempt}
	}
	if now != nil && now.Attempt == to.Attempt {
		switch {
		case now.State == to.State:
			return nil, true
		case now.State == stock.Held && last[to.State] != 0:
			return []stock.Operation{move(last[to.State], to.Attempt)}, true
		}
		return nil, false
	}
	if now != nil && now.Attempt > to.Attempt {
		return nil, false
	}
	if now != nil && to.State == stock.Confirmed && now.Attempt+1 == to.Attempt && to.ExpiresMillis != 0 && now.ExpiresMillis == to.ExpiresMillis {
		// A confirm that came after the hold had ended keeps the hold's time.
		switch now.State {
		case stock.Held:
			return []stock.Operation{move(stock.Expire, now.Attempt), move(stock.LateConfirm, now.Attempt)}, true
		case stock.Expired:
			return []stock.Operation{move(stock.LateConfirm, now.Attempt)}, true
		}
	}
	if now != nil {
		switch {
		case now.State == stock.Held: // how it ended leaves no trace, and both ways give the same units back
			ops = append(ops, move(stock.Release, now.Attempt))
		case !now.State.Ended():
			return nil, false
		}
	}
	take := stock.Operation{Kind: stock.Reserve, ID: to.ID, Attempt: to.Attempt, Buyer: to.Buyer, Lines: asked(to.Lines), Known: now != nil}
	if to.ExpiresMillis == 0 {
		take.Kind = stock.Sale
		return append(ops, take), to.State == stock.Confirmed
	}
	ops = append(ops, take)
	if to.State == stock.Held {
		return ops, true
	}
	kind := last[to.State]
	return append(ops, move(kind, to.Attempt)), kind != 0
}

// after is how an operation leaves its order; it checks nothing, the proof does.
func after(now *stock.Reservation, op *stock.Operation, at int64) *stock.Reservation {
	if op.Kind == stock.Reserve || op.Kind == stock.Sale {
		made := stock.Reservation{ID: op.ID, State: stock.Held, Attempt: op.Attempt, Buyer: op.Buyer, Lines: op.Lines, ExpiresMillis: at + op.TTL}
		if op.Kind == stock.Sale {
			made.State, made.ExpiresMillis = stock.Confirmed, 0
		}
		return &made
	}
	moved := stock.Reservation{ID: op.ID, Attempt: op.Attempt}
	if now != nil {
		moved = *now
	}
	switch op.Kind {
	case stock.Confirm:
		moved.State = stock.Confirmed
	case stock.LateConfirm:
		moved.State = stock.Confirmed
		moved.Attempt++
	case stock.Release:
		moved.State = stock.Released
	default:
		moved.State = stock.Expired
	}
	return &moved
}
