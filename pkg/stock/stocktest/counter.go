package stocktest

import (
	"context"
	"fmt"
	"maps"
	"math"
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
	return &Counter{now: 1_700_000_000_000, desk: NewModel(), ledger: NewModel(), ended: map[attempt]stock.Reservation{}, skus: map[string]int64{}, names: map[int64]string{}}
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
		c.desk = c.ledger.Clone()
	case Lose:
		c.desk = c.ledger.Clone()
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
		return Answer{Word: Word(r.State), State: r.State, Attempt: r.Attempt, Units: r.Lines.Units()}, nil
	case Confirm:
		return c.confirm(s), nil
	case Release:
		return c.release(s), nil
	default:
		a := c.told(s.Verb, c.do(c.operation(s)))
		if a.Word == Replayed && a.State == stock.Refused {
			a.Word = Refused // a document has one outcome, whoever asks how often
		}
		return a, nil
	}
	return Answer{Word: Done}, nil
}

// apply lets the ledger catch up. It never forgets an order.
func (c *Counter) apply() {
	all := maps.Clone(c.ledger.Orders)
	maps.Copy(all, c.desk.Orders)
	c.ledger = c.desk.Clone()
	c.ledger.Orders = all
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
	op := stock.Operation{ID: s.ID, Attempt: s.Attempt, Buyer: s.Buyer, Deadline: math.MaxInt64}
	for _, l := range s.Lines {
		op.Lines = append(op.Lines, stock.Line{SKU: c.number(l.SKU), Asked: l.Units, Now: l.Units})
	}
	if s.Verb == Reserve || s.Verb == Sale {
		var err error
		if op.Lines, err = stock.Canonical(op.Lines, stock.MaxOrderLines); err != nil {
			panic(err) // a table with lines out of bounds
		}
	}
	switch s.Verb {
	case Reserve:
		op.Kind, op.TTL = stock.Reserve, s.TTL.Milliseconds()
	case Sale:
		op.Kind = stock.Sale
	case Expire:
		op.Kind = stock.Expire
	case Late:
		op.Kind = stock.LateConfirm
	case Stock:
		op.Kind, op.ID = stock.NewSKU, fmt.Sprintf("~~open:%d", op.Lines[0].SKU)
	case Receive, Adjust:
		op.Kind, op.ID = stock.Movement, stock.DocumentID(s.ID)
	case Freeze, Close, Opens, Lift:
		op.Kind = stock.Configure
		op.Settings = SettingsOf(s, c.now)
	}
	return op
}

// SettingsOf is what freeze, close, opens and lift set, at a Redis time in milliseconds.
func SettingsOf(s Step, now int64) stock.Settings {
	switch s.Verb {
	case Freeze:
		return stock.Settings{Frozen: true}
	case Close:
		return stock.Settings{Closed: true}
	case Opens:
		return stock.Settings{OpensMillis: now + s.Span.Milliseconds()}
	}
	return stock.Settings{}
}

// do decides an operation; a begun-again order without a record is looked up in the ledger first (protocol D).
func (c *Counter) do(op stock.Operation) stock.Outcome {
	if op.Kind == stock.Movement || op.Kind == stock.NewSKU {
		// A document stands in the ledger before anything moves: other content under its id is a conflict.
		if old, ok := c.ledger.Orders[op.ID]; ok && !sameAsked(old.Lines, op.Lines) {
			return known(stock.Conflict, old)
		}
		if old, ok := c.desk.Orders[op.ID]; ok && !sameAsked(old.Lines, op.Lines) {
			return known(stock.Conflict, old)
		}
	}
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

// confirm is what a buyer's confirm becomes: late after expiry, and answered by the ledger where there is no
// record any more.
func (c *Counter) confirm(s Step) Answer {
	op := stock.Operation{Kind: stock.Confirm, ID: s.ID, Attempt: s.Attempt}
	out := c.decide(op)
	if out.Code == stock.Retake {
		op.Kind = stock.LateConfirm
		out = c.decide(op)
	}
	if out.Code == stock.NoRecord {
		old, ok := c.ledger.Orders[s.ID]
		switch {
		case !ok:
			return Answer{Word: Unknown}
		case old.State == stock.Expired && old.Attempt == s.Attempt:
			out = c.decide(stock.Operation{Kind: stock.Sale, ID: s.ID, Attempt: s.Attempt + 1, Buyer: old.Buyer, Lines: old.Lines, Known: true})
		default:
			out = standingOf(old, s.Attempt)
		}
	}
	a, r := c.told(Confirm, out), out.Reservation
	switch {
	case out.Code == stock.SoldOut:
		a.Word = Shortfall
	case out.Code == stock.Replayed && r.State == stock.Confirmed && (r.Attempt == s.Attempt || c.late(&r, s.Attempt)):
	case out.Code == stock.Replayed && r.Attempt == s.Attempt && r.State.Ended():
		a.Word = Ended
	case out.Code == stock.Replayed:
		a.Word = Conflict
	}
	return a
}

// late tells whether a confirmed attempt is the late confirm of the one before it: that one expired, with the same lines.
func (c *Counter) late(r *stock.Reservation, before int64) bool {
	old, there := c.ended[attempt{r.ID, before}]
	return there && r.Attempt == before+1 && old.State == stock.Expired && sameAsked(old.Lines, r.Lines)
}

func standingOf(old stock.Reservation, attempt int64) stock.Outcome {
	if old.Attempt < attempt {
		return known(stock.Conflict, old)
	}
	return known(stock.Replayed, old)
}

// release is what a buyer's release becomes.
func (c *Counter) release(s Step) Answer {
	out := c.decide(stock.Operation{Kind: stock.Release, ID: s.ID, Attempt: s.Attempt})
	if out.Code == stock.NoRecord {
		old, ok := c.ledger.Orders[s.ID]
		if !ok {
			return Answer{Word: Unknown}
		}
		out = standingOf(old, s.Attempt)
	}
	a, r := c.told(Release, out), out.Reservation
	switch {
	case out.Code == stock.Replayed && r.State == stock.Confirmed:
		a.Word = Ended
	case out.Code == stock.Replayed && r.Attempt != s.Attempt:
		a.Word = Conflict
	}
	return a
}
