package stocktest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Counter is a Shop made of the Model alone: one shard, a clock that only Tick moves, and a ledger that is an
// earlier copy of the same maps. The tables are played against it before anything real. NewCounter makes one.
type Counter struct {
	mu     sync.Mutex
	now    int64
	seq    int64
	desk   *Model
	ledger *Model
	ended  map[attempt]stock.Reservation // how attempts ended that may have a next one
	papers map[string]paper              // documents, as the ledger has them from the moment that they are written
	skus   map[string]int64
	names  map[int64]string
}

type attempt struct {
	id     string
	number int64
}

var _ Shop = (*Counter)(nil)

// NewCounter is an empty shop.
func NewCounter() *Counter {
	return &Counter{now: 1_700_000_000_000, desk: NewModel(), ledger: NewModel(), ended: map[attempt]stock.Reservation{}, papers: map[string]paper{}, skus: map[string]int64{}, names: map[int64]string{}}
}

// Look tells a SKU's quantities.
func (c *Counter) Look(_ context.Context, sku string) (stock.Quantities, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.desk.Shelves[c.skus[sku]].Quantities, nil
}

// Do carries out a step.
func (c *Counter) Do(_ context.Context, s Step) (Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s.Verb {
	case Tick:
		c.now += s.Span.Milliseconds()
	case Apply:
		c.apply()
	case Takeover:
		c.apply()
		c.takeover()
	case Lose:
		c.takeover()
	case Forget:
		if _, ok := c.ledger.Orders[s.ID]; !ok {
			return Answer{}, fmt.Errorf("the ledger does not have %s: only what it has may be forgotten", s.ID)
		}
		delete(c.desk.Orders, s.ID)
	case Standing:
		r, ok := c.desk.Orders[s.ID]
		if !ok {
			return Answer{Word: Unknown}, nil
		}
		return Stands(Word(r.State), r), nil
	case Confirm, Release:
		if slices.ContainsFunc(s.Lines, func(l Line) bool { return c.skus[l.SKU] == 0 }) {
			return Answer{Word: Missing}, nil
		}
		if s.Verb == Confirm {
			return c.confirm(s), nil
		}
		return c.release(s), nil
	case Extend, Replace:
		return c.change(s), nil
	case Stock, Receive, Adjust, Count, Fulfil, Cancel, Return:
		return c.document(s), nil
	default:
		return c.told(s.Verb, c.do(c.operation(s))), nil
	}
	return Answer{Word: Done}, nil
}

// takeover opens the desk anew with what the ledger has.
func (c *Counter) takeover() {
	c.desk = c.ledger.Clone()
	c.desk.Recount()
}

func (c *Counter) told(verb Verb, out stock.Outcome) Answer {
	return Told(verb, out, func(number int64) string { return c.names[number] })
}

func (c *Counter) number(sku string) int64 {
	if c.skus[sku] == 0 {
		c.skus[sku] = int64(len(c.skus) + 1)
		c.names[c.skus[sku]] = sku
	}
	return c.skus[sku]
}

func (c *Counter) operation(s Step) stock.Operation {
	op := stock.Operation{ID: s.ID, Attempt: s.Attempt, Buyer: s.Buyer, Partial: s.Partial}
	for _, l := range s.Lines {
		op.Lines = append(op.Lines, stock.Line{SKU: c.number(l.SKU), Asked: l.Units, Now: l.Units})
	}
	switch s.Verb {
	case Reserve, Sale, Replace:
		var err error
		if op.Lines, err = stock.Canonical(op.Lines, stock.MaxOrderLines); err != nil {
			panic(err) // a table with lines out of bounds
		}
	case Confirm, Release, Late:
		for i := range op.Lines {
			op.Lines[i].Asked = 0
		}
	}
	switch s.Verb {
	case Reserve:
		op.Kind, op.TTL = stock.Reserve, s.TTL.Milliseconds()
	case Sale:
		op.Kind = stock.Sale
	case Confirm:
		op.Kind = stock.Confirm
	case Release:
		op.Kind = stock.Release
	case Extend:
		op.Kind, op.Until = stock.Extend, c.now+s.Span.Milliseconds()
	case Replace:
		op.Kind = stock.Replace
	case Expire:
		op.Kind = stock.Expire
	case Late:
		op.Kind = stock.LateConfirm
	case Freeze, Close, Opens, Lift, Limit:
		op.Kind = stock.Configure
		op.Change = ChangeOf(s, c.now)
	}
	return op
}

// ChangeOf is what freeze, close, opens, lift and limit change, at a Redis time in milliseconds.
func ChangeOf(s Step, now int64) stock.Change {
	change := stock.Kept
	switch s.Verb {
	case Freeze:
		change.Frozen = stock.On
	case Close:
		change.Closed = stock.On
	case Opens:
		change.Opens = now + s.Span.Milliseconds()
	case Lift:
		change.Opens, change.Frozen, change.Closed = 0, stock.Off, stock.Off
	case Limit:
		change.Limit = s.Lines[0].Units
	}
	return change
}

// do decides an operation; a begun-again order without a record is looked up in the ledger first (protocol D).
func (c *Counter) do(op stock.Operation) stock.Outcome {
	out := c.decide(op)
	if out.Code != stock.NoRecord || op.Kind != stock.Reserve && op.Kind != stock.Sale {
		return out
	}
	old, ok := c.ledger.Orders[op.ID]
	switch {
	case !ok || old.Attempt < op.Attempt && old.State.Ended():
		op.Known = true
		return c.decide(op)
	case old.Attempt > op.Attempt || old.Attempt == op.Attempt && old.Buyer == op.Buyer && sameAsked(old.Lines, op.Lines):
		return known(stock.Replayed, old)
	}
	return known(stock.Conflict, old)
}

