package server

import (
	"context"
	"net/http"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// confirm answers 200 only for what is persisted, whatever level was asked for.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.onOrder(w, r, arg, s.config.ConfirmAck, true, (*order.Clerk).Confirm)
}

func (s *Server) release(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.onOrder(w, r, arg, order.Memory, false, (*order.Clerk).Release)
}

// onOrder serves confirm and release; with a promise it is 202 that answers what only Redis has.
func (s *Server) onOrder(w http.ResponseWriter, r *http.Request, arg string, ack order.Level, promise bool,
	do func(*order.Clerk, context.Context, order.Call) (order.Answer, error),
) int {
	sh := takeSheet()
	defer sh.giveBack()
	call := order.Call{ID: arg, Attempt: 1, Ack: ack}
	err := s.orderBody(w, r, sh, arg)
	if err == nil && sh.raw.Len() > 0 { // no body means the defaults
		err = sh.callBody(&call, s.config.MaxLines)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	a, err := do(s.clerk, ctx, call)
	return s.changed(w, sh, &a, promise || call.Ack == order.Persisted, err)
}

func (s *Server) replace(w http.ResponseWriter, r *http.Request, arg string) int {
	sh := takeSheet()
	defer sh.giveBack()
	call := order.Call{ID: arg, Attempt: 1, Ack: order.Memory}
	err := s.orderBody(w, r, sh, arg)
	if err == nil {
		err = sh.replaceBody(&call, s.config.MaxLines)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	a, err := s.clerk.Replace(ctx, call)
	return s.changed(w, sh, &a, call.Ack == order.Persisted, err)
}

func (s *Server) extend(w http.ResponseWriter, r *http.Request, arg string) int {
	sh := takeSheet()
	defer sh.giveBack()
	e := order.Extension{ID: arg, Attempt: 1, Ack: order.Memory}
	err := s.orderBody(w, r, sh, arg)
	if err == nil {
		err = sh.extendBody(&e)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	a, err := s.clerk.Extend(ctx, e)
	return s.changed(w, sh, &a, e.Ack == order.Persisted, err)
}

// changed answers 202 while a change of an order is not as certain as it has to be.
func (s *Server) changed(w http.ResponseWriter, sh *sheet, a *order.Answer, persisted bool, err error) int {
	switch {
	case err != nil:
		return s.refuse(w, err)
	case persisted && a.Level != order.Persisted:
		return s.answer(w, sh, http.StatusAccepted, a)
	}
	return s.answer(w, sh, http.StatusOK, a)
}

func (s *Server) orderBody(w http.ResponseWriter, r *http.Request, sh *sheet, arg string) error {
	if err := orderID(arg); err != nil {
		return err
	}
	return sh.read(w, r, s.bodyBound())
}

// callBody reads the body of confirm and release.
func (sh *sheet) callBody(call *order.Call, maxLines int) error {
	return sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "attempt":
			call.Attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
		case "lines":
			call.Lines, err = d.orderLines(maxLines, 0)
		case "ack":
			call.Ack, err = d.level("ack")
		default:
			err = d.unknown(name, attemptFields)
		}
		return err
	})
}

func (sh *sheet) replaceBody(call *order.Call, maxLines int) error {
	return sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "attempt":
			call.Attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
		case "lines":
			call.Lines, err = d.orderLines(maxLines, 1)
		case "ack":
			call.Ack, err = d.level("ack")
		default:
			err = d.unknown(name, replaceFields)
		}
		return err
	})
}

func (sh *sheet) extendBody(e *order.Extension) error {
	return sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "attempt":
			e.Attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
		case "ttl":
			e.TTL, err = d.whole("ttl", stock.MinTTLMillis/1000, stock.MaxTTLMillis/1000)
			e.TTL *= 1000
		case "until":
			e.Until, err = d.moment("until")
		case "ack":
			e.Ack, err = d.level("ack")
		default:
			err = d.unknown(name, extendFields)
		}
		return err
	})
}
