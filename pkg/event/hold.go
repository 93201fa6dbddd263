package event

import (
	"fmt"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (b *Book) take(op *stock.Operation, before *stock.Reservation, at int64) (*stock.Reservation, string) {
	if before != nil {
		if !before.State.Ended() {
			return nil, fmt.Sprintf("the order is %s under attempt %d", before.State, before.Attempt)
		}
		if before.Attempt >= op.Attempt && !b.Forgetful {
			return nil, fmt.Sprintf("attempt %d ended already and cannot take stock again", before.Attempt)
		}
	}
	after := &stock.Reservation{ID: op.ID, State: stock.Held, Attempt: op.Attempt, Buyer: op.Buyer, Lines: op.Lines}
	if op.Kind == stock.Sale {
		after.State = stock.Confirmed
		return after, b.shift(op.Lines, -1, 0, 1)
	}
	after.ExpiresMillis = at + op.TTL
	return after, b.shift(op.Lines, -1, 1, 0)
}

// stands checks that an order is in the state, and at the attempt, that the operation needs; a reason means it is not.
func stands(op *stock.Operation, before *stock.Reservation, in stock.State) string {
	switch {
	case before == nil:
		return "unknown order"
	case before.State != in || before.Attempt != op.Attempt:
		return fmt.Sprintf("the order is %s under attempt %d", before.State, before.Attempt)
	}
	return ""
}

// move ends a hold, or confirms an expired one: the whole of it, or what the operation names.
func (b *Book) move(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {
	from := stock.Held
	if op.Kind == stock.LateConfirm {
		from = stock.Expired
	}
	if why := stands(op, before, from); why != "" {
		return nil, why
	}
	after := *before
	if len(op.Lines) > 0 {
		return &after, b.moveTo(op, &after)
	}
	switch op.Kind {
	case stock.Confirm:
		after.State = stock.Confirmed
		return &after, b.shift(after.Lines, 0, -1, 1)
	case stock.LateConfirm:
		after.State = stock.Confirmed
		after.Attempt++
		return &after, b.shift(after.Lines, -1, 0, 1)
	case stock.Release:
		after.State = stock.Released
	default:
		after.State = stock.Expired
	}
	return &after, b.shift(after.Lines, 1, -1, 0)
}

// moveTo carries out a confirm, late confirm or release that names what stands afterwards.
func (b *Book) moveTo(op *stock.Operation, after *stock.Reservation) string {
	stood := after.Lines
	lines, why := resulting(stood, op.Lines, op.Kind == stock.Release)
	if why != "" {
		return why
	}
	left := lines.Units()
	if op.Kind == stock.Release {
		if left == stood.Units() {
			return "nothing would be released"
		}
		if left == 0 {
			// An ended order keeps its lines as they stood: what it gave back last.
			after.State = stock.Released
			return b.shift(stood, 1, -1, 0)
		}
		after.Lines = compact(lines)
		return b.first(b.shift(stood, 1, -1, 0), after.Lines, -1, 1, 0)
	}
	if left == 0 {
		return "nothing would be confirmed"
	}
	after.State, after.Lines = stock.Confirmed, compact(lines)
	if op.Kind == stock.LateConfirm {
		after.Attempt++
		return b.shift(after.Lines, -1, 0, 1)
	}
	return b.first(b.shift(stood, 1, -1, 0), after.Lines, -1, 0, 1)
}

// first shifts only when nothing was wrong before.
func (b *Book) first(why string, lines stock.Lines, available, held, committed int64) string {
	if why != "" {
		return why
	}
	return b.shift(lines, available, held, committed)
}

// resulting gives the lines with what an operation names as now. Of the others nothing stands, unless they are kept.
func resulting(lines, named stock.Lines, keep bool) (stock.Lines, string) {
	out := slices.Clone(lines)
	next := 0
	for i := range out {
		l := &out[i]
		if next == len(named) || named[next].SKU != l.SKU {
			if !keep {
				l.Now = 0
			}
			continue
		}
		if named[next].Now > l.Now {
			return nil, fmt.Sprintf("%d units of SKU number %d are more than the %d that stand", named[next].Now, l.SKU, l.Now)
		}
		l.Now = named[next].Now
		next++
	}
	if next < len(named) {
		return nil, fmt.Sprintf("the order has no line of SKU number %d", named[next].SKU)
	}
	return out, ""
}

// compact cuts out, in place, the lines that were neither asked for nor stand: a replace brought them, and they are gone again.
func compact(lines stock.Lines) stock.Lines {
	return slices.DeleteFunc(lines, func(l stock.Line) bool { return l.Asked|l.Now|l.Fulfilled == 0 })
}

func (b *Book) extend(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {
	if why := stands(op, before, stock.Held); why != "" {
		return nil, why
	}
	if op.Until <= before.ExpiresMillis {
		return nil, fmt.Sprintf("the hold lasts until %d already", before.ExpiresMillis)
	}
	after := *before
	after.ExpiresMillis = op.Until
	return &after, ""
}

// replace gives a hold other lines. What was asked stays: by it the repeat of the reserve is known.
func (b *Book) replace(op *stock.Operation, before *stock.Reservation) (*stock.Reservation, string) {
	if why := stands(op, before, stock.Held); why != "" {
		return nil, why
	}
	after := *before
	after.Lines = compact(replaced(before.Lines, op.Lines))
	if len(after.Lines) > stock.MaxOrderLines {
		return nil, fmt.Sprintf("the order would have %d lines", len(after.Lines))
	}
	if slices.Equal(after.Lines, before.Lines) {
		return nil, "the order has these lines already"
	}
	// Its own units are available to it: they go back first.
	return &after, b.first(b.shift(before.Lines, 1, -1, 0), after.Lines, -1, 1, 0)
}

// replaced merges two ordered lists: what was asked by the one, what stands by the other.
func replaced(lines, by stock.Lines) stock.Lines {
	out := make(stock.Lines, 0, len(lines)+len(by))
	for len(lines) > 0 || len(by) > 0 {
		switch {
		case len(by) == 0 || len(lines) > 0 && lines[0].SKU < by[0].SKU:
			out = append(out, stock.Line{SKU: lines[0].SKU, Asked: lines[0].Asked})
			lines = lines[1:]
		case len(lines) == 0 || by[0].SKU < lines[0].SKU:
			out = append(out, stock.Line{SKU: by[0].SKU, Now: by[0].Now})
			by = by[1:]
		default:
			out = append(out, stock.Line{SKU: lines[0].SKU, Asked: lines[0].Asked, Now: by[0].Now})
			lines, by = lines[1:], by[1:]
		}
	}
	return out
}
