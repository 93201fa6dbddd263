package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestHoldsEndOnceAfterAllWorkersWereDead: field case B12. Nobody listens while the holds become due.
func TestHoldsEndOnceAfterAllWorkersWereDead(t *testing.T) {
	r := shoptest.Begin(t, "B12 holds due while every worker is dead")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
	s.Supply(1_000, "tea")
	shoptest.Crowd(100, 16, func(i int) {
		s.Told(shoptest.Reserve(t.Context(), s.Client(i), fmt.Sprintf("hold-%d", i), "tea", 1, int64(1+i%2)), http.StatusCreated)
	})
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "long", "tea", 1, 3600), http.StatusCreated)
	s.Drain()
	s.KillAll(shoptest.Reconciler)
	s.KillAll(shoptest.Consumer)
	ended := shoptest.One[int64](s, `select count(*) from event where starts_with(body, 'E')`) // by the reconciler before it died
	last := shoptest.One[int64](s, `select max(expires_ms) from reservation where order_id <> 'long'`)
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		now, err := s.Shard(0).Time(t.Context())
		if err == nil && now.UnixMilli() <= last+500 {
			err = fmt.Errorf("the last hold is due in %d ms", last-now.UnixMilli())
		}
		return err
	})
	if n := shoptest.One[int64](s, `select count(*) from reservation where state = 'held' and order_id <> 'long'`); n != 100-ended || n == 0 {
		t.Errorf("%d holds are left after %d ended", n, ended)
	}
	began := time.Now()
	for range 3 {
		s.Start(shoptest.Reconciler)
	}
	for range 2 {
		s.Start(shoptest.Consumer)
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if got := s.InPostgres("tea"); got != "999|1|0" {
			return fmt.Errorf("tea is %s", got)
		}
		return nil
	})
	took := time.Since(began)
	s.Drain()
	if n := shoptest.One[int64](s, `select count(*) from event where starts_with(body, 'E')`); n != 100 {
		t.Errorf("%d expiries of 100 holds", n)
	}
	s.Shelf("tea", "999|1|0")
	r.Note("%d of 100 holds were due when 3 reconcilers and 2 consumers came; +100 exactly %.1f s later, 100 expiries", 100-ended, took.Seconds())
	s.Finish()
}

// TestHoldsDoNotDependOnTimeZones: field case G16, without the step of a clock.
func TestHoldsDoNotDependOnTimeZones(t *testing.T) {
	r := shoptest.Begin(t, "G16 time zones and bounds of ttl")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, Zone: "Europe/Berlin",
		Zones: map[string]string{shoptest.Producer: "Asia/Tokyo", shoptest.Consumer: "UTC", shoptest.Reconciler: "America/New_York"}})
	if zone := sessionZone(s); zone != "Europe/Berlin" {
		t.Errorf("a session of the database is in the zone %s", zone)
	}
	s.Supply(100, "tea")
	for _, ttl := range []string{"0", "-1", "86401", "315360000", "1.5", `"60"`} {
		answer, err := s.HTTP.Post(s.Client(0).Base+"/v1/reservations", "application/json",
			strings.NewReader(`{"order_id":"t","lines":[{"sku":"tea","quantity":1}],"ttl":`+ttl+`}`))
		shoptest.Need(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(text), "ttl") {
			t.Errorf("ttl %s: %d %s", ttl, answer.StatusCode, text)
		}
	}
	const ttl = 2
	shoptest.Crowd(50, 10, func(i int) {
		a := s.Told(shoptest.Reserve(t.Context(), s.Client(0), fmt.Sprintf("hold-%d", i), "tea", 1, ttl), http.StatusCreated)
		ends, err := time.Parse(time.RFC3339, a.Reservation.ExpiresAt)
		if err != nil || ends.Before(a.Began.Add(ttl*time.Second-time.Second)) || ends.After(a.Ended.Add(ttl*time.Second+time.Second)) {
			t.Errorf("asked at %v for %d s: %s", a.Began.UTC(), ttl, a.String())
		}
	})
	const late = `from event e join reservation r on r.order_id = e.id where starts_with(e.body, 'E')`
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if n, got := shoptest.One[int64](s, `select count(*) `+late), s.InPostgres("tea"); n != 50 || got != "100|0|0" {
			return fmt.Errorf("%d holds have ended, tea is %s", n, got)
		}
		return nil
	})
	least, most := shoptest.One[int64](s, `select min(e.at_ms - r.expires_ms) `+late), shoptest.One[int64](s, `select max(e.at_ms - r.expires_ms) `+late)
	if n := shoptest.One[int64](s, `select count(*) `+late); n != 50 || least < 0 || most > 5_000 {
		t.Errorf("%d holds ended %d to %d ms after their time", n, least, most)
	}
	r.Note("50 holds of %d s ended %d to %d ms after their time, with 4 time zones; 6 bad ttl refused", ttl, least, most)
	s.Finish()
}

// sessionZone is the zone of a session that was made after the database's zone was set.
func sessionZone(s *shoptest.Shop) string {
	s.T.Helper()
	s.Pool.Reset()
	return shoptest.One[string](s, `show timezone`)
}
