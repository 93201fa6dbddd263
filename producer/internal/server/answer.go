package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const (
	jsonMedia = "application/json"
	timeForm  = "2006-01-02T15:04:05.000Z" // RFC 3339 in UTC, with milliseconds
)

// jsonHeader is shared by all answers: net/http reads header values and never changes them.
var jsonHeader = []string{jsonMedia}

func writeBytes(w http.ResponseWriter, status int, body []byte) int {
	w.Header()["Content-Type"] = jsonHeader
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that went away asks again with its order id
	return status
}

// writeJSON writes what is not on the hot path.
func writeJSON(w http.ResponseWriter, status int, media string, value any) int {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil { // our own types: cannot happen
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // as in writeBytes
	return status
}

// appendReservation writes an api.Reservation.
func appendReservation(b []byte, a *order.Answer) []byte {
	b = append(b, `{"order_id":"`...) // ids, states and receipts are of alphabets that need no escaping
	b = append(b, a.ID...)
	b = append(b, `","attempt":`...)
	b = strconv.AppendInt(b, a.Attempt, 10)
	b = append(b, `,"state":"`...)
	b = append(b, a.State...)
	b = append(b, `","receipt":"`...)
	b = append(b, a.Receipt.String()...)
	b = append(b, `","level":"`...)
	b = append(b, a.Level...)
	if a.ExpiresMillis > 0 {
		b = append(b, `","expires_at":"`...)
		b = time.UnixMilli(a.ExpiresMillis).UTC().AppendFormat(b, timeForm)
	}
	b = append(b, `","lines":[`...)
	for i := range a.Lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"sku":`...)
		b = appendText(b, a.Lines[i].SKU)
		b = append(b, `,"asked":`...)
		b = strconv.AppendInt(b, a.Lines[i].Asked, 10)
		b = append(b, `,"quantity":`...)
		b = strconv.AppendInt(b, a.Lines[i].Quantity, 10)
		if a.Lines[i].Fulfilled > 0 {
			b = append(b, `,"fulfilled":`...)
			b = strconv.AppendInt(b, a.Lines[i].Fulfilled, 10)
		}
		b = append(b, '}')
	}
	b = append(b, `],"replayed":`...)
	return append(strconv.AppendBool(b, a.Replayed), '}')
}

func appendText(b []byte, text string) []byte {
	out, _ := jsontext.AppendQuote(b, text) // bytes that are not UTF-8 become U+FFFD; SKUs have none
	return out
}

// appendResult writes an api.BatchResult of an acceptance, appendProblemResult one of a refusal.
func appendResult(b []byte, status int, a *order.Answer) []byte {
	b = strconv.AppendInt(append(b, `{"status":`...), int64(status), 10)
	return append(appendReservation(append(b, `,"reservation":`...), a), '}')
}

func appendProblemResult(p *api.Problem) []byte {
	out, _ := json.Marshal(api.BatchResult{Status: p.Status, Problem: p}) // our own type: cannot fail
	return out
}

func itemPrefix(i int) string { return "reservations[" + strconv.Itoa(i) + "]." }

func record(a *order.Answer) *api.Record {
	if a == nil {
		return nil
	}
	r := &api.Record{
		Attempt: a.Attempt, State: string(a.State), Receipt: a.Receipt.String(), Buyer: a.Buyer,
		Lines: make([]api.OrderLine, len(a.Lines)), ExpiresAt: timeText(a.ExpiresMillis),
	}
	for i, l := range a.Lines {
		r.Lines[i] = api.OrderLine(l)
	}
	return r
}

// timeText is a time as it is told, "" for none.
func timeText(millis int64) string {
	if millis <= 0 {
		return ""
	}
	return time.UnixMilli(millis).UTC().Format(timeForm)
}

func receiptText(r stock.Receipt) string {
	if r == (stock.Receipt{}) {
		return ""
	}
	return r.String()
}

func orderAnswer(f *order.Found) api.Order {
	out := api.Order{
		OrderID: f.ID, Receipt: receiptText(f.Receipt), Standing: string(f.Standing),
		Matches: make([]api.Match, len(f.Matches)), Incomplete: f.Incomplete,
	}
	for i, m := range f.Matches {
		out.Matches[i] = api.Match{Shard: m.Shard, Redis: record(m.Redis), Ledger: record(m.Ledger)}
	}
	return out
}

func documentAnswer(d *order.Document) api.Document {
	out := api.Document{
		DocumentID: d.ID, Kind: d.Kind, SKU: d.SKU, Quantity: d.Units, OrderID: d.Order, Attempt: d.Attempt, Scrap: d.Scrap,
		Reason: d.Reason, State: string(d.State), Receipt: receiptText(d.Receipt), Level: string(d.Level), Replayed: d.Replayed,
	}
	if d.Kind == stock.DocumentCount {
		out.Counted = &d.Counted
	}
	for _, l := range d.Lines {
		out.Lines = append(out.Lines, api.Line(l))
		out.Quantity += l.Quantity
	}
	return out
}

func stockAnswer(s *order.Shelf) api.Stock {
	return api.Stock{
		SKU: s.Text, Shard: s.Shard, Opening: s.Opening,
		Redis: figure(s.Redis), Ledger: figure(s.Ledger), Incomplete: s.Incomplete,
	}
}

func figure(f *order.Figure) *api.Figure {
	if f == nil {
		return nil
	}
	q := f.Quantities
	return &api.Figure{
		Quantities: api.Quantities{Available: q.Available, Held: q.Held, Committed: q.Committed, OnHand: q.OnHand()},
		Position:   f.Position.String(), Settings: settingsOf(&f.Settings),
	}
}

func settingsOf(s *stock.Settings) api.Settings {
	return api.Settings{OpensAt: timeText(s.OpensMillis), BuyerLimit: s.Limit, Frozen: s.Frozen, Closed: s.Closed}
}
