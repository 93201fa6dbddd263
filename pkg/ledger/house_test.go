package ledger

import (
	"context"
	"testing"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// open gives a ledger of the test's own, with that many shards.
func open(t testing.TB, shards int) *Ledger {
	t.Helper()
	return openURL(t, sandboxtest.Database(t, migrations.Up), shards)
}

func openURL(t testing.TB, url string, shards int) *Ledger {
	t.Helper()
	l, err := Open(context.Background(), Config{URL: url, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := l.Init(context.Background(), shards); err != nil {
		t.Fatal(err)
	}
	return l
}

// exec runs SQL that no method of the Ledger offers, such as what a takeover or a clock would do.
func exec(t testing.TB, l *Ledger, sql string, args ...any) {
	t.Helper()
	if _, err := l.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
