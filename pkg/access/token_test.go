package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Secrets of the length that is asked for, and as plain as secrets of tests should be.
var (
	readSecret  = strings.Repeat("r", MinSecret)
	shopSecret  = strings.Repeat("s", MinSecret) + "-._~+/="
	adminSecret = strings.Repeat("a", MinSecret)
)

func tokenFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, lines...)
	return path
}

func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func ask(t *Tokens, scope Scope, headers ...string) int {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, h := range headers {
		r.Header.Add("Authorization", h)
	}
	if refused := t.Allow(r, scope); refused != nil {
		return refused.Status
	}
	return http.StatusOK
}

func TestATokenOpensWhatItsScopesSay(t *testing.T) {
	t.Parallel()
	tokens, err := OpenTokens(tokenFile(t, "# who may come", "", "dashboard read "+readSecret, "\tshop  read,order\t"+shopSecret, "  # and", "boss admin "+adminSecret), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][4]int{}
	for name, secret := range map[string]string{"dashboard": readSecret, "shop": shopSecret, "boss": adminSecret} {
		var row [4]int
		for i, scope := range Scopes {
			row[i] = ask(tokens, scope, "Bearer "+secret)
		}
		got[name] = row
	}
	want := map[string][4]int{ // read, order, stock, admin
		"dashboard": {200, 403, 403, 403}, "shop": {200, 200, 403, 403}, "boss": {200, 200, 200, 200},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhoIsNotKnownIsToldHowToSayIt(t *testing.T) {
	t.Parallel()
	tokens, err := OpenTokens(tokenFile(t, "dashboard read "+readSecret), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, headers := range [][]string{
		nil, {""}, {"Bearer"}, {"Bearer "}, {"Basic " + readSecret}, {readSecret}, {"Bearer " + readSecret[1:]},
		{"Bearer " + readSecret + "r"}, {"Bearer " + strings.ToUpper(readSecret)}, {"Bearer dashboard"},
		{"Bearer " + strings.Repeat("r", 1<<12)}, {"Bearer " + readSecret, "Bearer " + readSecret},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = headers
		refused := tokens.Allow(r, Read)
		if refused == nil || refused.Status != http.StatusUnauthorized || !strings.HasPrefix(refused.Challenge, "Bearer realm=") {
			t.Errorf("%q: %+v", headers, refused)
			continue
		}
		if strings.Contains(refused.Detail, readSecret) {
			t.Errorf("%q: the refusal shows a secret", headers)
		}
	}
	for _, header := range []string{"Bearer " + readSecret, "bearer  " + readSecret + " "} {
		if status := ask(tokens, Read, header); status != http.StatusOK {
			t.Errorf("%q: %d", header, status)
		}
	}
	if ask(tokens, Open) != http.StatusOK || ask(nil, Admin) != http.StatusOK {
		t.Error("what asks for nothing refuses")
	}
}

func TestARefusalNamesTheScopeThatLacks(t *testing.T) {
	t.Parallel()
	tokens, err := OpenTokens(tokenFile(t, "dashboard read "+readSecret), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer "+readSecret)
	refused := tokens.Allow(r, Order)
	if refused == nil || refused.Scope != "order" || !strings.Contains(refused.Detail, "dashboard lacks the scope order") ||
		refused.Challenge != `Bearer realm="stockpipe", error="insufficient_scope", scope="order"` {
		t.Errorf("%+v", refused)
	}
}

func TestABadTokenFileIsNamedByLineAndRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		want  []string
	}{
		{[]string{"# nobody"}, []string{"no token", "name scope,scope secret"}},
		{[]string{"# 1", "a read " + readSecret[1:]}, []string{"line 2", "31 characters", "at least 32", "openssl rand"}},
		{[]string{"a " + readSecret}, []string{"line 1", "2 words", "name scope,scope secret"}},
		{[]string{"a read " + readSecret + " more"}, []string{"line 1", "4 words"}},
		{[]string{"a read,write " + readSecret}, []string{"line 1", `"write"`, "read, order, stock or admin"}},
		{[]string{"a read, " + readSecret}, []string{"line 1", "no scope"}},
		{[]string{"a read,read " + readSecret}, []string{"line 1", "twice"}},
		{[]string{"a! read " + readSecret}, []string{"line 1", "name"}},
		{[]string{"a read " + readSecret + "\"ü"}, []string{"line 1", "header"}},
		{[]string{"a read " + readSecret, "b order " + readSecret}, []string{"line 2", "b has the secret of a"}},
		{[]string{"a read " + readSecret, "a order " + shopSecret}, []string{"line 2", "the name a"}},
		{[]string{strings.Repeat("# much\n", maxFile/4)}, []string{"more than"}},
	} {
		_, err := OpenTokens(tokenFile(t, c.lines...), nil)
		if err == nil {
			t.Errorf("%q is accepted", c.lines)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%.80q: %q does not name %q", c.lines, err, want)
			}
		}
		if strings.Contains(err.Error(), readSecret[1:]) {
			t.Errorf("%.80q: the error shows the secret: %v", c.lines, err)
		}
	}
	if _, err := OpenTokens(filepath.Join(t.TempDir(), "none"), nil); err == nil || !strings.Contains(err.Error(), "may read") {
		t.Errorf("no file: %v", err)
	}
}

// due makes the next request look at the file, as a second would.
func (t *Tokens) later() { t.file.due.Store(0) }

func TestAFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	path := tokenFile(t, "dashboard read "+readSecret)
	var told []error
	tokens, err := OpenTokens(path, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "shop order "+shopSecret)
	if status := ask(tokens, Read, "Bearer "+readSecret); status != http.StatusOK {
		t.Errorf("the file is read at every request: %d", status)
	}
	tokens.later()
	if status := ask(tokens, Read, "Bearer "+readSecret); status != http.StatusUnauthorized {
		t.Errorf("a withdrawn token opens: %d", status)
	}
	if status := ask(tokens, Order, "Bearer "+shopSecret); status != http.StatusOK {
		t.Errorf("a new token: %d", status)
	}
	write(t, path, "shop order short")
	for range 3 {
		tokens.later()
		if status := ask(tokens, Order, "Bearer "+shopSecret); status != http.StatusOK {
			t.Errorf("a broken file closes the door for good callers: %d", status)
		}
	}
	if len(told) != 1 || !strings.Contains(told[0].Error(), "line 1") || !strings.Contains(told[0].Error(), "stays in force") {
		t.Errorf("told %v", told)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	tokens.later()
	if status := ask(tokens, Order, "Bearer "+shopSecret); status != http.StatusOK || len(told) != 2 || !errors.Is(told[1], os.ErrNotExist) {
		t.Errorf("a file that went: %d, told %v", status, told)
	}
	write(t, path, "shop order "+adminSecret)
	tokens.later()
	if status := ask(tokens, Order, "Bearer "+adminSecret); status != http.StatusOK {
		t.Errorf("a mended file: %d", status)
	}
}

// A second is the promise; here it is kept by the clock.
func TestAChangeIsSeenByItself(t *testing.T) {
	t.Parallel()
	path := tokenFile(t, "dashboard read "+readSecret)
	tokens, err := OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "dashboard read "+adminSecret)
	began := time.Now()
	for ask(tokens, Read, "Bearer "+adminSecret) != http.StatusOK {
		if time.Since(began) > lookEvery+10*time.Second {
			t.Fatal("the change is not seen")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if status := ask(tokens, Read, "Bearer "+readSecret); status != http.StatusUnauthorized {
		t.Errorf("the old secret: %d", status)
	}
}

func BenchmarkAllow(b *testing.B) {
	path := filepath.Join(b.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("dashboard read "+readSecret+"\nshop order "+shopSecret+"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	tokens, err := OpenTokens(path, nil)
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+shopSecret)
	for b.Loop() {
		if tokens.Allow(r, Order) != nil {
			b.Fatal("refused")
		}
	}
}
