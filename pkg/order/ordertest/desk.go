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
	case stock.Configure:
		return w.configure(shard, &op)
	case stock.NewSKU:
		if record != nil {
			return standing(stock.Replayed, record)
		}
		w.fields[op.Lines[0].SKU] = &event.Field{Quantities: stock.Quantities{Available: op.Lines[0].Asked}}
		return w.accept(shard, &stock.Reservation{ID: op.ID, State: stock.Done, Lines: op.Lines}, op.Lines)
	}
	return w.hold(shard, &op, record)
}

func standing(code stock.Code, r *stock.Reservation) stock.Outcome {
	return stock.Outcome{Code: code, Reservation: *r}
}

// accept writes what an operation made: the record, its receipt, and what Postgres will get.
func (w *World) accept(shard int, r *stock.Reservation, touched stock.Lines, others ...*stock.Reservation) stock.Outcome {
	receipt := w.enter(shard, append([]*stock.Reservation{r}, others...), touched)
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt, Reservation: *r}
}

// enter writes an entry of the log.
func (w *World) enter(shard int, changed []*stock.Reservation, touched stock.Lines) stock.Receipt {
	w.seq[shard]++
	e := entry{
		receipt: stock.Receipt{Shard: shard, Position: stock.Position{Epoch: w.epoch, Seq: w.seq[shard]}},
		fields:  map[int64]event.Field{},
	}
	for _, r := range changed {
		r.Receipt = e.receipt
		w.records[shard][r.ID] = r
		e.rows = append(e.rows, *r)
	}
	for _, l := range touched {
		e.fields[l.SKU] = *w.fields[l.SKU]
	}
	if w.Stopped {
		w.behind = append(w.behind, e)
	} else {
		w.persist(&e)
	}
	return e.receipt
}

// change moves an order from one state to another, and all that hangs on it.
func (w *World) change(shard int, before, after *stock.Reservation) stock.Outcome {
	var touched stock.Lines
	if before != nil {
		touched = append(touched, before.Lines...)
	}
	touched = append(touched, after.Lines...)
	for _, l := range touched {
		if w.fields[l.SKU] == nil {
			return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
		}
	}
	w.book(before, -1)
	w.book(after, 1)
	return w.accept(shard, after, touched)
}

// book puts the units of an order where its state has them, or takes them away again.
func (w *World) book(r *stock.Reservation, sign int64) {
	if r == nil || r.State.Ended() {
		return
	}
	for _, l := range r.Lines {
		f := w.fields[l.SKU]
		f.Available -= sign * l.Now
		if r.State == stock.Held {
			f.Held += sign * l.Now
		} else {
			f.Committed += sign * l.Now
		}
	}
	w.owe(r.Buyer, r.Lines, sign)
}

// owe changes what a buyer has.
func (w *World) owe(buyer string, lines stock.Lines, sign int64) {
	for _, l := range lines {
		if f := w.fields[l.SKU]; buyer != "" && f != nil && f.Limit > 0 {
			key := event.BuyerKey{SKU: l.SKU, Buyer: buyer}
			w.bought[key] = max(w.bought[key]+sign*(l.Now+l.Fulfilled), 0)
		}
	}
}

func (w *World) take(shard int, op *stock.Operation, record *stock.Reservation) stock.Outcome {
	switch {
	case record == nil && op.Attempt > 1 && !op.Known:
		return stock.Outcome{Code: stock.NoRecord}
	case record == nil:
	case op.Attempt > record.Attempt && !record.State.Ended():
		return standing(stock.Conflict, record)
	case op.Attempt < record.Attempt:
		return standing(stock.Replayed, record)
	case op.Attempt == record.Attempt:
		same := record.Buyer == op.Buyer && slices.EqualFunc(wasAsked(record.Lines), op.Lines, func(a, b stock.Line) bool {
			return a.SKU == b.SKU && a.Asked == b.Asked
		})
		if !same || op.Kind == stock.Sale && record.State == stock.Held {
			return standing(stock.Conflict, record)
		}
		return standing(stock.Replayed, record)
	}
	lines, out, ok := w.spare(op)
	if !ok {
		return out
	}
	r := &stock.Reservation{ID: op.ID, State: stock.Held, Attempt: op.Attempt, Buyer: op.Buyer, Lines: lines, ExpiresMillis: w.now + op.TTL}
	if op.Kind == stock.Sale {
		r.State, r.ExpiresMillis = stock.Confirmed, 0
	}
	return w.change(shard, nil, r)
}

