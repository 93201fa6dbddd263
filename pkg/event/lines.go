package event

import (
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// appendLines writes "<sku>=<asked>" joined by commas, with ":<now>" where the present quantity differs or
// something was shipped, and ":<fulfilled>" behind it where something was.
func appendLines(b []byte, lines stock.Lines) []byte {
	for i := range lines {
		l := &lines[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, l.SKU)
		b = append(b, '=')
		b = appendInt(b, l.Asked)
		if l.Now != l.Asked || l.Fulfilled != 0 {
			b = append(b, ':')
			b = appendInt(b, l.Now)
		}
		if l.Fulfilled != 0 {
			b = append(b, ':')
			b = appendInt(b, l.Fulfilled)
		}
	}
	return b
}

// FormatLines is the canonical text of an order's lines, the tail of its record.
func FormatLines(lines stock.Lines) string { return string(appendLines(nil, lines)) }

// ParseLines reads what FormatLines writes: canonical, ordered by SKU number, 1 to 1,500 lines.
func ParseLines(text string) (stock.Lines, error) {
	var own slab
	lines, ok := own.lines(text, standing)
	if !ok {
		return nil, unreadable("lines", text)
	}
	return lines, nil
}

// A lineForm says which figures a line may carry where it stands.
type lineForm int8

const (
	asked    lineForm = iota // what an operation asks for: 1 to 1,000,000 units, nothing else
	taken                    // a partial reserve or sale, as the log has it: ":<now>" where less was taken
	standing                 // a record: all three figures, each 0 to 1,000,000, not all of them 0
)

// A slab is where the lines of one entry lie together: one allocation for up to 256 orders in place of one each.
type slab struct {
	free stock.Lines // empty, its capacity is what is left
	want int         // lines that the next allocation has room for, at least
}

// take cuts n empty lines off, capped so that nobody can append into the neighbour's.
func (s *slab) take(n int) stock.Lines {
	if cap(s.free) < n {
		s.free = make(stock.Lines, 0, max(n, s.want))
	}
	lines := s.free[0:0:n]
	s.free = s.free[n:n]
	return lines
}

// lines parses the lines of an order.
func (s *slab) lines(text string, form lineForm) (stock.Lines, bool) {
	n := strings.Count(text, ",") + 1
	if text == "" || n > stock.MaxOrderLines {
		return nil, false
	}
	lines := s.take(n)
	least := int64(1)
	if form == standing {
		least = 0
	}
	for more := true; more; {
		var part string
		part, text, more = cut(text, ',')
		left, right, ok := cut(part, '=')
		if !ok {
			return nil, false
		}
		units, rest, differs := cut(right, ':')
		var l stock.Line
		if l.SKU, ok = between(left, 1, stock.MaxStockQuantity); !ok {
			return nil, false
		}
		if l.Asked, ok = between(units, least, stock.MaxLineQuantity); !ok {
			return nil, false
		}
		l.Now = l.Asked
		if differs && !parseNow(&l, rest, form) || l.Asked|l.Now|l.Fulfilled == 0 {
			return nil, false
		}
		if k := len(lines); k > 0 && lines[k-1].SKU >= l.SKU {
			return nil, false
		}
		lines = append(lines, l)
	}
	return lines, true
}

// parseNow reads "<now>[:<fulfilled>]" of a line, refusing figures that its shorter writing has already.
func parseNow(l *stock.Line, text string, form lineForm) (ok bool) {
	now, fulfilled, shipped := cut(text, ':')
	if l.Now, ok = between(now, 0, stock.MaxLineQuantity); !ok {
		return false
	}
	if shipped {
		l.Fulfilled, ok = between(fulfilled, 1, stock.MaxLineQuantity)
		return ok && form == standing
	}
	return l.Now < l.Asked && form != asked || l.Now > l.Asked && form == standing
}

// appendResults writes "<sku>=<units>" joined by commas: what stands of the lines that an operation names.
func appendResults(b []byte, lines stock.Lines) []byte {
	for i := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendInt(b, lines[i].SKU), '=')
		b = appendInt(b, lines[i].Now)
	}
	return b
}

// results parses what appendResults writes: 1 to 1,500 lines of 0 to 1,000,000 units.
func (s *slab) results(text string) (stock.Lines, bool) {
	n := strings.Count(text, ",") + 1
	if text == "" || n > stock.MaxOrderLines {
		return nil, false
	}
	lines := s.take(n)
	for more := true; more; {
		var part string
		part, text, more = cut(text, ',')
		left, right, found := cut(part, '=')
		sku, ok := between(left, 1, stock.MaxStockQuantity)
		now, fits := between(right, 0, stock.MaxLineQuantity)
		if !found || !ok || !fits {
			return nil, false
		}
		if k := len(lines); k > 0 && lines[k-1].SKU >= sku {
			return nil, false
		}
		lines = append(lines, stock.Line{SKU: sku, Now: now})
	}
	return lines, true
}

// appendMovements writes "<sku>=+<units>" or "<sku>=-<units>" joined by commas: the sign always stands. Zero
// is +0: a SKU may be created with nothing in stock.
func appendMovements(b []byte, lines stock.Lines) []byte {
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, l.SKU)
		b = append(b, '=')
		if l.Asked >= 0 {
			b = append(b, '+')
		}
		b = appendInt(b, l.Asked)
	}
	return b
}

func parseMovements(text string) (stock.Lines, bool) {
	n := strings.Count(text, ",") + 1
	if text == "" || n > stock.MaxOrderLines {
		return nil, false
	}
	lines := make(stock.Lines, 0, n)
	for part := range strings.SplitSeq(text, ",") {
		left, right, ok := cut(part, '=')
		if !ok || len(right) < 2 || right[0] != '+' && right[0] != '-' {
			return nil, false
		}
		var l stock.Line
		if l.SKU, ok = between(left, 1, stock.MaxStockQuantity); !ok {
			return nil, false
		}
		if l.Asked, ok = between(right[1:], 0, stock.MaxMovementQuantity); !ok {
			return nil, false
		}
		if right[0] == '-' {
			if l.Asked == 0 {
				return nil, false
			}
			l.Asked = -l.Asked
		}
		l.Now = l.Asked
		if k := len(lines); k > 0 && lines[k-1].SKU >= l.SKU {
			return nil, false
		}
		lines = append(lines, l)
	}
	return lines, true
}
