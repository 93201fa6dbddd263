package event

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Version is the version of the entry's form that this build reads and writes. Another one halts a reader.
const Version = "1"

// An Entry is one call's worth of accepted operations at one position of a shard's log, with the after-image
// of every SKU that they touched.
type Entry struct {
	stock.Position
	AtMillis int64 // Redis time of the call, milliseconds since 1970
	Ops      []stock.Operation
	After    []After // ordered as the script wrote it
}

// An After is what Redis held of a SKU right after an entry.
type After struct {
	SKU int64
	stock.Quantities
}

// Raw is an entry as the stream keeps it. The ledger stores it as it is when it cannot be read.
type Raw struct {
	ID      string // "<epoch>-<seq>"
	Version string // field v
	At      string // field t: milliseconds
	Ops     string // field o: operations
	After   string // field a: "<sku>=<available>|<held>|<committed>" joined by spaces
}

// foreignVersion marks a message that the library did not write: no reader knows it.
const foreignVersion = "foreign"

// RawOf takes a stream message as it stands. One that is not as the library writes it (a field missing, a
// field too many) becomes a Raw that no reader can parse, with its content as evidence in ASCII: whoever reads
// the log halts on it, and nobody drops it.
func RawOf(id string, fields map[string]any) Raw {
	r := Raw{ID: id}
	for name, to := range map[string]*string{"v": &r.Version, "t": &r.At, "o": &r.Ops, "a": &r.After} {
		text, ok := fields[name].(string)
		if !ok || len(fields) != 4 {
			const most = 4096 // bytes of evidence
			content := fmt.Sprintf("%+q", fmt.Sprint(fields))
			return Raw{ID: id, Version: foreignVersion, Ops: content[:min(len(content), most)]}
		}
		*to = text
	}
	return r
}

// Parse reads a raw entry. The error is an *UnreadableError: never skip it.
func (r Raw) Parse() (Entry, error) {
	var e Entry
	position, err := stock.ParsePosition(r.ID)
	if err != nil {
		return e, unreadable("entry id", r.ID)
	}
	e.Position = position
	if r.Version != Version {
		return e, unreadable("version of entry "+r.ID, r.Version)
	}
	var ok bool
	if e.AtMillis, ok = number(r.At); !ok {
		return e, unreadable("time of entry "+r.ID, r.At)
	}
	if e.Ops, err = ParseOperations(r.Ops); err != nil {
		return e, fmt.Errorf("entry %s: %w", r.ID, err)
	}
	if e.After, err = parseAfter(r.After); err != nil {
		return e, fmt.Errorf("entry %s: %w", r.ID, err)
	}
	return e, nil
}

// Raw writes the entry as the stream keeps it.
func (e Entry) Raw() Raw {
	var after []byte
	for i, a := range e.After {
		if i > 0 {
			after = append(after, ' ')
		}
		after = append(appendInt(after, a.SKU), '=')
		after = appendQuantities(after, a.Quantities)
	}
	return Raw{
		ID: e.String(), Version: Version, At: fmt.Sprint(e.AtMillis),
		Ops: string(AppendOperations(nil, e.Ops)), After: string(after),
	}
}

func parseAfter(text string) ([]After, error) {
	if text == "" {
		return nil, nil
	}
	after := make([]After, 0, strings.Count(text, " ")+1)
	for more := true; more; {
		var part string
		part, text, more = cut(text, ' ')
		left, right, found := cut(part, '=')
		sku, ok := between(left, 1, stock.MaxStockQuantity)
		field, err := ParseField(right)
		if !found || !ok || err != nil || field.Settings != (stock.Settings{}) {
			return nil, unreadable("after-image", part)
		}
		after = append(after, After{SKU: sku, Quantities: field.Quantities})
	}
	return after, nil
}

// An UnreadableError is text that this build does not understand: a foreign writer, a newer version, or
// damage. A reader of the log halts its shard on it; upgrading consumers and reconcilers before producers
// avoids the innocent kind.
type UnreadableError struct {
	What string
	Text string // cut to 200 bytes
}

func (e *UnreadableError) Error() string { return fmt.Sprintf("cannot read %s: %+q", e.What, e.Text) }

func unreadable(what, text string) *UnreadableError {
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return &UnreadableError{What: what, Text: text}
}
