package audit

import (
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A lostPaper is a document of an order whose entry lies in a hole.
type lostPaper struct {
	hole int
	seq  int64
	op   *stock.Operation
}

// lostPapers finds the documents of orders whose records say that they were settled in a hole, and those of which
// nobody says whether they were.
func (f *filler) lostPapers() {
	for _, id := range slices.Sorted(maps.Keys(f.Records)) {
		r := f.Records[id]
		op, written := f.Documents[id]
		hole := f.holeAt(r.Receipt.Seq)
		if id[0] != '~' || hole < 0 || !written || r.State == stock.Refused || !stock.OfOrder(op.Document) {
			continue
		}
		f.lost[op.Order.ID] = append(f.lost[op.Order.ID], lostPaper{hole, r.Receipt.Seq, &op})
	}
	for _, id := range slices.Sorted(maps.Keys(f.Documents)) {
		op := f.Documents[id]
		if _, there := f.Records[id]; !there && !f.settled[id] && stock.OfOrder(op.Document) {
			f.waiting[op.Order.ID] = id
		}
	}
	for _, lost := range f.lost {
		slices.SortFunc(lost, func(a, b lostPaper) int { return int(a.seq - b.seq) })
	}
}

// paper settles a document. One of an order that moved its units waits until the order is where it found it.
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
	case stock.OfOrder(op.Document) && !op.Refused:
		return
	case slices.ContainsFunc(op.Lines, func(l stock.Line) bool { return l.Asked < 0 }):
		phase = phaseWithdraw
	}
	f.bundles[hole] = append(f.bundles[hole], &bundle{phase: phase, ops: []stock.Operation{op}})
}

// settlePapers adds the documents of orders, each behind what brought its order to where the document found it. An
// order of which Redis has no record of that attempt any more is not changed by them, only its SKUs are.
func (f *filler) settlePapers() {
	for _, id := range slices.Sorted(maps.Keys(f.lost)) {
		lost := f.lost[id]
		r, there := f.Records[id]
		now := f.book.Orders[id]
		meant := lost[0].op.Order.Asked
		followed := there && r.Attempt > meant
		switch {
		case there && r.Attempt == meant:
			to := f.before(r)
			if now != nil {
				before := undone(*now, f.papers[id])
				now = &before
			}
			f.bring(lost[0].hole, now, &to)
		case followed && now != nil && now.State == stock.Held && now.Attempt == meant:
			// It was confirmed first; and as another attempt followed, the documents left nothing of it.
			to := *now
			to.State, to.Lines = stock.Confirmed, moving(now.Lines, lost)
			f.bring(lost[0].hole, now, &to)
		}
		for _, p := range lost {
			f.settle(id, p)
		}
		if hole := f.holeAt(r.Receipt.Seq); followed && hole >= 0 {
			for _, p := range lost {
				f.follow(p.op, &event.Entry{Position: stock.Position{Epoch: f.Have.Epoch, Seq: p.seq}})
			}
			f.bring(hole, f.book.Orders[id], &r)
		}
	}
}

// moving are the lines of an order of which so much stands as documents move.
func moving(lines stock.Lines, papers []lostPaper) stock.Lines {
	units := map[int64]int64{}
	for _, p := range papers {
		for _, m := range p.op.Lines {
			units[m.SKU] += max(m.Asked, -m.Asked)
		}
	}
	out := slices.Clone(lines)
	for i := range out {
		out[i].Now = units[out[i].SKU]
	}
	return out
}

// settle puts a document behind its order's bundle in the same hole.
func (f *filler) settle(order string, p lostPaper) {
	last, there := f.ofOrder[order]
	if !there || last.hole != p.hole {
		b := &bundle{phase: phaseGive, ops: []stock.Operation{*p.op}}
		f.bundles[p.hole] = append(f.bundles[p.hole], b)
		f.ofOrder[order] = lastBundle{p.hole, b}
		return
	}
	last.ops = append(slices.Clip(last.ops), *p.op)
	if last.phase == phaseTake && p.op.Document == stock.DocumentCancel {
		last.phase = phaseBack
	}
}

// readyForPaper brings an order that a document of the rest of the log is about to where it was confirmed.
func (f *filler) readyForPaper(op *stock.Operation, seq int64) {
	now, meant := f.book.Orders[op.Order.ID], op.Order.Asked
	_, recorded := f.Records[op.Order.ID]
	switch {
	case now != nil && (now.Attempt > meant || now.Attempt == meant && now.State != stock.Held), now == nil && !recorded:
		return // confirmed, or nobody's any more: then only its SKUs are moved
	}
	f.lead(now, &stock.Reservation{ID: op.Order.ID, State: stock.Confirmed, Attempt: op.Order.Asked}, op, seq)
}

// before is a record as it was before the documents that the rest of the log and the holes have of its order.
func (f *filler) before(r stock.Reservation) stock.Reservation {
	papers := slices.Clone(f.papers[r.ID])
	for _, p := range f.lost[r.ID] {
		papers = append(papers, p.op)
	}
	return undone(r, papers)
}

// undone is an order before some documents of it.
func undone(r stock.Reservation, papers []*stock.Operation) stock.Reservation {
	r.Lines = slices.Clone(r.Lines)
	for _, op := range papers {
		if op.Order.Asked != r.Attempt {
			continue
		}
		for _, m := range op.Lines {
			at := slices.IndexFunc(r.Lines, func(l stock.Line) bool { return l.SKU == m.SKU })
			if at < 0 {
				// A line that only a replace had brought is left out once nothing of it stands.
				at, _ = slices.BinarySearchFunc(r.Lines, m.SKU, func(l stock.Line, sku int64) int { return int(l.SKU - sku) })
				r.Lines = slices.Insert(r.Lines, at, stock.Line{SKU: m.SKU})
			}
			l := &r.Lines[at]
			if op.Document == stock.DocumentFulfil {
				l.Now, l.Fulfilled = l.Now-m.Asked, l.Fulfilled+m.Asked
			} else {
				l.Now += m.Asked
			}
		}
		if r.State == stock.Cancelled || r.State == stock.Fulfilled {
			r.State = stock.Confirmed
		}
	}
	return r
}
