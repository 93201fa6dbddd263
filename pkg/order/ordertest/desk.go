package ordertest

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (w *World) decide(shard int, op stock.Operation) stock.Outcome {
	record := w.records[shard][op.ID]
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return w.take(shard, &op, record)
	case stock.Movement:
		return w.movement(shard, &op, record)
	case stock.NewSKU:
		if record != nil {
			return standing(stock.Replayed, record)
		}
		w.fields[op.Lines[0].SKU] = &event.Field{Quantities: stock.Quantities{Available: op.Lines[0].Asked}}
		r := &stock.Reservation{ID: op.ID, Lines: op.Lines}
		return stock.Outcome{Code: stock.Accepted, Receipt: w.enter(shard, r, stock.Done), Reservation: *r}
	}
	switch {
	case record == nil:
		return stock.Outcome{Code: stock.NoRecord}
	case op.Attempt > record.Attempt:
		return standing(stock.Conflict, record)
	case op.Attempt < record.Attempt:
		return standing(stock.Replayed, record)
	}
	switch {
	case op.Kind == stock.Confirm && record.State == stock.Expired:
		return standing(stock.Retake, record)
	case op.Kind == stock.LateConfirm && record.State == stock.Expired:
		if out, ok := w.short(record.Lines); !ok {
			return out
		}
		w.move(record.Lines, 0, -1, 1)
		return w.next(shard, record, stock.Confirmed, record.Attempt+1)
	case op.Kind == stock.Confirm && record.State == stock.Held:
		w.move(record.Lines, -1, 0, 1)
		return w.next(shard, record, stock.Confirmed, record.Attempt)
	case op.Kind == stock.Release && record.State == stock.Held:
		w.move(record.Lines, -1, 1, 0)
		return w.next(shard, record, stock.Released, record.Attempt)
	}
	return standing(stock.Replayed, record)
}

func standing(code stock.Code, r *stock.Reservation) stock.Outcome {
	return stock.Outcome{Code: code, Reservation: *r}
}

func (w *World) next(shard int, old *stock.Reservation, state stock.State, attempt int64) stock.Outcome {
	r := *old
	r.Attempt = attempt
	receipt := w.enter(shard, &r, state)
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt, Reservation: r}
}

func (w *World) take(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	state, held, committed := stock.Held, int64(1), int64(0)
	if op.Kind == stock.Sale {
		state, held, committed = stock.Confirmed, 0, 1
	}
	switch {
	case record == nil && op.Attempt > 1 && !op.Known:
		return stock.Outcome{Code: stock.NoRecord}
	case record == nil:
	case op.Attempt > record.Attempt && !record.State.Ended():
		return standing(stock.Conflict, record)
	case op.Attempt < record.Attempt:
		return standing(stock.Replayed, record)
	case op.Attempt == record.Attempt:
		same := record.Buyer == op.Buyer && slices.EqualFunc(record.Lines, op.Lines, func(a, b stock.Line) bool {
			return a.SKU == b.SKU && a.Asked == b.Asked
		})
		if !same || op.Kind == stock.Sale && record.State == stock.Held {
			return standing(stock.Conflict, record)
		}
		return standing(stock.Replayed, record)
	}
	if out, ok := w.short(op.Lines); !ok {
		return out
	}
	w.move(op.Lines, held, -1, committed)
	r := &stock.Reservation{ID: op.ID, Attempt: op.Attempt, Buyer: op.Buyer, Lines: op.Lines}
	if state == stock.Held {
		r.ExpiresMillis = w.now + op.TTL
	}
	return stock.Outcome{Code: stock.Accepted, Receipt: w.enter(shard, r, state), Reservation: *r}
}

// short refuses lines that cannot be taken.
func (w *World) short(lines stock.Lines) (stock.Outcome, bool) {
	for _, l := range lines {
		f := w.fields[l.SKU]
		switch {
		case f == nil:
			return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}, false
		case f.Frozen:
			return stock.Outcome{Code: stock.FrozenSKU, SKU: l.SKU}, false
		case f.Closed:
			return stock.Outcome{Code: stock.ClosedSKU, SKU: l.SKU}, false
		case f.OpensMillis > w.now:
			return stock.Outcome{Code: stock.UnopenedSKU, SKU: l.SKU}, false
		}
	}
	var out stock.Outcome
	for _, l := range lines {
		out.Short = append(out.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: w.fields[l.SKU].Available})
		if w.fields[l.SKU].Available < l.Asked {
			out.Code = stock.SoldOut
		}
	}
	return out, out.Code == ""
}

func (w *World) movement(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	l := op.Lines[0]
	f := w.fields[l.SKU]
	r := &stock.Reservation{ID: op.ID, Lines: op.Lines}
	switch {
	case record != nil:
		return standing(stock.Replayed, record)
	case w.now > op.Deadline:
		return stock.Outcome{Code: stock.Overdue}
	case f == nil:
		return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
	case f.Available+l.Asked < 0:
		return stock.Outcome{Code: stock.NotAllowed, Receipt: w.enter(shard, r, stock.Refused)}
	}
	f.Available += l.Asked
	return stock.Outcome{Code: stock.Accepted, Receipt: w.enter(shard, r, stock.Done), Reservation: *r}
}
