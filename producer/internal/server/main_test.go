package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A tally is the Observer of tests.
type tally struct {
	mu       sync.Mutex
	outcomes map[string]int
	crashes  []any
}

func (o *tally) Answered(string, int, time.Duration) {}
func (o *tally) Level(string)                        {}
func (o *tally) Outcome(code string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes[code]++
}
func (o *tally) Crashed(what any, _ []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.crashes = append(o.crashes, what)
}

// A shop is a server over a world that has tea (10), }{ (5) and a/b ☕ (5).
type shop struct {
	*testing.T
	world  *ordertest.World
	server *Server
	tally  *tally
}

func openShop(t *testing.T, shards int) *shop {
	t.Helper()
	w := ordertest.New(shards)
	w.Stock("tea", 10, 0)
	w.Stock("}{", 5, 0)
	w.Stock("a/b ☕", 5, 0)
	w.Stock("far", 5, shards-1)
	s := &shop{T: t, world: w, tally: &tally{outcomes: map[string]int{}}}
	s.serve(w.Parts(), Config{})
	return s
}

// serve opens the server over the parts.
func (s *shop) serve(parts order.Parts, c Config) {
	s.Helper()
	clerk, err := order.NewClerk(parts)
	if err == nil {
		s.server, err = New(clerk, s.tally, c)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// A reply is an answer as it came.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (s *shop) send(method, path, body string) reply {
	return s.sendAs(method, path, "application/json", body)
}

func (s *shop) sendAs(method, path, media, body string) reply {
	s.Helper()
	r := httptest.NewRequest(method, path, io.NopCloser(strings.NewReader(body)))
	r.ContentLength = int64(len(body))
	if media != "" {
		r.Header.Set("Content-Type", media)
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.Bytes()}
}

func (r reply) problem(t *testing.T) api.Problem {
	t.Helper()
	var p api.Problem
	dec := json.NewDecoder(strings.NewReader(string(r.body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
	if got := r.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("a problem came as %q", got)
	}
	if p.Status != r.status || p.Detail == "" || p.Title == "" || kinds[p.Code].status != r.status {
		t.Errorf("status %d came with the problem %+v", r.status, p)
	}
	return p
}

func answerAs[T any](t *testing.T, r reply, status int) T {
	t.Helper()
	var v T
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	dec := json.NewDecoder(strings.NewReader(string(r.body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return v
}

// chunked sends a body whose length is not told.
func (s *shop) chunked(method, path, body string) reply {
	s.Helper()
	r := httptest.NewRequest(method, path, io.NopCloser(strings.NewReader(body)))
	r.ContentLength = -1
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.Bytes()}
}
