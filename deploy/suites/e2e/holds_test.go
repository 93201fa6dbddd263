package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestHoldsEndOnceAfterAllWorkersWereDead: field case B12. Nobody listens while the holds become due.
func TestHoldsEndOnceAfterAllWorkersWereDead(t *testing.T) {
	r := begin(t, "B12 holds due while every worker is dead")
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1})
	s.supply(1_000, "tea")
	crowd(100, 16, func(i int) {
		s.told(reserve(t.Context(), s.client(i), fmt.Sprintf("hold-%d", i), "tea", 1, int64(1+i%2)), http.StatusCreated)
	})
	s.told(reserve(t.Context(), s.client(0), "long", "tea", 1, 3600), http.StatusCreated)
	s.drain()
	s.killAll(reconciler)
	s.killAll(consumer)
	ended := one[int64](s, `select count(*) from event where starts_with(body, 'E')`) // by the reconciler before it died
	last := one[int64](s, `select max(expires_ms) from reservation where order_id <> 'long'`)
	sandboxtest.Eventually(t, patience, func() error {
		now, err := s.shard(0).Time(t.Context())
		if err == nil && now.UnixMilli() <= last+500 {
			err = fmt.Errorf("the last hold is due in %d ms", last-now.UnixMilli())
		}
		return err
	})
	if n := one[int64](s, `select count(*) from reservation where state = 'held' and order_id <> 'long'`); n != 100-ended || n == 0 {
		t.Errorf("%d holds are left after %d ended", n, ended)
	}
	began := time.Now()
	for range 3 {
		s.start(reconciler)
	}
	for range 2 {
		s.start(consumer)
	}
	sandboxtest.Eventually(t, patience, func() error {
		if got := s.inPostgres("tea"); got != "999|1|0" {
			return fmt.Errorf("tea is %s", got)
		}
		return nil
	})
	took := time.Since(began)
	s.drain()
	if n := one[int64](s, `select count(*) from event where starts_with(body, 'E')`); n != 100 {
		t.Errorf("%d expiries of 100 holds", n)
	}
	s.shelf("tea", "999|1|0")
	r.note("%d of 100 holds were due when 3 reconcilers and 2 consumers came; +100 exactly %.1f s later, 100 expiries", 100-ended, took.Seconds())
	s.finish()
}

// TestHoldsDoNotDependOnTimeZones: field case G16, without the step of a clock.
func TestHoldsDoNotDependOnTimeZones(t *testing.T) {
	r := begin(t, "G16 time zones and bounds of ttl")
	s := open(r, plan{producers: 1, consumers: 1, reconcilers: 1, zone: "Europe/Berlin",
		zones: map[string]string{producer: "Asia/Tokyo", consumer: "UTC", reconciler: "America/New_York"}})
	if zone := s.sessionZone(); zone != "Europe/Berlin" {
		t.Errorf("a session of the database is in the zone %s", zone)
	}
	s.supply(100, "tea")
	for _, ttl := range []string{"0", "-1", "86401", "315360000", "1.5", `"60"`} {
		answer, err := s.http.Post(s.client(0).Base+"/v1/reservations", "application/json",
			strings.NewReader(`{"order_id":"t","lines":[{"sku":"tea","quantity":1}],"ttl":`+ttl+`}`))
		need(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(text), "ttl") {
			t.Errorf("ttl %s: %d %s", ttl, answer.StatusCode, text)
		}
	}
	const ttl = 2
	crowd(50, 10, func(i int) {
		a := s.told(reserve(t.Context(), s.client(0), fmt.Sprintf("hold-%d", i), "tea", 1, ttl), http.StatusCreated)
		ends, err := time.Parse(time.RFC3339, a.reservation.ExpiresAt)
		if err != nil || ends.Before(a.began.Add(ttl*time.Second-time.Second)) || ends.After(a.ended.Add(ttl*time.Second+time.Second)) {
			t.Errorf("asked at %v for %d s: %s", a.began.UTC(), ttl, a.String())
		}
	})
	const late = `from event e join reservation r on r.order_id = e.id where starts_with(e.body, 'E')`
	sandboxtest.Eventually(t, patience, func() error {
		if n, got := one[int64](s, `select count(*) `+late), s.inPostgres("tea"); n != 50 || got != "100|0|0" {
			return fmt.Errorf("%d holds have ended, tea is %s", n, got)
		}
		return nil
	})
	least, most := one[int64](s, `select min(e.at_ms - r.expires_ms) `+late), one[int64](s, `select max(e.at_ms - r.expires_ms) `+late)
	if n := one[int64](s, `select count(*) `+late); n != 50 || least < 0 || most > 5_000 {
		t.Errorf("%d holds ended %d to %d ms after their time", n, least, most)
	}
	r.note("50 holds of %d s ended %d to %d ms after their time, with 4 time zones; 6 bad ttl refused", ttl, least, most)
	s.finish()
}

// sessionZone is the zone of a session that was made after the database's zone was set.
func (s *shop) sessionZone() string {
	s.t.Helper()
	s.pool.Reset()
	return one[string](s, `show timezone`)
}
