//go:build !unix

package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// The signals exist here by name only; a folder cannot be locked, so Open
// refuses before any server is started.
const (
	sigInterrupt = syscall.SIGINT
	sigTerminate = syscall.SIGTERM
	sigQuit      = syscall.SIGQUIT
	sigKill      = syscall.SIGKILL
	sigPause     = syscall.Signal(0x13)
	sigResume    = syscall.Signal(0x12)
)

var (
	errLocked      = errors.New("locked by another process")
	errUnsupported = errors.New("private servers need Linux, macOS or a BSD; run inside one, or start Redis and Postgres yourself and name their URLs")
)

const doorPath = ""

func lockFile(*os.File) error           { return errUnsupported }
func ownedByUs(fs.FileInfo) bool        { return false }
func signalProcess(int, syscall.Signal) {}
func signalGroup(pid int, signal syscall.Signal) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return process.Signal(signal)
}

type owner struct{}

func (*owner) String() string { return "" }

func serverOwner() *owner                             { return nil }
func (*owner) mayEnter(fs.FileInfo) bool              { return true }
func (*owner) give(string) error                      { return nil }
func setAttributes(*exec.Cmd, ProcessOptions)         {}
func descendants(int) []int                           { return nil }
func serversIn(string) []int                          { return nil }
func removeSharedMemory(string)                       {}
func guardOrphan(int, syscall.Signal) (func(), error) { return func() {}, nil }

func onOrphaned(syscall.Signal, []int) (func(), error) { return func() {}, nil }
