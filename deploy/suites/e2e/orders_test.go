package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestOrders plays the field cases of single orders against one shop, each with SKUs of its own; one audit ends them
// all.
func TestOrders(t *testing.T) {
	r := begin(t, "field cases of orders: the audit")
	s := open(r, plan{producers: 2, consumers: 1, reconcilers: 1, proxied: true})
	for _, c := range []struct {
		name string
		play func(*shop)
	}{
		{"A1 lost reply, three operations and the expiry", (*shop).loseReplies},
		{"G1 released twice, and while it expires", (*shop).releaseTwice},
		{"G4 last unit, and 100 units in ones to threes", (*shop).contend},
		{"G6 quantities that are none", (*shop).refuseQuantities},
		{"G10 completed by webhook and browser", (*shop).completeTwice},
		{"G18 blocked by the own hold", (*shop).holdTheLast},
		{"H1 one buyer, 100 clicks", (*shop).click},
		{"A5 deadlines in front of a slow Redis", (*shop).hurry},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := s.t
			defer func() { s.t, s.row = whole, r }()
			s.t, s.row = t, part(t, c.name)
			c.play(s)
		})
	}
	s.finish()
	r.note("%d orders of all cases in Postgres, audited", one[int64](s, `select count(*) from reservation`))
}

// events counts the entries of one kind about an order.
func (s *shop) events(order, kind string) int64 {
	s.t.Helper()
	return one[int64](s, `select count(*) from event where id = $1 and starts_with(body, $2)`, order, kind)
}

func (s *shop) loseReplies() {
	s.supply(100, "a1")
	faults := map[string]func(faultproxy.Match) *faultproxy.Fault{"swallow": s.path.SwallowReply, "cut": s.path.CutAfterExecution}
	before, slow := s.path.Fired(), time.Duration(0)
	lose := func(how, kind string, status int, do func(order string) answer, prepare bool) {
		order := "a1-" + kind + "-" + how
		if prepare {
			s.told(reserve(s.t.Context(), s.client(0), order, "a1", 1, 3600), http.StatusCreated)
		}
		fault := faults[how](settles(order))
		a := do(order)
		// The call that is sent again behind the scenes finds its own first try: 200 is as good as 201.
		if !a.accepted() || kind != "R" && a.status != status {
			s.t.Errorf("want status %d: %s", status, a.String())
		}
		slow = max(slow, a.ended.Sub(a.began))
		select {
		case <-fault.Done():
		default:
			s.t.Errorf("%s: no reply was lost", order)
		}
		s.drain()
		if n := s.events(order, kind); n != 1 {
			s.t.Errorf("%s: %d events of kind %s", order, n, kind)
		}
	}
	hows := size([]string{"swallow"}, []string{"swallow", "cut"})
	for _, how := range hows {
		lose(how, "R", http.StatusCreated, func(o string) answer { return reserve(s.t.Context(), s.client(0), o, "a1", 1, 3600) }, false)
	}
	for _, how := range size([]string{"cut"}, hows) {
		lose(how, "C", http.StatusOK, func(o string) answer { return confirm(s.t.Context(), s.client(1), o) }, true)
	}
	for _, how := range hows {
		lose(how, "X", http.StatusOK, func(o string) answer { return release(s.t.Context(), s.client(0), o) }, true)
	}
	for _, how := range size([]string{"cut"}, hows) {
		order := "a1-E-" + how
		s.told(reserve(s.t.Context(), s.client(0), order, "a1", 1, 1), http.StatusCreated)
		fault := faults[how](settles(order))
		select {
		case <-fault.Done():
		case <-time.After(patience):
			s.t.Errorf("%s: no reply was lost", order)
		}
		sandboxtest.Eventually(s.t, patience, func() error {
			if state := s.state(order); state != "expired" {
				return fmt.Errorf("%s is %s", order, state)
			}
			return nil
		})
		if n := s.events(order, "E"); n != 1 {
			s.t.Errorf("%s expired %d times", order, n)
		}
	}
	n := len(hows)
	confirms := len(size([]string{"cut"}, hows))
	s.shelf("a1", fmt.Sprintf("%d|%d|%d", 100-n-confirms, n, confirms))
	s.row.note("%d replies lost of reserve, confirm, release, expire: each carried out once and answered as done, slowest %.1f s", s.path.Fired()-before, slow.Seconds())
}

