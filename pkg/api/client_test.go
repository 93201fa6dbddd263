package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/stockpipe/stockpipe/pkg/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A script answers calls one after the other and keeps what was asked; the last step answers the rest.
type script struct {
	mu    sync.Mutex
	asked []string
	steps []http.HandlerFunc
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	step := s.steps[min(len(s.asked), len(s.steps)-1)]
	s.asked = append(s.asked, r.Method+" "+r.RequestURI+" "+string(body))
	s.mu.Unlock()
	step(w, r)
}

// calls are those that were asked so far.
func (s *script) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func client(t *testing.T, steps ...http.HandlerFunc) (*api.Client, *script) {
	t.Helper()
	s := &script{steps: steps}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c := api.NewClient(server.URL + "/")
	c.HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return c, s
}

func answers(status int, value any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value)
	}
}

func refuses(status int, code string) http.HandlerFunc {
	return answers(status, api.Problem{Code: code, Status: status, Detail: "because", RetryAfterMillis: 1})
}

func hangsUp(w http.ResponseWriter, _ *http.Request) {
	socket, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = socket.Close()
	}
}

func TestACallWithoutAnAnswerIsSentAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	c, s := client(t, hangsUp, refuses(503, api.CodeClosed), refuses(504, api.CodeUnknown), answers(200, api.Reservation{OrderID: "x", State: "held", Replayed: true}))
	request := &api.ReserveRequest{Lines: []api.Line{{SKU: "tea", Quantity: 1}}}
	a, err := c.Reserve(context.Background(), request)
	if err != nil || !a.Replayed {
		t.Fatalf("%+v %v", a, err)
	}
	if len(s.calls()) != 4 {
		t.Fatalf("asked %d times", len(s.calls()))
	}
	for _, asked := range s.calls()[1:] {
		if diff := cmp.Diff(s.calls()[0], asked); diff != "" {
			t.Error(diff)
		}
	}
	if !regexp.MustCompile(`^[0-9a-f]{36}$`).MatchString(request.OrderID) {
		t.Errorf("the order id is %q", request.OrderID)
	}
}

func TestARefusalIsFinal(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 409, 413, 415, 422, 500} {
		c, s := client(t, refuses(status, api.CodeSoldOut))
		_, err := c.Confirm(context.Background(), "o1", api.AttemptRequest{})
		var p *api.Problem
		if !errors.As(err, &p) || p.Status != status || p.Code != api.CodeSoldOut || len(s.calls()) != 1 || errors.Is(err, api.ErrUnknown) {
			t.Errorf("%d: %v after %d tries", status, err, len(s.calls()))
		}
	}
}

func TestTheClientNeverSaysFailedOfWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		steps   []http.HandlerFunc
		unknown bool
	}{
		"no answer":                   {[]http.HandlerFunc{hangsUp}, true},
		"unknown":                     {[]http.HandlerFunc{refuses(504, api.CodeUnknown)}, true},
		"no answer, then closed":      {[]http.HandlerFunc{hangsUp, refuses(503, api.CodeClosed)}, true},
		"uncounted":                   {[]http.HandlerFunc{refuses(503, api.CodeUncounted)}, false},
		"closed":                      {[]http.HandlerFunc{refuses(503, api.CodeClosed)}, false},
		"a proxy that is overwhelmed": {[]http.HandlerFunc{answers(503, "no")}, true},
	} {
		c, s := client(t, row.steps...)
		c.Tries = 3
		_, err := c.Release(context.Background(), "o1", api.AttemptRequest{})
		if err == nil || errors.Is(err, api.ErrUnknown) != row.unknown || len(s.calls()) != 3 {
			t.Errorf("%s: %v after %d tries", name, err, len(s.calls()))
		}
	}
}

func TestTheContextEndsTheTries(t *testing.T) {
	t.Parallel()
	c, s := client(t, answers(503, api.Problem{Code: api.CodeClosed, RetryAfterMillis: 60_000}))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Stock(ctx, "tea")
	var p *api.Problem
	if !errors.As(err, &p) || p.RetryAfter() != time.Minute || len(s.calls()) != 1 {
		t.Errorf("%v after %d tries", err, len(s.calls()))
	}
}

