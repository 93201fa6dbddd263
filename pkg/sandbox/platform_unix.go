//go:build unix

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

const (
	sigInterrupt = syscall.SIGINT
	sigTerminate = syscall.SIGTERM
	sigQuit      = syscall.SIGQUIT
	sigKill      = syscall.SIGKILL
	sigPause     = syscall.SIGSTOP
	sigResume    = syscall.SIGCONT
)

var errLocked = errors.New("locked by another process")

func lockFile(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

func ownedByUs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

func signalProcess(pid int, signal syscall.Signal) { _ = syscall.Kill(pid, signal) }

func signalGroup(pid int, signal syscall.Signal) error {
	err := syscall.Kill(-pid, signal)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// owner is the user that a server runs as, when that is not the caller.
type owner struct{ uid, gid uint32 }

func (o *owner) String() string { return strconv.FormatUint(uint64(o.uid), 10) }

// serverOwner is who runs Postgres, which refuses root: nil for an ordinary
// caller, else the user behind sudo, postgres or nobody, the first that exists.
func serverOwner() *owner {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{os.Getenv("SUDO_USER"), "postgres", "nobody"} {
		if name == "" {
			continue
		}
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(found.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(found.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return &owner{uint32(uid), uint32(gid)}
		}
	}
	return &owner{65534, 65534}
}

func (o *owner) mayEnter(dir fs.FileInfo) bool {
	stat, ok := dir.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	mode := dir.Mode().Perm()
	switch {
	case stat.Uid == o.uid:
		return mode&0o100 != 0
	case stat.Gid == o.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// give makes a file or folder the owner's; a nil owner is the caller, whose it is.
func (o *owner) give(path string) error {
	if o == nil {
		return nil
	}
	return os.Chown(path, int(o.uid), int(o.gid))
}

func setAttributes(cmd *exec.Cmd, options ProcessOptions) {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if options.owner != nil {
		attributes.Credential = &syscall.Credential{Uid: options.owner.uid, Gid: options.owner.gid}
	}
	setDeathSignal(attributes, options.deathSignal)
	cmd.SysProcAttr = attributes
}

// onOrphaned has a signal sent to processes (negative: groups), which are then
// woken, when this process dies. A shell waits on a pipe that this process
// holds open: however this process dies, the pipe closes. The release ends the
// shell first, so that it never signals a process id that has gone to somebody
// else.
func onOrphaned(signal syscall.Signal, pids []int) (release func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard against orphans: %w", err)
	}
	args := []string{"-c", `read -r _; s=$1; shift; kill -"$s" "$@"; kill -CONT "$@"`, "sh", strconv.Itoa(int(signal))}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	shell := exec.Command("/bin/sh", args...)
	shell.Stdin = read
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = shell.Start()
	read.Close()
	if err != nil {
		write.Close()
		return nil, fmt.Errorf("guard against orphans: %w", err)
	}
	return func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
		write.Close()
	}, nil
}
