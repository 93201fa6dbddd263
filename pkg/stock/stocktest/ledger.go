package stocktest

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A paper is a document as the ledger of a Counter has it, which never loses one.
type paper struct {
	step Step // as it was written
	op   stock.Operation
	came stock.Lines // of a return: what came back, for sale or not
	done bool        // the ledger has it applied
}

// apply lets the ledger catch up. It never forgets an order, and a document changes the row of one whose record is gone.
func (c *Counter) apply() {
	all := maps.Clone(c.ledger.Orders)
	maps.Copy(all, c.desk.Orders)
	c.ledger = c.desk.Clone()
	c.ledger.Orders = all
	ids := slices.Collect(maps.Keys(c.papers))
	slices.SortFunc(ids, func(a, b string) int { return int(all[a].Receipt.Seq - all[b].Receipt.Seq) })
	for _, id := range ids {
		p, r := c.papers[id], c.desk.Orders[id]
		if _, kept := c.desk.Orders[p.op.Order.ID]; !kept && !p.done && r.State == stock.Done {
			c.ledger.amend(p.op, r.Receipt)
		}
		p.done = p.done || r.State == stock.Done
		c.papers[id] = p
	}
}

// document writes a document, with all that is known of its order applied, and has it decided. The same once more is
// decided as it was written, whatever has become of the order since.
func (c *Counter) document(s Step) Answer {
	id := stock.DocumentID(s.ID)
	if s.Verb == Stock {
		id = fmt.Sprintf("~~open:%d", c.number(s.Lines[0].SKU))
	}
	p, written := c.papers[id]
	switch {
	case !written:
		op, a, ok := c.draft(s, id)
		if !ok {
			return a
		}
		p = c.filed(s, op)
		c.papers[id] = p
	case !p.repeats(s):
		return Answer{Word: Conflict}
	}
	a := c.told(s.Verb, c.decide(p.op))
	if a.Word == Replayed && a.State == stock.Refused {
		a.Word = Refused // a document has one outcome, whoever asks how often
	}
	return a
}

// repeats reports whether a step is the document once more. One that was of all that was left may leave its lines out.
func (p *paper) repeats(s Step) bool {
	same := p.step.Verb == s.Verb && p.step.Order == s.Order && p.step.Attempt == s.Attempt && p.step.Scrap == s.Scrap
	return same && (s.Order != "" && len(s.Lines) == 0 || slices.Equal(p.step.Lines, s.Lines))
}

// draft makes the operation of a document, or says why it is not written.
func (c *Counter) draft(s Step, id string) (stock.Operation, Answer, bool) {
	op := stock.Operation{Kind: stock.Movement, ID: id, Document: string(s.Verb), Deadline: math.MaxInt64}
	for _, l := range s.Lines {
		op.Lines = append(op.Lines, stock.Line{SKU: c.number(l.SKU), Asked: l.Units, Now: l.Units})
	}
	slices.SortFunc(op.Lines, func(a, b stock.Line) int { return int(a.SKU - b.SKU) })
	switch {
	case s.Verb == Stock:
		op.Kind, op.Document = stock.NewSKU, ""
	case s.Verb == Count:
		c.apply()
		shelf := c.ledger.Shelves[op.Lines[0].SKU]
		if counted := op.Lines[0].Asked; counted < shelf.Held+shelf.Committed {
			return op, Answer{Word: Lacking, Left: map[string]Short{s.Lines[0].SKU: {Asked: counted, Available: shelf.Held + shelf.Committed}}}, false
		}
		op.Lines[0].Asked -= shelf.OnHand()
		op.Lines[0].Now = op.Lines[0].Asked
	case s.Order != "":
		c.apply()
		if a, ok := c.ofOrder(s, &op); !ok {
			return op, a, false
		}
	}
	for i := range op.Lines {
		l := &op.Lines[i]
		if s.Verb == Fulfil {
			l.Asked = -l.Asked
		}
		l.Now = l.Asked
	}
	return op, Answer{}, true
}

// filed is a document as it is written. What is scrapped comes back and moves nothing.
func (c *Counter) filed(s Step, op stock.Operation) paper {
	p := paper{step: s, op: op, came: op.Lines}
	if s.Scrap {
		p.op.Lines = slices.Clone(op.Lines)
		for i := range p.op.Lines {
			p.op.Lines[i].Asked, p.op.Lines[i].Now = 0, 0
		}
	}
	return p
}

// ofOrder checks a document against its order as the ledger has it; without lines it is about all that is left.
func (c *Counter) ofOrder(s Step, op *stock.Operation) (Answer, bool) {
	r, ok := c.ledger.Orders[s.Order]
	switch {
	case !ok:
		return Answer{Word: Unknown}, false
	case r.Attempt != s.Attempt:
		return Stands(Conflict, r), false
	case r.State != stock.Confirmed && (s.Verb != Return || r.State != stock.Fulfilled):
		return Stands(Ended, r), false
	}
	op.Order = stock.OrderRef{ID: r.ID, Key: r.Attempt, Asked: r.Attempt}
	if s.Verb == Cancel {
		op.Buyer = r.Buyer
	}
	left := map[int64]int64{}
	for _, l := range r.Lines {
		if left[l.SKU] = l.Now; s.Verb == Return {
			left[l.SKU] = l.Fulfilled - c.returned(r.ID, l.SKU)
		}
		if s.Lines == nil && left[l.SKU] > 0 {
			op.Lines = append(op.Lines, stock.Line{SKU: l.SKU, Asked: left[l.SKU]})
		}
	}
	a := Answer{Word: Lacking, Left: map[string]Short{}}
	lacking := len(op.Lines) == 0
	for _, l := range op.Lines {
		a.Left[c.names[l.SKU]] = Short{Asked: l.Asked, Available: left[l.SKU]}
		lacking = lacking || l.Asked > left[l.SKU]
	}
	return a, !lacking
}

// returned is how many shipped units of an order came back.
func (c *Counter) returned(order string, sku int64) int64 {
	var units int64
	for _, p := range c.papers {
		if p.step.Verb != Return || p.step.Order != order {
			continue
		}
		for _, l := range p.came {
			if l.SKU == sku {
				units += l.Asked
			}
		}
	}
	return units
}
