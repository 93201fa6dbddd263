package event

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// AppendBody writes an operation without its id and buyer, the text that several orders of one call share:
//
//	R<ttl ms>|<attempt>|<lines>[|<flags>]   reserve; flags: p partial, k known to Postgres (protocol D), pk both
//	S|<attempt>|<lines>[|<flags>]           sale
//	C<attempt>[|<results>]  L…  X…          confirm, late confirm, release
//	E<attempt>                              expire
//	U<attempt>|<until ms>                   extend
//	P<attempt>|<lines>                      replace
//	M<deadline ms>|<document>|<reason>|<movements>[|<order>|<key>|<asked>]   m… = the same, refused (log only)
//	N<deadline ms>|<number>=<opening>|<escaped SKU>
//	T<number>|<opens ms or ->|<changes>|<limit or ->
//	O<epoch>-<seq>
//
// It writes what it is given: the callers check (CheckOperation), and N and T need one line.
func AppendBody(b []byte, op *stock.Operation) []byte {
	switch op.Kind {
	case stock.Reserve:
		b = append(b, 'R')
		b = appendInt(b, op.TTL)
		return appendTaking(b, op)
	case stock.Sale:
		return appendTaking(append(b, 'S'), op)
	case stock.Confirm, stock.LateConfirm, stock.Release:
		b = appendInt(append(b, byte(op.Kind)), op.Attempt)
		if len(op.Lines) > 0 {
			b = appendResults(append(b, '|'), op.Lines)
		}
		return b
	case stock.Extend:
		b = appendInt(append(b, 'U'), op.Attempt)
		return appendInt(append(b, '|'), op.Until)
	case stock.Replace:
		b = appendInt(append(b, 'P'), op.Attempt)
		return appendLines(append(b, '|'), op.Lines)
	case stock.Movement:
		return appendMovementBody(b, op)
	case stock.NewSKU:
		b = append(appendInt(append(b, 'N'), op.Deadline), '|')
		b = append(appendInt(b, op.Lines[0].SKU), '=')
		b = append(appendInt(b, op.Lines[0].Asked), '|')
		return appendEscaped(b, op.SKU)
	case stock.Configure:
		b = append(appendInt(append(b, 'T'), op.Lines[0].SKU), '|')
		return appendChange(b, op.Change)
	case stock.Opened:
		b = append(appendInt(append(b, 'O'), op.Continues.Epoch), '-')
		return appendInt(b, op.Continues.Seq)
	default: // E
		return appendInt(append(b, byte(op.Kind)), op.Attempt)
	}
}

func appendTaking(b []byte, op *stock.Operation) []byte {
	b = append(appendInt(append(b, '|'), op.Attempt), '|')
	b = appendLines(b, op.Lines)
	if !op.Partial && !op.Known {
		return b
	}
	b = append(b, '|')
	if op.Partial {
		b = append(b, 'p')
	}
	if op.Known {
		b = append(b, 'k')
	}
	return b
}

func appendMovementBody(b []byte, op *stock.Operation) []byte {
	letter := byte('M')
	if op.Refused {
		letter = 'm'
	}
	b = appendInt(append(b, letter), op.Deadline)
	b = append(append(append(append(b, '|'), op.Document...), '|'), op.Reason...)
	b = appendMovements(append(b, '|'), op.Lines)
	if op.Order == (stock.OrderRef{}) {
		return b
	}
	b = append(append(append(b, '|'), op.Order.ID...), '|')
	b = append(appendInt(b, op.Order.Key), '|')
	return appendInt(b, op.Order.Asked)
}

// ParseBody reads what AppendBody writes. The error is an *UnreadableError.
func ParseBody(text string) (stock.Operation, error) {
	op, ok := parseBody(text)
	if !ok {
		return stock.Operation{}, unreadable("operation", text)
	}
	return op, nil
}

func parseBody(text string) (op stock.Operation, ok bool) {
	var own slab
	ok = own.body(&op, text)
	return op, ok
}

