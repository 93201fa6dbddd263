package ledger

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Whatever happens, in batches of any size and however often each comes: the table is the sum of the orders.
func TestWhatBuyersHaveIsAlwaysTheSumOfTheirOrders(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			c := &till{teller: w, Rand: rand.New(rand.NewPCG(seed, 7)), kinds: map[string]int{}}
			c.tea, c.mug = w.sku(1_000_000), w.sku(1_000_000)
			plain := w.sku(1_000_000)
			c.all = []int64{c.tea, c.mug, plain}
			var before []event.Raw
			rows := 0
			for n := range 60 {
				raws := c.batch()
				w.apply(slices.Concat(before, raws)...)
				if c.IntN(3) == 0 {
					w.apply(raws...)
				}
				before = raws
				want := w.boughtBy(boughtTotal)
				rows += len(want)
				w.haveBought(fmt.Sprint("batch ", n), want)
				if t.Failed() {
					t.Fatalf("entries of the batch: %+v", raws)
				}
				if c.IntN(12) == 0 {
					c.forget()
					before = nil
				}
			}
			w.same()
			for _, kind := range []string{"reserve", "sale", "again", "confirm", "release", "expire", "late", "extend", "replace", "fulfil", "cancel", "return", "limit", "lift", "of a forgotten order"} {
				if c.kinds[kind] == 0 {
					t.Errorf("nothing of the kind %s came: %v", kind, c.kinds)
				}
			}
			if rows == 0 {
				t.Error("nobody ever had anything")
			}
		})
	}
}

// A till makes up what comes next.
type till struct {
	*teller
	*rand.Rand
	tea, mug int64
	all      []int64
	orders   int
	papers   int
	kinds    map[string]int
}

func (c *till) buyer() string { return []string{"", "ann", "bob", "cay", "Ann"}[c.IntN(5)] }

func (c *till) lines() (out stock.Lines) {
	for _, sku := range c.all {
		if c.IntN(2) == 0 || sku == c.all[2] && len(out) == 0 {
			out = append(out, lines(sku, 1+c.Int64N(5))...)
		}
	}
	return out
}

// some names what stands afterwards of an order's lines, less than all and more than nothing; nil when there is no such.
func (c *till) some(of stock.Lines) (out stock.Lines) {
	left, units := int64(0), int64(0)
	for _, l := range of {
		n := c.Int64N(l.Now + 1)
		left, units = left+n, units+l.Now
		out = append(out, stock.Line{SKU: l.SKU, Now: n})
	}
	if left == 0 || left == units {
		return nil
	}
	return out
}

func (c *till) batch() (raws []event.Raw) {
	papers := c.documents()
	for range 1 + c.IntN(8) {
		if c.IntN(4) == 0 && len(papers) > 0 {
			raws, papers = append(raws, c.entry(papers[0])), papers[1:]
			continue
		}
		for range 3 {
			if op, fits := c.next(); fits {
				raws = append(raws, c.entry(op))
			}
		}
	}
	for _, op := range papers {
		raws = append(raws, c.entry(op))
	}
	return raws
}

