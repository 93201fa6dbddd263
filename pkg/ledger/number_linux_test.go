package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAPromotedPostgresGivesNumbersThatTheOldOneNeverGave brings back an older copy of a server's files and lets it
// recover as a standby does that is promoted: on a timeline of its own, without the tail.
func TestAPromotedPostgresGivesNumbersThatTheOldOneNeverGave(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server := sandboxtest.OwnPostgres(t)
	check(t, migrations.Up(ctx, server.URL("")))
	numbers := func(texts ...string) (out []int64) {
		t.Helper()
		var l *Ledger
		sandboxtest.Eventually(t, time.Minute, func() (err error) { // it answers before its recovery has ended
			l, err = Open(ctx, Config{URL: server.URL(""), Name: t.Name()})
			return err
		})
		defer l.Close()
		check(t, l.Init(ctx, 1))
		for _, text := range texts {
			doc, _, err := l.WriteOpening(ctx, text, 1, 0, farAway)
			check(t, err)
			out = append(out, doc.Lines[0].SKU)
		}
		return out
	}
	first := numbers("tea", "jam")
	check(t, server.Stop())
	copied := filepath.Join(t.TempDir(), "standby")
	check(t, os.CopyFS(copied, os.DirFS(server.Dir())))
	check(t, server.Restart(ctx))
	lost := numbers("lost-1", "lost-2")
	check(t, server.Stop())
	promote(t, server.Dir(), copied)
	check(t, server.Restart(ctx))
	after := numbers("new-1", "new-2")
	if want := []int64{1, 2}; !cmp.Equal(want, first) {
		t.Errorf("the first numbers are %v, want %v", first, want)
	}
	for _, n := range after {
		if n <= 1<<28 || n > 1<<28+1<<20+2 {
			t.Errorf("number %d is not of the second timeline's; the lost ones were %v", n, lost)
		}
	}
	if after[0] == after[1] {
		t.Errorf("twice the same: %v", after)
	}
}

// promote puts an older copy of a server's files in their place, to begin as the end of a recovery.
func promote(t *testing.T, dir, copied string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "PG_VERSION"))
	check(t, err)
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		check(t, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	check(t, os.CopyFS(dir, os.DirFS(copied)))
	check(t, os.WriteFile(filepath.Join(dir, "recovery.signal"), nil, 0o600))
	settings, err := os.OpenFile(filepath.Join(dir, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	_, err = settings.WriteString("restore_command = 'false'\n")
	check(t, errors.Join(err, settings.Close()))
	own(t, dir, info)
}

// own gives the files back to the user that the server runs as, which is another one when tests run as root.
func own(t *testing.T, dir string, like os.FileInfo) {
	t.Helper()
	owner := like.Sys().(*syscall.Stat_t)
	if int(owner.Uid) == os.Getuid() {
		return
	}
	check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		mode := os.FileMode(0o600)
		if info.IsDir() {
			mode = 0o700
		}
		return errors.Join(os.Chmod(path, mode), os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	}))
}
