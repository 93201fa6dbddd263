package server

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestAReservationIsAnsweredWholeAndReplayed(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	text := `{"order_id":"o1","buyer":"u@1","ttl":60,"lines":[{"sku":"tea","quantity":2},{"sku":"a/b ☕","quantity":1},{"sku":"tea","quantity":1}]}`
	r := s.send("POST", "/v1/reservations", text)
	want := api.Reservation{
		OrderID: "o1", Attempt: 1, State: "held", Receipt: "0.1.1.0", Level: "memory", ExpiresAt: "2023-11-14T22:14:20.000Z",
		Lines: []api.OrderLine{{SKU: "tea", Asked: 3, Quantity: 3}, {SKU: "a/b ☕", Asked: 1, Quantity: 1}},
	}
	if diff := cmp.Diff(want, answerAs[api.Reservation](t, r, 201)); diff != "" {
		t.Error(diff)
	}
	want.Replayed = true
	if diff := cmp.Diff(want, answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", text), 200)); diff != "" {
		t.Error(diff)
	}
	if f := s.world.FieldOf("tea"); f.Available != 7 || f.Held != 3 {
		t.Errorf("tea stands at %v", f)
	}
}

func TestRefusalsOfAReservation(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2)
	s.send("POST", "/v1/reservations", body("", ""))
	sold := s.send("POST", "/v1/reservations", `{"order_id":"o2","lines":[{"sku":"tea","quantity":10},{"sku":"}{","quantity":1}]}`)
	p := sold.problem(t)
	want := []api.ShortLine{{SKU: "tea", Quantity: 10, Available: 9}, {SKU: "}{", Quantity: 1, Available: 5}}
	if diff := cmp.Diff(want, p.Lines); diff != "" || p.Code != api.CodeSoldOut || sold.status != 409 {
		t.Errorf("%s%s", diff, sold.body)
	}
	conflict := s.send("POST", "/v1/reservations", body("buyer", `"u2"`))
	if p := conflict.problem(t); p.Code != api.CodeConflict || p.Order == nil || p.Order.State != "held" || conflict.status != 409 {
		t.Errorf("%s", conflict.body)
	}
	shards := s.send("POST", "/v1/reservations", `{"order_id":"o3","lines":[{"sku":"tea","quantity":1},{"sku":"far","quantity":1}]}`)
	if p := shards.problem(t); p.Code != api.CodeShards || shards.status != 422 {
		t.Errorf("%s", shards.body)
	}
}

func TestASKUInDoubtIsClosedNeverSoldOutOrUnknown(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.world.Flush("tea")
	s.world.FieldOf("}{").Frozen = true
	for sku, reason := range map[string]string{"tea": "missing", "}{": "frozen"} {
		r := s.send("POST", "/v1/reservations", `{"order_id":"o1","lines":[{"sku":"`+sku+`","quantity":1}]}`)
		if p := r.problem(t); r.status != 503 || p.Code != api.CodeClosed || p.Reason != reason || r.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s", sku, r.body)
		}
	}
	s.world.FieldOf("}{").Frozen, s.world.FieldOf("}{").Closed = false, true
	r := s.send("POST", "/v1/reservations", `{"order_id":"o1","lines":[{"sku":"}{","quantity":1}]}`)
	if p := r.problem(t); r.status != 409 || p.Code != api.CodeNotForSale {
		t.Errorf("%s", r.body)
	}
}

func TestAClosedShardSaysWhyAndWhenToAskAgain(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"fenced", "missing", "torn", "rewound", "stale", "rebuilding", "halted", "memory", "busy", "unheard_of"} {
		s := openShop(t, 1)
		s.world.Before = func(stock.Operation) error {
			return fmt.Errorf("wrapped: %w", &stock.ClosedError{Reason: reason, RetryAfter: 1500 * time.Millisecond})
		}
		for _, path := range []string{"/v1/reservations", "/v1/reservations/o1/confirm", "/v1/reservations/o1/release"} {
			text := body("", "")
			if strings.Contains(path, "o1") {
				text = ""
			}
			r := s.send("POST", path, text)
			p := r.problem(t)
			if r.status != 503 || p.Code != api.CodeClosed || p.Reason != reason || r.header.Get("Retry-After") != "2" || p.RetryAfterMillis != 1500 {
				t.Errorf("%s: %s, Retry-After %s", path, r.body, r.header.Get("Retry-After"))
			}
		}
	}
}

