package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

const farAway = int64(4_000_000_000_000) // a Redis time that no test reaches

// opened writes a SKU with its opening document, as a client would.
func opened(t testing.TB, l *Ledger, text string, units int64) SKU {
	t.Helper()
	if _, _, err := l.WriteOpening(context.Background(), text, units, 0, farAway); err != nil {
		t.Fatal(err)
	}
	sku, err := l.SKU(context.Background(), text)
	if err != nil {
		t.Fatal(err)
	}
	return sku
}

func TestSKUsAreDataWhateverTheyContain(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	texts := []string{"tea", "TEA", "}", "a}b", "x|5=1", "with space", "quote'\"", "семь", "🫖", "\u202eright", "%00"}
	for i, text := range texts {
		opened(t, l, text, int64(i))
	}
	found, err := l.SKUsByText(context.Background(), append(texts, "unknown", "nul\x00", "broken\xff", ""))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(texts) {
		t.Errorf("found %d SKUs, want %d", len(found), len(texts))
	}
	cached, err := NewCatalog(l, 0).SKUs(context.Background(), texts)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(found, cached); diff != "" {
		t.Error(diff)
	}
	numbers := make([]int64, 0, len(texts))
	want := map[int64]string{}
	for i, text := range texts {
		if found[text].Opening != int64(i) || found[text].Text != text {
			t.Errorf("%q came back as %+v", text, found[text])
		}
		numbers = append(numbers, found[text].Number)
		want[found[text].Number] = text
	}
	names, err := l.SKUNames(context.Background(), append(numbers, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownAndImpossibleSKUsAreUnknown(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	for _, text := range []string{"tea", "", "nul\x00", "broken\xff"} {
		if _, err := l.SKU(context.Background(), text); !errors.Is(err, ErrUnknownSKU) {
			t.Errorf("SKU(%q): %v, want ErrUnknownSKU", text, err)
		}
		if _, err := l.Stock(context.Background(), text); !errors.Is(err, ErrUnknownSKU) {
			t.Errorf("Stock(%q): %v, want ErrUnknownSKU", text, err)
		}
	}
}

func TestTooManyTextsAreRefusedByName(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	var bad *stock.FieldError
	if _, err := l.SKUsByText(context.Background(), make([]string, MaxLookup+1)); !errors.As(err, &bad) {
		t.Errorf("got %v, want a FieldError", err)
	}
	if _, err := l.Stocks(context.Background(), make([]int64, MaxLookup+1)); !errors.As(err, &bad) {
		t.Errorf("got %v, want a FieldError", err)
	}
}

func TestStockSaysWhetherTheOpeningIsPersisted(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	tea, mug := opened(t, l, "tea", 10), opened(t, l, "mug", 5)
	exec(t, l, `insert into stock (sku, shard, available, held, committed, opens_ms, frozen, closed, buyer_limit, doubt)
		values ($1, 0, 7, 2, 1, 99, true, true, 3, 'Redis had 8')`, tea.Number)
	want := Stock{
		SKU: tea, Quantities: stock.Quantities{Available: 7, Held: 2, Committed: 1},
		Settings: stock.Settings{OpensMillis: 99, Frozen: true, Closed: true, Limit: 3},
		Doubt:    "Redis had 8", Exists: true,
	}
	got, err := l.Stock(context.Background(), "tea")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	all, err := l.Stocks(context.Background(), []int64{tea.Number, mug.Number, 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int64]Stock{tea.Number: want, mug.Number: {SKU: mug}}, all); diff != "" {
		t.Error(diff)
	}
}

func TestRecreatedSKUGetsAnotherNumber(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	first := opened(t, l, "tea", 10)
	exec(t, l, `update sku set deleted = now() where number = $1`, first.Number)
	if _, err := l.SKU(context.Background(), "tea"); !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("a deleted SKU: %v", err)
	}
	second := opened(t, l, "tea", 4)
	if diff := cmp.Diff(first, second, cmpopts.IgnoreFields(SKU{}, "Number", "Created", "Opening")); diff != "" || first.Number == second.Number {
		t.Errorf("first %+v, second %+v", first, second)
	}
	names, err := l.SKUNames(context.Background(), []int64{first.Number})
	if err != nil || names[first.Number] != "tea" {
		t.Errorf("the old number is %q (%v): old orders still name it", names[first.Number], err)
	}
}
