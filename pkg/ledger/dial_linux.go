package ledger

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacked ends a TCP connection on which something sent stays unacknowledged for silentUnacked.
func boundUnacked(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = os.NewSyscallError("bound unacknowledged data", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentUnacked.Milliseconds())))
	})
	if err != nil {
		return err
	}
	return failed
}
