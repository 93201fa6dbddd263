package service

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReadinessIsAskedOfTheOpsListener(t *testing.T) {
	t.Parallel()
	ops := NewOps(http.NotFoundHandler(), nil)
	var fault error
	ops.Check("redis", func(context.Context) error { return fault })
	for _, c := range []struct {
		fact    string
		handler http.Handler
		fault   error
		want    string
	}{
		{"ready", ops, nil, ""},
		{"not ready", ops, errors.New("away"), "redis:away"},
		{"another server", http.NotFoundHandler(), nil, "no ops listener"},
		{"one that says yes to everything", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, "no ops listener"},
	} {
		fault = c.fault
		server := httptest.NewServer(c.handler)
		err := AskReady(t.Context(), strings.TrimPrefix(server.URL, "http://"), nil)
		server.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.fact, err, c.want)
		}
	}
	for address, want := range map[string]string{"127.0.0.1:1": "nobody answers", ":1": "nobody answers", "8081": "host:port"} {
		err := AskReady(t.Context(), address, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
