package ledger

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestOpenRefusesWhatWouldBreakAPromise(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const secret = "hush-hush"
	empty := sandboxtest.Database(t, nil)
	loose := sandboxtest.Database(t, migrations.Up)
	conn, err := pgx.Connect(ctx, loose)
	check(t, err)
	_, err = conn.Exec(ctx, `alter database `+pgx.Identifier{conn.Config().Database}.Sanitize()+` set synchronous_commit = off`)
	check(t, err)
	check(t, conn.Close(ctx))

	var setting *SettingError
	var behind *migrations.BehindError
	var unreachable *UnreachableError
	for name, c := range map[string]struct {
		url  string
		want any
		says string
	}{
		"unreadable":   {"postgres://u:" + secret + "@127.0.0.1:port/x", &setting, "write it as"},
		"unreachable":  {"postgres://u:" + secret + "@127.0.0.1:1/x", &unreachable, "127.0.0.1:1"},
		"unmigrated":   {empty, &behind, "stockpipe-reconciler migrate"},
		"asynchronous": {loose, &setting, "synchronous_commit is off: set it to on"},
	} {
		l, err := Open(ctx, Config{URL: c.url, Name: "test"})
		if err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if !errors.As(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	if len(l.ID()) != 32 {
		t.Errorf("id %q", l.ID())
	}
	for name, want := range map[string]string{
		"application_name": t.Name(), "idle_in_transaction_session_timeout": "5s", "lock_timeout": "6s",
		"plan_cache_mode": "force_custom_plan", "TimeZone": "UTC",
	} {
		var got string
		check(t, l.pool.QueryRow(context.Background(), `select current_setting($1)`, name).Scan(&got))
		if got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
