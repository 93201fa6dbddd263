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

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestOrders plays the field cases of single orders against one shop, each with SKUs of its own; one audit ends them
// all.
func TestOrders(t *testing.T) {
	r := shoptest.Begin(t, "field cases of orders: the audit")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1, Proxied: true})
	for _, c := range []struct {
		name string
		play func(*shoptest.Shop)
	}{
		{"A1 lost reply, three operations and the expiry", loseReplies},
		{"G1 released twice, and while it expires", releaseTwice},
		{"G4 last unit, and 100 units in ones to threes", contend},
		{"G6 quantities that are none", refuseQuantities},
		{"G10 completed by webhook and browser", completeTwice},
		{"G18 blocked by the own hold", holdTheLast},
		{"H1 one buyer, 100 clicks", click},
		{"A5 deadlines in front of a slow Redis", hurry},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := s.T
			defer func() { s.T, s.Row = whole, r }()
			s.T, s.Row = t, shoptest.Part(t, c.name)
			c.play(s)
		})
	}
	s.Finish()
	r.Note("%d orders of all cases in Postgres, audited", shoptest.One[int64](s, `select count(*) from reservation`))
}

func loseReplies(s *shoptest.Shop) {
	s.Supply(100, "a1")
	faults := map[string]func(faultproxy.Match) *faultproxy.Fault{"swallow": s.Path.SwallowReply, "cut": s.Path.CutAfterExecution}
	before, slow := s.Path.Fired(), time.Duration(0)
	lose := func(how, kind string, status int, do func(order string) shoptest.Answer, prepare bool) {
		order := "a1-" + kind + "-" + how
		if prepare {
			s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), order, "a1", 1, 3600), http.StatusCreated)
		}
		fault := faults[how](shoptest.Settles(order))
		a := do(order)
		// The call that is sent again behind the scenes finds its own first try: 200 is as good as 201.
		if !a.Accepted() || kind != "R" && a.Status != status {
			s.T.Errorf("want status %d: %s", status, a.String())
		}
		slow = max(slow, a.Ended.Sub(a.Began))
		select {
		case <-fault.Done():
		default:
			s.T.Errorf("%s: no reply was lost", order)
		}
		s.Drain()
		if n := s.Events(order, kind); n != 1 {
			s.T.Errorf("%s: %d events of kind %s", order, n, kind)
		}
	}
	hows := shoptest.Size([]string{"swallow"}, []string{"swallow", "cut"})
	for _, how := range hows {
		lose(how, "R", http.StatusCreated, func(o string) shoptest.Answer { return shoptest.Reserve(s.T.Context(), s.Client(0), o, "a1", 1, 3600) }, false)
	}
	for _, how := range shoptest.Size([]string{"cut"}, hows) {
		lose(how, "C", http.StatusOK, func(o string) shoptest.Answer { return shoptest.Confirm(s.T.Context(), s.Client(1), o) }, true)
	}
	for _, how := range hows {
		lose(how, "X", http.StatusOK, func(o string) shoptest.Answer { return shoptest.Release(s.T.Context(), s.Client(0), o) }, true)
	}
	for _, how := range shoptest.Size([]string{"cut"}, hows) {
		order := "a1-E-" + how
		s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), order, "a1", 1, 1), http.StatusCreated)
		fault := faults[how](shoptest.Settles(order))
		select {
		case <-fault.Done():
		case <-time.After(shoptest.Patience):
			s.T.Errorf("%s: no reply was lost", order)
		}
		sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
			if state := s.State(order); state != "expired" {
				return fmt.Errorf("%s is %s", order, state)
			}
			return nil
		})
		if n := s.Events(order, "E"); n != 1 {
			s.T.Errorf("%s expired %d times", order, n)
		}
	}
	n := len(hows)
	confirms := len(shoptest.Size([]string{"cut"}, hows))
	s.Shelf("a1", fmt.Sprintf("%d|%d|%d", 100-n-confirms, n, confirms))
	s.Row.Note("%d replies lost of reserve, confirm, release, expire: each carried out once and answered as done, slowest %.1f s", s.Path.Fired()-before, slow.Seconds())
}