func TestPathsCarryAnySKUAndOrder(t *testing.T) {
	t.Parallel()
	c, s := client(t, answers(200, struct{}{}))
	ctx := context.Background()
	for _, call := range []func() error{
		func() error { _, err := c.Create(ctx, "a/b ☕%", api.OpeningRequest{Opening: 1}); return err },
		func() error { _, err := c.Stock(ctx, "a?b"); return err },
		func() error {
			_, err := c.Receive(ctx, "..", &api.ReceiveRequest{DocumentID: "d", Quantity: 1})
			return err
		},
		func() error {
			_, err := c.Adjust(ctx, "}", &api.AdjustRequest{DocumentID: "d", Quantity: -1, Reason: "r"})
			return err
		},
		func() error { _, err := c.Order(ctx, "o:1", "0.1.2.3"); return err },
		func() error { _, err := c.Confirm(ctx, "o:1", api.AttemptRequest{}); return err },
		func() error {
			_, err := c.Confirm(ctx, "o1", api.AttemptRequest{Attempt: 2, Lines: []api.Result{{SKU: "tea"}}})
			return err
		},
		func() error { _, err := c.Release(ctx, "o1", api.AttemptRequest{Lines: []api.Result{}}); return err },
		func() error { _, err := c.Extend(ctx, "o1", api.ExtendRequest{TTL: 60}); return err },
		func() error {
			_, err := c.Replace(ctx, "o1", api.ReplaceRequest{Lines: []api.Line{{SKU: "tea", Quantity: 1}}})
			return err
		},
		func() error { _, err := c.Fulfil(ctx, "o1", &api.AmendRequest{DocumentID: "d"}); return err },
		func() error {
			_, err := c.Cancel(ctx, "o1", &api.AmendRequest{DocumentID: "d", Lines: []api.Line{{SKU: "tea", Quantity: 1}}})
			return err
		},
		func() error {
			_, err := c.Return(ctx, "o1", &api.ReturnRequest{DocumentID: "d", Scrap: true})
			return err
		},
		func() error {
			_, err := c.Count(ctx, "tea", &api.CountRequest{DocumentID: "d", Position: "1-2"})
			return err
		},
		func() error {
			_, err := c.TakeBack(ctx, "tea", &api.StockReturnRequest{DocumentID: "d", Quantity: 1})
			return err
		},
		func() error {
			no, none := false, int64(0)
			_, err := c.Configure(ctx, "tea", api.SettingsRequest{Closed: &no, BuyerLimit: &none})
			return err
		},
		func() error { _, err := c.Delete(ctx, "a/b"); return err },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		`PUT /v1/stock/a%2Fb%20%E2%98%95%25 {"opening":1}`,
		`GET /v1/stock/a%3Fb `,
		`POST /v1/stock/../receive {"document_id":"d","quantity":1}`,
		`POST /v1/stock/%7D/adjust {"document_id":"d","quantity":-1,"reason":"r"}`,
		`GET /v1/reservations/o:1?receipt=0.1.2.3 `,
		`POST /v1/reservations/o:1/confirm {}`,
		`POST /v1/reservations/o1/confirm {"attempt":2,"lines":[{"sku":"tea","quantity":0}]}`,
		`POST /v1/reservations/o1/release {"lines":[]}`, // not the whole order: the server refuses it
		`POST /v1/reservations/o1/extend {"ttl":60}`,
		`PUT /v1/reservations/o1 {"lines":[{"sku":"tea","quantity":1}]}`,
		`POST /v1/reservations/o1/fulfil {"document_id":"d"}`,
		`POST /v1/reservations/o1/cancel {"document_id":"d","lines":[{"sku":"tea","quantity":1}]}`,
		`POST /v1/reservations/o1/return {"document_id":"d","scrap":true}`,
		`POST /v1/stock/tea/count {"document_id":"d","counted":0,"position":"1-2"}`,
		`POST /v1/stock/tea/return {"document_id":"d","quantity":1}`,
		`PATCH /v1/stock/tea {"buyer_limit":0,"closed":false}`,
		`DELETE /v1/stock/a%2Fb `,
	}
	if diff := cmp.Diff(want, s.calls()); diff != "" {
		t.Error(diff)
	}
}

