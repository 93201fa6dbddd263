//go:build failpoint && unix && !linux

package failpoint

import (
	"os"
	"syscall"
)

// stop stops the process here, or a moment later: another thread may take the signal.
func stop() error { return syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
