package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A reader reads strict JSON value by value: what it does not know, or what has another type than it should, is a
// *stock.FieldError with the path of the field. Paths are put together for errors only.
type reader struct {
	dec    *jsontext.Decoder
	raw    []byte
	prefix string // path of the value that is read, for example reservations[3].
	line   int    // 1 more than the index of the order line that is read; 0 = none
}

// document reads exactly one object and nothing after it.
func (sh *sheet) document(each func(d *reader, name string) error) error {
	d := &reader{dec: sh.dec, raw: sh.raw.Bytes()}
	d.dec.Reset(&sh.raw)
	if err := d.object("body", each); err != nil {
		return err
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		rest := bytes.TrimSpace(d.raw[min(int(d.dec.InputOffset()), len(d.raw)):])
		return stock.BadField("body", string(rest), "send one JSON object and nothing after it")
	}
	return nil
}

// object reads an object, calling each after every name.
func (d *reader) object(field string, each func(d *reader, name string) error) error {
	t, err := d.dec.ReadToken()
	if err != nil {
		return d.syntax(err)
	}
	if t.Kind() != jsontext.KindBeginObject {
		return d.wrong(field, t, "send a JSON object")
	}
	for {
		t, err := d.dec.ReadToken()
		if err != nil {
			return d.syntax(err)
		}
		if t.Kind() == jsontext.KindEndObject {
			return nil
		}
		if err := each(d, t.String()); err != nil {
			return err
		}
	}
}

// list reads an array, calling each before every element.
func (d *reader) list(field string, each func(i int) error) error {
	t, err := d.dec.ReadToken()
	if err != nil {
		return d.syntax(err)
	}
	if t.Kind() != jsontext.KindBeginArray {
		return d.wrong(field, t, "send a JSON array")
	}
	for i := 0; ; i++ {
		if d.dec.PeekKind() == jsontext.KindEndArray {
			_, err := d.dec.ReadToken()
			return err
		}
		if err := each(i); err != nil {
			return err
		}
	}
}

func (d *reader) text(field string) (string, error) {
	t, err := d.dec.ReadToken()
	if err != nil {
		return "", d.syntax(err)
	}
	switch t.Kind() {
	case jsontext.KindString:
		return t.String(), nil
	case jsontext.KindNumber:
		return "", d.wrong(field, t, "send it as a string, in quotes: many programs round large JSON numbers")
	}
	return "", d.wrong(field, t, "send a string")
}

func (d *reader) boolean(field string) (bool, error) {
	t, err := d.dec.ReadToken()
	if err != nil {
		return false, d.syntax(err)
	}
	if k := t.Kind(); k != jsontext.KindTrue && k != jsontext.KindFalse {
		return false, d.wrong(field, t, "send true or false")
	}
	return t.Bool(), nil
}

// whole reads a whole number between least and most, written without a fraction or an exponent.
func (d *reader) whole(field string, least, most int64) (int64, error) {
	t, err := d.dec.ReadToken()
	if err != nil {
		return 0, d.syntax(err)
	}
	remedy := func() string {
		return fmt.Sprintf("send a whole number from %d to %d, without quotes, fraction or exponent", least, most)
	}
	if t.Kind() != jsontext.KindNumber {
		return 0, d.wrong(field, t, remedy())
	}
	n, err := strconv.ParseInt(t.String(), 10, 64)
	if err != nil || n < least || n > most || t.String() == "-0" {
		return 0, d.wrong(field, t, remedy())
	}
	return n, nil
}

// level reads a level of acknowledgement.
func (d *reader) level(field string) (order.Level, error) {
	text, err := d.text(field)
	if err == nil && text != api.Memory && text != api.Persisted {
		err = d.bad(field, text, "use memory or persisted")
	}
	return order.Level(text), err
}

