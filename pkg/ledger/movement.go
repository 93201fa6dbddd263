package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// summed adds lines of one SKU up and orders them, so that two writings of one document compare as equal. Every line
// and every sum must lie between the bounds, and may be 0 only where the lower bound is.
func summed(lines []stock.Line, low, high int64, remedy string) (stock.Lines, error) {
	if len(lines) == 0 || len(lines) > stock.MaxOrderLines {
		return nil, stock.BadField("lines", fmt.Sprint(len(lines)), fmt.Sprintf("use 1 to %d lines", stock.MaxOrderLines))
	}
	sums := make(map[int64]int64, len(lines))
	for i, line := range lines {
		if line.Asked < -stock.MaxMovementQuantity || line.Asked > stock.MaxMovementQuantity {
			return nil, stock.BadField(fmt.Sprintf("lines[%d]", i), fmt.Sprint(line.Asked), remedy)
		}
		sums[line.SKU] += line.Asked
	}
	out := make(stock.Lines, 0, len(sums))
	for sku, units := range sums {
		if units < low || units > high || units == 0 && low != 0 {
			return nil, stock.BadField("lines", fmt.Sprint(units), remedy)
		}
		out = append(out, stock.Line{SKU: sku, Asked: units, Now: units})
	}
	slices.SortFunc(out, func(a, b stock.Line) int { return cmp.Compare(a.SKU, b.SKU) })
	return out, nil
}

// times gives the lines with their units times a sign: the signed movement of so many units, or, for 0, one that moves
// nothing.
func times(sign int64, lines stock.Lines) stock.Lines {
	out := slices.Clone(lines)
	for i := range out {
		out[i].Asked *= sign
		out[i].Now = out[i].Asked
	}
	return out
}

func numbersOf(lines stock.Lines) []int64 {
	numbers := make([]int64, len(lines))
	for i := range lines {
		numbers[i] = lines[i].SKU
	}
	return numbers
}

// movement is one line as the columns lines and units keep it.
type movement struct {
	SKU   int64 `json:"sku"`
	Units int64 `json:"units"`
}

func movementJSON(lines stock.Lines) []byte {
	out := make([]movement, len(lines))
	for i, line := range lines {
		out[i] = movement{SKU: line.SKU, Units: line.Asked}
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // two integers always marshal
	}
	return text
}

func parseMovementJSON(text []byte) (stock.Lines, error) {
	var in []movement
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("lines of a document: %w", err)
	}
	lines := make(stock.Lines, len(in))
	for i, m := range in {
		lines[i] = stock.Line{SKU: m.SKU, Asked: m.Units, Now: m.Units}
	}
	return lines, nil
}

// storable reports whether Postgres takes the text: valid UTF-8 without NUL.
func storable(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}
