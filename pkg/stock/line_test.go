package stock_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"pgregory.net/rapid"
)

func TestLinesAreSummedAndOrdered(t *testing.T) {
	t.Parallel()
	asked := []stock.Line{{SKU: 40, Asked: 1}, {SKU: 12, Asked: 2, Now: 99}, {SKU: 40, Asked: 3}, {SKU: 1, Asked: 1_000_000}}
	got, err := stock.Canonical(asked, 4)
	want := stock.Lines{{SKU: 1, Asked: 1_000_000, Now: 1_000_000}, {SKU: 12, Asked: 2, Now: 2}, {SKU: 40, Asked: 4, Now: 4}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, lines (-want +got):\n%s", err, diff)
	}
	if asked[0].SKU != 40 {
		t.Error("the caller's lines were reordered")
	}
	if got.Units() != 1_000_006 {
		t.Errorf("%d units", got.Units())
	}
}

func TestLinesOutOfBoundsAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	line := func(sku, quantity int64) stock.Line { return stock.Line{SKU: sku, Asked: quantity} }
	for name, c := range map[string]struct {
		lines []stock.Line
		field string
	}{
		"no line":                  {nil, "lines"},
		"one line too many":        {[]stock.Line{line(1, 1), line(2, 1), line(3, 1), line(4, 1), line(5, 1)}, "lines"},
		"zero":                     {[]stock.Line{line(1, 1), line(2, 0)}, "lines[1].quantity"},
		"minus one":                {[]stock.Line{line(1, -1)}, "lines[0].quantity"},
		"minus five":               {[]stock.Line{line(1, -5)}, "lines[0].quantity"},
		"a million and one":        {[]stock.Line{line(1, 1_000_001)}, "lines[0].quantity"},
		"beyond 32 bits":           {[]stock.Line{line(1, 2147483648)}, "lines[0].quantity"},
		"largest":                  {[]stock.Line{line(1, math.MaxInt64)}, "lines[0].quantity"},
		"smallest":                 {[]stock.Line{line(1, math.MinInt64)}, "lines[0].quantity"},
		"a negative hidden by sum": {[]stock.Line{line(1, 5), line(1, -3)}, "lines[1].quantity"},
		"a zero hidden by sum":     {[]stock.Line{line(1, 5), line(1, 0)}, "lines[1].quantity"},
		"sum wraps around":         {[]stock.Line{line(1, math.MaxInt64), line(1, math.MaxInt64), line(1, 3)}, "lines[0].quantity"},
		"sum wraps from below":     {[]stock.Line{line(1, math.MinInt64), line(1, math.MinInt64), line(1, 7)}, "lines[0].quantity"},
		"sum a unit too large":     {[]stock.Line{line(1, 999_999), line(1, 2)}, "lines"},
		"no SKU":                   {[]stock.Line{line(0, 1)}, "lines[0].sku"},
		"a negative SKU":           {[]stock.Line{line(-7, 1)}, "lines[0].sku"},
	} {
		_, err := stock.Canonical(c.lines, 4)
		var field *stock.FieldError
		if !errors.As(err, &field) || field.Field != c.field || field.Remedy == "" {
			t.Errorf("%s: want a FieldError for %s, got %v", name, c.field, err)
		}
	}
}

// Canonical is a set of sums: any writing of an order gives one text, and nothing is lost or made.
func TestCanonicalLinesDoNotDependOnTheWriting(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) stock.Line {
			return stock.Line{SKU: rapid.Int64Range(1, 9).Draw(t, "sku"), Asked: rapid.Int64Range(-2, 300_000).Draw(t, "quantity")}
		}), 1, 20).Draw(t, "lines")
		sums, fits := map[int64]int64{}, true
		for _, l := range lines {
			sums[l.SKU] += l.Asked
			fits = fits && l.Asked >= 1 && sums[l.SKU] <= stock.MaxLineQuantity
		}
		got, err := stock.Canonical(lines, len(lines))
		again, errAgain := stock.Canonical(rapid.Permutation(lines).Draw(t, "another writing"), len(lines))
		if (err == nil) != fits || (errAgain == nil) != fits {
			t.Fatalf("acceptable: %v, errors %v and %v", fits, err, errAgain)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatal(diff)
		}
		for i, l := range got {
			if l.Now != l.Asked || l.Asked != sums[l.SKU] || i > 0 && got[i-1].SKU >= l.SKU {
				t.Fatalf("line %d of %v; sums %v", i, got, sums)
			}
		}
		if fits && len(got) != len(sums) {
			t.Fatalf("%d lines for %d SKUs", len(got), len(sums))
		}
	})
}

func TestQuantitiesThatWrapAroundAreNotValid(t *testing.T) {
	t.Parallel()
	const most = stock.MaxStockQuantity
	for q, valid := range map[stock.Quantities]bool{
		{}:                true,
		{Available: most}: true,
		{Available: most - 2, Held: 1, Committed: 1}: true,
		{Available: most, Held: 1}:                   false,
		{Available: -1, Held: 2}:                     false,
		{Held: -1}:                                   false,
		{Committed: -1}:                              false,
		{Available: math.MaxInt64, Held: math.MaxInt64, Committed: 2}:             false,
		{Available: math.MaxInt64, Held: 1}:                                       false,
		{Available: math.MaxInt64/2 + 1, Held: math.MaxInt64/2 + 1, Committed: 1}: false,
		{Available: math.MinInt64, Held: math.MinInt64, Committed: most}:          false,
	} {
		if q.Valid() != valid {
			t.Errorf("%+v: valid %v, want %v", q, q.Valid(), valid)
		}
	}
	if text := strings.Count((stock.Quantities{Available: 1, Held: 2, Committed: 3}).String(), ","); text != 2 {
		t.Error("a quantity is missing from the text")
	}
}