func (s *shop) releaseTwice() {
	s.supply(10, "g1")
	s.told(reserve(s.t.Context(), s.client(0), "g1-1", "g1", 5, 3600), http.StatusCreated)
	s.told(confirm(s.t.Context(), s.client(0), "g1-1"), http.StatusOK)
	for n := range 2 { // a confirmed order is not a hold any more: nothing comes back by a release
		if a := s.told(release(s.t.Context(), s.client(n), "g1-1"), http.StatusConflict); a.problem == nil || a.problem.Code != api.CodeConfirmed {
			s.t.Errorf("release of a confirmed order: %s", a.String())
		}
	}
	s.told(reserve(s.t.Context(), s.client(0), "g1-2", "g1", 5, 3600), http.StatusCreated)
	crowd(20, 20, func(i int) { s.told(release(s.t.Context(), s.client(i), "g1-2"), http.StatusOK) })
	hold := s.told(reserve(s.t.Context(), s.client(0), "g1-3", "g1", 5, 1), http.StatusCreated)
	// Releases come until the reconciler's expiry has come, too.
	ends, err := time.Parse(time.RFC3339, hold.reservation.ExpiresAt)
	need(s.t, err)
	crowd(20, 20, func(i int) {
		sandboxtest.Eventually(s.t, patience, func() error {
			if time.Now().Before(ends) {
				return errors.New("too early")
			}
			return nil
		})
		s.told(release(s.t.Context(), s.client(i), "g1-3"), http.StatusOK)
	})
	s.drain()
	if x, e := s.events("g1-3", "X"), s.events("g1-3", "E"); x+e != 1 {
		s.t.Errorf("one hold was released %d times and expired %d times", x, e)
	}
	if n := s.events("g1-2", "X"); n != 1 {
		s.t.Errorf("released %d times", n)
	}
	s.shelf("g1", "5|0|5")
	s.row.note("20 releases at once gave 5 units back once; 20 releases while it expired, too; a confirmed order stays")
}

func (s *shop) contend() {
	s.supply(1, "g4-last")
	s.supply(100, "g4-box")
	last := make([]answer, 200)
	crowd(len(last), 200, func(i int) {
		last[i] = reserve(s.t.Context(), s.client(i), fmt.Sprintf("g4-last-%d", i), "g4-last", 1, 3600)
	})
	if c := counts(last); c[http.StatusCreated] != 1 || c[http.StatusConflict] != 199 {
		s.t.Errorf("200 callers for one unit: %v", c)
	}
	box := make([]answer, size(1_000, 5_000))
	crowd(len(box), 256, func(i int) {
		box[i] = reserve(s.t.Context(), s.client(i), fmt.Sprintf("g4-box-%d", i), "g4-box", int64(1+i%3), 3600)
	})
	var sold int64
	for _, a := range box {
		if a.status == http.StatusCreated {
			sold += a.units
		} else if a.status != http.StatusConflict {
			s.t.Errorf("neither sold nor sold out: %s", a.String())
		}
	}
	if sold != 100 {
		s.t.Errorf("%d of 100 units were sold", sold)
	}
	s.drain()
	s.shelf("g4-last", "0|1|0")
	s.shelf("g4-box", "0|100|0")
	s.row.note("200 callers for 1 unit: 1 got it; %d callers with quantities 1 to 3 through 2 producers: %d of 100 units sold", len(box), sold)
}