func TestAnUnknownOutcomeIsNeverCalledFailedOrClosed(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.world.After = func(stock.Operation, *stock.Outcome) error {
		return fmt.Errorf("%w (%w)", stock.ErrUnknown, &stock.ClosedError{Reason: "busy"})
	}
	r := s.send("POST", "/v1/reservations", body("", ""))
	if p := r.problem(t); r.status != 504 || p.Code != api.CodeUnknown {
		t.Errorf("%s", r.body)
	}
	s.world.After = nil
	if again := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", body("", "")), 200); !again.Replayed {
		t.Errorf("%+v", again)
	}
}

func TestAConfirmIs200OnlyWhenItIsPersisted(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.send("POST", "/v1/reservations", body("", ""))
	s.world.Stopped = true
	first := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", ""), 202)
	if first.State != "confirmed" || first.Level != "memory" || first.Replayed {
		t.Errorf("%+v", first)
	}
	repeat := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", "{}"), 202)
	if repeat.Receipt != first.Receipt || !repeat.Replayed {
		t.Errorf("%+v", repeat)
	}
	found := answerAs[api.Order](t, s.send("GET", "/v1/reservations/o1?receipt="+first.Receipt, ""), 200)
	if found.Standing != "accepted" || found.Matches[0].Redis.State != "confirmed" || found.Matches[0].Ledger.State != "held" {
		t.Errorf("%+v", found)
	}
	s.world.Apply()
	last := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", `{"ack":"persisted"}`), 200)
	if last.Level != "persisted" || last.Receipt != first.Receipt {
		t.Errorf("%+v", last)
	}
}

func TestAConfirmFromMemoryIs202AndSoIsASale(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.send("POST", "/v1/reservations", body("", ""))
	answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", `{"ack":"memory"}`), 202)
	sale := `{"order_id":"o2","sale":true,"ack":"memory","lines":[{"sku":"tea","quantity":1}]}`
	answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", sale), 202)
	sale = `{"order_id":"o3","sale":true,"lines":[{"sku":"tea","quantity":1}]}`
	got := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", sale), 201)
	if got.State != "confirmed" || got.Level != "persisted" || got.ExpiresAt != "" {
		t.Errorf("%+v", got)
	}
}

func TestStatesAndCommandsHaveDefinedAnswers(t *testing.T) {
	t.Parallel()
	prepare := map[string]func(*shop){
		"held":      func(*shop) {},
		"confirmed": func(s *shop) { s.send("POST", "/v1/reservations/o1/confirm", "") },
		"released":  func(s *shop) { s.send("POST", "/v1/reservations/o1/release", "") },
		"expired":   func(s *shop) { s.world.Tick(time.Hour) },
	}
	for _, row := range []struct{ state, command, want string }{
		{"held", "reserve", "200 held 1"}, {"held", "confirm", "200 confirmed 1"}, {"held", "release", "200 released 1"},
		{"confirmed", "reserve", "200 confirmed 1"}, {"confirmed", "confirm", "200 confirmed 1"}, {"confirmed", "release", "409 confirmed"},
		{"released", "reserve", "200 released 1"}, {"released", "confirm", "409 released"}, {"released", "release", "200 released 1"},
		{"expired", "reserve", "200 expired 1"}, {"expired", "confirm", "200 confirmed 2"}, {"expired", "release", "200 expired 1"},
	} {
		for _, forgotten := range []bool{false, true} {
			if forgotten && (row.state == "held" || row.command == "reserve") {
				continue // a hold is never forgotten; a first attempt without a record takes stock by design
			}
			s := openShop(t, 1)
			s.send("POST", "/v1/reservations", body("", ""))
			prepare[row.state](s)
			if forgotten {
				s.world.Drop("o1")
			}
			path, text := "/v1/reservations/o1/"+row.command, ""
			if row.command == "reserve" {
				path, text = "/v1/reservations", body("", "")
			}
			r := s.send("POST", path, text)
			got := fmt.Sprint(r.status, " ")
			if r.status == 200 {
				a := answerAs[api.Reservation](t, r, 200)
				got += fmt.Sprint(a.State, " ", a.Attempt)
			} else {
				got += r.problem(t).Code
			}
			if got != row.want {
				t.Errorf("%s of what is %s (forgotten: %v): %s, want %s: %s", row.command, row.state, forgotten, got, row.want, r.body)
			}
			if f := s.world.FieldOf("tea"); f.OnHand() != 10 || f.Available < 9 {
				t.Errorf("%s of what is %s leaves tea at %v", row.command, row.state, f)
			}
		}
	}
}

