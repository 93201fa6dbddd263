package event

import (
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Call writes the operations of one call or entry: groups joined by ';', each a body and its items joined
// by spaces, an item being "<id>" or "<id>,<buyer>". Neighbours with equal bodies share a group. The order of
// the operations is kept; the index of an operation is its place in it. The zero value is ready, and Reset
// makes it ready again with its memory kept.
type Call struct {
	text, body, last []byte
}

// Reset forgets what was written.
func (c *Call) Reset() { c.text, c.last = c.text[:0], c.last[:0] }

// Add writes one more operation. It copies what it needs.
func (c *Call) Add(op *stock.Operation) {
	c.body = AppendBody(c.body[:0], op)
	if len(c.text) == 0 || string(c.body) != string(c.last) {
		if len(c.text) > 0 {
			c.text = append(c.text, ';')
		}
		c.text = append(c.text, c.body...)
		c.last, c.body = c.body, c.last
	}
	c.text = append(append(c.text, ' '), op.ID...)
	if op.Buyer != "" {
		c.text = append(append(c.text, ','), op.Buyer...)
	}
}

// Bytes is what was written, valid until the next Add or Reset.
func (c *Call) Bytes() []byte { return c.text }

// AppendOperations writes a whole call at once, as Call does.
func AppendOperations(b []byte, ops []stock.Operation) []byte {
	c := Call{text: make([]byte, 0, 64*len(ops))}
	for i := range ops {
		c.Add(&ops[i])
	}
	return append(b, c.text...)
}

// ParseOperations reads what AppendOperations writes, 1 to 256 operations. The error is an *UnreadableError.
func ParseOperations(text string) ([]stock.Operation, error) {
	// Every operation has one space before its id, and every line one '='.
	ops := make([]stock.Operation, 0, min(strings.Count(text, " "), stock.MaxCallOps))
	own := slab{want: min(strings.Count(text, "="), 2*stock.MaxOrderLines)}
	previous := ""
	for more := true; more; {
		var group string
		group, text, more = cut(text, ';')
		body, items, found := cut(group, ' ')
		var op stock.Operation
		ok := own.body(&op, body)
		if !ok || !found || body == previous {
			return nil, unreadable("operation", group)
		}
		previous = body
		buyers := namesBuyer(&op)
		for another := true; another; {
			var item string
			var hasBuyer bool
			item, items, another = cut(items, ' ')
			op.ID, op.Buyer, hasBuyer = cut(item, ',')
			if !isID(op.ID) || hasBuyer && (op.Buyer == "" || !buyers || stock.CheckBuyer("buyer", op.Buyer) != nil) {
				return nil, unreadable("operation", item)
			}
			if len(ops) == stock.MaxCallOps {
				return nil, unreadable("operation", "more than 256 operations")
			}
			ops = append(ops, op)
		}
	}
	return ops, nil
}

// namesBuyer reports whether a buyer may stand beside the id of the operation. A confirm finds the buyer in the
// order's record; a cancellation may come when the record is gone, and the buyer's limit still gets the units back.
func namesBuyer(op *stock.Operation) bool {
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return true
	case stock.Movement:
		return op.Document == stock.DocumentCancel
	}
	return false
}
