package event

import (
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Field is what the state hash keeps of a SKU: "<available>|<held>|<committed>", followed by
// "|<opens ms>|<flags>|<limit>" only when one of the settings is set.
type Field struct {
	stock.Quantities
	stock.Settings
}

func (f Field) String() string {
	b := appendQuantities(nil, f.Quantities)
	if f.Settings != (stock.Settings{}) {
		b = appendSettings(append(b, '|'), f.Settings)
	}
	return string(b)
}

// ParseField reads what Field.String writes. The error is an *UnreadableError.
func ParseField(text string) (Field, error) {
	var f Field
	available, rest, ok1 := cut(text, '|')
	held, rest, ok2 := cut(rest, '|')
	committed, settings, set := cut(rest, '|')
	ok := ok1 && ok2
	if ok {
		f.Available, ok1 = number(available)
		f.Held, ok2 = number(held)
		f.Committed, ok = number(committed)
		ok = ok && ok1 && ok2
	}
	if ok && set {
		f.Settings, ok = parseSettings(settings)
		ok = ok && f.Settings != stock.Settings{}
	}
	if !ok || !f.Valid() {
		return Field{}, unreadable("stock", text)
	}
	return f, nil
}

func appendQuantities(b []byte, q stock.Quantities) []byte {
	b = append(appendInt(b, q.Available), '|')
	b = append(appendInt(b, q.Held), '|')
	return appendInt(b, q.Committed)
}

// appendSettings writes "<opens ms>|<flags>|<limit>", flags being f (frozen) and c (closed for sale).
func appendSettings(b []byte, s stock.Settings) []byte {
	b = append(appendInt(b, s.OpensMillis), '|')
	if s.Frozen {
		b = append(b, 'f')
	}
	if s.Closed {
		b = append(b, 'c')
	}
	return appendInt(append(b, '|'), s.Limit)
}

func parseSettings(text string) (s stock.Settings, ok bool) {
	parts := strings.Split(text, "|")
	if len(parts) != 3 {
		return s, false
	}
	if s.OpensMillis, ok = number(parts[0]); !ok {
		return s, false
	}
	switch parts[1] {
	case "":
	case "f":
		s.Frozen = true
	case "c":
		s.Closed = true
	case "fc":
		s.Frozen, s.Closed = true, true
	default:
		return s, false
	}
	s.Limit, ok = between(parts[2], 0, stock.MaxMovementQuantity)
	return s, ok
}

// appendChange writes "<opens ms>|<changes>|<limit>": "-" for a number that stays, and of the flags only those that
// become something else, with the sign that says what.
func appendChange(b []byte, c stock.Change) []byte {
	b = append(appendKept(b, c.Opens), '|')
	b = appendSwitch(b, c.Frozen, 'f')
	b = appendSwitch(b, c.Closed, 'c')
	return appendKept(append(b, '|'), c.Limit)
}

func appendKept(b []byte, n int64) []byte {
	if n == stock.Keep {
		return append(b, '-')
	}
	return appendInt(b, n)
}

func appendSwitch(b []byte, s stock.Switch, flag byte) []byte {
	switch s {
	case stock.KeepIt:
		return b
	case stock.On:
		return append(b, '+', flag)
	case stock.Off:
		return append(b, '-', flag)
	}
	return append(b, '?', flag) // which no reader accepts
}

func parseChange(text string) (c stock.Change, ok bool) {
	parts := strings.Split(text, "|")
	if len(parts) != 3 {
		return c, false
	}
	flags := parts[1]
	c.Frozen, flags = cutSwitch(flags, 'f')
	c.Closed, flags = cutSwitch(flags, 'c')
	var known bool
	c.Opens, ok = kept(parts[0], stock.MaxStockQuantity)
	c.Limit, known = kept(parts[2], stock.MaxMovementQuantity)
	return c, ok && known && flags == ""
}

func kept(text string, most int64) (int64, bool) {
	if text == "-" {
		return stock.Keep, true
	}
	return between(text, 0, most)
}

func cutSwitch(text string, flag byte) (stock.Switch, string) {
	switch {
	case len(text) < 2 || text[1] != flag:
	case text[0] == '+':
		return stock.On, text[2:]
	case text[0] == '-':
		return stock.Off, text[2:]
	}
	return stock.KeepIt, text
}
