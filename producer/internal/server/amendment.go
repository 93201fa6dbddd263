package server

import (
	"net/http"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (s *Server) fulfil(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.amend(w, r, arg, order.Amendment{Kind: stock.DocumentFulfil, Reason: "shipped"})
}

func (s *Server) cancel(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.amend(w, r, arg, order.Amendment{Kind: stock.DocumentCancel, Reason: "cancelled"})
}

func (s *Server) giveBack(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.amend(w, r, arg, order.Amendment{Kind: stock.DocumentReturn, Reason: "returned"})
}

func (s *Server) amend(w http.ResponseWriter, r *http.Request, arg string, a order.Amendment) int {
	sh := takeSheet()
	defer sh.giveBack()
	a.OrderID, a.Ack = arg, order.Persisted
	err := s.orderBody(w, r, sh, arg)
	if err == nil {
		err = sh.amendBody(&a, s.config.MaxLines)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	d, err := s.clerk.Amend(ctx, a)
	return s.document(w, &d, a.Ack, err)
}

// amendBody reads the body of fulfil, cancel and the return of an order.
func (sh *sheet) amendBody(a *order.Amendment, maxLines int) error {
	fields := amendFields
	if a.Kind == stock.DocumentReturn {
		fields = returnFields
	}
	return sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "attempt":
			a.Attempt, err = d.whole("attempt", 1, stock.MaxAttempt)
		case "lines":
			a.Lines, err = d.orderLines(maxLines, 1)
		case "scrap":
			if a.Kind != stock.DocumentReturn {
				return d.unknown(name, fields)
			}
			a.Scrap, err = d.boolean("scrap")
		default:
			err = d.paper(name, paper{&a.DocumentID, &a.Reason, &a.Note, &a.Ack}, fields)
		}
		return err
	})
}
