package server

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of the server.
const (
	baseBodyBytes  = 64 << 10 // of a body, plus bytesPerLine for every line that an order may have
	bytesPerLine   = 128
	batchBodyBytes = 4 << 20
	maxBatch       = 10_000 // reservations of one bulk request
	batchCallers   = 512    // of them under way at once

	bodyTime    = 10 * time.Second        // until a body has arrived
	requestTime = 4500 * time.Millisecond // of the work behind a request, below what a stop leaves it (5 s)
)

// An Observer counts what was answered. Route is the pattern, so its values are few. Safe for concurrent use.
type Observer interface {
	Answered(route string, status int, took time.Duration)
	Outcome(code string) // of every reservation, confirm, release and document: the state, or the problem's code
	Level(level string)  // that an acceptance was answered with
	Crashed(what any, stack []byte)
}

// Config is what an operator decides.
type Config struct {
	MaxLines   int         // lines of one order, the bound that the Clerk has, too; 0 = stock.DefaultMaxLines
	ReserveAck order.Level // of a reservation that names none; "" = Memory
	ConfirmAck order.Level // of a confirm or sale that names none; "" = Persisted

	Tokens *access.Tokens // who may call what; nil: everybody everything
}

// A Server is the HTTP handler of /v1. Safe for concurrent use.
type Server struct {
	clerk    *order.Clerk
	observer Observer
	config   Config
	spec     []byte
}

// New makes the handler.
func New(clerk *order.Clerk, observer Observer, c Config) (*Server, error) {
	if c.MaxLines == 0 {
		c.MaxLines = stock.DefaultMaxLines
	}
	if c.ReserveAck == "" {
		c.ReserveAck = order.Memory
	}
	if c.ConfirmAck == "" {
		c.ConfirmAck = order.Persisted
	}
	spec, err := spec()
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	return &Server{clerk: clerk, observer: observer, config: c, spec: spec}, nil
}

// working bounds the work behind a request, from the moment that its body is read.
func working(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), requestTime)
}

// ServeHTTP routes by the escaped path, so that a SKU may contain a slash, and answers everything, a wrong path or
// method included, in problem+json.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	name, status := "none", 0
	defer func() {
		if what := recover(); what != nil {
			s.observer.Crashed(what, debug.Stack())
			status = writeProblem(w, problem(api.CodeInternal, "something went wrong on our side; it was reported. Send the same again, or look the order up"))
		}
		s.observer.Answered(name, status, time.Since(began))
	}()
	rt, arg, p := match(r)
	if p != nil {
		if p.Status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", p.Reason)
			p.Reason = ""
		}
		status = writeProblem(w, p)
		return
	}
	name = rt.name
	if p := s.admit(w, r, rt); p != nil {
		status = writeProblem(w, p)
		return
	}
	status = rt.handle(s, w, r, arg)
}

// refuse writes an error as a problem and counts its code.
func (s *Server) refuse(w http.ResponseWriter, err error) int {
	p := problemOf(err)
	s.observer.Outcome(p.Code)
	return writeProblem(w, p)
}
