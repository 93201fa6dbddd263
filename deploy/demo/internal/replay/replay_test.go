package replay

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/pkg/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop answers as a producer would, and remembers what it was asked.
type shop struct {
	mu      sync.Mutex
	asked   map[string]int // by method and path
	had     map[string]bool
	refuses func(path string) *api.Problem
	slow    int // looks until a document is applied
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Method + " " + r.URL.Path
	var body struct {
		Order    string `json:"order_id"`
		Document string `json:"document_id"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	key += body.Order + body.Document
	s.asked[key]++
	if s.refuses != nil {
		if p := s.refuses(key); p != nil {
			answer(w, p.Status, p)
			return
		}
	}
	replayed := s.had[key]
	switch {
	case r.Method == http.MethodGet:
		order := strings.TrimPrefix(r.URL.Path, "/v1/reservations/")
		if !s.had["POST /v1/reservations"+order] {
			answer(w, http.StatusNotFound, &api.Problem{Code: api.CodeUnknownOrder, Status: http.StatusNotFound})
			return
		}
		answer(w, http.StatusOK, api.Order{OrderID: order, Standing: api.StandingPersisted, Matches: []api.Match{{Ledger: &api.Record{State: "confirmed"}}}})
	case body.Order != "":
		s.had[key] = true
		answer(w, http.StatusCreated, api.Reservation{OrderID: body.Order, State: "confirmed", Level: api.Persisted, Replayed: replayed})
	case s.asked[key] <= s.slow:
		answer(w, http.StatusAccepted, api.Document{State: "written"})
	default:
		s.had[key] = true
		answer(w, http.StatusOK, api.Document{State: "applied", Level: api.Persisted, Replayed: replayed})
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	if status >= http.StatusBadRequest {
		w.Header().Set("Content-Type", "application/problem+json")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func newShop(t *testing.T) (*shop, string) {
	s := &shop{asked: map[string]int{}, had: map[string]bool{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func file(t *testing.T, lines ...string) *orderfile.File {
	t.Helper()
	f, err := orderfile.Read(strings.NewReader("InvoiceNo,StockCode,Quantity\n" + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func run(t *testing.T, f *orderfile.File, url string, resumed bool) *Replay {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r := New(f, []string{url}, resumed)
	defer r.Close()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *Replay) figures() [7]int64 {
	return [7]int64{r.Openings.Load(), r.Sales.Load(), r.Shipped.Load(), r.Credits.Load(), r.Adjusts.Load(), r.Known.Load(), r.Refused.Load()}
}

func TestEverythingIsSentOnceAndRecognisedTheSecondTime(t *testing.T) {
	t.Parallel()
	s, url := newShop(t)
	f := file(t, "1,a,5", "1,b,2", "2,a,1", "C3,a,-2", "4,b,-1")
	if got, want := run(t, f, url, false).figures(), [7]int64{2, 2, 2, 1, 1, 0, 0}; got != want {
		t.Errorf("the first run counted %v, want %v", got, want)
	}
	if got, want := run(t, f, url, true).figures(), [7]int64{2, 2, 2, 1, 1, 8, 0}; got != want {
		t.Errorf("the second run counted %v, want %v", got, want)
	}
	for _, order := range []string{"1", "2"} {
		if n := s.asked["POST /v1/reservations"+order]; n != 1 {
			t.Errorf("order %s was sent %d times: a resumed replay asks first", order, n)
		}
	}
	if n := s.asked["POST /v1/stock/a/returnC3.1"]; n != 2 {
		t.Errorf("the credit was sent %d times, want the same document twice: %v", n, s.asked)
	}
	if n := s.asked["POST /v1/stock/b/adjust4.1"]; n != 2 {
		t.Errorf("the adjustment was sent %d times: %v", n, s.asked)
	}
}

func TestADocumentIsAwaitedUntilItIsApplied(t *testing.T) {
	t.Parallel()
	s, url := newShop(t)
	s.slow = 2
	if got, want := run(t, file(t, "C1,a,-2"), url, false).figures(), [7]int64{1, 0, 0, 1, 0, 0, 0}; got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func TestARefusalIsKeptAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	s, url := newShop(t)
	s.refuses = func(key string) *api.Problem {
		if key == "POST /v1/reservations1" {
			return &api.Problem{Code: api.CodeSoldOut, Title: "sold out", Status: http.StatusConflict}
		}
		return nil
	}
	r := run(t, file(t, "1,a,5", "2,a,1"), url, false)
	if got, want := r.figures(), [7]int64{1, 1, 1, 0, 0, 0, 1}; got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
	if len(r.Refusals()) != 1 || !strings.Contains(r.Refusals()[0], "sell order 1 (1 lines)") {
		t.Errorf("got %q", r.Refusals())
	}
}

func TestAReplayGivesUpWhenNothingIsTaken(t *testing.T) {
	t.Parallel()
	s, url := newShop(t)
	s.refuses = func(string) *api.Problem { return &api.Problem{Code: api.CodeConflict, Status: http.StatusConflict} }
	var lines []string
	for n := range 500 {
		lines = append(lines, "1,sku"+strings.Repeat("x", n%50)+string(rune('a'+n/50))+",1")
	}
	r := run(t, file(t, lines...), url, false)
	if n := len(s.asked); n < mostRefusals || n > mostRefusals+atOnce {
		t.Errorf("%d things were asked for although each was refused", n)
	}
	if r.Openings.Load() != 0 {
		t.Errorf("counted %d openings", r.Openings.Load())
	}
}

func TestACancelledReplaySaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := New(file(t, "1,a,5"), []string{"http://127.0.0.1:1"}, false)
	defer r.Close()
	if err := r.Run(ctx); err == nil || r.Refused.Load() != 0 {
		t.Errorf("got %v, %d refused", err, r.Refused.Load())
	}
}

func TestALargeOrderIsShippedInSeveralDocuments(t *testing.T) {
	t.Parallel()
	s, url := newShop(t)
	var lines []string
	for n := range 300 {
		lines = append(lines, "1,"+strconv.Itoa(n)+",1")
	}
	lines = append(lines, "1,0,2") // the same SKU once more
	if got, want := run(t, file(t, lines...), url, false).figures(), [7]int64{300, 1, 1, 0, 0, 0, 0}; got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
	for _, document := range []string{"1.ship1", "1.ship2"} {
		if n := s.asked["POST /v1/reservations/1/fulfil"+document]; n != 1 {
			t.Errorf("%s was sent %d times", document, n)
		}
	}
}
