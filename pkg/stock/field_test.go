package stock_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// hostile are texts that break out of keys, bodies, records, SQL, JSON, terminals or memory somewhere.
var hostile = []string{
	"}", "a}b", "{0}", "x|5=1", "a b", " a", "a ", "a/b", "../a", "a\\b", `a"b`, "a'b", "a;b", "a,b", "a=b", "~a", "~", "~~open:7",
	"a\x00b", "\x00", "a\nb", "a\r\nb", "\x1b[2J", "🫖", "tea🫖", "שלום", "\u202eevil", "é", "e\u0301", "\xff", "a\xc3(b", "\xed\xa0\x80",
	"%", "%41", "*", "?", "$(x)", "<x>", "#", "&", "^", "`", strings.Repeat("a", 1<<20), strings.Repeat("🫖", 1<<18),
}

func TestHostileIdsAreRefusedReadably(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		for name, check := range map[string]func(string, string) error{"order_id": stock.CheckOrderID, "buyer": stock.CheckBuyer, "reason": stock.CheckReason} {
			err := check(name, text)
			var field *stock.FieldError
			if !errors.As(err, &field) {
				t.Errorf("%s %.40q is accepted", name, text)
				continue
			}
			if field.Field != name || field.Remedy == "" {
				t.Errorf("%s %.40q: %+v", name, text, field)
			}
			// In the worst case each of 80 bytes is written as \xXX.
			if message := err.Error(); len(message) > 500 || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%s: unprintable or long message, %d bytes: %.200q", name, len(message), message)
			}
		}
	}
}

func TestIdsWithinTheirAlphabetAreAccepted(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("aZ09._:-", 8)
	for text, check := range map[string]func(string, string) error{
		"a": stock.CheckOrderID, full: stock.CheckOrderID, "-": stock.CheckOrderID, "sale:7:1": stock.CheckOrderID,
		"": stock.CheckBuyer, "ann+tea@example.com": stock.CheckBuyer, full[:63] + "@": stock.CheckBuyer,
		"damage_2.a-b": stock.CheckReason, strings.Repeat("r", 32): stock.CheckReason,
	} {
		if err := check("field", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, check := range map[string]func(string, string) error{
		"": stock.CheckOrderID, full + "a": stock.CheckOrderID, "a@b": stock.CheckOrderID, "a+b": stock.CheckOrderID,
		full + "b": stock.CheckBuyer, strings.Repeat("r", 33): stock.CheckReason, "a:b": stock.CheckReason,
	} {
		if check("field", text) == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if stock.CheckReason("reason", "") == nil {
		t.Error("an empty reason is accepted")
	}
}

func TestEveryByteOutsideTheAlphabetsIsRefused(t *testing.T) {
	t.Parallel()
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	for b := range 256 {
		text := string([]byte{byte(b)})
		for name, c := range map[string]struct {
			check    func(string, string) error
			alphabet string
		}{
			"order_id": {stock.CheckOrderID, letters + "._:-"}, "buyer": {stock.CheckBuyer, letters + "._:-@+"}, "reason": {stock.CheckReason, letters + "._-"},
		} {
			if accepted := c.check(name, text) == nil; accepted != strings.Contains(c.alphabet, text) {
				t.Errorf("%s: byte %q accepted: %v", name, text, accepted)
			}
		}
	}
}

// A SKU is data: anything that Postgres can store, as long as it is short.
func TestASKUIsAnyShortText(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		want := text != "" && len(text) <= stock.MaxSKUBytes && utf8.ValidString(text) && !strings.Contains(text, "\x00")
		if err := stock.CheckSKU("sku", text); (err == nil) != want {
			t.Errorf("SKU %.40q: %v", text, err)
		}
	}
	for text, want := range map[string]bool{"": false, strings.Repeat("🫖", 16): true, strings.Repeat("🫖", 16) + "a": false, strings.Repeat("x", 64): true} {
		if err := stock.CheckSKU("sku", text); (err == nil) != want {
			t.Errorf("SKU %q: %v", text, err)
		}
	}
}

func TestNumbersOutOfBoundsAreRefused(t *testing.T) {
	t.Parallel()
	for quantity, want := range map[int64]bool{0: false, -1: false, -5: false, 1: true, 1_000_000: true, 1_000_001: false, 2147483648: false, 9223372036854775807: false, -9223372036854775808: false} {
		if err := stock.CheckLineQuantity("quantity", quantity); (err == nil) != want {
			t.Errorf("quantity %d: %v", quantity, err)
		}
	}
	for ttl, want := range map[int64]bool{0: false, -1: false, 999: false, 1000: true, 900_000: true, 86_400_000: true, 86_400_001: false, 9223372036854775807: false} {
		if err := stock.CheckTTL("ttl", ttl); (err == nil) != want {
			t.Errorf("ttl %d: %v", ttl, err)
		}
	}
}

func TestALongValueIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	value := stock.BadField("sku", "a"+strings.Repeat("🫖", 40), "shorten it").Value
	if strings.Contains(value, `\x`) || !strings.HasSuffix(value, `\u2026"`) {
		t.Errorf("cut inside a character: %s", value)
	}
}
