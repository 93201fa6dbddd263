package ledger

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// through gives a URL other settings, and another password if there is one.
func through(t *testing.T, text, password string, settings ...string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	q := url.Values{}
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u.RawQuery = q.Encode()
	if password != "" {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	return u.String()
}

func TestPostgresIsReachedThroughTLSThatIsVerified(t *testing.T) {
	t.Parallel()
	server := sandboxtest.OwnPostgres(t, sandbox.PostgresOptions{NoFsync: true})
	authority := sandboxtest.NewAuthority(t)
	authority.Postgres(t, server)
	plain, err := server.CreateDatabase(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	verified := through(t, plain, "", "sslmode", "verify-full", "sslrootcert", authority.CAFile)
	if err := migrations.Up(t.Context(), verified); err != nil {
		t.Fatal(err)
	}
	l := openURL(t, verified, 1)
	heard := make(chan Heard, 16)
	ctx, stop := context.WithCancel(t.Context())
	listening := make(chan error, 1)
	go func() { listening <- l.Listen(ctx, func(h Heard) { heard <- h }, ChannelShard) }()
	<-heard // the connection of the listener stands
	var encrypted, all int
	err = l.pool.QueryRow(t.Context(), `select count(*) filter (where ssl), count(*) from pg_stat_ssl join pg_stat_activity using (pid)
		where application_name = $1`, t.Name()[:min(len(t.Name()), 63)]).Scan(&encrypted, &all)
	if err != nil || encrypted != all || all < 2 {
		t.Errorf("%d of %d connections are encrypted: %v", encrypted, all, err)
	}
	stop()
	if err := <-listening; err != nil {
		t.Error(err)
	}

	secret := l.pool.Config().ConnConfig.Password
	stranger := sandboxtest.NewAuthority(t)
	for _, c := range []struct{ fact, url, want string }{
		{"another authority", through(t, plain, "", "sslmode", "verify-full", "sslrootcert", stranger.CAFile), "certificate signed by unknown authority"},
		{"no file of authorities", through(t, plain, "", "sslmode", "verify-full", "sslrootcert", authority.CAFile+".none"), "ca.pem.none"},
		{"no such mode", through(t, plain, "", "sslmode", "maybe"), "sslmode"},
		{"a wrong password", through(t, plain, "hidden-and-wrong", "sslmode", "require"), "password authentication failed"},
		{"nobody there", "postgres://shop:hidden-and-wrong@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=" + authority.CAFile, "does not answer"},
		{"not a URL", "postgres://shop:hidden-and-wrong@127.0.0.1:port/shop", "postgres://user@host:port/database"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		l, err := Open(ctx, Config{URL: c.url, Name: "test"})
		cancel()
		if err == nil {
			l.Close()
			t.Errorf("%s: it is opened", c.fact)
			continue
		}
		up := migrations.Up(t.Context(), c.url)
		if !strings.Contains(err.Error(), c.want) || up == nil {
			t.Errorf("%s: %v, want %q; migrations: %v", c.fact, err, c.want, up)
		}
		for _, text := range []string{err.Error(), up.Error()} {
			if strings.Contains(text, "hidden") || strings.Contains(text, secret) {
				t.Errorf("%s: the error shows a password: %s", c.fact, text)
			}
		}
	}
}
