package stocktest

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// longestHold is how far ahead a hold may be extended, in milliseconds.
const longestHold = 24 * 3_600_000

// hold decides C, X, E, U and P: what needs a hold that stands.
func (m *Model) hold(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	r, stands := m.Orders[op.ID]
	switch {
	case !stands:
		return stock.Outcome{Code: stock.NoRecord}
	case op.Attempt > r.Attempt:
		return known(stock.Conflict, r)
	case op.Attempt < r.Attempt:
		return known(stock.Replayed, r)
	case op.Kind == stock.Confirm && r.State == stock.Expired:
		return known(stock.Retake, r)
	case op.Kind == stock.Confirm && op.Lines != nil && (r.State == stock.Confirmed || r.State == stock.Fulfilled) && !m.soldAs(r.Lines, op.Lines):
		return known(stock.Conflict, r)
	case r.State != stock.Held:
		return known(stock.Replayed, r)
	}
	switch op.Kind {
	case stock.Confirm:
		return m.confirm(r, op.Lines, receipt)
	case stock.Release:
		return m.release(r, op.Lines, receipt)
	case stock.Expire:
		if r.ExpiresMillis > now {
			return known(stock.NotDue, r)
		}
		return m.end(r, stock.Expired, receipt)
	case stock.Extend:
		if op.Until <= r.ExpiresMillis {
			return known(stock.Replayed, r)
		}
		if op.Until <= now || op.Until > now+longestHold {
			return stock.Outcome{Code: stock.OutOfBounds}
		}
		r.ExpiresMillis = op.Until
		return m.write(r, receipt)
	}
	return m.replace(r, op.Lines, now, receipt)
}

// soldAs reports whether what was sold of an order, shipped units included, is what the results say.
func (m *Model) soldAs(lines, results stock.Lines) bool {
	sold := slices.Clone(lines)
	for i := range sold {
		sold[i].Now += sold[i].Fulfilled
	}
	wanted, ok := narrowed(sold, results, false)
	return ok && slices.Equal(wanted, sold)
}

// narrowed makes the lines what results name; what they do not name goes, or stays if it is kept. It fails where a result
// is above what stands, or about no line.
func narrowed(lines, results stock.Lines, kept bool) (stock.Lines, bool) {
	if results == nil {
		return lines, true
	}
	out := slices.Clone(lines)
	for i := range out {
		if !kept {
			out[i].Now = 0
		}
	}
	for _, result := range results {
		i := slices.IndexFunc(lines, func(l stock.Line) bool { return l.SKU == result.SKU })
		if i < 0 || result.Now > lines[i].Now {
			return nil, false
		}
		out[i].Now = result.Now
	}
	return out, true
}

// bare leaves out lines of which there is nothing to say any more.
func bare(lines stock.Lines) stock.Lines {
	var out stock.Lines
	for _, l := range lines {
		if l.Asked > 0 || l.Now > 0 || l.Fulfilled > 0 {
			out = append(out, l)
		}
	}
	return out
}

func (m *Model) confirm(r stock.Reservation, results stock.Lines, receipt stock.Receipt) stock.Outcome {
	lines, ok := narrowed(r.Lines, results, false)
	if !ok || results != nil && lines.Units() == 0 {
		return known(stock.Conflict, r)
	}
	for i, l := range lines {
		back := r.Lines[i].Now - l.Now
		m.shift(l.SKU, back, -r.Lines[i].Now, l.Now)
		m.buy(r.Buyer, l.SKU, -back)
	}
	r.State, r.Lines = stock.Confirmed, bare(lines)
	return m.write(r, receipt)
}

func (m *Model) release(r stock.Reservation, results stock.Lines, receipt stock.Receipt) stock.Outcome {
	lines, ok := narrowed(r.Lines, results, true)
	switch {
	case !ok:
		return known(stock.Conflict, r)
	case results == nil:
		return m.end(r, stock.Released, receipt)
	case slices.Equal(lines, r.Lines):
		return known(stock.Replayed, r)
	case lines.Units() == 0:
		return m.end(r, stock.Released, receipt)
	}
	for i, l := range lines {
		back := r.Lines[i].Now - l.Now
		m.shift(l.SKU, back, -back, 0)
		m.buy(r.Buyer, l.SKU, -back)
	}
	r.Lines = bare(lines)
	return m.write(r, receipt)
}

