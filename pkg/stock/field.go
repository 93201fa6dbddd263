package stock

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A FieldError is bad input: it names the field as the caller wrote it, the value (shortened) and the remedy.
// Nothing was written.
type FieldError struct {
	Field  string // path of the field, for example lines[2].quantity
	Value  string // the offending value, cut to 80 bytes and quoted
	Remedy string // what would be accepted
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s is not acceptable: %s", e.Field, e.Value, e.Remedy)
}

// BadField makes a FieldError whose value is cut to 80 bytes and quoted in printable ASCII, so that it can stand
// in a log line or a terminal whatever the caller sent.
func BadField(field, value, remedy string) *FieldError {
	most := 80
	if len(value) > most {
		for most > 77 && !utf8.RuneStart(value[most]) {
			most--
		}
		value = value[:most] + "…"
	}
	return &FieldError{Field: field, Value: fmt.Sprintf("%+q", value), Remedy: remedy}
}

// CheckOrderID accepts 1 to 64 bytes of letters, digits and . _ : - . The alphabet is that narrow because the
// id stands unescaped in records, operations and log entries. The error is a *FieldError.
func CheckOrderID(field, id string) error {
	if id == "" || len(id) > MaxOrderIDBytes || !all(id, idByte) {
		return BadField(field, id, "use 1 to 64 characters of A-Z a-z 0-9 . _ : -")
	}
	return nil
}

// CheckBuyer accepts 0 to 64 bytes of letters, digits and . _ : @ + - . The error is a *FieldError.
func CheckBuyer(field, buyer string) error {
	if len(buyer) > MaxBuyerBytes || !all(buyer, buyerByte) {
		return BadField(field, buyer, "use at most 64 characters of A-Z a-z 0-9 . _ : @ + -")
	}
	return nil
}

// CheckSKU accepts any UTF-8 text of 1 to 64 bytes without a NUL (which Postgres cannot store). A SKU is
// data only: it never becomes a part of a Redis key. The error is a *FieldError.
func CheckSKU(field, sku string) error {
	switch {
	case sku == "":
		return BadField(field, sku, "name the SKU")
	case len(sku) > MaxSKUBytes:
		return BadField(field, sku, "use at most 64 bytes")
	case !utf8.ValidString(sku):
		return BadField(field, sku, "use valid UTF-8")
	case strings.IndexByte(sku, 0) >= 0:
		return BadField(field, sku, "leave out the NUL character")
	}
	return nil
}

// CheckReason accepts 1 to 32 bytes of letters, digits and . _ - : a code for reports, not prose. The error
// is a *FieldError.
func CheckReason(field, reason string) error {
	if reason == "" || len(reason) > MaxReasonBytes || !all(reason, reasonByte) {
		return BadField(field, reason, "use a code of 1 to 32 characters of A-Z a-z 0-9 . _ -")
	}
	return nil
}

// CheckLineQuantity accepts 1 to 1,000,000 units. The error is a *FieldError.
func CheckLineQuantity(field string, quantity int64) error {
	if quantity < 1 || quantity > MaxLineQuantity {
		return BadField(field, fmt.Sprint(quantity), "use a whole number from 1 to 1000000")
	}
	return nil
}

// CheckTTL accepts 1,000 (one second) to 86,400,000 (24 hours) milliseconds. The error is a *FieldError.
func CheckTTL(field string, millis int64) error {
	if millis < MinTTLMillis || millis > MaxTTLMillis {
		return BadField(field, fmt.Sprint(millis), "use a time from 1 s to 24 h")
	}
	return nil
}

// The alphabets, as bits of a table: ids are read on the hot path of every part.
const (
	digitByte  byte = 1 << iota // 0-9
	idByte                      // A-Z a-z 0-9 . _ : -
	buyerByte                   // the same and @ +
	reasonByte                  // A-Z a-z 0-9 . _ -
)

var alphabets = func() (t [256]byte) {
	set := func(bytes string, alphabet byte) {
		for i := range len(bytes) {
			t[bytes[i]] |= alphabet
		}
	}
	const numbers, letters = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	set(numbers, digitByte)
	set(numbers+letters+"._-", idByte|buyerByte|reasonByte)
	set(":", idByte|buyerByte)
	set("@+", buyerByte)
	return t
}()

// all reports whether every byte of s is in the alphabet.
func all(s string, alphabet byte) bool {
	for i := range len(s) {
		if alphabets[s[i]]&alphabet == 0 {
			return false
		}
	}
	return true
}