// refuseQuantities posts bodies that no client of ours would write.
func (s *shop) refuseQuantities() {
	s.supply(10, "g6")
	events := one[int64](s, `select count(*) from event`)
	length := s.rdb.XLen(s.t.Context(), s.keys("g6").Log).Val()
	refused := 0
	post := func(path, body string) {
		answer, err := s.http.Post(s.client(0).Base+path, "application/json", strings.NewReader(body))
		need(s.t, err)
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(text), "quantit") {
			s.t.Errorf("%s %s: %d %s", path, body, answer.StatusCode, text)
		}
		refused++
	}
	quantities := []string{"0", "-1", "-5", "1000001", "2147483648", "9223372036854775807", "9223372036854775808", "1.5", "1e3", `"5"`, "null"}
	for _, q := range quantities {
		post("/v1/reservations", fmt.Sprintf(`{"order_id":"g6-x","lines":[{"sku":"g6","quantity":%s}]}`, q))
	}
	post("/v1/reservations", `{"order_id":"g6-x","lines":[{"sku":"g6","quantity":1000000},{"sku":"g6","quantity":1000000}]}`)
	for _, q := range append(quantities, "1000000000") {
		if q == "1000001" || q == "-1" || q == "-5" {
			continue // what a movement may be
		}
		if q != "2147483648" {
			post("/v1/stock/g6/adjust", fmt.Sprintf(`{"document_id":"g6-d","reason":"count","quantity":%s}`, q))
		}
		post("/v1/stock/g6/receive", fmt.Sprintf(`{"document_id":"g6-d","quantity":%s}`, q))
	}
	for _, q := range []string{"-1", "-5"} {
		post("/v1/stock/g6/receive", fmt.Sprintf(`{"document_id":"g6-d","quantity":%s}`, q))
	}
	s.drain()
	if n := one[int64](s, `select count(*) from event`); n != events {
		s.t.Errorf("%d entries were written", n-events)
	}
	if n := s.rdb.XLen(s.t.Context(), s.keys("g6").Log).Val(); n != length {
		s.t.Errorf("the log grew by %d", n-length)
	}
	if n := one[int64](s, `select count(*) from stock_document where id = 'g6-d'`); n != 0 {
		s.t.Errorf("%d documents were written", n)
	}
	s.shelf("g6", "10|0|0")
	s.row.note("%d bodies refused with 422 that names the quantity; nothing written to Redis, log or Postgres", refused)
}

func (s *shop) completeTwice() {
	s.supply(10, "g10")
	reserves := make([]answer, 50)
	crowd(50, 50, func(i int) { reserves[i] = reserve(s.t.Context(), s.client(i), "g10-1", "g10", 1, 3600) })
	if c := counts(reserves); c[http.StatusCreated] != 1 || c[http.StatusOK] != 49 {
		s.t.Errorf("50 equal reservations: %v", c)
	}
	confirms := make([]answer, 7) // webhook and browser at once, and the webhook five times more
	var wait sync.WaitGroup
	for i := range 2 {
		wait.Go(func() { confirms[i] = confirm(s.t.Context(), s.client(i), "g10-1") })
	}
	wait.Wait()
	for i := 2; i < len(confirms); i++ {
		confirms[i] = confirm(s.t.Context(), s.client(0), "g10-1")
	}
	for i := range confirms {
		s.told(confirms[i], http.StatusOK)
		same, first := confirms[i].reservation, confirms[0].reservation
		same.Replayed, first.Replayed = false, false
		if !reflect.DeepEqual(same, first) {
			s.t.Errorf("confirm %d was answered %+v, the first %+v", i, same, first)
		}
	}
	s.drain()
	if r, c := s.events("g10-1", "R"), s.events("g10-1", "C"); r != 1 || c != 1 {
		s.t.Errorf("%d reservations and %d confirms", r, c)
	}
	s.shelf("g10", "9|0|1")
	s.row.note("50 reservations and 7 confirms of one order through 2 producers: one of each, every answer 200 with the same body")
}

