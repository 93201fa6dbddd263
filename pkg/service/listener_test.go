package service

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWithoutTokensAndTLSOnlyLoopbackIsServed(t *testing.T) {
	t.Parallel()
	for address, remedy := range map[string]string{
		"0.0.0.0:8080": "127.0.0.1:8080", ":8080": "127.0.0.1:8080", "[::]:81": "127.0.0.1:81", "10.0.0.1:82": "127.0.0.1:82",
		"shop.example:83": "127.0.0.1:83", "8080": "host:port", "127.0.0.1:": "name the port",
	} {
		l, err := Listen("api", address, http.NotFoundHandler(), Door{})
		if err == nil {
			l.Close()
			t.Errorf("%s is served", address)
			continue
		}
		if !strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), "api") {
			t.Errorf("%s: %v names no remedy", address, err)
		}
	}
}

func TestATakenPortIsAnErrorBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	first, err := Listen("api", "127.0.0.1:0", http.NotFoundHandler(), Door{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := Listen("ops", first.Addr(), http.NotFoundHandler(), Door{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v", err)
	}
}

func TestRequestsInFlightAreFinishedOnStop(t *testing.T) {
	t.Parallel()
	inside, finish := make(chan struct{}), make(chan struct{})
	l, err := Listen("api", "localhost:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-finish
		_, _ = io.WriteString(w, "done")
	}), Door{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, l.Part()) }()
	body := make(chan string, 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() { body <- get(client, l.URL()) }()
	<-inside
	cancel()
	time.AfterFunc(20*time.Millisecond, func() { close(finish) })
	if got := <-body; got != "done" {
		t.Errorf("answer %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func get(client *http.Client, url string) string {
	answer, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

// Clients open connections ahead of need; nobody has asked anything on them, so a stop does not wait for them.
func TestAConnectionThatAskedNothingDoesNotHoldUpTheStop(t *testing.T) {
	t.Parallel()
	l, err := Listen("api", "127.0.0.1:0", http.NotFoundHandler(), Door{})
	if err != nil {
		t.Fatal(err)
	}
	stopsBesideASilentConnection(t, l, func() {
		answer, err := http.Get(l.URL())
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	})
}

// stopsBesideASilentConnection stops a listener while a connection to it says nothing. An answer to another one shows that
// the server has taken this one, too.
func stopsBesideASilentConnection(t *testing.T, l *Listener, another func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	another()
	began := time.Now()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > finishTime/2 {
		t.Errorf("the stop took %v", took)
	}
}

func TestReadinessNamesWhatIsNotReady(t *testing.T) {
	t.Parallel()
	o := NewOps(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }), nil)
	l, err := Listen("ops", "127.0.0.1:0", o, Door{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if got := get(client, l.URL()+"/healthz"); got != "{\"alive\":true}\n" {
		t.Errorf("healthz %q", got)
	}
	if got := get(client, l.URL()+"/metrics"); got != "metrics" {
		t.Errorf("metrics %q", got)
	}
	if got := get(client, l.URL()+"/readyz"); got != "{\"ready\":true}\n" {
		t.Errorf("readyz %q", got)
	}
	o.Check("postgres", func(context.Context) error { return nil })
	o.Check("redis", func(context.Context) error { return errors.New("no answer") })
	o.Check("slow", func(ctx context.Context) error { <-ctx.Done(); return nil })
	o.Check("mad", func(context.Context) error { panic("oh") })
	answer, err := client.Get(l.URL() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var got readiness
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil || answer.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("status %d, %v", answer.StatusCode, err)
	}
	want := readiness{NotReady: map[string]string{"redis": "no answer", "slow": "context deadline exceeded", "mad": "the check panicked: oh"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
