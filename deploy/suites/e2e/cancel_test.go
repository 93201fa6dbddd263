package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
)

// TestASoldOrderIsCancelledOnce: field cases G1 and G15. What is sold can be shipped or cancelled, each unit once,
// whoever asks, how often, and at the same time as whom.
func TestASoldOrderIsCancelledOnce(t *testing.T) {
	r := shoptest.Begin(t, "G1, G15 cancel after the confirm")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(10, "g15")
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "sold", "g15", 5, 3600), http.StatusCreated)
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), "sold"), http.StatusOK)
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "held", "g15", 2, 3600), http.StatusCreated)
	cancel := func(n int, order, id string, units int64) (api.Document, error) {
		request := &api.AmendRequest{DocumentID: id}
		if units > 0 {
			request.Lines = []api.Line{{SKU: "g15", Quantity: units}}
		}
		return s.Patient(n).Cancel(t.Context(), order, request)
	}
	document(s, "cancel", "all")(cancel(0, "sold", "all", 0))
	s.Drain()
	s.Shelf("g15", "8|2|0") // another one's hold is none of it
	shoptest.Crowd(20, 20, func(i int) {
		if d := document(s, "cancel", "all")(cancel(i, "sold", "all", 0)); !d.Replayed {
			t.Errorf("cancelled again: %+v", d)
		}
	})
	_, err := cancel(0, "sold", "once-more", 0)
	refused(s, err, api.CodeCancelled)
	_, err = cancel(1, "held", "too-early", 0)
	refused(s, err, api.CodeState)

	// 20 papers of one order at once: together they cancel what there is.
	s.Supply(1_000, "box")
	s.Told(ask(s, "shared", &api.ReserveRequest{Lines: []api.Line{{SKU: "box", Quantity: 30}}, Sale: true}, s.Client(0)), http.StatusCreated)
	var shipped, cancelled, refusals atomic.Int64
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			request := &api.AmendRequest{DocumentID: fmt.Sprintf("paper-%d", i), Lines: []api.Line{{SKU: "box", Quantity: 3}}}
			do, sum := s.Patient(i).Fulfil, &shipped
			if i%2 == 0 {
				do, sum = s.Patient(i).Cancel, &cancelled
			}
			d, err := do(t.Context(), "shared", request)
			switch {
			case err == nil && d.State == "applied":
				sum.Add(3)
			default:
				if p := problem(err); p.Code != api.CodeInsufficient && p.Code != api.CodeState && p.Code != api.CodeCancelled {
					t.Errorf("paper %d: %+v, %v", i, d, err)
				}
				refusals.Add(1)
			}
		})
	}
	wait.Wait()
	s.Drain()
	if shipped.Load()+cancelled.Load() != 30 || refusals.Load() != 10 {
		t.Errorf("%d shipped and %d cancelled of 30, %d papers refused", shipped.Load(), cancelled.Load(), refusals.Load())
	}
	s.Shelf("box", fmt.Sprintf("%d|0|0", 970+cancelled.Load()))
	// What was shipped comes back once.
	back := &api.ReturnRequest{DocumentID: "back", Lines: []api.Line{{SKU: "box", Quantity: shipped.Load()}}}
	if shipped.Load() > 0 {
		document(s, "return", "back")(s.Patient(0).Return(t.Context(), "shared", back))
		_, err = s.Patient(1).Return(t.Context(), "shared", &api.ReturnRequest{DocumentID: "back-again", Lines: []api.Line{{SKU: "box", Quantity: 1}}})
		refused(s, err, api.CodeInsufficient)
	}
	s.Drain()
	s.Shelf("box", "1000|0|0")
	r.Note("21 cancellations under one id gave 5 units back once; 20 papers of 3 units for an order of 30: %d shipped, %d cancelled, %d refused; every unit came back once",
		shipped.Load(), cancelled.Load(), refusals.Load())
	s.Finish()
}
