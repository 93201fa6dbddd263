package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// secret is that of a token of the tests.
func secret(name string) string { return strings.Repeat(name+".", 32) }

// carrier adds a token to whatever has none.
type carrier struct {
	http.RoundTripper
	secret string
}

func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.secret != "" && r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+c.secret)
	}
	return c.RoundTripper.RoundTrip(r)
}

func trusting(t *testing.T, pool *x509.CertPool, secret string) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: &carrier{transport, secret}}
}

func (k *keptShop) status(client *http.Client, link string) (int, string) {
	k.T.Helper()
	answer, err := client.Get(link)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	shoptest.Need(k.T, err)
	return answer.StatusCode, string(text)
}

// Everything at once, as a shop runs whose machines do not trust the network between them.
func TestAShopBehindTokensAndTLSThroughout(t *testing.T) {
	r := shoptest.Begin(t, "tokens and TLS on every listener, TLS to both stores")
	authority := sandboxtest.NewAuthority(t)
	redisArgs, redisAt := authority.RedisArgs(t)
	pem, key := authority.Server(t, "listener")
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(shop string) {
		t.Helper()
		text := "shop order,read " + secret(shop) + "\nwarehouse stock " + secret("warehouse") + "\nmonitor read " + secret("monitor") + "\nboss admin " + secret("boss") + "\n"
		shoptest.Need(t, os.WriteFile(tokens, []byte(text), 0o600))
	}
	write("shop")
	listening := []string{"--token-file", tokens, "--tls-cert", pem, "--tls-key", key, "--redis-ca-file", authority.CAFile}
	k := found(r, shoptest.Plan{
		Producers: 1, Consumers: 1, Reconcilers: 1, Redis: sandbox.RedisOptions{ExtraArgs: redisArgs},
		RedisOf: func(kind string) string {
			return as(t, "rediss://"+redisAt+"/0", "stockpipe-"+kind, passwordOf(kind))
		},
		ProducerArgs: listening, ConsumerArgs: listening, ReconcilerArgs: listening,
	})
	authority.Postgres(t, k.Postgres)
	plain := k.Plan.PostgresOf
	k.Plan.PostgresOf = func(kind string) string {
		u, err := url.Parse(plain(kind))
		shoptest.Need(t, err)
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {authority.CAFile}}.Encode()
		return u.String()
	}
	k.HTTP = trusting(t, authority.Pool(t), secret("boss"))
	k.StartAll()
	k.AwaitReady()
	k.Supply(10, "tea")
	producer := k.Living(shoptest.Producer)[0]
	stranger := trusting(t, authority.Pool(t), "")

	client := func(name string) *api.Client {
		return &api.Client{Base: producer.API, HTTP: stranger, Tries: 1, Token: api.Token(secret(name))}
	}
	order := &api.ReserveRequest{OrderID: "o-1", Lines: []api.Line{{SKU: "tea", Quantity: 2}}, TTL: 600}
	if _, err := client("shop").Reserve(t.Context(), order); err != nil {
		t.Error(err)
	}
	for name, status := range map[string]int{"monitor": 403, "warehouse": 403, "nobody": 401} {
		_, err := client(name).Confirm(t.Context(), "o-1", api.AttemptRequest{})
		if p := new(api.Problem); !errors.As(err, &p) || p.Status != status || p.Scope != "order" {
			t.Errorf("%s confirms: %v", name, err)
		}
	}
	if _, err := client("shop").Confirm(t.Context(), "o-1", api.AttemptRequest{}); err != nil {
		t.Error(err)
	}
	for _, role := range k.Living("") {
		if status, text := k.status(stranger, role.Ops+"/metrics"); status != http.StatusUnauthorized {
			t.Errorf("%s shows its metrics to a stranger: %d %.80s", role.Name, status, text)
		}
		if status, text := k.status(trusting(t, authority.Pool(t), secret("monitor")), role.Ops+"/metrics"); status != http.StatusOK {
			t.Errorf("%s: %d %.80s", role.Name, status, text)
		}
		if status, text := k.status(stranger, role.Ops+"/readyz"); status != http.StatusOK {
			t.Errorf("%s is not ready to a stranger: %d %s", role.Name, status, text)
		}
		if role.Kind == shoptest.Reconciler {
			k.command(slices.Concat([]string{"--healthcheck", "--ops-listen", strings.TrimPrefix(role.Ops, "https://")}, listening)...)
		}
	}
	k.encrypted()
	k.rotates(producer, authority, func() { write("renewed") }, client)
	k.command("audit", "--redis-ca-file", authority.CAFile)
	k.noRefusals()
	k.saysNoSecret()
}

// encrypted wants TLS on every session of the roles in Postgres.
func (k *keptShop) encrypted() {
	k.T.Helper()
	const count = `select count(*) || ' of ' || count(*) filter (where ssl) from pg_stat_ssl join pg_stat_activity using (pid) where usename like 'stockpipe\_%'`
	all, safe, _ := strings.Cut(shoptest.One[string](k.Shop, count), " of ")
	if all != safe || all == "0" {
		k.T.Errorf("%s of %s sessions of Postgres are encrypted", safe, all)
	}
}

// rotates changes tokens and certificate while the producer runs.
func (k *keptShop) rotates(producer *shoptest.Role, authority *sandboxtest.Authority, renew func(), client func(string) *api.Client) {
	k.T.Helper()
	renew()
	sandboxtest.Eventually(k.T, shoptest.Patience, func() error {
		_, err := client("renewed").Stock(k.T.Context(), "tea")
		return err
	})
	if _, err := client("shop").Stock(k.T.Context(), "tea"); err == nil {
		k.T.Error("a token that was replaced is still good")
	}
	old := k.serial(producer, authority)
	authority.Server(k.T, "listener")
	sandboxtest.Eventually(k.T, shoptest.Patience, func() error {
		if now := k.serial(producer, authority); now == old {
			return fmt.Errorf("the certificate is still %s", now)
		}
		return nil
	})
	// While only one of the two files was new there was something to tell, at most once or twice.
	if n := producer.Log.Count("a change of the access files is not taken"); n > 2 {
		k.T.Errorf("it is told %d times", n)
	}
}

// serial is the number of the certificate that a new connection is shown.
func (k *keptShop) serial(r *shoptest.Role, authority *sandboxtest.Authority) string {
	k.T.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.API, "https://"), &tls.Config{RootCAs: authority.Pool(k.T), MinVersion: tls.VersionTLS12})
	shoptest.Need(k.T, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// saysNoSecret reads all logs for passwords and secrets.
func (k *keptShop) saysNoSecret() {
	k.T.Helper()
	for _, role := range k.Roles {
		text := strings.Join(role.Log.Lines(), "\n")
		for _, word := range []string{"password-of-", secret("shop"), secret("boss"), secret("renewed"), secret("warehouse")} {
			if strings.Contains(text, word) {
				k.T.Errorf("%s logs %s", role.Name, word)
			}
		}
	}
}

func TestAListenerBeyondLoopbackWithoutAccessIsRefusedAtTheStart(t *testing.T) {
	r := shoptest.Begin(t, "a listener beyond loopback without access is refused")
	s := shoptest.Found(r, shoptest.Plan{})
	out, said, code := s.Command("serve", "--ops-listen", "0.0.0.0:0")
	if code != 64 || !strings.Contains(said, "--token-file") || !strings.Contains(said, "--tls-cert") {
		t.Errorf("it ends with %d: %s%s", code, out, said)
	}
}
