package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// reserved takes 4 tea and 2 }{ as o1.
func (s *shop) reserved() {
	s.Helper()
	answerAs[api.Reservation](s.T, s.send("POST", "/v1/reservations", `{"order_id":"o1","buyer":"u1","lines":[{"sku":"tea","quantity":4},{"sku":"}{","quantity":2}]}`), 201)
}

func TestAPartialReservationSaysWhatItTook(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	text := `{"order_id":"o1","policy":"partial","lines":[{"sku":"tea","quantity":12},{"sku":"}{","quantity":5}]}`
	want := []api.OrderLine{{SKU: "tea", Asked: 12, Quantity: 10}, {SKU: "}{", Asked: 5, Quantity: 5}}
	for _, status := range []int{201, 200} {
		if diff := cmp.Diff(want, answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", text), status).Lines); diff != "" {
			t.Error(diff)
		}
	}
	if p := s.send("POST", "/v1/reservations", strings.Replace(text, "o1", "o2", 1)).problem(t); p.Code != api.CodeSoldOut || len(p.Lines) != 2 {
		t.Errorf("%+v", p)
	}
}

func TestAnOrderGoesThroughItsLife(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.reserved()
	r := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/extend", `{"until":"2023-11-15T10:00:00+01:00"}`), 200)
	if r.ExpiresAt != "2023-11-15T09:00:00.000Z" || r.Replayed {
		t.Errorf("%+v", r)
	}
	if r = answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/extend", `{"ttl":1}`), 200); !r.Replayed {
		t.Errorf("%+v", r)
	}
	r = answerAs[api.Reservation](t, s.send("PUT", "/v1/reservations/o1", `{"lines":[{"sku":"tea","quantity":10},{"sku":"a/b ☕","quantity":1}]}`), 200)
	want := []api.OrderLine{{SKU: "tea", Asked: 4, Quantity: 10}, {SKU: "}{", Asked: 2}, {SKU: "a/b ☕", Quantity: 1}}
	if diff := cmp.Diff(want, r.Lines); diff != "" {
		t.Error(diff)
	}
	r = answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"a/b ☕","quantity":0}],"ack":"persisted"}`), 200)
	if r.State != "held" || len(r.Lines) != 2 || r.Level != "persisted" {
		t.Errorf("%+v", r)
	}
	r = answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", `{"lines":[{"sku":"tea","quantity":5}]}`), 200)
	if r.State != "confirmed" || r.Lines[0].Quantity != 5 {
		t.Errorf("%+v", r)
	}
	if p := s.send("POST", "/v1/reservations/o1/confirm", `{"lines":[{"sku":"tea","quantity":4}]}`).problem(t); p.Code != api.CodeConflict || p.Order.Lines[0].Quantity != 5 {
		t.Errorf("%+v", p)
	}
	for call, want := range map[string]api.Document{
		`fulfil {"document_id":"d1","lines":[{"sku":"tea","quantity":2}]}`: {Kind: "fulfil", Quantity: 2, Reason: "shipped"},
		`cancel {"document_id":"d2","lines":[{"sku":"tea","quantity":1}]}`: {Kind: "cancel", Quantity: 1, Reason: "cancelled"},
	} {
		verb, text, _ := strings.Cut(call, " ")
		d := answerAs[api.Document](t, s.send("POST", "/v1/reservations/o1/"+verb, text), 201)
		if d.Kind != want.Kind || d.Quantity != want.Quantity || d.Reason != want.Reason || d.OrderID != "o1" || d.Attempt != 1 || d.SKU != "" || d.State != "applied" {
			t.Errorf("%+v", d)
		}
		answerAs[api.Document](t, s.send("POST", "/v1/reservations/o1/"+verb, text), 200)
	}
	d := answerAs[api.Document](t, s.send("POST", "/v1/reservations/o1/return", `{"document_id":"d3","scrap":true,"reason":"broken"}`), 201)
	if diff := cmp.Diff([]api.Line{{SKU: "tea", Quantity: 2}}, d.Lines); diff != "" || !d.Scrap {
		t.Errorf("%s %+v", diff, d)
	}
	o := answerAs[api.Order](t, s.send("GET", "/v1/reservations/o1", ""), 200)
	wantLines := []api.OrderLine{{SKU: "tea", Asked: 4, Quantity: 2, Fulfilled: 2}, {SKU: "}{", Asked: 2}}
	if diff := cmp.Diff(wantLines, o.Matches[0].Ledger.Lines); diff != "" || o.Matches[0].Redis.State != "confirmed" {
		t.Error(diff)
	}
	if f := s.world.FieldOf("tea"); f.Available != 6 || f.Committed != 2 || f.OnHand() != 8 {
		t.Errorf("tea stands at %v", f)
	}
}

func TestRefusalsOfTheLifeOfAnOrder(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ method, path, body, want string }{
		{"PUT", "", `{"lines":[{"sku":"tea","quantity":11}]}`, "409 sold_out tea 11 of 10"},
		{"PUT", "", `{"attempt":2,"lines":[{"sku":"tea","quantity":1}]}`, "409 conflict held@1"},
		{"PUT", "", `{"lines":[{"sku":"far","quantity":1}]}`, "422 shards"},
		{"POST", "/extend", `{"until":"2023-11-15T22:13:21Z"}`, "422 out_of_bounds"},
		{"POST", "/release", `{"lines":[{"sku":"tea","quantity":5}]}`, "409 conflict held@1"},
		{"POST", "/release", `{"lines":[{"sku":"a/b ☕","quantity":1}]}`, "409 conflict held@1"},
		{"POST", "/confirm", `{"lines":[{"sku":"tea","quantity":5}]}`, "409 conflict held@1"},
		{"POST", "/fulfil", `{"document_id":"d1"}`, "409 state held@1"},
		{"POST", "/return", `{"document_id":"d1"}`, "409 state held@1"},
		{"POST", "/cancel", `{"document_id":"d1","attempt":2}`, "409 conflict held@1"},
	} {
		s := openShop(t, 2)
		s.reserved()
		p := s.send(row.method, "/v1/reservations/o1"+row.path, row.body).problem(t)
		got := fmt.Sprintf("%d %s", p.Status, p.Code)
		for _, l := range p.Lines {
			got += fmt.Sprintf(" %s %d of %d", l.SKU, l.Quantity, l.Available)
		}
		if p.Order != nil {
			got += fmt.Sprintf(" %s@%d", p.Order.State, p.Order.Attempt)
		}
		if got != row.want {
			t.Errorf("%s %s: got %q, want %q", row.path, row.body, got, row.want)
		}
	}
	s := openShop(t, 1)
	s.reserved()
	s.send("POST", "/v1/reservations/o1/confirm", "")
	p := s.send("POST", "/v1/reservations/o1/cancel", `{"document_id":"d1","lines":[{"sku":"tea","quantity":5}]}`).problem(t)
	if diff := cmp.Diff([]api.ShortLine{{SKU: "tea", Quantity: 5, Available: 4}}, p.Lines); diff != "" || p.Code != api.CodeInsufficient {
		t.Errorf("%s%+v", diff, p)
	}
	for path, text := range map[string]string{"/extend": `{"ttl":60}`, "/release": ""} {
		if p := s.send("POST", "/v1/reservations/o1"+path, text).problem(t); p.Code != api.CodeConfirmed {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if p := s.send("PUT", "/v1/reservations/o1", `{"lines":[{"sku":"tea","quantity":1}]}`).problem(t); p.Code != api.CodeConfirmed {
		t.Errorf("%+v", p)
	}
}

func TestALimitPerBuyerIsAnsweredByItsNumbers(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ask := func(buyer string, quantity int) reply {
		return s.send("POST", "/v1/reservations", fmt.Sprintf(`{"order_id":"o-%s-%d","buyer":%q,"lines":[{"sku":"tea","quantity":%d}]}`, buyer, quantity, buyer, quantity))
	}
	set := answerAs[api.SettingsAnswer](t, s.send("PATCH", "/v1/stock/tea", `{"buyer_limit":2}`), 202)
	if set.Settings.BuyerLimit != 2 || !strings.Contains(set.Hint, "takeover") || set.Level != "persisted" || len(s.world.Doubts) != 1 {
		t.Errorf("%+v, doubted %v", set, s.world.Doubts)
	}
	r := ask("u1", 1)
	if p := r.problem(t); p.Code != api.CodeUncounted || r.status != 503 || r.header.Get("Retry-After") != "1" || p.SKU != "tea" {
		t.Errorf("%s", r.body)
	}
	if p := ask("", 1).problem(t); p.Code != api.CodeBuyer || p.Status != 422 || p.SKU != "tea" {
		t.Errorf("%+v", p)
	}
	s.world.Lose()
	if set := answerAs[api.SettingsAnswer](t, s.send("PATCH", "/v1/stock/tea", `{"buyer_limit":2}`), 200); set.Hint != "" {
		t.Errorf("%+v", set)
	}
	answerAs[api.Reservation](t, ask("u1", 2), 201)
	r = s.send("POST", "/v1/reservations", `{"order_id":"o9","buyer":"u1","lines":[{"sku":"tea","quantity":1}]}`)
	if p := r.problem(t); r.status != 429 || p.Code != api.CodeLimit || p.Have == nil || *p.Have != 2 || p.Limit != 2 || p.SKU != "tea" {
		t.Errorf("%s", r.body)
	}
	if r = ask("u2", 3); !strings.Contains(string(r.body), `"have":0,"limit":2`) {
		t.Errorf("who has nothing is told so, too: %s", r.body)
	}
}

func TestSettingsAreShownAndChangedOneByOne(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	patch := func(text string) api.Settings {
		return answerAs[api.SettingsAnswer](t, s.send("PATCH", "/v1/stock/tea", text), 200).Settings
	}
	patch(`{"opens_at":"2023-11-15T00:00:00Z"}`)
	want := api.Settings{OpensAt: "2023-11-15T00:00:00.000Z", Closed: true}
	if diff := cmp.Diff(want, patch(`{"closed":true,"ack":"memory"}`)); diff != "" {
		t.Error(diff)
	}
	shelf := answerAs[api.Stock](t, s.send("GET", "/v1/stock/tea", ""), 200)
	if shelf.Redis.Settings != want || shelf.Ledger.Settings != want {
		t.Errorf("%+v %+v", shelf.Redis, shelf.Ledger)
	}
	s.world.Stopped = true
	if got := answerAs[api.SettingsAnswer](t, s.send("PATCH", "/v1/stock/tea", `{"closed":false}`), 202); got.Level != "memory" || got.Hint != "" {
		t.Errorf("%+v", got)
	}
	s.world.Before = func(stock.Operation) error { return &stock.ClosedError{Reason: "fenced", RetryAfter: time.Second} }
	if p := s.send("PATCH", "/v1/stock/tea", `{"closed":false}`).problem(t); p.Code != api.CodeClosed {
		t.Errorf("%+v", p)
	}
}

func TestASKUIsDeletedByItsPath(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.reserved()
	p := s.send("DELETE", "/v1/stock/tea", "").problem(t)
	want := []api.Hold{{OrderID: "o1", Attempt: 1, State: "held", SKU: "tea", Quantity: 4}}
	if diff := cmp.Diff(want, p.Holds); diff != "" || p.Code != api.CodeHeld || p.SKU != "tea" {
		t.Errorf("%s%+v", diff, p)
	}
	s.send("POST", "/v1/reservations/o1/release", "")
	s.world.Stopped = true
	if d := answerAs[api.DeleteAnswer](t, s.send("DELETE", "/v1/stock/tea", ""), 202); d.State != "closed" {
		t.Errorf("%+v", d)
	}
	s.world.Apply()
	s.world.Stopped = false
	for _, replayed := range []bool{false, true} {
		if d := answerAs[api.DeleteAnswer](t, s.send("DELETE", "/v1/stock/tea", ""), 200); d.State != "deleted" || d.Replayed != replayed {
			t.Errorf("%+v", d)
		}
	}
	if p := s.send("GET", "/v1/stock/tea", "").problem(t); p.Code != api.CodeUnknownSKU {
		t.Errorf("%+v", p)
	}
	answerAs[api.Document](t, s.send("PUT", "/v1/stock/tea", `{"opening":3}`), 201)
}

func TestACountIsAnsweredWithWhatItCorrects(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	d := answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/count", `{"document_id":"n1","counted":12}`), 201)
	if d.Quantity != 2 || d.Counted == nil || *d.Counted != 12 || d.Reason != "counted" || d.SKU != "tea" {
		t.Errorf("%+v", d)
	}
	s.reserved()
	p := s.send("POST", "/v1/stock/tea/count", `{"document_id":"n2","counted":0}`).problem(t)
	if p.Code != api.CodeInsufficient || len(p.Holds) != 1 || p.Holds[0].OrderID != "o1" {
		t.Errorf("%+v", p)
	}
	at := answerAs[api.Stock](t, s.send("GET", "/v1/stock/tea", ""), 200).Redis.Position
	answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/count", `{"document_id":"n3","counted":11,"position":"`+at+`"}`), 201)
	if p := s.send("POST", "/v1/stock/tea/count", `{"document_id":"n4","counted":9,"position":"1-1"}`).problem(t); p.Code != api.CodeCountOld {
		t.Errorf("%+v", p)
	}
	s.world.Before = func(stock.Operation) error { return &stock.ClosedError{Reason: "fenced"} }
	answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/count", `{"document_id":"n5","counted":9}`), 202)
	if p := s.send("POST", "/v1/stock/tea/count", `{"document_id":"n6","counted":9}`).problem(t); p.Code != api.CodeCountBusy {
		t.Errorf("%+v", p)
	}
	s.world.Before = nil
	d = answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/return", `{"document_id":"d1","quantity":2,"scrap":true}`), 201)
	if d.Quantity != 2 || !d.Scrap || d.Kind != "return" || s.world.FieldOf("tea").OnHand() != 11 {
		t.Errorf("%+v, tea %v", d, s.world.FieldOf("tea"))
	}
}

// The largest order that can be allowed fits into the body that is allowed for it, in every call that has lines.
func TestAnOrderOf1500LinesFits(t *testing.T) {
	t.Parallel()
	w := ordertest.New(1)
	var lines, results []string
	for i := range stock.MaxOrderLines {
		sku := fmt.Sprintf("%064d", i)
		w.Stock(sku, 1_000_000, 0)
		lines = append(lines, `{"sku":"`+sku+`","quantity":1000000}`)
		results = append(results, `{"sku":"`+sku+`","quantity":999999}`)
	}
	parts := w.Parts()
	parts.MaxLines = stock.MaxOrderLines
	s := &shop{T: t, world: w, tally: &tally{outcomes: map[string]int{}}}
	s.serve(parts, Config{MaxLines: stock.MaxOrderLines})
	all, fewer := strings.Join(lines, ","), strings.Join(results, ",")
	answerAs[api.Reservation](t, s.send("POST", "/v1/reservations", `{"order_id":"o1","lines":[`+all+`]}`), 201)
	answerAs[api.Reservation](t, s.send("PUT", "/v1/reservations/o1", `{"lines":[`+fewer+`]}`), 200)
	answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/release", `{"lines":[`+fewer+`]}`), 200)
	r := answerAs[api.Reservation](t, s.send("POST", "/v1/reservations/o1/confirm", `{"lines":[`+fewer+`]}`), 200)
	if len(r.Lines) != stock.MaxOrderLines || r.Lines[0].Quantity != 999_999 {
		t.Errorf("%d lines", len(r.Lines))
	}
	more := `{"order_id":"o2","lines":[` + all + `,` + lines[0] + `]}`
	if p := s.send("POST", "/v1/reservations", more).problem(t); p.Code != api.CodeInvalid || p.Errors[0].Field != "lines" {
		t.Errorf("%+v", p)
	}
}

// FuzzBodies sends any text to every call that has a body: it is carried out, or refused for a reason, and never a crash.
func FuzzBodies(f *testing.F) {
	calls := []string{
		"PUT /v1/reservations/o1", "POST /v1/reservations/o1/confirm", "POST /v1/reservations/o1/release", "POST /v1/reservations/o1/extend",
		"POST /v1/reservations/o1/fulfil", "POST /v1/reservations/o1/cancel", "POST /v1/reservations/o1/return",
		"POST /v1/stock/tea/count", "POST /v1/stock/tea/return", "POST /v1/stock/tea/receive", "POST /v1/stock/tea/adjust", "PATCH /v1/stock/tea",
	}
	for i := range calls {
		for _, text := range []string{
			``, `{}`, `{"lines":[{"sku":"tea","quantity":1}]}`, `{"lines":[{"sku":"tea","quantity":0},{"sku":"}{","quantity":2}]}`, `{"ttl":60}`,
			`{"until":"2023-11-15T00:00:00Z"}`, `{"document_id":"d1"}`, `{"document_id":"d1","lines":[{"sku":"tea","quantity":1}],"scrap":true}`,
			`{"document_id":"d1","counted":7,"position":"1-2"}`, `{"document_id":"d1","counted":7,"at":"2023-11-14T00:00:00Z"}`,
			`{"document_id":"d1","quantity":-1,"reason":"x"}`, `{"buyer_limit":2,"closed":true,"frozen":false,"opens_at":"2023-11-14T00:00:00Z"}`,
		} {
			f.Add(i, text)
		}
	}
	f.Fuzz(func(t *testing.T, i int, text string) {
		if i < 0 || i >= len(calls) {
			return
		}
		s := openShop(t, 1)
		s.reserved()
		method, path, _ := strings.Cut(calls[i], " ")
		r := s.send(method, path, text)
		if r.status >= 500 || len(s.tally.crashes) > 0 {
			t.Fatalf("%s %q: %d %s %v", calls[i], text, r.status, r.body, s.tally.crashes)
		}
		if r.status >= 400 {
			r.problem(t)
		}
	})
}
