package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// TestAnOrderOf1500LinesLivesAsAnyOther: the greatest order that is taken, through every call and document there is, and
// through the loss of Redis.
func TestAnOrderOf1500LinesLivesAsAnyOther(t *testing.T) {
	r := shoptest.Begin(t, "order of 1,500 lines")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, ProducerArgs: []string{"--max-lines", "1500"}})
	skus := shoptest.Names("article", stock.MaxOrderLines+1)
	shoptest.Crowd(len(skus), 32, func(i int) {
		_, err := s.Patient(0).Create(t.Context(), skus[i], api.OpeningRequest{Opening: 3})
		if err != nil {
			t.Error(err)
		}
	})
	s.Drain()
	surplus := skus[stock.MaxOrderLines]
	skus = skus[:stock.MaxOrderLines]
	lines := func(units int64) (all []api.Line) {
		for _, sku := range skus {
			all = append(all, api.Line{SKU: sku, Quantity: units})
		}
		return all
	}
	results := func(units int64) (all []api.Result) {
		for _, sku := range skus {
			all = append(all, api.Result{SKU: sku, Quantity: units})
		}
		return all
	}
	var slowest time.Duration
	want := func(a shoptest.Answer, state string, units int64) {
		t.Helper()
		slowest = max(slowest, a.Ended.Sub(a.Began))
		all := make([]int64, len(skus))
		for i := range all {
			all[i] = units
		}
		stands(s, a, state, all...)
	}
	all := func(available, held, committed int64) { // of every SKU, in both stores
		t.Helper()
		s.Drain()
		text := fmt.Sprintf("%d|%d|%d", available, held, committed)
		if n := shoptest.One[int64](s, `select count(*) from stock where available = $1 and held = $2 and committed = $3`, available, held, committed); n != int64(len(skus)) {
			t.Errorf("%d SKUs stand at %s in Postgres, want %d", n, text, len(skus))
		}
		fields, err := s.Shard(0).Fields(t.Context())
		shoptest.Need(t, err)
		n := 0
		for _, field := range fields {
			parsed, err := event.ParseField(field)
			shoptest.Need(t, err)
			if shoptest.Quantities(parsed.Quantities) == text {
				n++
			}
		}
		if n != len(skus) {
			t.Errorf("%d SKUs stand at %s in Redis, want %d", n, text, len(skus))
		}
	}

	request := &api.ReserveRequest{Lines: lines(2), TTL: 3600}
	want(s.Told(ask(s, "big", request, s.Client(0)), http.StatusCreated), "held", 2)
	if a := s.Told(ask(s, "big", request, s.Client(0)), http.StatusOK); !a.Reservation.Replayed {
		t.Errorf("the repeat is new")
	}
	more := &api.ReserveRequest{Lines: append(lines(1), api.Line{SKU: surplus, Quantity: 1}), TTL: 3600}
	if a := s.Told(ask(s, "bigger", more, s.Client(0)), http.StatusUnprocessableEntity); a.Problem == nil || a.Problem.Code != api.CodeInvalid {
		t.Errorf("1,501 lines: %v", a.Err)
	}
	want(tell(s, 0, "big", replace(1, lines(3)...), http.StatusOK), "held", 3) // all that there is: its own two and the last
	all(0, 3, 0)
	want(tell(s, 0, "big", release(1, results(2)...), http.StatusOK), "held", 2)
	want(tell(s, 0, "big", extend(api.ExtendRequest{Attempt: 1, TTL: 7200}), http.StatusOK), "held", 2)
	epoch := s.Epoch(0)
	s.Drain()
	shoptest.Need(t, s.RDB.FlushAll(t.Context()).Err())
	s.Told(shoptest.Reserve(t.Context(), s.Patient(0), "after", surplus, 1, 3600), http.StatusCreated)
	if s.Epoch(0) == epoch {
		t.Error("no takeover was needed")
	}
	want(tell(s, 0, "big", confirm(1, results(1)...), http.StatusOK), "confirmed", 1)
	all(2, 0, 1)
	papers := s.Patient(0)
	whole := document(s, "fulfil", "ship")(papers.Fulfil(t.Context(), "big", &api.AmendRequest{DocumentID: "ship"}))
	all(2, 0, 0)
	back := document(s, "return", "back")(papers.Return(t.Context(), "big", &api.ReturnRequest{DocumentID: "back", Lines: lines(1)}))
	all(3, 0, 0)
	for _, d := range []api.Document{whole, back} {
		if len(d.Lines) != len(skus) || d.Quantity != int64(len(skus)) {
			t.Errorf("%s has %d lines of %d units", d.DocumentID, len(d.Lines), d.Quantity)
		}
	}
	// Another one is sold at once and cancelled whole, in two papers.
	want(s.Told(ask(s, "big-2", &api.ReserveRequest{Lines: lines(3), Sale: true}, s.Client(0)), http.StatusCreated), "confirmed", 3)
	all(0, 0, 3)
	document(s, "cancel", "one-each")(papers.Cancel(t.Context(), "big-2", &api.AmendRequest{DocumentID: "one-each", Lines: lines(1)}))
	all(1, 0, 2)
	document(s, "cancel", "rest")(papers.Cancel(t.Context(), "big-2", &api.AmendRequest{DocumentID: "rest"}))
	all(3, 0, 0)
	if state := s.State("big-2"); state != "cancelled" {
		t.Errorf("it is %s", state)
	}
	// And one gives itself back line by line.
	want(s.Told(ask(s, "big-3", &api.ReserveRequest{Lines: lines(1), TTL: 3600}, s.Client(0)), http.StatusCreated), "held", 1)
	if a := tell(s, 0, "big-3", release(1, results(0)...), http.StatusOK); a.Reservation.State != "released" {
		t.Errorf("it is %s", a.Reservation.State)
	}
	all(3, 0, 0)
	if again := document(s, "return", "back")(papers.Return(t.Context(), "big", &api.ReturnRequest{DocumentID: "back", Lines: lines(1)})); !again.Replayed {
		t.Error("a repeat of the return is new")
	}
	r.Note("reserve, replace, release by line, confirm, fulfil, return and cancel of 1,500 lines, through a FLUSHALL; 1,501 refused; slowest call of an order %.2f s", slowest.Seconds())
	s.Finish()
}
