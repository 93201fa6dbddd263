package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/api"
)

// secretOf is the secret of the token that has one scope and its name.
func secretOf(s access.Scope) string { return strings.Repeat(string(s)+".", access.MinSecret) }

// lockedShop asks for tokens; each scope has one of its name.
func lockedShop(t *testing.T) *shop {
	t.Helper()
	var lines strings.Builder
	for _, scope := range access.Scopes {
		lines.WriteString(string(scope) + " " + string(scope) + " " + secretOf(scope) + "\n")
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := access.OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := openShop(t, 1)
	s.server.config.Tokens = tokens
	return s
}

func (s *shop) sendWith(secret, method, path, body string) reply {
	s.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body.Bytes()}
}

// The rule by which routes have scopes, said apart from the table.
func scopeOf(method, path string) access.Scope {
	switch {
	case method == http.MethodGet:
		return access.Read
	case strings.HasPrefix(path, "/v1/stock/"):
		return access.Stock
	}
	return access.Order
}

func TestEveryRouteAsksForItsScope(t *testing.T) {
	t.Parallel()
	s := lockedShop(t)
	for _, rt := range routes {
		path := strings.NewReplacer("{order}", "o-1", "{sku}", "tea").Replace(rt.path)
		want := scopeOf(rt.method, rt.path)
		r := s.sendWith("", rt.method, path, "{")
		if p := r.problem(t); p.Code != api.CodeUnauthorized || p.Scope != string(want) || !strings.HasPrefix(r.header.Get("WWW-Authenticate"), "Bearer ") {
			t.Errorf("%s without a token: %+v %v", rt.name, p, r.header)
		}
		for _, scope := range access.Scopes {
			r := s.sendWith(secretOf(scope), rt.method, path, "{")
			if scope == want || scope == access.Admin {
				if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
					t.Errorf("%s with %s: %d %s", rt.name, scope, r.status, r.body)
				}
				continue
			}
			if p := r.problem(t); p.Code != api.CodeForbidden || p.Scope != string(want) || !strings.Contains(p.Detail, "scope "+string(want)) {
				t.Errorf("%s with %s: %+v", rt.name, scope, p)
			}
		}
	}
}

func TestWhoIsRefusedTakesNothing(t *testing.T) {
	t.Parallel()
	s := lockedShop(t)
	const order = `{"order_id":"o-1","lines":[{"sku":"tea","quantity":3}]}`
	for _, secret := range []string{"", secretOf(access.Read), secretOf(access.Stock)} {
		if r := s.sendWith(secret, "POST", reservePath, order); r.status != http.StatusUnauthorized && r.status != http.StatusForbidden {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	var before, after api.Stock
	before = answerAs[api.Stock](t, s.sendWith(secretOf(access.Read), "GET", "/v1/stock/tea", ""), 200)
	if before.Redis.Available != 10 {
		t.Errorf("%d units are left of 10", before.Redis.Available)
	}
	answerAs[api.Reservation](t, s.sendWith(secretOf(access.Order), "POST", reservePath, order), 201)
	after = answerAs[api.Stock](t, s.sendWith(secretOf(access.Read), "GET", "/v1/stock/tea", ""), 200)
	if after.Redis.Available != 7 {
		t.Errorf("%d units are left of 10 after an order of 3", after.Redis.Available)
	}
}

func TestTheDescriptionNamesTheScopeOfEveryRoute(t *testing.T) {
	t.Parallel()
	d := served(t)
	if scheme := d.Components.SecuritySchemes[bearer]; scheme.Type != "http" || scheme.Scheme != "bearer" {
		t.Errorf("the scheme is %+v", scheme)
	}
	want, got := map[string][]map[string][]string{}, map[string][]map[string][]string{}
	for _, rt := range routes {
		want[rt.name] = []map[string][]string{{bearer: {string(scopeOf(rt.method, rt.path))}}}
	}
	for _, methods := range d.Paths {
		for _, op := range methods {
			got[op.OperationID] = op.Security
			for _, status := range []string{"401", "403"} {
				if _, ok := op.Responses[status]; !ok {
					t.Errorf("%s does not say %s", op.OperationID, status)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
