package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAScriptThatCannotFinishWritesNothing: field case B7, with another type in the log's place and with a full Redis.
func TestAScriptThatCannotFinishWritesNothing(t *testing.T) {
	r := shoptest.Begin(t, "B7 a script that cannot finish")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(10, "tea")
	for _, order := range []string{"pays", "returns"} {
		s.Told(shoptest.Reserve(t.Context(), s.Client(0), order, "tea", 1, 3600), http.StatusCreated)
	}
	s.Drain()
	warden := s.Living(shoptest.Reconciler)[0]
	warden.Pause() // it would have healed this before anybody saw it
	keys := s.Keys("tea")
	shoptest.Need(t, s.RDB.Rename(t.Context(), keys.Log, "kept").Err())
	shoptest.Need(t, s.RDB.Set(t.Context(), keys.Log, "not a log", 0).Err())
	for n := range 2 {
		if a := s.Told(shoptest.Reserve(t.Context(), s.Client(n), "half", "tea", 1, 3600), http.StatusServiceUnavailable); a.Problem == nil || a.Problem.Code != api.CodeClosed {
			t.Errorf("with no log to write to: %s", a.String())
		}
	}
	untouched(s, "half", "8|2|0")
	warden.Resume()
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if a := shoptest.Reserve(t.Context(), s.Client(0), "half", "tea", 1, 3600); !a.Accepted() {
			return errors.New(a.String())
		}
		return nil
	})
	s.AwaitReady() // the other producer learns the epoch a moment later
	s.Drain()
	s.Shelf("tea", "7|3|0")

	limit := s.RDB.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]
	shoptest.Need(t, s.RDB.ConfigSet(t.Context(), "maxmemory", "100kb").Err())
	full := s.Told(shoptest.Reserve(t.Context(), s.Client(0), "full", "tea", 1, 3600), http.StatusServiceUnavailable)
	if full.Problem == nil || full.Problem.Reason != "memory" {
		t.Errorf("with a full Redis: %s", full.String())
	}
	untouched(s, "full", "7|3|0")
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), "pays"), http.StatusOK)
	s.Told(shoptest.Release(t.Context(), s.Client(1), "returns"), http.StatusOK)
	shoptest.Need(t, s.RDB.ConfigSet(t.Context(), "maxmemory", limit).Err())
	s.Drain()
	s.Shelf("tea", "8|1|1")
	r.Note("a string in the log's place: 503, nothing written, opened again by itself; a full Redis: reserve 503 memory, confirm and release 200")
	s.Finish()
}

// untouched checks that a refused order left nothing in Redis.
func untouched(s *shoptest.Shop, order, want string) {
	s.T.Helper()
	if got := s.InRedis("tea"); got != want {
		s.T.Errorf("tea is %s, want %s", got, want)
	}
	if s.RDB.HExists(s.T.Context(), s.Keys("tea").Orders, order).Val() {
		s.T.Errorf("the refused order %s left a record", order)
	}
}

// TestReadinessRunsTheLibrary: field case A4. A Redis without the library answers PING, and sells nothing.
func TestReadinessRunsTheLibrary(t *testing.T) {
	r := shoptest.Begin(t, "A4 readiness without the library")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1})
	s.Supply(10, "tea")
	warden, front := s.Living(shoptest.Reconciler)[0], s.Living(shoptest.Producer)[0]
	warden.Pause()
	shoptest.Need(t, s.RDB.FunctionFlush(t.Context()).Err())
	shoptest.Need(t, s.RDB.Ping(t.Context()).Err())
	if a := s.Told(shoptest.Reserve(t.Context(), s.Client(0), "o1", "tea", 1, 3600), http.StatusServiceUnavailable); a.Problem == nil || a.Problem.Reason != "fenced" {
		t.Errorf("without the library: %s", a.String())
	}
	red := front.Ready()
	if red == nil {
		t.Error("the producer is ready without the library")
	}
	warden.Resume()
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if a := shoptest.Reserve(t.Context(), s.Client(0), "o1", "tea", 1, 3600); !a.Accepted() {
			return errors.New(a.String())
		}
		return nil
	})
	s.AwaitReady()
	r.Note("PING is answered, reserve 503 fenced, readiness red (%.60s…); open again without anybody", fmt.Sprint(red))
	s.Finish()
}
