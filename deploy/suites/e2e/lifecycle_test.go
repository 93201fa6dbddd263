package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestWhatAShopDoesWithACart plays each call that changes an order, through two producers, and repeats it.
func TestWhatAShopDoesWithACart(t *testing.T) {
	r := shoptest.Begin(t, "carts: replace, partial, release by line, extend")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})

	// G18: the last unit is held by the order itself, and the order that changes keeps it.
	s.Supply(1, "last")
	s.Supply(5, "tea", "mug")
	cart := func(lines ...api.Line) *api.ReserveRequest { return &api.ReserveRequest{Lines: lines, TTL: 3600} }
	s.Told(ask(s, "keep", cart(api.Line{SKU: "last", Quantity: 1}, api.Line{SKU: "tea", Quantity: 5}), s.Client(0)), http.StatusCreated)
	changed := replace(1, api.Line{SKU: "last", Quantity: 1}, api.Line{SKU: "mug", Quantity: 2})
	stands(s, tell(s, 1, "keep", changed, http.StatusOK), "held", 1, 0, 2) // of tea nothing stands that was asked for
	if a := tell(s, 0, "keep", changed, http.StatusOK); !a.Reservation.Replayed {
		t.Errorf("the repeat: %s", a.String())
	}
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "other", "last", 1, 3600), http.StatusConflict)
	// All of it or nothing: what cannot be had leaves the hold as it was, with the figures.
	a := tell(s, 0, "keep", replace(1, api.Line{SKU: "last", Quantity: 2}, api.Line{SKU: "tea", Quantity: 1}), http.StatusConflict)
	if a.Problem == nil || a.Problem.Code != api.CodeSoldOut || len(a.Problem.Lines) != 2 || a.Problem.Lines[0] != (api.ShortLine{SKU: "last", Quantity: 2, Available: 1}) {
		t.Errorf("two of the last one: %s %+v", a.String(), a.Problem.Lines)
	}
	s.Drain()
	s.Shelf("last", "0|1|0")
	s.Shelf("tea", "5|0|0")
	s.Shelf("mug", "3|2|0")
	tell(s, 1, "keep", confirm(1), http.StatusOK)

	// Partial: what is there, and the answer says so; the same again the same; nothing at all is sold out.
	some := &api.ReserveRequest{Lines: []api.Line{{SKU: "tea", Quantity: 9}, {SKU: "mug", Quantity: 1}, {SKU: "last", Quantity: 1}}, TTL: 3600, Policy: "partial"}
	stands(s, s.Told(ask(s, "some", some, s.Client(0)), http.StatusCreated), "held", 0, 5, 1)
	stands(s, s.Told(ask(s, "some", some, s.Client(1)), http.StatusOK), "held", 0, 5, 1)
	none := &api.ReserveRequest{Lines: []api.Line{{SKU: "tea", Quantity: 9}, {SKU: "last", Quantity: 1}}, TTL: 3600, Policy: "partial"}
	if a := s.Told(ask(s, "none", none, s.Client(0)), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeSoldOut || len(a.Problem.Lines) != 2 {
		t.Errorf("nothing at all: %s", a.String())
	}

	// Release by line: what is not named stays; a result above what stands is a conflict.
	for n := range 2 {
		if a := tell(s, n, "some", release(1, api.Result{SKU: "tea", Quantity: 2}), http.StatusOK); a.Reservation.Replayed != (n == 1) {
			t.Errorf("try %d: %s", n+1, a.String())
		}
	}
	if a := tell(s, 0, "some", release(1, api.Result{SKU: "tea", Quantity: 3}), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeConflict {
		t.Errorf("more than stands: %s", a.String())
	}
	s.Drain()
	s.Shelf("tea", "3|2|0")
	s.Shelf("mug", "2|1|2")

	// Extend: as long as that already is no change, and a day is the most.
	until := time.Now().Add(23 * time.Hour).UTC().Truncate(time.Millisecond)
	for n := range 2 {
		a := tell(s, n, "some", extend(api.ExtendRequest{Attempt: 1, Until: until.Format(time.RFC3339Nano)}), http.StatusOK)
		if ends, err := time.Parse(time.RFC3339, a.Reservation.ExpiresAt); err != nil || !ends.Equal(until) || a.Reservation.Replayed != (n == 1) {
			t.Errorf("until %v: %s", until, a.String())
		}
	}
	if a := tell(s, 0, "some", extend(api.ExtendRequest{Attempt: 1, Until: time.Now().Add(24*time.Hour + time.Minute).UTC().Format(time.RFC3339)}), http.StatusUnprocessableEntity); a.Problem == nil || a.Problem.Code != api.CodeBounds {
		t.Errorf("more than a day: %s", a.String())
	}

	// Partial confirm: what is not named goes back; other results are a conflict then; the rest ships in parcels.
	stands(s, tell(s, 0, "some", confirm(1, api.Result{SKU: "tea", Quantity: 2}), http.StatusOK), "confirmed", 0, 2, 0)
	if a := tell(s, 1, "some", confirm(1, api.Result{SKU: "tea", Quantity: 1}), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeConflict {
		t.Errorf("confirmed with other results: %s", a.String())
	}
	tell(s, 1, "some", confirm(1, api.Result{SKU: "tea", Quantity: 2}), http.StatusOK)
	for i, parcel := range []string{"p1", "p2"} {
		for n := range 2 {
			d := document(s, "fulfil", parcel)(s.Patient(n).Fulfil(t.Context(), "some", &api.AmendRequest{DocumentID: parcel, Lines: []api.Line{{SKU: "tea", Quantity: 1}}}))
			if d.Replayed != (n == 1) {
				t.Errorf("parcel %d, try %d: %+v", i+1, n+1, d)
			}
		}
	}
	if state := s.State("some"); state != "fulfilled" {
		t.Errorf("after the last parcel it is %s", state)
	}
	s.Drain()
	s.Shelf("tea", "3|0|0")
	s.Shelf("mug", "3|0|2")
	s.Shelf("last", "0|0|1")
	r.Note("the last unit stayed with its order; every call repeated through the other producer and changed nothing")
	s.Finish()
}

// TestALateConfirmTakesAgainOrSaysWhatIsMissing: money came after the hold had ended.
func TestALateConfirmTakesAgainOrSaysWhatIsMissing(t *testing.T) {
	r := shoptest.Begin(t, "late confirm, with lines and without")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(10, "tea", "mug")
	orders := []string{"whole", "part", "short", "given-back"}
	for _, order := range orders {
		s.Told(ask(s, order, &api.ReserveRequest{Lines: []api.Line{{SKU: "tea", Quantity: 2}, {SKU: "mug", Quantity: 1}}, TTL: 1}, s.Client(0)), http.StatusCreated)
	}
	tell(s, 0, "given-back", release(1), http.StatusOK)
	for _, order := range orders[:3] {
		awaitState(s, order, "expired")
	}
	stands(s, tell(s, 0, "whole", confirm(1), http.StatusOK), "confirmed", 2, 1)
	stands(s, tell(s, 1, "part", confirm(1, api.Result{SKU: "tea", Quantity: 1}), http.StatusOK), "confirmed", 1, 0)
	for i, order := range []string{"whole", "part"} {
		var again verb
		if again = confirm(1); i == 1 {
			again = confirm(1, api.Result{SKU: "tea", Quantity: 1})
		}
		if a := tell(s, i, order, again, http.StatusOK); a.Reservation.Attempt != 2 || !a.Reservation.Replayed {
			t.Errorf("the repeat: %s", a.String())
		}
	}
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "rush", "tea", 6, 3600), http.StatusCreated) // 1 of 10 is left
	for n := range 2 {
		a := tell(s, n, "short", confirm(1), http.StatusConflict)
		if a.Problem == nil || a.Problem.Code != api.CodeShortfall || len(a.Problem.Lines) != 2 || a.Problem.Lines[0] != (api.ShortLine{SKU: "tea", Quantity: 2, Available: 1}) {
			t.Errorf("too late: %s %+v", a.String(), a.Problem.Lines)
		}
	}
	if a := tell(s, 0, "given-back", confirm(1), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeReleased {
		t.Errorf("after a release: %s", a.String())
	}
	s.Drain()
	if n := shoptest.One[int64](s, `select count(*) from outcome where order_id = 'short'`); n < 1 {
		t.Error("there is no outcome by which the money could be given back")
	}
	s.Shelf("tea", "1|6|3")
	s.Shelf("mug", "9|0|1")
	r.Note("taken again whole and in part as attempt 2; short of units: the figures, and %d outcomes for the refund; never after a release",
		shoptest.One[int64](s, `select count(*) from outcome where order_id = 'short'`))
	s.Finish()
}

// awaitState waits until an order stands so in Postgres.
func awaitState(s *shoptest.Shop, order, state string) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if got := s.State(order); got != state {
			return fmt.Errorf("%s is %q, not %s", order, got, state)
		}
		return nil
	})
}
