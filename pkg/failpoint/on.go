//go:build failpoint && unix

package failpoint

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Enabled says whether this build can be made to fail.
const Enabled = true

// Folder names the environment variable with the folder in which failures are armed.
const Folder = "STOCKPIPE_FAILPOINTS"

// The words that arm a point, each as the content of a file that bears the point's name.
const (
	Kill = "kill" // the process ends as by SIGKILL
	Stop = "stop" // the process stops as by SIGSTOP, and goes on with SIGCONT
)

var folder = os.Getenv(Folder)

// Hit fails the way the point is armed, once: whoever takes the file away is the one that fails.
func Hit(p Point) {
	if folder == "" {
		return
	}
	armed := filepath.Join(folder, string(p))
	text, err := os.ReadFile(armed)
	if err != nil || os.Rename(armed, armed+".hit") != nil {
		return
	}
	if strings.TrimSpace(string(text)) == Stop {
		if err := stop(); err != nil {
			panic("failpoint " + string(p) + ": " + err.Error())
		}
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic("failpoint " + string(p) + ": " + err.Error())
	}
	select {} // a signal to ourselves is delivered before long
}
