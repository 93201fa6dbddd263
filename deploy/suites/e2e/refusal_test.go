package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAScriptThatCannotFinishWritesNothing: field case B7, with another type in the log's place and with a full Redis.
func TestAScriptThatCannotFinishWritesNothing(t *testing.T) {
	r := begin(t, "B7 a script that cannot finish")
	s := open(r, plan{producers: 2, consumers: 1, reconcilers: 1})
	s.supply(10, "tea")
	for _, order := range []string{"pays", "returns"} {
		s.told(reserve(t.Context(), s.client(0), order, "tea", 1, 3600), http.StatusCreated)
	}
	s.drain()
	warden := s.living(reconciler)[0]
	warden.pause() // it would have healed this before anybody saw it
	keys := s.keys("tea")
	need(t, s.rdb.Rename(t.Context(), keys.Log, "kept").Err())
	need(t, s.rdb.Set(t.Context(), keys.Log, "not a log", 0).Err())
	for n := range 2 {
		if a := s.told(reserve(t.Context(), s.client(n), "half", "tea", 1, 3600), http.StatusServiceUnavailable); a.problem == nil || a.problem.Code != api.CodeClosed {
			t.Errorf("with no log to write to: %s", a.String())
		}
	}
	s.untouched("half", "8|2|0")
	warden.resume()
	sandboxtest.Eventually(t, patience, func() error {
		if a := reserve(t.Context(), s.client(0), "half", "tea", 1, 3600); !a.accepted() {
			return errors.New(a.String())
		}
		return nil
	})
	s.awaitReady() // the other producer learns the epoch a moment later
	s.drain()
	s.shelf("tea", "7|3|0")

	limit := s.rdb.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]
	need(t, s.rdb.ConfigSet(t.Context(), "maxmemory", "100kb").Err())
	full := s.told(reserve(t.Context(), s.client(0), "full", "tea", 1, 3600), http.StatusServiceUnavailable)
	if full.problem == nil || full.problem.Reason != "memory" {
		t.Errorf("with a full Redis: %s", full.String())
	}
	s.untouched("full", "7|3|0")
	s.told(confirm(t.Context(), s.client(0), "pays"), http.StatusOK)
	s.told(release(t.Context(), s.client(1), "returns"), http.StatusOK)
	need(t, s.rdb.ConfigSet(t.Context(), "maxmemory", limit).Err())
	s.drain()
	s.shelf("tea", "8|1|1")
	r.note("a string in the log's place: 503, nothing written, opened again by itself; a full Redis: reserve 503 memory, confirm and release 200")
	s.finish()
}

// untouched checks that a refused order left nothing in Redis.
func (s *shop) untouched(order, want string) {
	s.t.Helper()
	if got := s.inRedis("tea"); got != want {
		s.t.Errorf("tea is %s, want %s", got, want)
	}
	if s.rdb.HExists(s.t.Context(), s.keys("tea").Orders, order).Val() {
		s.t.Errorf("the refused order %s left a record", order)
	}
}

// TestReadinessRunsTheLibrary: field case A4. A Redis without the library answers PING, and sells nothing.
func TestReadinessRunsTheLibrary(t *testing.T) {
	r := begin(t, "A4 readiness without the library")
	s := open(r, plan{producers: 1, consumers: 1, reconcilers: 1})
	s.supply(10, "tea")
	warden, front := s.living(reconciler)[0], s.living(producer)[0]
	warden.pause()
	need(t, s.rdb.FunctionFlush(t.Context()).Err())
	need(t, s.rdb.Ping(t.Context()).Err())
	if a := s.told(reserve(t.Context(), s.client(0), "o1", "tea", 1, 3600), http.StatusServiceUnavailable); a.problem == nil || a.problem.Reason != "fenced" {
		t.Errorf("without the library: %s", a.String())
	}
	red := front.ready()
	if red == nil {
		t.Error("the producer is ready without the library")
	}
	warden.resume()
	sandboxtest.Eventually(t, patience, func() error {
		if a := reserve(t.Context(), s.client(0), "o1", "tea", 1, 3600); !a.accepted() {
			return errors.New(a.String())
		}
		return nil
	})
	s.awaitReady()
	r.note("PING is answered, reserve 503 fenced, readiness red (%.60s…); open again without anybody", fmt.Sprint(red))
	s.finish()
}
