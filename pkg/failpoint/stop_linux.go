//go:build failpoint

package failpoint

import (
	"os"
	"runtime"
	"syscall"
)

// stop stops the process exactly here. A signal to the process may be taken by another thread, while this one runs on
// into what comes after the point; one to this thread is taken before it does anything else.
func stop() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
