package redisstock

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestRedisIsReachedThroughTLSThatIsVerified(t *testing.T) {
	t.Parallel()
	const password = "of-a-test-and-hidden"
	authority := sandboxtest.NewAuthority(t)
	_, url := authority.Redis(t, sandbox.RedisOptions{Password: password})
	other := sandboxtest.NewAuthority(t).Pool(t)
	for _, c := range []struct {
		fact  string
		url   string
		roots *x509.CertPool
		want  string // "": it answers
	}{
		{"the authority is trusted", url, authority.Pool(t), ""},
		{"by another name of the certificate", strings.Replace(url, "127.0.0.1", "localhost", 1), authority.Pool(t), ""},
		{"another authority is trusted", url, other, "certificate signed by unknown authority"},
		{"the system's authorities", url, nil, "certificate signed by unknown authority"},
		{"without TLS on a TLS port", strings.Replace(url, "rediss://", "redis://", 1), nil, ""},
		{"a wrong password", strings.Replace(url, "hidden", "hidden-wrong", 1), authority.Pool(t), "WRONGPASS"},
	} {
		rdb, err := Connect(Options{URL: c.url, RootCAs: c.roots, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatalf("%s: %v", c.fact, err)
		}
		err = rdb.Ping(t.Context()).Err()
		rdb.Close()
		plain := strings.HasPrefix(c.url, "redis://")
		switch {
		case plain && err == nil, !plain && (err == nil) != (c.want == ""), err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v, want %q", c.fact, err, c.want)
		case err != nil && strings.Contains(err.Error(), "hidden"):
			t.Errorf("%s: the error shows the password: %v", c.fact, err)
		}
	}
	if _, err := Connect(Options{URL: "redis://127.0.0.1:1/0", RootCAs: other}); err == nil || !strings.Contains(err.Error(), "rediss://") {
		t.Errorf("certificates for a plain URL: %v", err)
	}
}
