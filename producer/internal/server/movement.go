package server

import (
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (sh *sheet) openingBody() (opening int64, ack order.Level, err error) {
	ack = order.Persisted
	seen := false
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "opening":
			seen = true
			opening, err = d.whole("opening", 0, stock.MaxMovementQuantity)
		case "ack":
			ack, err = d.level("ack")
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

// movementBody reads the body of receive, adjust and the return of a SKU.
func (sh *sheet) movementBody(kind string) (m order.Movement, err error) {
	m = order.Movement{Kind: kind, Ack: order.Persisted}
	fields, least := moveFields, int64(1)
	switch kind {
	case stock.DocumentAdjust:
		least = -stock.MaxMovementQuantity
	case stock.DocumentReturn:
		fields, m.Reason = takeBackFields, "returned"
	default:
		m.Reason = "received"
	}
	seen := false
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "quantity":
			seen = true
			if m.Units, err = d.whole("quantity", least, stock.MaxMovementQuantity); err == nil && m.Units == 0 {
				err = d.bad("quantity", "0", "send a number of units that is not 0")
			}
		case "scrap":
			if kind != stock.DocumentReturn {
				return d.unknown(name, fields)
			}
			m.Scrap, err = d.boolean("scrap")
		default:
			err = d.paper(name, paper{&m.DocumentID, &m.Reason, &m.Note, &m.Ack}, fields)
		}
		return err
	})
	if err == nil && !seen {
		err = stock.BadField("quantity", "", "say how many units")
	}
	return m, err
}

func (sh *sheet) countBody() (n order.Count, err error) {
	n = order.Count{Reason: "counted", Ack: order.Persisted, Counted: -1}
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "counted":
			n.Counted, err = d.whole("counted", 0, stock.MaxMovementQuantity)
		case "position":
			n.At, err = d.position("position")
		case "at":
			n.AtMillis, err = d.moment("at")
		default:
			err = d.paper(name, paper{&n.DocumentID, &n.Reason, &n.Note, &n.Ack}, countFields)
		}
		return err
	})
	if err == nil && n.Counted < 0 {
		err = stock.BadField("counted", "", "say how many units were there; 0 is a number, too")
	}
	return n, err
}

// A paper is what the body of every document has, wherever it goes.
type paper struct {
	id, reason, note *string
	ack              *order.Level
}

// paper reads a field that every document has; any other is unknown beside those of fields.
func (d *reader) paper(name string, p paper, fields []string) (err error) {
	switch name {
	case "document_id":
		*p.id, err = d.text(name)
	case "reason":
		*p.reason, err = d.text(name)
	case "note":
		*p.note, err = d.text(name)
	case "ack":
		*p.ack, err = d.level(name)
	default:
		err = d.unknown(name, fields)
	}
	return err
}

func (d *reader) position(field string) (stock.Position, error) {
	text, err := d.text(field)
	if err != nil {
		return stock.Position{}, err
	}
	at, err := stock.ParsePosition(text)
	if err != nil || at.Epoch < 1 {
		return at, d.bad(field, text, "send the position that a look at the SKU answered, <epoch>-<seq>")
	}
	return at, nil
}
