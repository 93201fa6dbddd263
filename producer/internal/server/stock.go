package server

import (
	"net/http"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (s *Server) create(w http.ResponseWriter, r *http.Request, arg string) int {
	sh := takeSheet()
	defer sh.giveBack()
	opening, ack, err := int64(0), order.Level(""), s.stockBody(w, r, sh, arg)
	if err == nil {
		opening, ack, err = sh.openingBody()
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	d, err := s.clerk.Create(ctx, arg, opening, ack)
	return s.document(w, &d, ack, err)
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.move(w, r, arg, stock.DocumentReceive)
}

func (s *Server) adjust(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.move(w, r, arg, stock.DocumentAdjust)
}

func (s *Server) takeBack(w http.ResponseWriter, r *http.Request, arg string) int {
	return s.move(w, r, arg, stock.DocumentReturn)
}

func (s *Server) count(w http.ResponseWriter, r *http.Request, arg string) int {
	sh := takeSheet()
	defer sh.giveBack()
	var n order.Count
	err := s.stockBody(w, r, sh, arg)
	if err == nil {
		n, err = sh.countBody()
	}
	if err != nil {
		return s.refuse(w, err)
	}
	n.SKU = arg
	ctx, cancel := working(r)
	defer cancel()
	d, err := s.clerk.Count(ctx, n)
	return s.document(w, &d, n.Ack, err)
}

func (s *Server) move(w http.ResponseWriter, r *http.Request, arg, kind string) int {
	sh := takeSheet()
	defer sh.giveBack()
	var m order.Movement
	err := s.stockBody(w, r, sh, arg)
	if err == nil {
		m, err = sh.movementBody(kind)
	}
	if err != nil {
		return s.refuse(w, err)
	}
	m.SKU = arg
	ctx, cancel := working(r)
	defer cancel()
	d, err := s.clerk.Move(ctx, m)
	return s.document(w, &d, m.Ack, err)
}

func (s *Server) stockBody(w http.ResponseWriter, r *http.Request, sh *sheet, sku string) error {
	if err := stock.CheckSKU("sku", sku); err != nil {
		return err
	}
	return sh.read(w, r, baseBodyBytes)
}

// document answers with what became of a document: 202 while that is not as certain as was asked for.
func (s *Server) document(w http.ResponseWriter, d *order.Document, ack order.Level, err error) int {
	if err != nil {
		return s.refuse(w, err)
	}
	s.observer.Outcome("document_" + string(d.State))
	s.observer.Level(string(d.Level))
	status := http.StatusCreated
	switch {
	case d.State == order.Written || ack == order.Persisted && d.Level != order.Persisted:
		status = http.StatusAccepted
	case d.Replayed:
		status = http.StatusOK
	}
	return writeJSON(w, status, jsonMedia, documentAnswer(d))
}

func (s *Server) stock(w http.ResponseWriter, r *http.Request, arg string) int {
	ctx, cancel := working(r)
	defer cancel()
	shelf, err := s.clerk.Stock(ctx, arg)
	if err != nil {
		return s.refuse(w, err)
	}
	return writeJSON(w, http.StatusOK, jsonMedia, stockAnswer(&shelf))
}