func (s *shop) holdTheLast() {
	s.supply(1, "g18")
	s.told(reserve(s.t.Context(), s.client(0), "g18-1", "g18", 1, 3600), http.StatusCreated)
	if a := s.told(reserve(s.t.Context(), s.client(1), "g18-1", "g18", 1, 3600), http.StatusOK); !a.reservation.Replayed {
		s.t.Errorf("the repeat: %s", a.String())
	}
	s.told(confirm(s.t.Context(), s.client(0), "g18-1"), http.StatusOK)
	s.drain()
	s.shelf("g18", "0|0|1")
	s.row.note("the repeat answered 200, the confirm 200 with available 0; a changed cart is a release and a new order")
}

func (s *shop) click() {
	s.supply(10, "h1")
	for i := range 50 {
		s.told(reserve(s.t.Context(), s.client(i), "h1-1", "h1", 1, 3600), map[bool]int{true: http.StatusCreated, false: http.StatusOK}[i == 0])
	}
	crowd(50, 50, func(i int) { s.told(reserve(s.t.Context(), s.client(i), "h1-1", "h1", 1, 3600), http.StatusOK) })
	others := make([]answer, 10)
	crowd(10, 10, func(i int) {
		others[i] = reserve(s.t.Context(), s.client(i), fmt.Sprintf("h1-other-%d", i), "h1", 1, 3600)
	})
	if c := counts(others); c[http.StatusCreated] != 9 || c[http.StatusConflict] != 1 {
		s.t.Errorf("10 other buyers of 9 units: %v", c)
	}
	s.drain()
	s.shelf("h1", "0|10|0")
	s.row.note("100 clicks took 1 unit; 9 of 10 others got theirs")
}

func (s *shop) hurry() {
	s.supply(100, "a5")
	front := s.living(producer)[0]
	before := front.metric("go_goroutines")
	s.path.Delay(3 * time.Second)
	impatient := &api.Client{Base: front.api, HTTP: &http.Client{Transport: s.http.Transport, Timeout: 300 * time.Millisecond}, Tries: 1}
	answers := make([]answer, 200)
	crowd(len(answers), 50, func(i int) {
		answers[i] = reserve(s.t.Context(), impatient, fmt.Sprintf("a5-%d", i%50), "a5", 1, 3600)
	})
	for _, a := range answers {
		if !errors.Is(a.err, api.ErrUnknown) || a.ended.Sub(a.began) > time.Second {
			s.t.Errorf("a caller with 300 ms was told after %v: %s", a.ended.Sub(a.began), a.String())
		}
	}
	calm := reserve(s.t.Context(), &api.Client{Base: front.api, HTTP: s.http, Tries: 1}, "a5-calm", "a5", 1, 3600)
	if calm.settled() || calm.status == 0 {
		s.t.Errorf("in front of a Redis that answers after 3 s: %s", calm.String())
	}
	s.path.Delay(0)
	sandboxtest.Eventually(s.t, patience, func() error {
		if n := front.metric("go_goroutines"); n > before+30 {
			return fmt.Errorf("%v goroutines, %v before", n, before)
		}
		return nil
	})
	s.awaitReady()
	orders := make([]answer, 51)
	crowd(len(orders), 8, func(i int) {
		order := fmt.Sprintf("a5-%d", i)
		if i == 50 {
			order = "a5-calm"
		}
		sandboxtest.Eventually(s.t, patience, func() error { // asking again settles it
			if orders[i] = reserve(s.t.Context(), s.client(i), order, "a5", 1, 3600); !orders[i].accepted() {
				return errors.New(orders[i].String())
			}
			return nil
		})
	})
	s.drain()
	s.shelf("a5", "49|51|0")
	s.row.note("callers with 300 ms got `unknown` after at most %.2f s, without a deadline %d after %.1f s; goroutines came down; the same 51 ids asked again took 51 units",
		slowest(answers, time.Time{}, time.Now()).Seconds(), calm.status, calm.ended.Sub(calm.began).Seconds())
}
