package event

import (
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// number reads a canonical decimal: no sign, no leading zero, at most 2^53 - 1.
func number(s string) (int64, bool) {
	if s == "" || len(s) > 16 || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n <= stock.MaxStockQuantity
}

// cut is strings.Cut at one byte, without the search for longer separators: readers spend most of their time here.
func cut(s string, sep byte) (before, after string, found bool) {
	if i := strings.IndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// between is number with bounds.
func between(s string, low, high int64) (int64, bool) {
	n, ok := number(s)
	return n, ok && n >= low && n <= high
}

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

const hexDigits = "0123456789ABCDEF"

// appendEscaped writes text so that only letters, digits and . _ - stand as they are; every other byte
// becomes %XX. It is how a SKU's text, which may be anything, stands in an operation.
func appendEscaped(b []byte, text string) []byte {
	for i := range len(text) {
		c := text[i]
		if plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return b
}

func plain(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '.' || c == '_' || c == '-'
}

// unescape reverses appendEscaped and refuses any other writing of the same text.
func unescape(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if plain(c) {
			out = append(out, c)
			continue
		}
		if c != '%' || i+2 >= len(s) {
			return "", false
		}
		high, low := hexValue(s[i+1]), hexValue(s[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		d := byte(high<<4 | low)
		if plain(d) {
			return "", false
		}
		out = append(out, d)
		i += 2
	}
	return string(out), true
}

func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
