package server

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The fields of each body, as they are told to whoever sends another one. A test holds them against pkg/api.
var (
	reserveFields = []string{"order_id", "attempt", "buyer", "lines", "ttl", "sale", "ack", "policy"}
	lineFields    = []string{"sku", "quantity"}
	attemptFields = []string{"attempt", "ack"}
	openingFields = []string{"opening", "ack"}
	moveFields    = []string{"document_id", "quantity", "reason", "note", "ack"}
	batchFields   = []string{"reservations"}
)

// A reserveReader reads the body of a reservation.
type reserveReader struct {
	request  order.Request
	maxLines int
	ttlSeen  bool
}

func (b *reserveReader) begin(maxLines int) {
	*b = reserveReader{maxLines: maxLines, request: order.Request{
		Attempt: 1, TTL: stock.DefaultTTLMillis, Lines: b.request.Lines[:0],
	}}
}

func (b *reserveReader) field(d *reader, name string) (err error) {
	r := &b.request
	switch name {
	case "order_id":
		r.ID, err = d.text("order_id")
	case "attempt":
		r.Attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
	case "buyer":
		r.Buyer, err = d.text("buyer")
	case "lines":
		err = d.list("lines", func(i int) error { return b.line(d, i) })
	case "ttl":
		b.ttlSeen = true
		r.TTL, err = d.whole("ttl", stock.MinTTLMillis/1000, stock.MaxTTLMillis/1000)
		r.TTL *= 1000
	case "sale":
		r.Sale, err = d.boolean("sale")
	case "ack":
		var level string
		level, err = d.level("ack")
		r.Ack = order.Level(level)
	case "policy":
		err = policy(d)
	default:
		err = d.unknown(name, reserveFields)
	}
	return err
}

func policy(d *reader) error {
	text, err := d.text("policy")
	switch {
	case err != nil || text == "all":
		return err
	case text == "partial":
		return d.bad("policy", text, "partial is not offered yet: use all, and take from the answer of a refusal what is available")
	}
	return d.bad("policy", text, "use all")
}

func (b *reserveReader) line(d *reader, i int) error {
	if i >= b.maxLines {
		return d.bad("lines", fmt.Sprintf("%d or more", i+1), fmt.Sprintf("send at most %d lines in one order", b.maxLines))
	}
	d.line = i + 1
	defer func() { d.line = 0 }()
	var l order.Line
	err := d.object("", func(d *reader, name string) (err error) {
		switch name {
		case "sku":
			l.SKU, err = d.text("sku")
		case "quantity":
			l.Quantity, err = d.whole("quantity", 1, stock.MaxLineQuantity)
		default:
			err = d.unknown(name, lineFields)
		}
		return err
	})
	if err == nil && l.SKU == "" {
		err = d.bad("sku", "", "name the SKU")
	}
	if err == nil && l.Quantity == 0 {
		err = d.bad("quantity", "", "say how many units")
	}
	b.request.Lines = append(b.request.Lines, l)
	return err
}

// done fills in what depends on the whole.
func (b *reserveReader) done(d *reader, c *Config) error {
	r := &b.request
	if r.Sale && b.ttlSeen {
		return d.bad("ttl", fmt.Sprint(r.TTL/1000), "leave it out: a sale holds nothing")
	}
	if r.Ack == "" {
		r.Ack = c.ReserveAck
		if r.Sale {
			r.Ack = c.ConfirmAck
		}
	}
	return nil
}

// attemptBody reads the body of confirm and release; none means the defaults.
func (sh *sheet) attemptBody(level order.Level) (attempt int64, ack order.Level, err error) {
	attempt, ack = 1, level
	if sh.raw.Len() == 0 {
		return attempt, ack, nil
	}
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "attempt":
			attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
		case "ack":
			var text string
			text, err = d.level("ack")
			ack = order.Level(text)
		default:
			err = d.unknown(name, attemptFields)
		}
		return err
	})
	return attempt, ack, err
}

func (sh *sheet) openingBody() (opening int64, ack order.Level, err error) {
	ack = order.Persisted
	seen := false
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "opening":
			seen = true
			opening, err = d.whole("opening", 0, stock.MaxMovementQuantity)
		case "ack":
			var text string
			text, err = d.level("ack")
			ack = order.Level(text)
		default:
			err = d.unknown(name, openingFields)
		}
		return err
	})
	if err == nil && !seen {
		err = stock.BadField("opening", "", "say how many units there are at the start; 0 is a number, too")
	}
	return opening, ack, err
}

// movementBody reads the body of receive and adjust.
func (sh *sheet) movementBody(kind string) (m order.Movement, err error) {
	m = order.Movement{Kind: kind, Ack: order.Persisted}
	least := int64(1)
	if kind == stock.DocumentAdjust {
		least = -stock.MaxMovementQuantity
	} else {
		m.Reason = "received"
	}
	seen := false
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "document_id":
			m.DocumentID, err = d.text("document_id")
		case "quantity":
			seen = true
			if m.Units, err = d.whole("quantity", least, stock.MaxMovementQuantity); err == nil && m.Units == 0 {
				err = d.bad("quantity", "0", "send a number of units that is not 0")
			}
		case "reason":
			m.Reason, err = d.text("reason")
		case "note":
			m.Note, err = d.text("note")
		case "ack":
			var text string
			text, err = d.level("ack")
			m.Ack = order.Level(text)
		default:
			err = d.unknown(name, moveFields)
		}
		return err
	})
	if err == nil && !seen {
		err = stock.BadField("quantity", "", "say how many units")
	}
	return m, err
}

// orderID refuses an order id of the path that no order can have.
func orderID(arg string) error { return stock.CheckOrderID("order", arg) }

// receiptOf reads the query of a look-up: at most one receipt, and nothing else.
func receiptOf(query map[string][]string) (*stock.Receipt, error) {
	for name, values := range query {
		if name != "receipt" {
			return nil, stock.BadField(shown(name), strings.Join(values, ","), "leave it out; the only parameter here is receipt")
		}
	}
	values := query["receipt"]
	switch {
	case len(values) == 0:
		return nil, nil
	case len(values) > 1:
		return nil, stock.BadField("receipt", strings.Join(values, ","), "ask for one receipt at a time")
	}
	r, err := stock.ParseReceipt(values[0])
	return &r, err
}
