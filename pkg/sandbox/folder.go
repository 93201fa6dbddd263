package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	folderPrefix   = "stockpipe-sandbox-"
	passwordPrefix = "stockpipe-initdb-" // of a file that initdb reads
	lockName       = "sandbox.lock"

	// lockPatience is how long a kept folder's lock is waited for: a killed
	// process holds it until the kernel has taken it apart.
	lockPatience = 3 * time.Second
	// unlockedAge is how old a folder without a lock file must be before it
	// counts as crashed: a younger one is being made by somebody.
	unlockedAge = time.Minute
	// folderTries bounds how often a new folder that a sweep took away between
	// its making and its locking is made again.
	folderTries = 5
	pollEvery   = 10 * time.Millisecond
)

var plainName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// folder is a directory with a lock file that its owner holds for life, so that
// a folder whose lock can be taken belongs to a process that is gone.
type folder struct {
	path string // absolute, symbolic links resolved
	kept bool
	lock *os.File
}

func openTemporary(ctx context.Context) (*folder, error) {
	base := temporaryBase()
	for range folderTries {
		path, err := os.MkdirTemp(base, folderPrefix)
		if err != nil {
			return nil, fmt.Errorf("make a sandbox folder: %w", err)
		}
		f, err := lockNew(path)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("lock the sandbox folder %s: %w", path, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("make a sandbox folder below %s: taken away by a sweep %d times", base, folderTries)
}

func lockNew(path string) (*folder, error) {
	// The servers may run as another user, who must be able to pass through but
	// not to list.
	if err := os.Chmod(path, 0o711); err != nil {
		return nil, err
	}
	lock, err := takeLock(filepath.Join(path, lockName))
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &folder{path: real, lock: lock}, nil
}

// temporaryBase is the system's folder for temporary files, unless the user
// that the servers run as cannot enter it.
func temporaryBase() string {
	base := os.TempDir()
	if blocked := blockedFolder(base, serverOwner()); blocked != "" {
		for _, other := range []string{"/tmp", "/var/tmp"} {
			if blockedFolder(other, serverOwner()) == "" {
				return other
			}
		}
	}
	return base
}

func openKept(ctx context.Context, dir string) (*folder, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the folder %s: %w", dir, err)
	}
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, fmt.Errorf("make the folder to keep: %w", err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, fmt.Errorf("find the folder %s: %w", dir, err)
	}
	if err := checkOurs(path); err != nil {
		return nil, err
	}
	lock, err := waitForLock(ctx, filepath.Join(path, lockName))
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("the folder %s is in use by another run; stop that one, or name another folder", path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the folder %s: %w", path, err)
	}
	if err := endLeftovers(ctx, path); err != nil {
		lock.Close()
		return nil, err
	}
	return &folder{path: path, kept: true, lock: lock}, nil
}

// checkOurs refuses a folder that holds something else, so that a slip of the
// keyboard does not mix server data into somebody's documents.
func checkOurs(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("read the folder to keep: %w", err)
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(path, lockName)); err != nil {
		return fmt.Errorf("the folder %s is neither empty nor made by an earlier run; name a new or an empty one", path)
	}
	return nil
}

func waitForLock(ctx context.Context, path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		lock, err := takeLock(path)
		if !errors.Is(err, errLocked) || !pause(ctx, pollEvery) {
			return lock, err
		}
	}
}

// takeLock opens and locks a file without waiting. That the file is still at
// its path is checked after locking: a sweep may have removed it in between.
func takeLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(file); err != nil {
		file.Close()
		return nil, err
	}
	held, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(held, there) {
		file.Close()
		return nil, fs.ErrNotExist
	}
	return file, nil
}

// close gives the lock back, and removes a temporary folder before it does.
func (f *folder) close() error {
	var err error
	if !f.kept {
		err = os.RemoveAll(f.path)
	}
	return errors.Join(err, f.lock.Close())
}

// sweep removes the temporary folders of crashed runs of this user, after
// ending the servers that still run in them.
func sweep(ctx context.Context) error {
	crashed, err := filepath.Glob(filepath.Join(temporaryBase(), folderPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range crashed {
		if err := sweepFolder(ctx, path); err != nil {
			return err
		}
	}
	forgotten, err := filepath.Glob(filepath.Join(temporaryBase(), passwordPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range forgotten {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > initLimit {
			_ = os.Remove(path)
		}
	}
	return nil
}

func sweepFolder(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	// Somebody else's folder, or a link, is not ours to follow, and never by root.
	if err != nil || !info.IsDir() || !ownedByUs(info) {
		return nil
	}
	lockPath := filepath.Join(path, lockName)
	if _, err := os.Stat(lockPath); err != nil && time.Since(info.ModTime()) < unlockedAge {
		return nil
	}
	lock, err := takeLock(lockPath)
	if err != nil {
		// Alive, or another sweep is at it.
		return nil
	}
	defer lock.Close()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if err := endLeftovers(ctx, real); err != nil {
		return err
	}
	removeSharedMemory(real)
	// A file that cannot be removed costs space, not correctness, and must not
	// keep the next run from starting.
	_ = os.RemoveAll(real)
	return nil
}

// endLeftovers ends the servers that a killed run left in a folder: Postgres
// takes SIGINT as a fast shutdown, SIGQUIT as an immediate one.
func endLeftovers(ctx context.Context, path string) error {
	for _, step := range []step{{sigInterrupt, 8 * time.Second}, {sigQuit, 3 * time.Second}, {sigKill, 3 * time.Second}} {
		running := serversIn(path)
		for _, pid := range running {
			signalProcess(pid, sigResume)
			signalProcess(pid, step.signal)
		}
		limit, cancel := context.WithTimeout(ctx, step.wait)
		for len(running) > 0 && pause(limit, 2*pollEvery) {
			running = serversIn(path)
		}
		cancel()
		if len(running) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("servers of an earlier run in %s did not end; end the processes %v by hand", path, serversIn(path))
}

// blockedFolder is the first folder on the way to path that a user may not
// enter, or "" if there is none. A nil user is the one who runs this process.
func blockedFolder(path string, user *owner) string {
	if user == nil {
		return ""
	}
	path = filepath.Clean(path)
	way := []string{}
	for at := path; ; at = filepath.Dir(at) {
		way = append(way, at)
		if at == filepath.Dir(at) {
			break
		}
	}
	for i := len(way) - 1; i >= 0; i-- {
		info, err := os.Stat(way[i])
		if err != nil || !user.mayEnter(info) {
			return way[i]
		}
	}
	return ""
}

// below says whether path is dir or inside it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// pause waits, and says whether it waited to the end: false means that the
// context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
