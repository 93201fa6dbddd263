package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

var secret = strings.Repeat("s", access.MinSecret)

func tokens(t *testing.T, scopes string) *access.Tokens {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("test "+scopes+" "+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := access.OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func certificate(t *testing.T, a *sandboxtest.Authority) *access.Certificate {
	t.Helper()
	pem, key := a.Server(t, "listener")
	out, err := access.OpenCertificate(pem, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// serve runs a listener until the test ends.
func serve(t *testing.T, l *Listener) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func trusting(pool *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
}

func TestOthersComeInOnlyWithTokensAndUnheard(t *testing.T) {
	t.Parallel()
	known, shown := tokens(t, "read"), certificate(t, sandboxtest.NewAuthority(t))
	for _, c := range []struct {
		door   Door
		remedy string // "": it is served
	}{
		{Door{}, "--token-file"},
		{Door{Tokens: known}, "--tls-cert and --tls-key"},
		{Door{Certificate: shown}, "--token-file"},
		{Door{Plain: true}, "--token-file"},
		{Door{Tokens: known, Certificate: shown}, ""},
		{Door{Tokens: known, Plain: true}, ""},
	} {
		err := c.door.Check("0.0.0.0:8080")
		if (err == nil) != (c.remedy == "") || err != nil && !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%+v: %v, want %q", c.door, err, c.remedy)
		}
	}
}

func TestAListenerWithACertificateSpeaksTLSOnly(t *testing.T) {
	t.Parallel()
	authority := sandboxtest.NewAuthority(t)
	l, err := Listen("api", "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}), Door{Certificate: certificate(t, authority)})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	if got := get(trusting(authority.Pool(t)), l.URL()); got != "HTTP/2.0" {
		t.Errorf("%s answers %q", l.URL(), got)
	}
	if got := get(trusting(x509.NewCertPool()), l.URL()); !strings.Contains(got, "certificate") {
		t.Errorf("a client that trusts nobody is answered %q", got)
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if got := get(plain, "http://"+l.Addr()); !strings.Contains(got, "HTTP request to an HTTPS server") {
		t.Errorf("a plain request is answered %q", got)
	}
	old := trusting(authority.Pool(t))
	old.Transport.(*http.Transport).TLSClientConfig.MinVersion, old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	if got := get(old, l.URL()); !strings.Contains(got, "protocol version") {
		t.Errorf("TLS 1.1 is answered %q", got)
	}
}

// Whoever stops in the middle of a handshake holds up neither the others nor the stop.
func TestAHandshakeThatIsNeverFinishedIsCut(t *testing.T) {
	t.Parallel()
	authority := sandboxtest.NewAuthority(t)
	l, err := Listen("api", "127.0.0.1:0", http.NotFoundHandler(), Door{Certificate: certificate(t, authority)})
	if err != nil {
		t.Fatal(err)
	}
	stopsBesideASilentConnection(t, l, func() {
		if got := get(trusting(authority.Pool(t)), l.URL()); !strings.HasPrefix(got, "404") {
			t.Errorf("another is answered %q", got)
		}
	})
}

func TestMetricsAskForATokenAndHealthDoesNot(t *testing.T) {
	t.Parallel()
	o := NewOps(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }), tokens(t, "read"))
	o.Check("redis", func(context.Context) error { return errors.New("dial 10.0.0.7") })
	l, err := Listen("ops", "127.0.0.1:0", o, Door{})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	for _, c := range []struct {
		path, secret string
		status       int
		body         string
	}{
		{"/healthz", "", http.StatusOK, "alive"},
		{"/readyz", "", http.StatusServiceUnavailable, "scope read"},
		{"/readyz", secret, http.StatusServiceUnavailable, "10.0.0.7"},
		{"/metrics", secret, http.StatusOK, "metrics"},
		{"/metrics", "", http.StatusUnauthorized, "no token"},
		{"/metrics", secret + "x", http.StatusUnauthorized, "no token has this secret"},
	} {
		r, err := http.NewRequest(http.MethodGet, l.URL()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.secret != "" {
			r.Header.Set("Authorization", "Bearer "+c.secret)
		}
		answer, err := trusting(nil).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.status || !strings.Contains(string(text), c.body) || c.secret == "" && strings.Contains(string(text), "10.0.0.7") {
			t.Errorf("%s with %q: %s %s", c.path, c.secret, answer.Status, text)
		}
		var p api.Problem
		if c.status == http.StatusUnauthorized && (json.Unmarshal(text, &p) != nil || p.Code != api.CodeUnauthorized || p.Scope != "read" ||
			answer.Header.Get("WWW-Authenticate") == "" || answer.Header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s with %q: %v %s", c.path, c.secret, answer.Header, text)
		}
	}
}

func TestReadinessIsAskedThroughTLSOfTheSameCertificateOnly(t *testing.T) {
	t.Parallel()
	authority := sandboxtest.NewAuthority(t)
	own := certificate(t, authority)
	l, err := Listen("ops", "127.0.0.1:0", NewOps(http.NotFoundHandler(), tokens(t, "admin")), Door{Tokens: tokens(t, "admin"), Certificate: own})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l)
	_, port, _ := net.SplitHostPort(l.Addr())
	if err := AskReady(t.Context(), "0.0.0.0:"+port, own); err != nil {
		t.Error(err)
	}
	if err := AskReady(t.Context(), "0.0.0.0:"+port, certificate(t, authority)); err == nil || !strings.Contains(err.Error(), "another certificate") {
		t.Errorf("a stranger is believed: %v", err)
	}
}
