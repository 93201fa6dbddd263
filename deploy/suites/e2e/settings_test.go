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

// TestSettingsOfASKUAreSeenByEveryProducer changes each setting at one producer, sees it at the other, and buys.
func TestSettingsOfASKUAreSeenByEveryProducer(t *testing.T) {
	r := shoptest.Begin(t, "settings: freeze, closed, opening time, limit")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(100, "tea")
	on, off, none, two := true, false, int64(0), int64(2)
	s.Told(reserveFor(s, 0, "u1", "before", "tea", 1), http.StatusCreated)
	opens := time.Now().Add(2 * time.Second).UTC()
	for i, c := range []struct {
		name   string
		change api.SettingsRequest
		want   api.Settings
		status int // of an order
		code   string
	}{
		{"frozen", api.SettingsRequest{Frozen: &on}, api.Settings{Frozen: true}, http.StatusServiceUnavailable, api.CodeClosed},
		{"frozen again", api.SettingsRequest{Frozen: &on}, api.Settings{Frozen: true}, http.StatusServiceUnavailable, api.CodeClosed},
		{"lifted", api.SettingsRequest{Frozen: &off}, api.Settings{}, http.StatusCreated, ""},
		{"closed", api.SettingsRequest{Closed: &on}, api.Settings{Closed: true}, http.StatusConflict, api.CodeNotForSale},
		{"closed and frozen", api.SettingsRequest{Frozen: &on}, api.Settings{Closed: true, Frozen: true}, http.StatusServiceUnavailable, api.CodeClosed},
		{"both lifted", api.SettingsRequest{Frozen: &off, Closed: &off}, api.Settings{}, http.StatusCreated, ""},
		{"opens later", api.SettingsRequest{OpensAt: opens.Format(time.RFC3339Nano)}, api.Settings{OpensAt: opens.Format("2006-01-02T15:04:05.000Z")}, http.StatusConflict, api.CodeNotOpenYet},
	} {
		set, err := s.Patient(i).Configure(t.Context(), "tea", c.change)
		if err != nil || set.Settings != c.want || set.Level != api.Persisted {
			t.Errorf("%s: %+v, %v", c.name, set, err)
		}
		known, err := s.Patient(i+1).Stock(t.Context(), "tea")
		if err != nil || known.Redis == nil || known.Ledger == nil || known.Redis.Settings != c.want || known.Ledger.Settings != c.want {
			t.Errorf("%s: the other producer says %+v, %v", c.name, known, err)
		}
		a := s.Told(reserveFor(s, i+1, "u1", fmt.Sprintf("order-%d", i), "tea", 1), c.status)
		if c.code != "" && (a.Problem == nil || a.Problem.Code != c.code) {
			t.Errorf("%s: %s", c.name, a.String())
		}
		// What is sold already is settled, whatever was switched: a hold in a stopped SKU can be given back.
		if i == 0 {
			s.Told(shoptest.Release(t.Context(), s.Client(1), "before"), http.StatusOK)
		}
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error { return reserveFor(s, 1, "u1", "in-time", "tea", 1).Err })
	if now, err := s.Shard(0).Time(t.Context()); err != nil || now.Before(opens) {
		t.Errorf("it was sold at %v and opens at %v (%v)", now, opens, err)
	}

	limit(s, "tea", two)
	awaitCounted(s, "tea")
	if a := s.Told(reserveFor(s, 0, "u1", "third", "tea", 1), http.StatusTooManyRequests); a.Problem == nil || *a.Problem.Have != 3 {
		t.Errorf("u1 has 3: %s", a.String())
	}
	set, err := s.Patient(0).Configure(t.Context(), "tea", api.SettingsRequest{BuyerLimit: &none})
	if err != nil || set.Settings.BuyerLimit != 0 || set.Hint != "" {
		t.Errorf("no limit: %+v, %v", set, err)
	}
	s.Told(reserveFor(s, 1, "u1", "third", "tea", 1), http.StatusCreated)
	s.Drain()
	s.Shelf("tea", "96|4|0")
	s.Finish()
}

