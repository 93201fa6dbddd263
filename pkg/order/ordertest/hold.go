package ordertest

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// hold decides what is asked of an order that exists.
func (w *World) hold(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	switch {
	case record == nil:
		return stock.Outcome{Code: stock.NoRecord}
	case op.Attempt > record.Attempt:
		return standing(stock.Conflict, record)
	case op.Attempt < record.Attempt:
		return standing(stock.Replayed, record)
	case record.State == stock.Held:
		return w.held(shard, op, record)
	case op.Kind == stock.Confirm && record.State == stock.Expired:
		return standing(stock.Retake, record)
	case op.Kind == stock.LateConfirm && record.State == stock.Expired:
		return w.late(shard, op, record)
	case op.Kind == stock.Confirm && op.Lines != nil && (record.State == stock.Confirmed || record.State == stock.Fulfilled):
		sold := slices.Clone(record.Lines)
		for i := range sold {
			sold[i].Now += sold[i].Fulfilled
		}
		if lines, ok := resulting(sold, op.Lines, false); !ok || !slices.Equal(lines, sold) {
			return standing(stock.Conflict, record)
		}
	}
	return standing(stock.Replayed, record)
}

func (w *World) held(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	next := *record
	switch op.Kind {
	case stock.Confirm:
		lines, ok := resulting(record.Lines, op.Lines, op.Lines == nil)
		if !ok || lines.Units() == 0 {
			return standing(stock.Conflict, record)
		}
		next.State, next.Lines = stock.Confirmed, compact(lines)
	case stock.Release:
		lines, ok := resulting(record.Lines, op.Lines, true)
		switch {
		case !ok:
			return standing(stock.Conflict, record)
		case op.Lines == nil || lines.Units() == 0:
			next.State = stock.Released
		case slices.Equal(lines, record.Lines):
			return standing(stock.Replayed, record)
		default:
			next.Lines = compact(lines)
		}
	case stock.Extend:
		switch {
		case op.Until <= record.ExpiresMillis:
			return standing(stock.Replayed, record)
		case op.Until <= w.now || op.Until > w.now+stock.MaxTTLMillis:
			return stock.Outcome{Code: stock.OutOfBounds}
		}
		next.ExpiresMillis = op.Until
	case stock.Replace:
		return w.replace(shard, op, record)
	default:
		return standing(stock.Replayed, record)
	}
	return w.change(shard, record, &next)
}

func (w *World) late(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	lines, ok := resulting(record.Lines, op.Lines, op.Lines == nil)
	if !ok || lines.Units() == 0 {
		return standing(stock.Conflict, record)
	}
	wanted := more(lines, nil)
	if out, ok := w.takes(wanted, record.Buyer); !ok {
		return out
	}
	next := *record
	next.State, next.Attempt, next.Lines = stock.Confirmed, record.Attempt+1, compact(lines)
	return w.change(shard, record, &next)
}

func (w *World) replace(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	next := *record
	next.Lines = nil
	for _, l := range op.Lines {
		next.Lines = append(next.Lines, stock.Line{SKU: l.SKU, Now: l.Asked})
	}
	own := map[int64]int64{}
	for _, l := range record.Lines {
		own[l.SKU] = l.Now
		i, there := slices.BinarySearchFunc(next.Lines, l.SKU, func(l stock.Line, sku int64) int { return int(l.SKU - sku) })
		if !there {
			next.Lines = slices.Insert(next.Lines, i, stock.Line{SKU: l.SKU})
		}
		next.Lines[i].Asked = l.Asked
	}
	next.Lines = compact(next.Lines)
	if slices.Equal(next.Lines, record.Lines) {
		return standing(stock.Replayed, record)
	}
	if len(next.Lines) > stock.MaxOrderLines {
		return stock.Outcome{Code: stock.OutOfBounds}
	}
	if out, ok := w.takes(more(next.Lines, own), record.Buyer); !ok {
		if out.Code == stock.SoldOut {
			out.Short = nil
			for _, l := range op.Lines {
				out.Short = append(out.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: w.fields[l.SKU].Available + own[l.SKU]})
			}
		}
		return out
	}
	return w.change(shard, record, &next)
}

// takes refuses lines that cannot be had.
func (w *World) takes(lines stock.Lines, buyer string) (stock.Outcome, bool) {
	if out, ok := w.sells(lines, buyer); !ok {
		return out, false
	}
	if out, ok := w.within(lines, buyer); !ok {
		return out, false
	}
	return w.enough(lines)
}

// more is what is to be taken of each line beside what the order has.
func more(lines stock.Lines, own map[int64]int64) stock.Lines {
	var out stock.Lines
	for _, l := range lines {
		if n := l.Now - own[l.SKU]; n > 0 {
			out = append(out, stock.Line{SKU: l.SKU, Now: n})
		}
	}
	return out
}

// resulting gives the lines with what is named as now; the others go to 0 unless they are kept. False: that much of what
// is named does not stand.
func resulting(lines, named stock.Lines, keep bool) (stock.Lines, bool) {
	out, known := slices.Clone(lines), 0
	for i := range out {
		wanted := int64(0)
		if keep {
			wanted = out[i].Now
		}
		for _, l := range named {
			if l.SKU == out[i].SKU {
				known++
				wanted = l.Now
			}
		}
		if wanted > out[i].Now {
			return nil, false
		}
		out[i].Now = wanted
	}
	return out, known == len(named)
}

func compact(lines stock.Lines) stock.Lines {
	return slices.DeleteFunc(slices.Clone(lines), func(l stock.Line) bool { return l.Asked|l.Now|l.Fulfilled == 0 })
}
