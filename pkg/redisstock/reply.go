package redisstock

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A reply is what the library answers: "<class> <seq> <time ms>", for some functions a newline and the rest.
type reply struct {
	class string
	seq   int64
	time  int64 // Redis time, milliseconds since 1970
	rest  string
}

func parseReply(text string) (reply, error) {
	head, rest, _ := strings.Cut(text, "\n")
	f := strings.Split(head, " ")
	if len(f) < 3 {
		return reply{}, fmt.Errorf("unexpected reply %q", head)
	}
	r := reply{class: f[0], rest: rest}
	var err1, err2 error
	r.seq, err1 = strconv.ParseInt(f[1], 10, 64)
	r.time, err2 = strconv.ParseInt(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		return reply{}, fmt.Errorf("unexpected reply %q", head)
	}
	return r, nil
}

// answer reads the answers of apply and settle into the batch, one for each operation in order. The error means
// that the reply as a whole is not one.
func (r reply) answer(shard int, epoch int64, batch []*pending) error {
	receipt := stock.Receipt{Shard: shard, Position: stock.Position{Epoch: epoch, Seq: r.seq}}
	all := r.rest == "*"
	rest := r.rest
	for i, p := range batch {
		p.answer = answer{time: r.time, epoch: epoch}
		if all {
			receipt.Index = i
			p.answer.outcome = accepted(p.op, receipt, r.time)
			continue
		}
		line, tail, more := strings.Cut(rest, "\n")
		if line == "" || more != (i < len(batch)-1) {
			return fmt.Errorf("unexpected reply to operation %d of %d: %q", i, len(batch), line)
		}
		rest = tail
		var err error
		if p.answer.outcome, err = outcome(p.op, line, receipt, r.time); err != nil {
			// What one answer says cannot be read: its caller is told unknown, the others know theirs.
			p.answer = answer{class: class{reason: "unknown", unknown: true}, epoch: epoch}
			continue
		}
		if c := p.answer.outcome.Code; c == stock.Accepted || c == stock.NotAllowed {
			receipt.Index++
		}
	}
	return nil
}

// accepted is the outcome of a reserve or sale that was taken: the caller knows all but the place and time.
func accepted(op *stock.Operation, receipt stock.Receipt, time int64) stock.Outcome {
	r := stock.Reservation{ID: op.ID, State: stock.Held, Receipt: receipt, Attempt: op.Attempt, Buyer: op.Buyer, Lines: op.Lines}
	switch op.Kind {
	case stock.Reserve:
		r.ExpiresMillis = time + op.TTL
	case stock.Sale:
		r.State = stock.Confirmed
	default:
		r.State, r.Buyer = stock.Done, "" // a document's record has none
	}
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt, Reservation: r}
}

// recordCodes are the letters that a record follows.
var recordCodes = map[byte]stock.Code{
	'+': stock.Accepted, '=': stock.Replayed, '!': stock.Conflict, '<': stock.Retake, 'd': stock.NotDue,
}

// skuCodes are the letters that a SKU number follows.
var skuCodes = map[byte]stock.Code{
	'u': stock.MissingSKU, 'f': stock.FrozenSKU, 'c': stock.ClosedSKU, 'o': stock.UnopenedSKU, 'i': stock.Inconsistent,
	'b': stock.BuyerMissing, 'w': stock.Uncounted,
}

func outcome(op *stock.Operation, line string, receipt stock.Receipt, time int64) (stock.Outcome, error) {
	letter, text := line[0], line[1:]
	if line == "+" {
		return accepted(op, receipt, time), nil
	}
	if code, ok := recordCodes[letter]; ok {
		out := stock.Outcome{Code: code}
		if code == stock.Accepted {
			out.Receipt = receipt
		}
		if text == "" {
			return out, nil
		}
		var err error
		out.Reservation, err = event.ParseRecord(receipt.Shard, op.ID, text)
		return out, err
	}
	if code, ok := skuCodes[letter]; ok {
		sku, err := strconv.ParseInt(text, 10, 64)
		return stock.Outcome{Code: code, SKU: sku}, err
	}
	switch letter {
	case '?':
		return stock.Outcome{Code: stock.NoRecord}, nil
	case '>':
		return stock.Outcome{Code: stock.Again}, nil
	case 'x':
		return stock.Outcome{Code: stock.Damaged}, nil
	case 't':
		return stock.Outcome{Code: stock.Overdue}, nil
	case 'z':
		return stock.Outcome{Code: stock.OutOfBounds}, nil
	case 'l':
		return limited(op, text)
	case '-':
		short, err := shorts(op, text)
		return stock.Outcome{Code: stock.SoldOut, Short: short}, err
	case 'm':
		short, err := shorts(op, text)
		return stock.Outcome{Code: stock.NotAllowed, Receipt: receipt, Short: short}, err
	}
	return stock.Outcome{}, fmt.Errorf("unexpected answer %q to operation %c of %s", line, op.Kind, op.ID)
}

// limited reads "<sku>=<what the buyer has>/<limit>".
func limited(op *stock.Operation, text string) (stock.Outcome, error) {
	sku, rest, _ := strings.Cut(text, "=")
	have, limit, _ := strings.Cut(rest, "/")
	out := stock.Outcome{Code: stock.LimitReached}
	for _, number := range []struct {
		to   *int64
		text string
	}{{&out.SKU, sku}, {&out.Bought, have}, {&out.Limit, limit}} {
		var err error
		if *number.to, err = strconv.ParseInt(number.text, 10, 64); err != nil {
			return stock.Outcome{}, fmt.Errorf("unexpected limit %q for %s", text, op.ID)
		}
	}
	return out, nil
}

// shorts reads "<sku>=<available>,…" beside the lines that were asked for. A late confirm names no lines, so
// there the units asked stay 0 and the caller fills them from its record.
func shorts(op *stock.Operation, text string) ([]stock.Short, error) {
	asked := make(map[int64]int64, len(op.Lines))
	for _, l := range op.Lines {
		asked[l.SKU] = l.Asked
	}
	var out []stock.Short
	for part := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(part, "=")
		sku, err1 := strconv.ParseInt(left, 10, 64)
		available, err2 := strconv.ParseInt(right, 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("unexpected shortage %q for %s", part, op.ID)
		}
		out = append(out, stock.Short{SKU: sku, Asked: asked[sku], Available: available})
	}
	return out, nil
}
