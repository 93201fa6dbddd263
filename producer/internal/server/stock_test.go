package server

import (
	"errors"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestAnySKUCanBeCreatedSoldAndAskedFor(t *testing.T) {
	t.Parallel()
	for _, sku := range []string{"plain", "a/b", "..", ".", "}", "a}b", "x|5=1", " lead", "100%", "a?b#c", "☕☕", "\u202eabc", `"'`, "a\nb", "+", "%2F", "-- '; drop"} {
		s := openShop(t, 1)
		path := "/v1/stock/" + escape(sku)
		d := answerAs[api.Document](t, s.send("PUT", path, `{"opening":7}`), 201)
		if d.SKU != sku || d.Quantity != 7 || d.State != "applied" || d.Level != "persisted" || d.Replayed {
			t.Errorf("%q: %+v", sku, d)
		}
		if d := answerAs[api.Document](t, s.send("PUT", path, `{"opening":7}`), 200); !d.Replayed {
			t.Errorf("%q again: %+v", sku, d)
		}
		if p := s.send("PUT", path, `{"opening":8}`).problem(t); p.Code != api.CodeConflict {
			t.Errorf("%q otherwise: %+v", sku, p)
		}
		got := answerAs[api.Stock](t, s.send("GET", path, ""), 200)
		want := api.Quantities{Available: 7, OnHand: 7}
		if got.SKU != sku || got.Redis == nil || got.Redis.Quantities != want || got.Ledger == nil || got.Ledger.Position == "" {
			t.Errorf("%q: %+v", sku, got)
		}
	}
}

func escape(sku string) string {
	if sku == "." || sku == ".." { // no client escapes these, and none has to
		return sku
	}
	return url.PathEscape(sku)
}

func TestADocumentHasOneOutcomeForEver(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	in := `{"document_id":"d1","quantity":5,"note":"from the ☕ lorry"}`
	first := answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/receive", in), 201)
	if first.State != "applied" || first.Level != "persisted" || first.Quantity != 5 || first.Kind != stock.DocumentReceive {
		t.Errorf("%+v", first)
	}
	s.world.Drop("~d1")
	again := answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/receive", in), 200)
	first.Replayed = true
	if diff := cmp.Diff(first, again); diff != "" || s.world.FieldOf("tea").Available != 15 {
		t.Errorf("%s tea stands at %v", diff, s.world.FieldOf("tea"))
	}
	if p := s.send("POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":6}`).problem(t); p.Code != api.CodeConflict {
		t.Errorf("%+v", p)
	}
	out := `{"document_id":"d2","quantity":-16,"reason":"damaged"}`
	for range 2 {
		p := s.send("POST", "/v1/stock/tea/adjust", out).problem(t)
		want := []api.ShortLine{{SKU: "tea", Quantity: -16, Available: 15}}
		if diff := cmp.Diff(want, p.Lines); diff != "" || p.Code != api.CodeRefused {
			t.Errorf("%s%+v", diff, p)
		}
	}
	s.send("POST", "/v1/stock/tea/receive", `{"document_id":"d3","quantity":100}`)
	if p := s.send("POST", "/v1/stock/tea/adjust", out).problem(t); p.Code != api.CodeRefused || s.world.FieldOf("tea").Available != 115 {
		t.Errorf("a refused document was decided anew: %+v, %v", p, s.world.FieldOf("tea"))
	}
}

func TestADocumentIsWrittenBeforeItIsDecided(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.world.Before = func(stock.Operation) error { return &stock.ClosedError{Reason: "fenced"} }
	in := `{"document_id":"d1","quantity":5}`
	d := answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/receive", in), 202)
	if d.State != "written" || d.Level != "" || d.Receipt != "" {
		t.Errorf("%+v", d)
	}
	s.world.Before = nil
	d = answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/receive", in), 200)
	if d.State != "applied" || s.world.FieldOf("tea").Available != 15 {
		t.Errorf("%+v, %v", d, s.world.FieldOf("tea"))
	}
	s.world.Stopped = true
	d = answerAs[api.Document](t, s.send("POST", "/v1/stock/tea/receive", `{"document_id":"d2","quantity":5}`), 202)
	if d.State != "applied" || d.Level != "memory" {
		t.Errorf("%+v", d)
	}
	s.world.Lose()
	s.world.Stopped = false
	s.world.Locked(func() { s.world.LedgerAway = errors.New("gone") })
	r := s.send("POST", "/v1/stock/tea/receive", `{"document_id":"d3","quantity":5}`)
	if p := r.problem(t); r.status != 503 || p.Reason != "ledger" {
		t.Errorf("%s", r.body)
	}
}