// body parses into an empty operation, and into lines of the slab, which the bodies of one entry share.
func (s *slab) body(op *stock.Operation, text string) (ok bool) {
	if text == "" {
		return false
	}
	op.Kind = stock.Kind(text[0])
	rest := text[1:]
	switch op.Kind {
	case stock.Reserve, stock.Sale:
		return s.taking(op, rest)
	case stock.Confirm, stock.Release:
		return s.moving(op, rest, stock.MaxAttempt)
	case stock.LateConfirm: // becomes the next attempt, which must have a number, too
		return s.moving(op, rest, stock.MaxAttempt-1)
	case stock.Expire:
		op.Attempt, ok = between(rest, 1, stock.MaxAttempt)
		return ok
	case stock.Extend:
		attempt, until, found := cut(rest, '|')
		op.Attempt, ok = between(attempt, 1, stock.MaxAttempt)
		if !ok || !found {
			return false
		}
		op.Until, ok = number(until)
		return ok
	case stock.Replace:
		attempt, lines, found := cut(rest, '|')
		op.Attempt, ok = between(attempt, 1, stock.MaxAttempt)
		if !ok || !found {
			return false
		}
		op.Lines, ok = s.lines(lines, asked)
		return ok
	case stock.Movement, 'm':
		op.Refused = op.Kind == 'm'
		op.Kind = stock.Movement
		return parseMovementBody(op, rest)
	case stock.NewSKU:
		return parseNewSKU(op, rest)
	case stock.Configure:
		left, right, found := cut(rest, '|')
		line := stock.Line{}
		if line.SKU, ok = between(left, 1, stock.MaxStockQuantity); !ok || !found {
			return false
		}
		op.Lines = stock.Lines{line}
		op.Change, ok = parseChange(right)
		return ok
	case stock.Opened:
		left, right, found := cut(rest, '-')
		var ok1, ok2 bool
		op.Continues.Epoch, ok1 = number(left)
		op.Continues.Seq, ok2 = number(right)
		return found && ok1 && ok2
	}
	return false
}

func (s *slab) taking(op *stock.Operation, rest string) (ok bool) {
	ttl, rest, found := cut(rest, '|')
	if op.Kind == stock.Reserve {
		if op.TTL, ok = between(ttl, stock.MinTTLMillis, stock.MaxTTLMillis); !ok {
			return false
		}
	} else if ttl != "" {
		return false
	}
	attempt, lines, again := cut(rest, '|')
	if op.Attempt, ok = between(attempt, 1, stock.MaxAttempt); !ok || !found || !again {
		return false
	}
	form := asked
	if last := len(lines) - 1; last >= 0 && lines[last] > '9' { // a flag: lines end in a digit
		var flags string
		lines, flags, _ = cut(lines, '|')
		switch flags {
		case "k":
			op.Known = true
		case "p":
			op.Partial = true
		case "pk":
			op.Partial, op.Known = true, true
		default:
			return false
		}
		if op.Partial {
			form = taken
		}
	}
	op.Lines, ok = s.lines(lines, form)
	return ok && (form == asked || op.Lines.Units() > 0) // what takes nothing is refused, not written
}

// moving parses the attempt that is meant, and what of the order stands afterwards.
func (s *slab) moving(op *stock.Operation, rest string, most int64) (ok bool) {
	attempt, results, named := cut(rest, '|')
	if op.Attempt, ok = between(attempt, 1, most); !ok || !named {
		return ok
	}
	op.Lines, ok = s.results(results)
	return ok
}

func parseMovementBody(op *stock.Operation, rest string) (ok bool) {
	parts := strings.Split(rest, "|")
	if len(parts) != 4 && len(parts) != 7 {
		return false
	}
	if op.Deadline, ok = number(parts[0]); !ok {
		return false
	}
	op.Document, op.Reason = parts[1], parts[2]
	if stock.CheckReason("reason", op.Reason) != nil {
		return false
	}
	if len(parts) == 7 {
		if op.Order, ok = parseOrderRef(parts[4], parts[5], parts[6]); !ok {
			return false
		}
	}
	if op.Lines, ok = parseMovements(parts[3]); !ok {
		return false
	}
	return isDocumentKind(op)
}

func parseOrderRef(id, key, attempt string) (o stock.OrderRef, ok bool) {
	if stock.CheckOrderID("order", id) != nil {
		return o, false
	}
	o.ID = id
	if o.Key, ok = between(key, 1, stock.MaxAttempt); !ok {
		return o, false
	}
	o.Asked, ok = between(attempt, 0, stock.MaxAttempt)
	return o, ok
}