// end gives back all that is held.
func (m *Model) end(r stock.Reservation, state stock.State, receipt stock.Receipt) stock.Outcome {
	for _, l := range r.Lines {
		m.shift(l.SKU, l.Now, -l.Now, 0)
		m.buy(r.Buyer, l.SKU, -l.Now)
	}
	r.State = state
	return m.write(r, receipt)
}

// late decides L: an expired order takes its units again, if they are there.
func (m *Model) late(op stock.Operation, now int64, receipt stock.Receipt) stock.Outcome {
	r, stands := m.Orders[op.ID]
	switch {
	case !stands:
		return stock.Outcome{Code: stock.NoRecord}
	case op.Attempt > r.Attempt:
		return known(stock.Conflict, r)
	case op.Attempt < r.Attempt || r.State != stock.Expired:
		return known(stock.Replayed, r)
	}
	lines, ok := narrowed(r.Lines, op.Lines, false)
	if !ok || op.Lines != nil && lines.Units() == 0 {
		return known(stock.Conflict, r)
	}
	var wanted stock.Lines
	for _, l := range lines {
		if l.Now > 0 {
			wanted = append(wanted, l)
		}
	}
	if out, refused := m.lacking(wanted, r.Buyer, now); refused {
		return out
	}
	for _, l := range wanted {
		m.shift(l.SKU, -l.Now, 0, l.Now)
		m.buy(r.Buyer, l.SKU, l.Now)
	}
	r.State, r.Attempt, r.Lines = stock.Confirmed, r.Attempt+1, bare(lines)
	return m.write(r, receipt)
}

// lacking says why the lines cannot be taken as they are: what a SKU forbids, the limit, then the shortage, with what is
// there of every line.
func (m *Model) lacking(lines stock.Lines, buyer string, now int64) (stock.Outcome, bool) {
	if out, refused := m.forbidden(lines, buyer, now); refused {
		return out, true
	}
	if out, refused := m.tooMany(lines, buyer); refused {
		return out, true
	}
	for _, l := range lines {
		if m.Shelves[l.SKU].Available < l.Now {
			return stock.Outcome{Code: stock.SoldOut, Short: m.left(lines)}, true
		}
	}
	return stock.Outcome{}, false
}

// replace gives a hold other lines. Its own units are available to it, so only what it wants more of can be refused.
func (m *Model) replace(r stock.Reservation, wanted stock.Lines, now int64, receipt stock.Receipt) stock.Outcome {
	units := map[int64][2]int64{} // by SKU: before, after
	lines := slices.Clone(r.Lines)
	for i, l := range lines {
		units[l.SKU] = [2]int64{l.Now, 0}
		lines[i].Now = 0
	}
	for _, w := range wanted {
		units[w.SKU] = [2]int64{units[w.SKU][0], w.Now}
		if i := slices.IndexFunc(lines, func(l stock.Line) bool { return l.SKU == w.SKU }); i >= 0 {
			lines[i].Now = w.Now
		} else {
			lines = append(lines, stock.Line{SKU: w.SKU, Now: w.Now})
		}
	}
	slices.SortFunc(lines, func(a, b stock.Line) int { return int(a.SKU - b.SKU) })
	if lines = bare(lines); slices.Equal(lines, r.Lines) {
		return known(stock.Replayed, r)
	}
	if len(lines) > stock.MaxOrderLines {
		return stock.Outcome{Code: stock.OutOfBounds}
	}
	var more stock.Lines
	for _, w := range wanted {
		if n := w.Now - units[w.SKU][0]; n > 0 {
			more = append(more, stock.Line{SKU: w.SKU, Asked: w.Asked, Now: n})
		}
	}
	if out, refused := m.lacking(more, r.Buyer, now); refused {
		if out.Code == stock.SoldOut {
			out.Short = m.left(wanted)
			for i := range out.Short {
				out.Short[i].Available += units[out.Short[i].SKU][0]
			}
		}
		return out
	}
	for sku, u := range units {
		n := u[1] - u[0]
		m.shift(sku, -n, n, 0)
		m.buy(r.Buyer, sku, n)
	}
	r.Lines = lines
	return m.write(r, receipt)
}