// TestADeletedSKULeavesNothingToItsText: field case G12.
func TestADeletedSKULeavesNothingToItsText(t *testing.T) {
	r := shoptest.Begin(t, "G12 SKU deleted and made anew")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(5, "tea")
	number := s.Numbers["tea"]
	for _, order := range []string{"released", "confirmed", "expired"} {
		ttl := map[bool]int64{true: 5, false: 3600}[order == "expired"]
		s.Told(shoptest.Reserve(t.Context(), s.Client(0), order, "tea", 1, ttl), http.StatusCreated)
	}
	// Refused while units are held, and told by whom; until then it sells on, if the shop does not close it.
	s.Drain()
	_, err := s.Patient(0).Delete(t.Context(), "tea")
	if p := refused(s, err, api.CodeHeld); p.SKU != "tea" || len(p.Holds) != 3 {
		t.Errorf("the holds are not named: %+v", p)
	}
	closed := true
	_, err = s.Patient(0).Configure(t.Context(), "tea", api.SettingsRequest{Closed: &closed})
	shoptest.Need(t, err)
	if a := s.Told(shoptest.Reserve(t.Context(), s.Client(1), "late", "tea", 1, 3600), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeNotForSale {
		t.Errorf("an order of a SKU that is closed: %s", a.String())
	}
	// Every one of its orders ends as any other.
	s.Told(shoptest.Release(t.Context(), s.Client(0), "released"), http.StatusOK)
	s.Told(shoptest.Confirm(t.Context(), s.Client(1), "confirmed"), http.StatusOK)
	_, err = s.Patient(1).Delete(t.Context(), "tea")
	if p := refused(s, err, api.CodeHeld); p.SKU != "tea" {
		t.Errorf("%+v", p)
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if state := s.State("expired"); state != "expired" {
			return fmt.Errorf("the hold is %s", state)
		}
		return nil
	})
	s.Drain()
	s.Shelf("tea", "4|0|1")
	var deleted api.DeleteAnswer
	sandboxtest.Eventually(t, shoptest.Patience, func() error { // closed first; done once that is persisted
		deleted, err = s.Patient(0).Delete(t.Context(), "tea")
		if err == nil && deleted.State != "deleted" {
			err = fmt.Errorf("it is %s", deleted.State)
		}
		return err
	})
	if again, err := s.Patient(1).Delete(t.Context(), "tea"); err != nil || again.State != "deleted" || !again.Replayed {
		t.Errorf("deleted again: %+v, %v", again, err)
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error { // the other producer may know the text a moment longer
		a := shoptest.Reserve(t.Context(), s.Client(1), "gone", "tea", 1, 3600)
		if a.Problem == nil || a.Problem.Code != api.CodeUnknownSKU {
			return fmt.Errorf("an order of a deleted SKU: %s", a.String())
		}
		return nil
	})

	s.Supply(10, "tea")
	if s.Numbers["tea"] == number {
		t.Errorf("the new SKU has the old number %d", number)
	}
	s.Drain()
	s.Shelf("tea", "10|0|0")
	// The old orders end and answer as they did, and move nothing of the new SKU: what is sold goes back to where it came from.
	document(s, "cancel", "c1")(s.Patient(0).Cancel(t.Context(), "confirmed", &api.AmendRequest{DocumentID: "c1"}))
	s.Told(shoptest.Release(t.Context(), s.Client(0), "released"), http.StatusOK)
	if a := s.Told(shoptest.Confirm(t.Context(), s.Client(0), "confirmed"), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeCancelled {
		t.Errorf("a repeat of the confirm: %s", a.String())
	}
	if a := s.Told(shoptest.Confirm(t.Context(), s.Client(1), "expired"), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeNotForSale {
		t.Errorf("a late confirm of a hold of the deleted SKU: %s", a.String())
	}
	s.Told(shoptest.Reserve(t.Context(), s.Client(1), "all", "tea", 10, 3600), http.StatusCreated)
	s.Drain()
	s.Shelf("tea", "0|10|0")
	if old := shoptest.One[string](s, `select available || '|' || held || '|' || committed from stock where sku = $1`, number); old != "5|0|0" {
		t.Errorf("the old number has %s", old)
	}
	r.Note("refused with the holds named while units were held, then done; the new SKU is number %d, not %d", s.Numbers["tea"], number)
	s.Finish()
}