func TestALateConfirmThatIsShortIsRecordedBeforeItIsTold(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.send("POST", "/v1/reservations", body("", ""))
	s.world.Tick(time.Hour)
	s.send("POST", "/v1/reservations", `{"order_id":"o2","lines":[{"sku":"tea","quantity":10}]}`)
	r := s.send("POST", "/v1/reservations/o1/confirm", "")
	p := r.problem(t)
	want := []api.ShortLine{{SKU: "tea", Quantity: 1, Available: 0}}
	if diff := cmp.Diff(want, p.Lines); diff != "" || p.Code != api.CodeShortfall || p.OrderID != "o1" {
		t.Errorf("%s%s", diff, r.body)
	}
	if diff := cmp.Diff([]string{"o1"}, s.world.Shortfalls); diff != "" {
		t.Error(diff)
	}
}

func TestEveryItemOfABulkHasItsOwnResult(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	var items []string
	for i := range 20 {
		items = append(items, body("order_id", fmt.Sprintf(`"o%d"`, i)))
	}
	items = append(items, `7`, body("order_id", "7"), `{"order_id":"x","lines":[{"sku":"none","quantity":1}]}`)
	out := answerAs[api.BatchAnswer](t, s.send("POST", "/v1/reservations:batch", `{"reservations":[`+strings.Join(items, ",")+`]}`), 200)
	count := map[int]int{}
	for i, r := range out.Results {
		count[r.Status]++
		if r.Status == 201 && r.Reservation.OrderID != fmt.Sprintf("o%d", i) {
			t.Errorf("result %d is about %s", i, r.Reservation.OrderID)
		}
	}
	if diff := cmp.Diff(map[int]int{201: 10, 409: 10, 422: 2, 404: 1}, count); diff != "" {
		t.Error(diff)
	}
}

func TestALookupAnswersExactlyOneStanding(t *testing.T) {
	t.Parallel()
	s := openShop(t, 4)
	r := s.send("GET", "/v1/reservations/o1", "")
	if p := r.problem(t); r.status != 404 || p.Code != api.CodeUnknownOrder {
		t.Errorf("%s", r.body)
	}
	s.world.Stopped = true
	held := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", `{"order_id":"o1","lines":[{"sku":"far","quantity":1}]}`), 201)
	ask := func(receipt string) string {
		return answerAs[api.Order](t, s.send("GET", "/v1/reservations/o1"+receipt, ""), 200).Standing
	}
	if got := ask(""); got != "accepted" {
		t.Errorf("a fresh hold is %s", got)
	}
	if got := ask("?receipt=3.1.99.0"); got != "unknown" {
		t.Errorf("a receipt of the future is %s", got)
	}
	s.world.Lose()
	if got := ask("?receipt=" + url.QueryEscape(held.Receipt)); got != "lost" {
		t.Errorf("a lost hold is %s", got)
	}
	s.world.Stopped = false
	again := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", `{"order_id":"o1","lines":[{"sku":"far","quantity":1}]}`), 201)
	if got := ask("?receipt=" + again.Receipt); got != "persisted" {
		t.Errorf("a persisted hold is %s", got)
	}
	s.world.Locked(func() { s.world.LedgerAway = errors.New("gone") })
	found := answerAs[api.Order](t, s.send("GET", "/v1/reservations/o1", ""), 200)
	if diff := cmp.Diff([]string{"ledger"}, found.Incomplete); diff != "" || found.Standing != "unknown" {
		t.Errorf("%s%+v", diff, found)
	}
}

func TestACrashIsAnsweredAndCounted(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.world.Before = func(stock.Operation) error { panic("boom") }
	r := s.send("POST", "/v1/reservations", body("", ""))
	if p := r.problem(t); r.status != 500 || p.Code != api.CodeInternal || len(s.tally.crashes) != 1 {
		t.Errorf("%s", r.body)
	}
}