func releaseTwice(s *shoptest.Shop) {
	s.Supply(10, "g1")
	s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), "g1-1", "g1", 5, 3600), http.StatusCreated)
	s.Told(shoptest.Confirm(s.T.Context(), s.Client(0), "g1-1"), http.StatusOK)
	for n := range 2 { // a confirmed order is not a hold any more: nothing comes back by a release
		if a := s.Told(shoptest.Release(s.T.Context(), s.Client(n), "g1-1"), http.StatusConflict); a.Problem == nil || a.Problem.Code != api.CodeConfirmed {
			s.T.Errorf("release of a confirmed order: %s", a.String())
		}
	}
	s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), "g1-2", "g1", 5, 3600), http.StatusCreated)
	shoptest.Crowd(20, 20, func(i int) { s.Told(shoptest.Release(s.T.Context(), s.Client(i), "g1-2"), http.StatusOK) })
	hold := s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), "g1-3", "g1", 5, 1), http.StatusCreated)
	// Releases come until the reconciler's expiry has come, too.
	ends, err := time.Parse(time.RFC3339, hold.Reservation.ExpiresAt)
	shoptest.Need(s.T, err)
	shoptest.Crowd(20, 20, func(i int) {
		sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
			if time.Now().Before(ends) {
				return errors.New("too early")
			}
			return nil
		})
		s.Told(shoptest.Release(s.T.Context(), s.Client(i), "g1-3"), http.StatusOK)
	})
	s.Drain()
	if x, e := s.Events("g1-3", "X"), s.Events("g1-3", "E"); x+e != 1 {
		s.T.Errorf("one hold was released %d times and expired %d times", x, e)
	}
	if n := s.Events("g1-2", "X"); n != 1 {
		s.T.Errorf("released %d times", n)
	}
	s.Shelf("g1", "5|0|5")
	s.Row.Note("20 releases at once gave 5 units back once; 20 releases while it expired, too; a confirmed order stays")
}

func contend(s *shoptest.Shop) {
	s.Supply(1, "g4-last")
	s.Supply(100, "g4-box")
	last := make([]shoptest.Answer, 200)
	shoptest.Crowd(len(last), 200, func(i int) {
		last[i] = shoptest.Reserve(s.T.Context(), s.Client(i), fmt.Sprintf("g4-last-%d", i), "g4-last", 1, 3600)
	})
	if c := shoptest.Counts(last); c[http.StatusCreated] != 1 || c[http.StatusConflict] != 199 {
		s.T.Errorf("200 callers for one unit: %v", c)
	}
	box := make([]shoptest.Answer, shoptest.Size(1_000, 5_000))
	shoptest.Crowd(len(box), 256, func(i int) {
		box[i] = shoptest.Reserve(s.T.Context(), s.Client(i), fmt.Sprintf("g4-box-%d", i), "g4-box", int64(1+i%3), 3600)
	})
	var sold int64
	for _, a := range box {
		if a.Status == http.StatusCreated {
			sold += a.Units
		} else if a.Status != http.StatusConflict {
			s.T.Errorf("neither sold nor sold out: %s", a.String())
		}
	}
	if sold != 100 {
		s.T.Errorf("%d of 100 units were sold", sold)
	}
	s.Drain()
	s.Shelf("g4-last", "0|1|0")
	s.Shelf("g4-box", "0|100|0")
	s.Row.Note("200 callers for 1 unit: 1 got it; %d callers with quantities 1 to 3 through 2 producers: %d of 100 units sold", len(box), sold)
}

// refuseQuantities posts bodies that no client of ours would write.
func refuseQuantities(s *shoptest.Shop) {
	s.Supply(10, "g6")
	events := shoptest.One[int64](s, `select count(*) from event`)
	length := s.RDB.XLen(s.T.Context(), s.Keys("g6").Log).Val()
	refused := 0
	post := func(path, body string) {
		answer, err := s.HTTP.Post(s.Client(0).Base+path, "application/json", strings.NewReader(body))
		shoptest.Need(s.T, err)
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(text), "quantit") {
			s.T.Errorf("%s %s: %d %s", path, body, answer.StatusCode, text)
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
	s.Drain()
	if n := shoptest.One[int64](s, `select count(*) from event`); n != events {
		s.T.Errorf("%d entries were written", n-events)
	}
	if n := s.RDB.XLen(s.T.Context(), s.Keys("g6").Log).Val(); n != length {
		s.T.Errorf("the log grew by %d", n-length)
	}
	if n := shoptest.One[int64](s, `select count(*) from stock_document where id = 'g6-d'`); n != 0 {
		s.T.Errorf("%d documents were written", n)
	}
	s.Shelf("g6", "10|0|0")
	s.Row.Note("%d bodies refused with 422 that names the quantity; nothing written to Redis, log or Postgres", refused)
}

func completeTwice(s *shoptest.Shop) {
	s.Supply(10, "g10")
	reserves := make([]shoptest.Answer, 50)
	shoptest.Crowd(50, 50, func(i int) { reserves[i] = shoptest.Reserve(s.T.Context(), s.Client(i), "g10-1", "g10", 1, 3600) })
	if c := shoptest.Counts(reserves); c[http.StatusCreated] != 1 || c[http.StatusOK] != 49 {
		s.T.Errorf("50 equal reservations: %v", c)
	}
	confirms := make([]shoptest.Answer, 7) // webhook and browser at once, and the webhook five times more
	var wait sync.WaitGroup
	for i := range 2 {
		wait.Go(func() { confirms[i] = shoptest.Confirm(s.T.Context(), s.Client(i), "g10-1") })
	}
	wait.Wait()
	for i := 2; i < len(confirms); i++ {
		confirms[i] = shoptest.Confirm(s.T.Context(), s.Client(0), "g10-1")
	}
	for i := range confirms {
		s.Told(confirms[i], http.StatusOK)
		same, first := confirms[i].Reservation, confirms[0].Reservation
		same.Replayed, first.Replayed = false, false
		if !reflect.DeepEqual(same, first) {
			s.T.Errorf("confirm %d was answered %+v, the first %+v", i, same, first)
		}
	}
	s.Drain()
	if r, c := s.Events("g10-1", "R"), s.Events("g10-1", "C"); r != 1 || c != 1 {
		s.T.Errorf("%d reservations and %d confirms", r, c)
	}
	s.Shelf("g10", "9|0|1")
	s.Row.Note("50 reservations and 7 confirms of one order through 2 producers: one of each, every answer 200 with the same body")
}

func holdTheLast(s *shoptest.Shop) {
	s.Supply(1, "g18")
	s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), "g18-1", "g18", 1, 3600), http.StatusCreated)
	if a := s.Told(shoptest.Reserve(s.T.Context(), s.Client(1), "g18-1", "g18", 1, 3600), http.StatusOK); !a.Reservation.Replayed {
		s.T.Errorf("the repeat: %s", a.String())
	}
	s.Told(shoptest.Confirm(s.T.Context(), s.Client(0), "g18-1"), http.StatusOK)
	s.Drain()
	s.Shelf("g18", "0|0|1")
	s.Row.Note("the repeat answered 200, the confirm 200 with available 0")
}

