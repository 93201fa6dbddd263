package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type settings struct {
	Redis    Redis    `embed:"" prefix:"redis-"`
	Postgres Postgres `embed:"" prefix:"postgres-"`
	Ops      Listen   `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8082"`
	Log      Log      `embed:"" prefix:"log-"`
	Access   Access   `embed:""`
}

func (s settings) Validate() error { return s.Access.Check("ops-listen", s.Ops) }

func parse(args ...string) (settings, error) {
	var s settings
	_, err := ParseArgs("stockpipe-test", "A test.", &s, args, &bytes.Buffer{})
	return s, err
}

func TestDefaultsWorkAgainstTheLocalStack(t *testing.T) {
	t.Parallel()
	got, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		Redis{URL: "redis://127.0.0.1:6379/0", Prefix: "sp"},
		Postgres{URL: "postgres://127.0.0.1:5432/stockpipe?sslmode=disable", Mode: "direct", MaxConns: 8},
		Listen{"127.0.0.1:8082"}, Log{"info", "json"}, Access{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheEnvironmentIsReadAndAFlagWins(t *testing.T) {
	t.Setenv("STOCKPIPE_REDIS_PREFIX", "shop")
	t.Setenv("STOCKPIPE_POSTGRES_MAX_CONNS", "20")
	t.Setenv("STOCKPIPE_OPS_LISTEN", "127.0.0.1:9")
	got, err := parse("--postgres-max-conns", "30")
	if err != nil {
		t.Fatal(err)
	}
	if got.Redis.Prefix != "shop" || got.Postgres.MaxConns != 30 || got.Ops.Addr != "127.0.0.1:9" {
		t.Errorf("got %+v", got)
	}
}

func TestHelpNamesFlagsVariablesAndDefaults(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--help", "-help", "-h"} {
		var out bytes.Buffer
		_, err := ParseArgs("stockpipe-test", "A test.", &settings{}, []string{flag}, &out)
		if !errors.Is(err, ErrHelp) {
			t.Fatalf("%s: %v", flag, err)
		}
		for _, want := range []string{"A test.", "--redis-url", "redis://127.0.0.1:6379/0", "STOCKPIPE_REDIS_URL",
			"--postgres-max-conns=8", "--ops-listen", "127.0.0.1:8082", "STOCKPIPE_LOG_LEVEL"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s does not show %s:\n%s", flag, want, out.String())
			}
		}
	}
}

func TestABadSettingIsNamedWithItsValueAndARemedy(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("shop read,order "+strings.Repeat("s", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parse("--ops-listen", "0.0.0.0:80", "--token-file", tokens, "--unsafe-plain-listen"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--redis-prefix", "a}b"}, []string{"redis-prefix", "a}b", "1 to 64"}},
		{[]string{"--redis-url", "http://h"}, []string{"redis-url", "http://h", "rediss://"}},
		{[]string{"--redis-url", "redis://h/3"}, []string{"redis-url", "redis://h/3", "database 0"}},
		{[]string{"--postgres-url", "mysql://h/x"}, []string{"postgres-url", "postgres://"}},
		{[]string{"--postgres-max-conns", "1"}, []string{"postgres-max-conns", "1", "2 to 200"}},
		{[]string{"--ops-listen", "0.0.0.0:80"}, []string{"listen", "0.0.0.0:80", "127.0.0.1:80"}},
		{[]string{"--ops-listen", "0.0.0.0:80", "--token-file", tokens}, []string{"ops-listen", "--tls-cert", "--unsafe-plain-listen"}},
		{[]string{"--postgres-mode", "session"}, []string{"postgres-mode", "session", "pooled"}},
		{[]string{"--redis-ca-file", empty}, []string{"redis-ca-file", "rediss://"}},
		{[]string{"--redis-url", "rediss://h", "--redis-ca-file", empty}, []string{"redis-ca-file", "PEM"}},
		{[]string{"--redis-url", "rediss://h", "--redis-ca-file", empty + "x"}, []string{"redis-ca-file", "may read"}},
		{[]string{"--ops-listen", "0.0.0.0:80", "--unsafe-plain-listen"}, []string{"ops-listen", "--token-file"}},
		{[]string{"--token-file", empty}, []string{"--token-file", "no token", "name scope,scope secret"}},
		{[]string{"--token-file", empty + "x"}, []string{"--token-file", "may read"}},
		{[]string{"--tls-cert", empty}, []string{"--tls-cert and --tls-key", "both"}},
		{[]string{"--tls-cert", empty, "--tls-key", empty}, []string{"--tls-cert", "PEM"}},
		{[]string{"--tls-cert", empty, "--tls-key", empty, "--unsafe-plain-listen"}, []string{"unsafe-plain-listen", "leave one"}},
		{[]string{"--ops-listen", "8082"}, []string{"listen", "8082", "host:port"}},
		{[]string{"--log-level", "loud"}, []string{"log-level", "loud", "debug"}},
		{[]string{"--redis-password-file", empty}, []string{"redis-password-file", "password alone"}},
		{[]string{"--redis-password-file", empty + "x"}, []string{"redis-password-file", "may read"}},
		{[]string{"--colour"}, []string{"colour"}},
	} {
		_, err := parse(c.args...)
		if err == nil {
			t.Errorf("%v is accepted", c.args)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %q does not name %q", c.args, err, w)
			}
		}
	}
}

func TestAPasswordComesFromAFileAndIsNeverPrinted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3:c/r@et\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := parse("--postgres-url", "postgres://shop@db/stock", "--postgres-password-file", file,
		"--redis-url", "rediss://user:hidden@cache:6380")
	if err != nil {
		t.Fatal(err)
	}
	if url, err := got.Postgres.Connection(); err != nil || url != "postgres://shop:s3%3Ac%2Fr%40et@db/stock" {
		t.Errorf("connection %q, %v", url, err)
	}
	if url, err := got.Redis.Connection(); err != nil || url != "rediss://user:hidden@cache:6380" {
		t.Errorf("connection %q, %v", url, err)
	}
	asJSON, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %q %s", got, got, got, got.Redis.URL, got.Redis.URL, asJSON)
	if strings.Contains(printed, "hidden") || strings.Contains(printed, "et@") {
		t.Errorf("a password shows: %s", printed)
	}
	if !strings.Contains(printed, "rediss://user:xxxxx@cache:6380") {
		t.Errorf("the URL does not show: %s", printed)
	}
}

func TestABadURLDoesNotShowItsPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://u:hidden@h:port", "u:hidden@h", "redis:u:hidden@h", "ftp://u:hidden@h", "postgres://h/x?password=hidden"} {
		_, err := parse("--redis-url", url)
		if err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestAPasswordIsGivenOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parse("--redis-url", "redis://:b@h", "--redis-password-file", file); err == nil {
		t.Error("two passwords are accepted")
	}
}

// TestMain keeps the settings of whoever runs the tests out of them.
func TestMain(m *testing.M) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "STOCKPIPE_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}
