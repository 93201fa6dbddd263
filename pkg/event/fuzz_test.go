package event_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Whatever parses prints back byte for byte; whatever does not is an UnreadableError; nothing panics.
func readsAsItself(t *testing.T, text string, again func() string, err error) {
	t.Helper()
	var unreadable *event.UnreadableError
	if err != nil && !errors.As(err, &unreadable) {
		t.Fatalf("%q: %v is no UnreadableError", text, err)
	}
	if err == nil && again() != text {
		t.Fatalf("%q prints back as %q", text, again())
	}
}

func seed(f *testing.F, file string) {
	golden(f, file, func(text string, _ []byte) { f.Add(text) })
}

func FuzzParseBody(f *testing.F) {
	seed(f, "bodies.golden")
	f.Fuzz(func(t *testing.T, text string) {
		op, err := event.ParseBody(text)
		readsAsItself(t, text, func() string { return string(event.AppendBody(nil, &op)) }, err)
	})
}

func FuzzParseOperations(f *testing.F) {
	seed(f, "operations.golden")
	f.Fuzz(func(t *testing.T, text string) {
		ops, err := event.ParseOperations(text)
		readsAsItself(t, text, func() string { return string(event.AppendOperations(nil, ops)) }, err)
		for i := range ops {
			op := &ops[i]
			// What a partial reserve took is for the library to say.
			took := op.Partial && slices.ContainsFunc(op.Lines, func(l stock.Line) bool { return l.Now != l.Asked })
			sent := op.Kind != stock.Opened && !op.Refused && !took
			if err := event.CheckOperation(op); (err == nil) != sent {
				t.Fatalf("%+v of %q may be sent: %v, but %v", op, text, sent, err)
			}
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	seed(f, "records.golden")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := event.ParseRecord(1, "o", text)
		readsAsItself(t, text, func() string { return event.FormatRecord(&r) }, err)
	})
}

func FuzzParseField(f *testing.F) {
	seed(f, "fields.golden")
	f.Fuzz(func(t *testing.T, text string) {
		field, err := event.ParseField(text)
		readsAsItself(t, text, field.String, err)
	})
}

// A parsed entry must also fold without a panic, whatever the book holds.
func FuzzRawParse(f *testing.F) {
	golden(f, "entries.golden", func(text string, _ []byte) {
		var r event.Raw
		if json.Unmarshal([]byte(text), &r) == nil {
			f.Add(r.ID, r.Version, r.At, r.Ops, r.After)
		}
	})
	f.Fuzz(func(t *testing.T, id, version, at, ops, after string) {
		raw := event.Raw{ID: id, Version: version, At: at, Ops: ops, After: after}
		e, err := raw.Parse()
		var unreadable *event.UnreadableError
		if err != nil {
			if !errors.As(err, &unreadable) {
				t.Fatalf("%+v: %v is no UnreadableError", raw, err)
			}
			return
		}
		if again := e.Raw(); again != raw {
			t.Fatalf("%+v prints back as %+v", raw, again)
		}
		book := event.NewBook(0)
		book.Stock[12] = stock.Quantities{Available: stock.MaxStockQuantity - 10, Held: 10}
		var poison *event.PoisonError
		if _, err := book.Apply(&e, nil); err != nil && (!errors.As(err, &poison) || err.Error() == "") {
			t.Fatalf("%+v: %v is no PoisonError", raw, err)
		}
	})
}