func (c *Counter) decide(op stock.Operation) stock.Outcome {
	c.seq++
	out := c.desk.Do(op, c.now, stock.Receipt{Position: stock.Position{Epoch: 1, Seq: c.seq}})
	if r := out.Reservation; out.Code == stock.Accepted && r.State.Ended() {
		c.ended[attempt{r.ID, r.Attempt}] = r
	}
	return out
}

// ask decides an operation of an order that must stand; one without a record is looked up in the ledger.
func (c *Counter) ask(op stock.Operation) (stock.Outcome, bool) {
	out := c.decide(op)
	if out.Code != stock.NoRecord {
		return out, true
	}
	old, ok := c.ledger.Orders[op.ID]
	if out = known(stock.Replayed, old); old.Attempt < op.Attempt {
		out.Code = stock.Conflict
	}
	return out, ok
}

// confirm is what a buyer's confirm becomes: late after expiry, and answered by the ledger where there is no
// record any more.
func (c *Counter) confirm(s Step) Answer {
	op := c.operation(s)
	out, ok := c.ask(op)
	if !ok {
		return Answer{Word: Unknown}
	}
	old := out.Reservation
	_, kept := c.desk.Orders[s.ID]
	switch {
	case out.Code == stock.Retake:
		late := op
		late.Kind = stock.LateConfirm
		out = c.decide(late)
		c.fillAsked(&out, old.Lines, op.Lines)
	case !kept && out.Code == stock.Replayed && old.State == stock.Expired && old.Attempt == s.Attempt:
		out = c.sellAgain(old, op.Lines)
	case !kept && out.Code == stock.Replayed && old.State == stock.Confirmed && old.Attempt == s.Attempt && op.Lines != nil && !c.desk.soldAs(old.Lines, op.Lines):
		out.Code = stock.Conflict
	}
	a, r := c.told(Confirm, out), out.Reservation
	sold := r.State == stock.Confirmed || r.State == stock.Fulfilled
	switch {
	case out.Code == stock.SoldOut:
		a.Word = Shortfall
	case out.Code == stock.Replayed && sold && (r.Attempt == s.Attempt || c.late(&r, s.Attempt, op.Lines)):
	case out.Code == stock.Replayed && r.Attempt == s.Attempt && r.State.Ended():
		a.Word = Ended
	case out.Code == stock.Replayed:
		a.Word = Conflict
	}
	return a
}

// fillAsked says beside a shortage what a late confirm wanted.
func (c *Counter) fillAsked(out *stock.Outcome, lines, results stock.Lines) {
	if results != nil {
		lines = results
	}
	for i := range out.Short {
		for _, l := range lines {
			if l.SKU == out.Short[i].SKU {
				out.Short[i].Asked = l.Now
			}
		}
	}
}

// sellAgain sells what an expired order had, or what is named of it: its record is gone, the ledger tells what it was.
func (c *Counter) sellAgain(old stock.Reservation, results stock.Lines) stock.Outcome {
	lines, ok := narrowed(old.Lines, results, false)
	if !ok {
		return known(stock.Conflict, old)
	}
	var wanted stock.Lines
	for _, l := range lines {
		if l.Now > 0 {
			wanted = append(wanted, stock.Line{SKU: l.SKU, Asked: l.Now, Now: l.Now})
		}
	}
	return c.decide(stock.Operation{Kind: stock.Sale, ID: old.ID, Attempt: old.Attempt + 1, Buyer: old.Buyer, Lines: wanted, Known: true})
}

// late tells whether a confirmed attempt is the late confirm of the one before it: that one expired, with the same lines.
func (c *Counter) late(r *stock.Reservation, before int64, results stock.Lines) bool {
	old, there := c.ended[attempt{r.ID, before}]
	if !there || r.Attempt != before+1 || old.State != stock.Expired {
		return false
	}
	if results != nil {
		return c.desk.soldAs(r.Lines, results)
	}
	return sameAsked(old.Lines, r.Lines) || sameAsked(asking(old.Lines), r.Lines)
}

// asking are lines that ask for what stands.
func asking(lines stock.Lines) stock.Lines {
	var out stock.Lines
	for _, l := range lines {
		out = append(out, stock.Line{SKU: l.SKU, Asked: l.Now})
	}
	return out
}

// release is what a buyer's release becomes.
func (c *Counter) release(s Step) Answer {
	out, ok := c.ask(c.operation(s))
	if !ok {
		return Answer{Word: Unknown}
	}
	a, r := c.told(Release, out), out.Reservation
	switch {
	case out.Code == stock.Replayed && (r.State == stock.Confirmed || r.State == stock.Fulfilled):
		a.Word = Ended
	case out.Code == stock.Replayed && r.Attempt != s.Attempt:
		a.Word = Conflict
	}
	return a
}

// change is what a buyer's extend and replace become: whatever is no hold any more ends the matter.
func (c *Counter) change(s Step) Answer {
	out, ok := c.ask(c.operation(s))
	if !ok {
		return Answer{Word: Unknown}
	}
	a, r := c.told(s.Verb, out), out.Reservation
	switch {
	case out.Code == stock.Replayed && r.Attempt != s.Attempt:
		a.Word = Conflict
	case out.Code == stock.Replayed && r.State != stock.Held:
		a.Word = Ended
	}
	return a
}
