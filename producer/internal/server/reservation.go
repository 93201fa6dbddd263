package server

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// readers of the hot path are pooled with their lines.
var reserveReaders = sync.Pool{New: func() any { return &reserveReader{} }}

// reserve is the hot handler: token by token in, appended out, nothing reflected on.
func (s *Server) reserve(w http.ResponseWriter, r *http.Request, _ string) int {
	sh := takeSheet()
	defer sh.giveBack()
	body := reserveReaders.Get().(*reserveReader)
	defer reserveReaders.Put(body)
	body.begin(s.config.MaxLines)
	err := sh.read(w, r, s.bodyBound())
	if err == nil {
		err = sh.document(body.field)
	}
	if err == nil {
		err = body.done(&reader{}, &s.config)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	a, err := s.clerk.Reserve(ctx, &body.request)
	if err != nil {
		return s.refuse(w, err)
	}
	return s.answer(w, sh, reserveStatus(&a, body.request.Ack, body.request.Sale), &a)
}

// reserveStatus: 202 says that the level asked for was not reached. A confirmed order is promised to survive, so a
// sale that only Redis has is never more than accepted.
func reserveStatus(a *order.Answer, asked order.Level, sale bool) int {
	switch {
	case a.Level != order.Persisted && (asked == order.Persisted || sale):
		return http.StatusAccepted
	case a.Replayed:
		return http.StatusOK
	}
	return http.StatusCreated
}

func (s *Server) answer(w http.ResponseWriter, sh *sheet, status int, a *order.Answer) int {
	s.observer.Outcome(string(a.State))
	s.observer.Level(string(a.Level))
	sh.answer = append(appendReservation(sh.answer[:0], a), '\n')
	return writeBytes(w, status, sh.answer)
}

func (s *Server) lookup(w http.ResponseWriter, r *http.Request, arg string) int {
	err := orderID(arg)
	var receipt *stock.Receipt
	if err == nil {
		receipt, err = receiptOf(r.URL.Query())
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	found, err := s.clerk.Lookup(ctx, arg, receipt)
	if err != nil {
		return s.refuse(w, err)
	}
	return writeJSON(w, http.StatusOK, jsonMedia, orderAnswer(&found))
}

// reserveBatch decides every order for itself. What is wrong with one item is its own result; what is wrong with
// the document refuses it whole, before anything is sent.
func (s *Server) reserveBatch(w http.ResponseWriter, r *http.Request, _ string) int {
	sh := takeSheet()
	defer sh.giveBack()
	items, err := s.batch(w, r, sh)
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	results := make([][]byte, len(items))
	var next atomic.Int64
	var callers sync.WaitGroup
	for range min(len(items), batchCallers) {
		callers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(items) {
					return
				}
				results[i] = s.reserveItem(ctx, &items[i])
			}
		})
	}
	callers.Wait()
	out := append(sh.answer[:0], `{"results":[`...)
	for i, result := range results {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, result...)
	}
	sh.answer = append(out, "]}\n"...)
	return writeBytes(w, http.StatusOK, sh.answer)
}

// An item is one order of a bulk request, or what is wrong with it.
type item struct {
	request order.Request
	err     error
}

func (s *Server) batch(w http.ResponseWriter, r *http.Request, sh *sheet) ([]item, error) {
	if err := sh.read(w, r, batchBodyBytes); err != nil {
		return nil, err
	}
	var items []item
	err := sh.document(func(d *reader, name string) error {
		if name != "reservations" {
			return d.unknown(name, batchFields)
		}
		return d.list("reservations", func(i int) error {
			if i >= maxBatch {
				return d.bad("reservations", "", "send at most 10000 reservations at once")
			}
			value, err := d.dec.ReadValue()
			if err != nil {
				return d.syntax(err)
			}
			items = append(items, s.batchItem(value, i))
			return nil
		})
	})
	if err == nil && len(items) == 0 {
		err = stock.BadField("reservations", "[]", "send at least one reservation")
	}
	return items, err
}

// batchItem reads one order out of a value that is JSON for certain.
func (s *Server) batchItem(value jsontext.Value, i int) item {
	var body reserveReader
	body.begin(s.config.MaxLines)
	raw := bytes.Clone(value)
	d := &reader{dec: jsontext.NewDecoder(bytes.NewBuffer(raw)), raw: raw, prefix: itemPrefix(i)}
	err := d.object("order", body.field)
	if err == nil {
		err = body.done(d, &s.config)
	}
	return item{request: body.request, err: err}
}

func (s *Server) reserveItem(ctx context.Context, it *item) []byte {
	err := it.err
	var a order.Answer
	if err == nil {
		a, err = s.clerk.Reserve(ctx, &it.request)
	}
	if err != nil {
		p := problemOf(err)
		s.observer.Outcome(p.Code)
		return appendProblemResult(p)
	}
	s.observer.Outcome(string(a.State))
	s.observer.Level(string(a.Level))
	return appendResult(nil, reserveStatus(&a, it.request.Ack, it.request.Sale), &a)
}
