package audit

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// endedBy is the operation that ends a hold, or confirms it, in each state.
var endedBy = map[stock.State]stock.Kind{stock.Confirmed: stock.Confirm, stock.Released: stock.Release, stock.Expired: stock.Expire}

// path is the shortest run of operations between two standings of one order. What leaves no trace (whether a hold was
// released or had run out before the next attempt, whether less was taken or some was given back) is written in one
// way of those that end alike.
func path(now, to *stock.Reservation) (ops []stock.Operation, ok bool) {
	switch {
	case now != nil && now.Attempt > to.Attempt:
		return nil, false
	case now != nil && now.Attempt == to.Attempt:
		return onward(now, to)
	case now != nil && to.State == stock.Confirmed && now.Attempt+1 == to.Attempt && to.ExpiresMillis != 0 && now.ExpiresMillis == to.ExpiresMillis:
		// A confirm that came after the hold had ended keeps the hold's time.
		if now.State == stock.Held || now.State == stock.Expired {
			return lateConfirm(now, to)
		}
	}
	if now != nil {
		switch {
		case now.State == stock.Held: // how it ended leaves no trace, and both ways give the same units back
			ops = append(ops, moveOf(stock.Release, to.ID, now.Attempt))
		case !now.State.Ended():
			return nil, false
		}
	}
	more, ok := begun(to, now != nil)
	return append(ops, more...), ok
}

func moveOf(kind stock.Kind, id string, attempt int64) stock.Operation {
	return stock.Operation{Kind: kind, ID: id, Attempt: attempt}
}

// onward leads on within one attempt.
func onward(now, to *stock.Reservation) (ops []stock.Operation, ok bool) {
	if now.State != stock.Held {
		return nil, now.State == to.State && slices.Equal(now.Lines, to.Lines)
	}
	if to.State != stock.Held && endedBy[to.State] == 0 {
		return nil, false
	}
	if to.ExpiresMillis < now.ExpiresMillis {
		return nil, false
	}
	if to.ExpiresMillis > now.ExpiresMillis {
		extend := moveOf(stock.Extend, to.ID, to.Attempt)
		extend.Until = to.ExpiresMillis
		ops = append(ops, extend)
	}
	changed, ok := relined(now.Lines, to)
	if !ok {
		return nil, false
	}
	ops = append(ops, changed...)
	if to.State != stock.Held {
		ops = append(ops, moveOf(endedBy[to.State], to.ID, to.Attempt))
	}
	return ops, true
}

// relined gives a hold other lines: what becomes less is released first, what becomes more replaces.
func relined(lines stock.Lines, to *stock.Reservation) (ops []stock.Operation, ok bool) {
	was, is := standingOf(lines), standingOf(to.Lines)
	if !sameAsked(lines, to.Lines) {
		return nil, false
	}
	less, more := moveOf(stock.Release, to.ID, to.Attempt), false
	kept := int64(0)
	for _, l := range lines {
		if is[l.SKU] < l.Now {
			less.Lines = append(less.Lines, stock.Line{SKU: l.SKU, Now: is[l.SKU]})
		}
		kept += min(is[l.SKU], l.Now)
	}
	for _, l := range to.Lines {
		more = more || l.Now > was[l.SKU]
	}
	if len(less.Lines) > 0 && kept > 0 {
		ops = append(ops, less)
	}
	if more || len(less.Lines) > 0 && kept == 0 {
		replace := moveOf(stock.Replace, to.ID, to.Attempt)
		replace.Lines = replacing(to.Lines)
		if len(replace.Lines) == 0 {
			return nil, false
		}
		ops = append(ops, replace)
	}
	return ops, true
}

func standingOf(lines stock.Lines) map[int64]int64 {
	units := make(map[int64]int64, len(lines))
	for _, l := range lines {
		units[l.SKU] = l.Now
	}
	return units
}

// sameAsked reports whether two standings are of one order: what was asked never changes.
func sameAsked(a, b stock.Lines) bool { return slices.Equal(asked(a), asked(b)) }

// replacing are the lines of a replace that leaves so much.
func replacing(lines stock.Lines) stock.Lines {
	var out stock.Lines
	for _, l := range lines {
		if l.Now > 0 {
			out = append(out, stock.Line{SKU: l.SKU, Asked: l.Now, Now: l.Now})
		}
	}
	return out
}

// lateConfirm confirms what had run out, whole or less of it.
func lateConfirm(now, to *stock.Reservation) (ops []stock.Operation, ok bool) {
	if now.State == stock.Held {
		ops = append(ops, moveOf(stock.Expire, to.ID, now.Attempt))
	}
	if !sameAsked(now.Lines, to.Lines) {
		return nil, false
	}
	late := moveOf(stock.LateConfirm, to.ID, now.Attempt)
	was, is := standingOf(now.Lines), standingOf(to.Lines)
	for _, l := range to.Lines {
		if l.Now > was[l.SKU] {
			return nil, false
		}
	}
	if slices.ContainsFunc(now.Lines, func(l stock.Line) bool { return is[l.SKU] != l.Now }) {
		for _, l := range to.Lines {
			if l.Now > 0 {
				late.Lines = append(late.Lines, stock.Line{SKU: l.SKU, Now: l.Now})
			}
		}
		if len(late.Lines) == 0 {
			return nil, false
		}
	}
	return append(ops, late), true
}

// begun takes an order's attempt from nothing.
func begun(to *stock.Reservation, known bool) (ops []stock.Operation, ok bool) {
	take := stock.Operation{Kind: stock.Reserve, ID: to.ID, Attempt: to.Attempt, Buyer: to.Buyer, Lines: asked(to.Lines), Known: known}
	brought := false // lines that only a replace can have brought
	is := standingOf(to.Lines)
	for _, l := range to.Lines {
		brought = brought || l.Now > l.Asked
	}
	partial := slices.Clone(take.Lines)
	for i := range partial {
		partial[i].Now = min(partial[i].Asked, is[partial[i].SKU])
	}
	if partial.Units() > 0 && !slices.Equal(partial, take.Lines) {
		take.Lines, take.Partial = partial, true
	}
	if len(take.Lines) == 0 {
		return nil, false
	}
	if to.ExpiresMillis == 0 {
		take.Kind = stock.Sale
		return append(ops, take), to.State == stock.Confirmed && !brought && partial.Units() > 0
	}
	ops = append(ops, take)
	if brought || partial.Units() == 0 {
		replace := moveOf(stock.Replace, to.ID, to.Attempt)
		if replace.Lines = replacing(to.Lines); len(replace.Lines) == 0 {
			return nil, false
		}
		ops = append(ops, replace)
	}
	if to.State == stock.Held {
		return ops, true
	}
	kind := endedBy[to.State]
	return append(ops, moveOf(kind, to.ID, to.Attempt)), kind != 0
}