func click(s *shoptest.Shop) {
	s.Supply(10, "h1")
	for i := range 50 {
		s.Told(shoptest.Reserve(s.T.Context(), s.Client(i), "h1-1", "h1", 1, 3600), map[bool]int{true: http.StatusCreated, false: http.StatusOK}[i == 0])
	}
	shoptest.Crowd(50, 50, func(i int) {
		s.Told(shoptest.Reserve(s.T.Context(), s.Client(i), "h1-1", "h1", 1, 3600), http.StatusOK)
	})
	others := make([]shoptest.Answer, 10)
	shoptest.Crowd(10, 10, func(i int) {
		others[i] = shoptest.Reserve(s.T.Context(), s.Client(i), fmt.Sprintf("h1-other-%d", i), "h1", 1, 3600)
	})
	if c := shoptest.Counts(others); c[http.StatusCreated] != 9 || c[http.StatusConflict] != 1 {
		s.T.Errorf("10 other buyers of 9 units: %v", c)
	}
	s.Drain()
	s.Shelf("h1", "0|10|0")
	s.Row.Note("100 clicks took 1 unit; 9 of 10 others got theirs")
}

func hurry(s *shoptest.Shop) {
	s.Supply(100, "a5")
	front := s.Living(shoptest.Producer)[0]
	before := front.Metric("go_goroutines")
	s.Path.Delay(3 * time.Second)
	impatient := &api.Client{Base: front.API, HTTP: &http.Client{Transport: s.HTTP.Transport, Timeout: 300 * time.Millisecond}, Tries: 1}
	answers := make([]shoptest.Answer, 200)
	shoptest.Crowd(len(answers), 50, func(i int) {
		answers[i] = shoptest.Reserve(s.T.Context(), impatient, fmt.Sprintf("a5-%d", i%50), "a5", 1, 3600)
	})
	for _, a := range answers {
		if !errors.Is(a.Err, api.ErrUnknown) || a.Ended.Sub(a.Began) > time.Second {
			s.T.Errorf("a caller with 300 ms was told after %v: %s", a.Ended.Sub(a.Began), a.String())
		}
	}
	calm := shoptest.Reserve(s.T.Context(), &api.Client{Base: front.API, HTTP: s.HTTP, Tries: 1}, "a5-calm", "a5", 1, 3600)
	if calm.Settled() || calm.Status == 0 {
		s.T.Errorf("in front of a Redis that answers after 3 s: %s", calm.String())
	}
	s.Path.Delay(0)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if n := front.Metric("go_goroutines"); n > before+30 {
			return fmt.Errorf("%v goroutines, %v before", n, before)
		}
		return nil
	})
	s.AwaitReady()
	orders := make([]shoptest.Answer, 51)
	shoptest.Crowd(len(orders), 8, func(i int) {
		order := fmt.Sprintf("a5-%d", i)
		if i == 50 {
			order = "a5-calm"
		}
		sandboxtest.Eventually(s.T, shoptest.Patience, func() error { // asking again settles it
			if orders[i] = shoptest.Reserve(s.T.Context(), s.Client(i), order, "a5", 1, 3600); !orders[i].Accepted() {
				return errors.New(orders[i].String())
			}
			return nil
		})
	})
	s.Drain()
	s.Shelf("a5", "49|51|0")
	s.Row.Note("callers with 300 ms got `unknown` after at most %.2f s, without a deadline %d after %.1f s; goroutines came down; the same 51 ids asked again took 51 units",
		shoptest.Slowest(answers, time.Time{}, time.Now()).Seconds(), calm.Status, calm.Ended.Sub(calm.Began).Seconds())
}