// isDocumentKind knows the kinds of documents that move stock: which of them name an order, and in which direction these
// move. A fulfilment with the wrong sign would make units out of nothing, and the sums of the SKU would still agree.
func isDocumentKind(op *stock.Operation) bool {
	ordered := op.Order != stock.OrderRef{}
	low, high := int64(-stock.MaxMovementQuantity), int64(stock.MaxMovementQuantity)
	switch op.Document {
	case stock.DocumentReceive, stock.DocumentAdjust, stock.DocumentCount: // whoever writes them sees to their signs
		return !ordered
	case stock.DocumentReturn:
		low = 0
	case stock.DocumentFulfil:
		if high = -1; !ordered {
			return false
		}
	case stock.DocumentCancel:
		if low = 1; !ordered {
			return false
		}
	default:
		return false
	}
	for i := range op.Lines {
		if units := op.Lines[i].Asked; units < low || units > high {
			return false
		}
	}
	return true
}

func parseNewSKU(op *stock.Operation, rest string) (ok bool) {
	parts := strings.Split(rest, "|")
	if len(parts) != 3 {
		return false
	}
	if op.Deadline, ok = number(parts[0]); !ok {
		return false
	}
	left, right, found := strings.Cut(parts[1], "=")
	var line stock.Line
	if line.SKU, ok = between(left, 1, stock.MaxStockQuantity); !ok || !found {
		return false
	}
	if line.Asked, ok = between(right, 0, stock.MaxMovementQuantity); !ok {
		return false
	}
	line.Now = line.Asked
	op.Lines = stock.Lines{line}
	if op.SKU, ok = unescape(parts[2]); !ok {
		return false
	}
	return stock.CheckSKU("sku", op.SKU) == nil
}

// CheckOperation refuses what a call cannot carry, before it is sent: one bad operation would make the library
// refuse the whole call, and with it everybody who shares it. The error is a *stock.FieldError.
func CheckOperation(op *stock.Operation) error {
	if !isID(op.ID) {
		return stock.BadField("order_id", op.ID, "use 1 to 64 characters of A-Z a-z 0-9 . _ : -")
	}
	if err := stock.CheckBuyer("buyer", op.Buyer); err != nil {
		return err
	}
	if op.Buyer != "" && !namesBuyer(op) {
		return stock.BadField("buyer", op.Buyer, fmt.Sprintf("leave it out: operation %c finds it in the order's record", op.Kind))
	}
	switch op.Kind {
	case stock.NewSKU, stock.Configure:
		if len(op.Lines) != 1 {
			return stock.BadField("lines", fmt.Sprint(len(op.Lines)), fmt.Sprintf("operation %c is about exactly one SKU", op.Kind))
		}
	case stock.Opened:
		return stock.BadField("operation", string(op.Kind), "only the takeover opens an epoch")
	}
	if op.Refused {
		return stock.BadField("operation", "m", "the library says refused, never the caller")
	}
	if taking(op) {
		return nil
	}
	body := string(AppendBody(nil, op))
	// What a partial reserve takes is for the library to say: only the log has it, and it parses.
	if _, ok := parseBody(body); !ok || op.Kind == stock.Reserve || op.Kind == stock.Sale {
		return stock.BadField("operation", body, fmt.Sprintf("stay inside the bounds of operation %c (attempt, time, quantities, lines in order)", op.Kind))
	}
	return nil
}

// taking accepts a reserve or sale within bounds, the hot case, without writing and reading it first.
func taking(op *stock.Operation) bool {
	switch {
	case op.Kind == stock.Reserve && op.TTL >= stock.MinTTLMillis && op.TTL <= stock.MaxTTLMillis:
	case op.Kind == stock.Sale:
	default:
		return false
	}
	if op.Attempt < 1 || op.Attempt > stock.MaxAttempt || len(op.Lines) == 0 || len(op.Lines) > stock.MaxOrderLines {
		return false
	}
	last := int64(0)
	for i := range op.Lines {
		l := &op.Lines[i]
		if l.SKU <= last || l.SKU > stock.MaxStockQuantity || l.Asked < 1 || l.Asked > stock.MaxLineQuantity || l.Now != l.Asked || l.Fulfilled != 0 {
			return false
		}
		last = l.SKU
	}
	return true
}

// isID accepts an order id, a document id after "~", or a name of ours after "~~".
func isID(id string) bool {
	for range 2 {
		if len(id) > 0 && id[0] == '~' {
			id = id[1:]
		}
	}
	return stock.CheckOrderID("id", id) == nil
}