// wasAsked leaves out the lines that only a replace brought.
func wasAsked(lines stock.Lines) stock.Lines {
	return slices.DeleteFunc(slices.Clone(lines), func(l stock.Line) bool { return l.Asked == 0 })
}

// spare gives the lines that a reserve or sale takes, or the refusal.
func (w *World) spare(op *stock.Operation) (stock.Lines, stock.Outcome, bool) {
	if out, ok := w.sells(op.Lines, op.Buyer); !ok {
		return nil, out, false
	}
	lines := slices.Clone(op.Lines)
	if op.Partial {
		for i := range lines {
			lines[i].Now = min(lines[i].Asked, w.fields[lines[i].SKU].Available)
		}
	}
	if lines.Units() == 0 {
		lines = op.Lines
	}
	if out, ok := w.within(lines, op.Buyer); !ok {
		return nil, out, false
	}
	out, ok := w.enough(lines)
	return lines, out, ok
}

// sells refuses lines that nobody may take now.
func (w *World) sells(lines stock.Lines, buyer string) (stock.Outcome, bool) {
	for _, l := range lines {
		f := w.fields[l.SKU]
		code := stock.Code("")
		switch {
		case f == nil:
			code = stock.MissingSKU
		case f.Frozen:
			code = stock.FrozenSKU
		case f.Closed:
			code = stock.ClosedSKU
		case f.OpensMillis > w.now:
			code = stock.UnopenedSKU
		case f.Limit > 0 && buyer == "":
			code = stock.BuyerMissing
		case f.Limit > 0 && !w.counted[l.SKU]:
			code = stock.Uncounted
		}
		if code != "" {
			return stock.Outcome{Code: code, SKU: l.SKU}, false
		}
	}
	return stock.Outcome{}, true
}

// within refuses what would give a buyer more than the limit.
func (w *World) within(lines stock.Lines, buyer string) (stock.Outcome, bool) {
	for _, l := range lines {
		have := w.bought[event.BuyerKey{SKU: l.SKU, Buyer: buyer}]
		if limit := w.fields[l.SKU].Limit; limit > 0 && l.Now > 0 && have+l.Now > limit {
			return stock.Outcome{Code: stock.LimitReached, SKU: l.SKU, Bought: have, Limit: limit}, false
		}
	}
	return stock.Outcome{}, true
}

// enough refuses lines of which there are too few, all of them with what is there.
func (w *World) enough(lines stock.Lines) (stock.Outcome, bool) {
	var out stock.Outcome
	for _, l := range lines {
		out.Short = append(out.Short, stock.Short{SKU: l.SKU, Asked: l.Asked, Available: w.fields[l.SKU].Available})
		if w.fields[l.SKU].Available < l.Now {
			out.Code = stock.SoldOut
		}
	}
	return out, out.Code == ""
}

func (w *World) configure(shard int, op *stock.Operation) stock.Outcome {
	l := op.Lines[0]
	f := w.fields[l.SKU]
	if f == nil {
		return stock.Outcome{Code: stock.MissingSKU, SKU: l.SKU}
	}
	f.Settings = op.Change.Apply(f.Settings)
	if f.Limit == 0 {
		delete(w.counted, l.SKU)
	}
	return stock.Outcome{Code: stock.Accepted, Receipt: w.enter(shard, nil, op.Lines)}
}
