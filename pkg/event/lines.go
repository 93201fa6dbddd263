package event

import (
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// appendLines writes "<sku>=<asked>" joined by commas, with ":<now>" where the present quantity differs.
func appendLines(b []byte, lines stock.Lines) []byte {
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, l.SKU)
		b = append(b, '=')
		b = appendInt(b, l.Asked)
		if l.Now != l.Asked {
			b = append(b, ':')
			b = appendInt(b, l.Now)
		}
	}
	return b
}

// FormatLines is the canonical text of an order's lines, the tail of its record and of its fingerprint.
func FormatLines(lines stock.Lines) string { return string(appendLines(nil, lines)) }

// ParseLines reads what FormatLines writes: canonical, ordered by SKU number, 1 to 1,500 lines.
func ParseLines(text string) (stock.Lines, error) {
	var own slab
	lines, ok := own.lines(text, true)
	if !ok {
		return nil, unreadable("lines", text)
	}
	return lines, nil
}

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

// lines parses the lines of an order; with ":<now>" behind them only in a record.
func (s *slab) lines(text string, withNow bool) (stock.Lines, bool) {
	n := strings.Count(text, ",") + 1
	if text == "" || n > stock.MaxOrderLines {
		return nil, false
	}
	lines := s.take(n)
	for more := true; more; {
		var part string
		part, text, more = cut(text, ',')
		left, right, ok := cut(part, '=')
		if !ok {
			return nil, false
		}
		asked, now, differs := cut(right, ':')
		var l stock.Line
		if l.SKU, ok = between(left, 1, stock.MaxStockQuantity); !ok {
			return nil, false
		}
		if l.Asked, ok = between(asked, 1, stock.MaxLineQuantity); !ok {
			return nil, false
		}
		l.Now = l.Asked
		if differs {
			if l.Now, ok = between(now, 0, stock.MaxLineQuantity); !ok || !withNow || l.Now == l.Asked {
				return nil, false
			}
		}
		if k := len(lines); k > 0 && lines[k-1].SKU >= l.SKU {
			return nil, false
		}
		lines = append(lines, l)
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
	if text == "" || n > stock.MaxCallLines {
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
