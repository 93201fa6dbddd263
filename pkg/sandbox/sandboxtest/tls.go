package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// Redis is a redis-server of the test's own with a port for TLS, beside the
// plain one. The URL is that of the TLS port.
func (a *Authority) Redis(t testing.TB, options sandbox.RedisOptions) (server *sandbox.Redis, link string) {
	t.Helper()
	arguments, address := a.RedisArgs(t)
	options.ExtraArgs = append(options.ExtraArgs, arguments...)
	server = Redis(t, options)
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	u.Scheme, u.Host = "rediss", address
	return server, u.String()
}

// RedisArgs are for the ExtraArgs of a redis-server: it then speaks TLS at the
// address, too.
func (a *Authority) RedisArgs(t testing.TB) (arguments []string, address string) {
	t.Helper()
	certificate, key := a.Server(t, "redis")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	address = free.Addr().String()
	closed(t, free)
	_, port, _ := net.SplitHostPort(address)
	return []string{"--tls-port", port, "--tls-auth-clients", "no",
		"--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", a.CAFile}, address
}

// Postgres switches TLS on in a Postgres of the test's own, for new
// connections; those without it are still accepted.
func (a *Authority) Postgres(t testing.TB, server *sandbox.Postgres) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	defer conn.Close(ctx)
	certificate, key := a.Server(t, "postgres")
	// Postgres writes the files itself: so they are its user's, whoever that is, in its folder.
	for name, path := range map[string]string{"server.crt": certificate, "server.key": key} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("sandboxtest: %v", err)
		}
		sql := fmt.Sprintf("copy (select unnest(string_to_array('%s', E'\\n'))) to program 'umask 077; cat > %s'", strings.TrimSpace(string(text)), name)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("sandboxtest: hand %s to Postgres: %v", name, err)
		}
	}
	for _, sql := range []string{"alter system set ssl = on", "select pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("sandboxtest: %s: %v", sql, err)
		}
	}
	Eventually(t, 10*time.Second, func() error {
		var on string
		if err := conn.QueryRow(ctx, "show ssl").Scan(&on); err != nil || on != "on" {
			return errors.Join(err, errors.New("ssl is "+on))
		}
		return nil
	})
}
