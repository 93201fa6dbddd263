package stock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
	"pgregory.net/rapid"
)

func TestReceiptsAndPositionsReadBackAsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := stock.Receipt{
			Shard:    rapid.IntRange(0, stock.MaxShards-1).Draw(t, "shard"),
			Position: stock.Position{Epoch: rapid.Int64Range(0, stock.MaxStockQuantity).Draw(t, "epoch"), Seq: rapid.Int64Range(0, stock.MaxStockQuantity).Draw(t, "seq")},
			Index:    rapid.IntRange(0, stock.MaxCallOps-1).Draw(t, "index"),
		}
		if got, err := stock.ParseReceipt(r.String()); got != r || err != nil {
			t.Fatalf("%v becomes %v, %v", r, got, err)
		}
		if got, err := stock.ParsePosition(r.Position.String()); got != r.Position || err != nil {
			t.Fatalf("%v becomes %v, %v", r.Position, got, err)
		}
	})
}

func TestForeignReceiptsAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range append([]string{
		"", ".", "...", "0.1.2", "0.1.2.3.4", "0.1.2.", ".1.2.3", "0.1.2.256", "1024.1.2.3", "-1.1.2.3", "+0.1.2.3", "0.1.2.03", "00.1.2.3", "0.1e3.2.3",
		"0.0x1.2.3", "0. 1.2.3", "0.1.2.3 ", "0.9007199254740992.1.1", "0.1.99999999999999999.1", "0.1.2.٣", "nan.1.2.3", strings.Repeat(".", 1<<20),
	}, hostile...) {
		_, err := stock.ParseReceipt(text)
		var field *stock.FieldError
		if !errors.As(err, &field) || field.Field != "receipt" {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestForeignPositionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "-", "1", "1-", "-1", "1-2-3", "1--2", "01-2", "1-02", "+1-2", "1-*", "1-+2", "1 -2", "9007199254740992-1", "18446744073709551615-1", "1-2\x00", "0-0 "} {
		if got, err := stock.ParsePosition(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestOnlyKindsThatTakeUnitsNeedMemory(t *testing.T) {
	t.Parallel()
	for kind := range stock.Kind(255) {
		if want := strings.ContainsRune("RSLMNPV", rune(kind)); kind.Takes() != want {
			t.Errorf("%c takes units: %v", kind, kind.Takes())
		}
	}
}

func TestAnOrderEndsOnlyWhenItGaveItsUnitsBack(t *testing.T) {
	t.Parallel()
	for state, want := range map[stock.State]bool{
		stock.Held: false, stock.Confirmed: false, stock.Released: true, stock.Expired: true, stock.Cancelled: true,
		stock.Fulfilled: false, stock.Done: false, stock.Refused: false,
	} {
		if state.Ended() != want {
			t.Errorf("%s ended: %v", state, state.Ended())
		}
	}
}

func TestErrorsSayWhatToDoNext(t *testing.T) {
	t.Parallel()
	closed := &stock.ClosedError{Shard: 3, Reason: "fenced", RetryAfter: 250e6}
	for _, part := range []string{"shard 3", "fenced", "nothing was written", "250ms"} {
		if !strings.Contains(closed.Error(), part) {
			t.Errorf("%q lacks %q", closed, part)
		}
	}
	if token := (stock.Epoch{Ledger: "4f", Epoch: 12}).Token(); token != "4f.12" {
		t.Error(token)
	}
	if id := stock.DocumentID("r-1"); id != "~r-1" {
		t.Error(id)
	}
}
