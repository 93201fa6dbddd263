package ledger

import (
	"context"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A host that falls silent cannot be played on the loopback, whose system always acknowledges: the socket is asked
// for its bounds instead.
func TestAConnectionToASilentHostIsBounded(t *testing.T) {
	t.Parallel()
	conn, err := open(t, 1).pool.Acquire(context.Background())
	check(t, err)
	defer conn.Release()
	raw, err := conn.Conn().PgConn().Conn().(syscall.Conn).SyscallConn()
	check(t, err)
	got := map[string]int{}
	check(t, raw.Control(func(fd uintptr) {
		for name, option := range map[string]int{"unacked": unix.TCP_USER_TIMEOUT, "idle": unix.TCP_KEEPIDLE, "every": unix.TCP_KEEPINTVL, "probes": unix.TCP_KEEPCNT} {
			got[name], err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
			check(t, err)
		}
	}))
	if diff := gocmp.Diff(map[string]int{"unacked": 10_000, "idle": 5, "every": 2, "probes": 3}, got); diff != "" {
		t.Error(diff)
	}
}
