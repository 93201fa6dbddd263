package event

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// AppendBody writes an operation without its id and buyer, the text that several orders of one call share:
//
//	R<ttl ms>|<attempt>|<lines>[|k]      reserve; k: known to Postgres (protocol D)
//	S|<attempt>|<lines>[|k]              sale
//	C<attempt>  L<attempt>  X<attempt>  E<attempt>
//	M<deadline ms>|<document>|<reason>|<movements>   m… = the same, refused (log only)
//	N<deadline ms>|<number>=<opening>|<escaped SKU>
//	T<number>|<opens ms>|<flags>|<limit>
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
	case stock.Movement:
		letter := byte('M')
		if op.Refused {
			letter = 'm'
		}
		b = appendInt(append(b, letter), op.Deadline)
		b = append(append(append(append(b, '|'), op.Document...), '|'), op.Reason...)
		return appendMovements(append(b, '|'), op.Lines)
	case stock.NewSKU:
		b = append(appendInt(append(b, 'N'), op.Deadline), '|')
		b = append(appendInt(b, op.Lines[0].SKU), '=')
		b = append(appendInt(b, op.Lines[0].Asked), '|')
		return appendEscaped(b, op.SKU)
	case stock.Configure:
		b = append(appendInt(append(b, 'T'), op.Lines[0].SKU), '|')
		return appendSettings(b, op.Settings)
	case stock.Opened:
		b = append(appendInt(append(b, 'O'), op.Continues.Epoch), '-')
		return appendInt(b, op.Continues.Seq)
	default: // C L X E
		return appendInt(append(b, byte(op.Kind)), op.Attempt)
	}
}

func appendTaking(b []byte, op *stock.Operation) []byte {
	b = append(appendInt(append(b, '|'), op.Attempt), '|')
	b = appendLines(b, op.Lines)
	if op.Known {
		b = append(b, "|k"...)
	}
	return b
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
	case stock.Confirm, stock.Release, stock.Expire:
		op.Attempt, ok = between(rest, 1, stock.MaxAttempt)
		return ok
	case stock.LateConfirm: // becomes the next attempt, which must have a number, too
		op.Attempt, ok = between(rest, 1, stock.MaxAttempt-1)
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
		op.Settings, ok = parseSettings(right)
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
	lines, op.Known = strings.CutSuffix(lines, "|k")
	op.Lines, ok = s.lines(lines, false)
	return ok
}

func parseMovementBody(op *stock.Operation, rest string) (ok bool) {
	parts := strings.Split(rest, "|")
	if len(parts) != 4 {
		return false
	}
	if op.Deadline, ok = number(parts[0]); !ok {
		return false
	}
	op.Document, op.Reason = parts[1], parts[2]
	if stock.CheckReason("document", op.Document) != nil || stock.CheckReason("reason", op.Reason) != nil {
		return false
	}
	op.Lines, ok = parseMovements(parts[3])
	return ok
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
	if op.Buyer != "" && op.Kind != stock.Reserve && op.Kind != stock.Sale {
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
	if op.Settings.Limit != 0 {
		return stock.BadField("limit", fmt.Sprint(op.Settings.Limit), "use 0: this version does not count what a buyer holds")
	}
	if taking(op) {
		return nil
	}
	body := string(AppendBody(nil, op))
	if _, ok := parseBody(body); !ok {
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
		if l.SKU <= last || l.SKU > stock.MaxStockQuantity || l.Asked < 1 || l.Asked > stock.MaxLineQuantity || l.Now != l.Asked {
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