// An id that the caller leaves to the client is made once, and every try has it.
func TestADocumentIsSentAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	ids := map[string]*string{}
	fulfil, cancel, back := &api.AmendRequest{}, &api.AmendRequest{}, &api.ReturnRequest{}
	receive, adjust := &api.ReceiveRequest{Quantity: 1}, &api.AdjustRequest{Quantity: 1}
	count, takeBack := &api.CountRequest{}, &api.StockReturnRequest{Quantity: 1}
	ids["fulfil"], ids["cancel"], ids["return"] = &fulfil.DocumentID, &cancel.DocumentID, &back.DocumentID
	ids["receive"], ids["adjust"], ids["count"], ids["takeBack"] = &receive.DocumentID, &adjust.DocumentID, &count.DocumentID, &takeBack.DocumentID
	for name, call := range map[string]func(*api.Client) (api.Document, error){
		"fulfil":   func(c *api.Client) (api.Document, error) { return c.Fulfil(ctx, "o1", fulfil) },
		"cancel":   func(c *api.Client) (api.Document, error) { return c.Cancel(ctx, "o1", cancel) },
		"return":   func(c *api.Client) (api.Document, error) { return c.Return(ctx, "o1", back) },
		"receive":  func(c *api.Client) (api.Document, error) { return c.Receive(ctx, "tea", receive) },
		"adjust":   func(c *api.Client) (api.Document, error) { return c.Adjust(ctx, "tea", adjust) },
		"count":    func(c *api.Client) (api.Document, error) { return c.Count(ctx, "tea", count) },
		"takeBack": func(c *api.Client) (api.Document, error) { return c.TakeBack(ctx, "tea", takeBack) },
	} {
		c, s := client(t, hangsUp, refuses(503, api.CodeClosed), answers(201, api.Document{State: "applied"}))
		if d, err := call(c); err != nil || d.State != "applied" {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		calls := s.calls()
		if len(calls) != 3 || calls[0] != calls[1] || calls[1] != calls[2] || !strings.Contains(calls[0], *ids[name]) || len(*ids[name]) != 36 {
			t.Errorf("%s: %q", name, calls)
		}
	}
}

func TestAwaitAsksUntilTheReceiptStands(t *testing.T) {
	t.Parallel()
	c, s := client(t, answers(200, api.Order{Standing: "accepted"}), answers(200, api.Order{Standing: "unknown"}), answers(200, api.Order{Standing: "lost"}))
	got, err := c.Await(context.Background(), "o1", "0.1.2.3")
	if got != api.StandingLost || err != nil || len(s.calls()) != 3 {
		t.Errorf("%q %v after %d looks", got, err, len(s.calls()))
	}
}

func TestOrderIDsAreNeverMadeTwice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 10_000 {
		id := api.NewOrderID()
		if seen[id] {
			t.Fatal(id)
		}
		seen[id] = true
	}
}

func TestTheTokenIsSentAndNeverPrinted(t *testing.T) {
	t.Parallel()
	const secret = "of-a-client-that-nobody-may-see-12"
	var header []string
	c, _ := client(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Values("Authorization")
		refuses(403, api.CodeForbidden)(w, r)
	}, hangsUp)
	c.Token, c.Tries = secret, 1
	_, refused := c.Stock(context.Background(), "tea")
	if diff := cmp.Diff([]string{"Bearer " + secret}, header); diff != "" {
		t.Error(diff)
	}
	var p *api.Problem
	if !errors.As(refused, &p) || p.Code != api.CodeForbidden {
		t.Errorf("refused with %v", refused)
	}
	_, failed := c.Stock(context.Background(), "tea")
	asJSON, err := json.Marshal(c.Token)
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %q %v %v %s", c, *c, *c, c.Token, c.Token, refused, failed, asJSON)
	if strings.Contains(printed, secret) || !strings.Contains(printed, "xxxxx") {
		t.Errorf("the token shows: %s", printed)
	}
}
