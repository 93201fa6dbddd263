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
	attemptFields = []string{"attempt", "lines", "ack"}
	replaceFields = []string{"attempt", "lines", "ack"}
	extendFields  = []string{"attempt", "ttl", "until", "ack"}
	amendFields   = []string{"document_id", "attempt", "lines", "reason", "note", "ack"}
	returnFields  = []string{"document_id", "attempt", "lines", "scrap", "reason", "note", "ack"}
	batchFields   = []string{"reservations"}

	openingFields  = []string{"opening", "ack"}
	moveFields     = []string{"document_id", "quantity", "reason", "note", "ack"}
	takeBackFields = []string{"document_id", "quantity", "scrap", "reason", "note", "ack"}
	countFields    = []string{"document_id", "counted", "position", "at", "reason", "note", "ack"}
	settingFields  = []string{"opens_at", "buyer_limit", "frozen", "closed", "ack"}
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
		err = d.list("lines", func(i int) error {
			l, err := d.orderLine(i, b.maxLines, 1)
			r.Lines = append(r.Lines, l)
			return err
		})
	case "ttl":
		b.ttlSeen = true
		r.TTL, err = d.whole("ttl", stock.MinTTLMillis/1000, stock.MaxTTLMillis/1000)
		r.TTL *= 1000
	case "sale":
		r.Sale, err = d.boolean("sale")
	case "ack":
		r.Ack, err = d.level("ack")
	case "policy":
		r.Partial, err = policy(d)
	default:
		err = d.unknown(name, reserveFields)
	}
	return err
}

func policy(d *reader) (partial bool, err error) {
	text, err := d.text("policy")
	if err == nil && text != "all" && text != "partial" {
		err = d.bad("policy", text, "use all or partial")
	}
	return text == "partial", err
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