// moment reads a time, in milliseconds since 1970. It fits the clocks of both stores.
func (d *reader) moment(field string) (int64, error) {
	text, err := d.text(field)
	if err != nil {
		return 0, err
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UnixMilli() < 1 {
		return 0, d.bad(field, text, "send a time since 1970 as RFC 3339 writes it, for example 2031-05-01T10:00:00Z")
	}
	return t.UnixMilli(), nil
}

// orderLine reads element i of the lines of an order, with least units or more.
func (d *reader) orderLine(i, most int, least int64) (l order.Line, err error) {
	if i >= most {
		return l, d.bad("lines", fmt.Sprintf("%d or more", i+1), fmt.Sprintf("send at most %d lines here", most))
	}
	d.line = i + 1
	defer func() { d.line = 0 }()
	l.Quantity = -1
	err = d.object("", func(d *reader, name string) (err error) {
		switch name {
		case "sku":
			l.SKU, err = d.text("sku")
		case "quantity":
			l.Quantity, err = d.whole("quantity", least, stock.MaxLineQuantity)
		default:
			err = d.unknown(name, lineFields)
		}
		return err
	})
	if err == nil && l.SKU == "" {
		err = d.bad("sku", "", "name the SKU")
	}
	if err == nil && l.Quantity < 0 {
		err = d.bad("quantity", "", "say how many units")
	}
	return l, err
}

// orderLines reads the lines of a request that is not the hot one. They are never nil: an empty list is for the Clerk to
// refuse, and not the whole order.
func (d *reader) orderLines(most int, least int64) ([]order.Line, error) {
	lines := []order.Line{}
	err := d.list("lines", func(i int) error {
		l, err := d.orderLine(i, most, least)
		lines = append(lines, l)
		return err
	})
	return lines, err
}

// unknown refuses a field that nobody reads: it is more often a typing error than an extra.
func (d *reader) unknown(name string, known []string) error {
	return d.bad(name, name, "leave it out; the fields here are "+strings.Join(known, ", "))
}

// bad is a field error at a path below the prefix. A foreign name may be long: it is cut.
func (d *reader) bad(field, value, remedy string) error {
	switch {
	case d.line > 0 && field == "":
		field = fmt.Sprintf("lines[%d]", d.line-1)
	case d.line > 0:
		field = fmt.Sprintf("lines[%d].%s", d.line-1, shown(field))
	default:
		field = shown(field)
	}
	return stock.BadField(d.prefix+field, value, remedy)
}

func shown(name string) string {
	const most = 80
	if len(name) > most {
		name = name[:most] + "…"
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

func (d *reader) wrong(field string, t jsontext.Token, remedy string) error {
	switch t.Kind() {
	case jsontext.KindBeginObject:
		return d.bad(field, "{…}", remedy)
	case jsontext.KindBeginArray:
		return d.bad(field, "[…]", remedy)
	}
	return d.bad(field, t.String(), remedy)
}

// syntax judges an error of the decoder. Duplicate names and bytes that are not UTF-8 are fields that are wrong;
// the rest is no JSON.
func (d *reader) syntax(err error) error {
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &refusedBody{api.CodeMalformed, "the body is empty or ends too early: send one JSON object"}
		}
		return &refusedBody{api.CodeMalformed, "the body cannot be read as JSON: send one JSON object"}
	}
	field := d.prefix + fieldPath(s.JSONPointer)
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return stock.BadField(field, s.JSONPointer.LastToken(), "name it once")
	}
	if !utf8.Valid(d.raw) && strings.Contains(s.Error(), "UTF-8") {
		return stock.BadField(field, "", "send valid UTF-8")
	}
	return &refusedBody{api.CodeMalformed, fmt.Sprintf("the body is not JSON, at or after byte %d (in %s): send one JSON object", s.ByteOffset, field)}
}

// fieldPath writes a JSON pointer as lines[2].sku.
func fieldPath(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.Atoi(token); err == nil && b.Len() > 0 {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(shown(token))
	}
	if b.Len() == 0 {
		return "body"
	}
	return b.String()
}
