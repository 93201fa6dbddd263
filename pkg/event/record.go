package event

import (
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// states maps the letter of a record to its state and back.
var states = map[byte]stock.State{
	'h': stock.Held, 'c': stock.Confirmed, 'r': stock.Released, 'e': stock.Expired,
	'x': stock.Cancelled, 'f': stock.Fulfilled, 'd': stock.Done, 'n': stock.Refused,
}

var stateLetters = func() map[stock.State]byte {
	m := make(map[stock.State]byte, len(states))
	for letter, s := range states {
		m[s] = letter
	}
	return m
}()

// FormatRecord writes what the orders hash keeps under a reservation's id:
//
//	<state>|<epoch>-<seq>-<index>|<attempt>|<expires ms>|<buyer>|<lines>
//
// A document has attempt 0, expires 0, no buyer, and its movements in place of the lines.
func FormatRecord(r *stock.Reservation) string {
	b := append(make([]byte, 0, 96), stateLetters[r.State], '|')
	b = append(appendInt(b, r.Receipt.Epoch), '-')
	b = append(appendInt(b, r.Receipt.Seq), '-')
	b = append(appendInt(b, int64(r.Receipt.Index)), '|')
	b = append(appendInt(b, r.Attempt), '|')
	b = append(appendInt(b, r.ExpiresMillis), '|')
	b = append(append(b, r.Buyer...), '|')
	if isDocument(r.State) {
		b = appendMovements(b, r.Lines)
	} else {
		b = appendLines(b, r.Lines)
	}
	return string(b)
}

// ParseRecord reads what FormatRecord writes. The error is an *UnreadableError.
func ParseRecord(shard int, id, text string) (stock.Reservation, error) {
	r, ok := parseRecord(text)
	if !ok {
		return stock.Reservation{}, unreadable("record of "+id, text)
	}
	r.ID, r.Receipt.Shard = id, shard
	return r, nil
}

func parseRecord(text string) (r stock.Reservation, ok bool) {
	parts := strings.SplitN(text, "|", 6)
	if len(parts) != 6 || len(parts[0]) != 1 {
		return r, false
	}
	if r.State, ok = states[parts[0][0]]; !ok {
		return r, false
	}
	place := strings.Split(parts[1], "-")
	if len(place) != 3 {
		return r, false
	}
	var index int64
	for i, to := range []*int64{&r.Receipt.Epoch, &r.Receipt.Seq, &index} {
		if *to, ok = number(place[i]); !ok {
			return r, false
		}
	}
	r.Receipt.Index = int(index)
	if r.Attempt, ok = between(parts[2], 0, stock.MaxAttempt); !ok || index >= stock.MaxCallOps {
		return r, false
	}
	if r.ExpiresMillis, ok = number(parts[3]); !ok {
		return r, false
	}
	r.Buyer = parts[4]
	if stock.CheckBuyer("buyer", r.Buyer) != nil {
		return r, false
	}
	if isDocument(r.State) {
		r.Lines, ok = parseMovements(parts[5])
		return r, ok && r.Attempt == 0 && r.ExpiresMillis == 0 && r.Buyer == ""
	}
	var own slab
	r.Lines, ok = own.lines(parts[5], standing)
	return r, ok && r.Attempt > 0
}

func isDocument(s stock.State) bool { return s == stock.Done || s == stock.Refused }