// documents writes some for orders that the ledger has confirmed.
func (c *till) documents() (ops []stock.Operation) {
	rows, err := c.l.pool.Query(context.Background(), `select order_id from reservation r where state in ('confirmed', 'fulfilled')
		and not exists (select from reservation n where n.order_id = r.order_id and n.attempt > r.attempt) order by order_id`)
	check(c.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(c.t, err)
	c.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids[:min(len(ids), c.IntN(4))] {
		kind := []string{stock.DocumentFulfil, stock.DocumentCancel, stock.DocumentReturn}[c.IntN(3)]
		c.papers++
		draft := draftOf(fmt.Sprint("p", c.papers), kind, id, nil)
		if c.IntN(2) == 0 || kind == stock.DocumentReturn {
			draft.Lines = lines(c.all[c.IntN(3)], 1)
		}
		doc, _, err := c.l.WriteDocument(context.Background(), draft)
		if err != nil {
			continue // there is not so much of it
		}
		c.kinds[kind]++
		if doc.Order.Asked == 0 {
			c.kinds["of a forgotten order"]++
		}
		ops = append(ops, doc.Operation())
	}
	return ops
}

// next makes up an operation of an order or of a limit.
func (c *till) next() (op stock.Operation, fits bool) {
	switch c.IntN(8) {
	case 0, 1:
		c.orders++
		op = by(c.buyer(), reserve(fmt.Sprint("o", c.orders), 1, c.lines()))
		if c.IntN(4) == 0 {
			op.Kind, op.TTL = stock.Sale, 0
		} else if c.IntN(4) == 0 {
			op.Partial = true
			op.Lines[0].Now = c.Int64N(op.Lines[0].Asked + 1)
		}
		c.kinds[map[bool]string{true: "sale", false: "reserve"}[op.Kind == stock.Sale]]++
		return op, op.Lines.Units() > 0
	case 2:
		sku := c.all[c.IntN(2)]
		if c.IntN(3) == 0 {
			c.kinds["lift"]++
			return limited(sku, 0), true
		}
		c.kinds["limit"]++
		return limited(sku, 1+c.Int64N(9)), true
	}
	var ids []string
	for id := range maps.Keys(c.book.Orders) {
		if !strings.HasPrefix(id, "~") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return op, false
	}
	slices.Sort(ids)
	return c.moved(c.book.Orders[ids[c.IntN(len(ids))]])
}

// moved makes up what becomes of an order.
func (c *till) moved(r *stock.Reservation) (op stock.Operation, fits bool) {
	switch {
	case r.State.Ended():
		if r.State == stock.Expired && c.IntN(2) == 0 {
			c.kinds["late"]++
			op = move(stock.LateConfirm, r.ID, r.Attempt)
			if c.IntN(2) == 0 {
				op.Lines = c.some(r.Lines)
			}
			return op, r.Lines.Units() > 0
		}
		c.kinds["again"]++
		return by(c.buyer(), reserve(r.ID, r.Attempt+1, c.lines())), true
	case r.State != stock.Held:
		return op, false
	}
	kind := []stock.Kind{stock.Confirm, stock.Confirm, stock.Release, stock.Expire, stock.Extend, stock.Replace}[c.IntN(6)]
	op = move(kind, r.ID, r.Attempt)
	switch kind {
	case stock.Confirm, stock.Release:
		c.kinds[map[bool]string{true: "confirm", false: "release"}[kind == stock.Confirm]]++
		if c.IntN(2) == 0 {
			op.Lines = c.some(r.Lines)
		}
	case stock.Expire:
		c.kinds["expire"]++
	case stock.Extend:
		c.kinds["extend"]++
		op.Until = r.ExpiresMillis + 1000
	default:
		c.kinds["replace"]++
		op.Lines = c.lines()
		stands := slices.DeleteFunc(slices.Clone(r.Lines), func(l stock.Line) bool { return l.Now == 0 })
		fits := !slices.EqualFunc(stands, op.Lines, func(a, b stock.Line) bool { return a.SKU == b.SKU && a.Now == b.Now })
		return op, fits
	}
	return op, true
}

// forget drops what came to rest from Redis: a document of it finds no record, and its order may begin anew.
func (c *till) forget() {
	c.t.Helper()
	c.forgotten()
	var again []event.Raw
	for _, id := range slices.Sorted(maps.Keys(c.book.Orders)) {
		r := c.book.Orders[id]
		if strings.HasPrefix(id, "~") || r.State == stock.Held {
			continue
		}
		delete(c.book.Orders, id)
		if len(again) < 3 {
			again = append(again, c.entry(by(c.buyer(), reserve(id, 1, c.lines()))))
		}
	}
	c.apply(again...)
}
