//go:build linux

package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

const noSpace = "No space left on device"

// TestPostgresDiskFull fills the disk of the tables, and that of the log. Only root may mount one that is small enough.
func TestPostgresDiskFull(t *testing.T) {
	t.Run("tables", func(t *testing.T) {
		r := shoptest.Begin(t, "postgres: disk of the tables full")
		d := mountDisk(t, "64m")
		o := outage{closes: true, within: reopened, prepare: d.moveTables, hit: d.fillTables}
		o.play(r)
	})
	if !shoptest.Full {
		return
	}
	t.Run("log", func(t *testing.T) {
		r := shoptest.Begin(t, "postgres: disk of the log full")
		d := mountDisk(t, "128m")
		o := outage{
			settings: map[string]string{"min_wal_size": "32MB", "max_wal_size": "64MB"},
			closes:   true, within: reopened, prepare: d.moveLog, hit: d.fillLog,
		}
		o.play(r)
	})
}

// A disk is a small file system in memory.
type disk struct{ path string }

// mountDisk mounts one for the row, and takes it away when the row's servers are gone.
func mountDisk(t *testing.T, size string) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root may mount the small disk that is to be filled")
	}
	d := &disk{path: filepath.Join(sandboxtest.Stack(t).Dir(), "disk-"+sandboxtest.Prefix(t))}
	shoptest.Need(t, os.Mkdir(d.path, 0o711))
	if err := syscall.Mount("tmpfs", d.path, "tmpfs", 0, "mode=0711,size="+size); err != nil {
		t.Skipf("SKIPPED: a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.path, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
			_ = syscall.Unmount(d.path, syscall.MNT_DETACH)
		}
	})
	return d
}

// folder makes one on the disk that belongs to who runs Postgres.
func (d *disk) folder(s *shoptest.Shop, name string) string {
	s.T.Helper()
	path := filepath.Join(d.path, name)
	shoptest.Need(s.T, os.Mkdir(path, 0o700))
	info, err := os.Stat(s.Postgres.Dir())
	shoptest.Need(s.T, err)
	owner := info.Sys().(*syscall.Stat_t)
	shoptest.Need(s.T, os.Chown(path, int(owner.Uid), int(owner.Gid)))
	return path
}

// moveTables puts every table and index of the shop on the disk.
func (d *disk) moveTables(s *shoptest.Shop) {
	s.T.Helper()
	s.Exec(fmt.Sprintf(`create tablespace small location '%s'`, d.folder(s, "tables")))
	s.Exec(`alter table all in tablespace pg_default set tablespace small`)
	s.Exec(`alter index all in tablespace pg_default set tablespace small`)
}

// moveLog puts the log of Postgres on the disk.
func (d *disk) moveLog(s *shoptest.Shop) {
	s.T.Helper()
	shoptest.Need(s.T, s.Postgres.Stop())
	log := filepath.Join(s.Postgres.Dir(), "pg_wal")
	if out, err := exec.CommandContext(s.T.Context(), "cp", "-a", log+"/.", d.folder(s, "log")).CombinedOutput(); err != nil {
		s.T.Fatalf("copy the log of Postgres: %v: %s", err, out)
	}
	shoptest.Need(s.T, os.RemoveAll(log))
	shoptest.Need(s.T, os.Symlink(filepath.Join(d.path, "log"), log))
	shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
}

// fill takes what is free on the disk.
func (d *disk) fill(t *testing.T) {
	t.Helper()
	file, err := os.Create(filepath.Join(d.path, "ballast"))
	shoptest.Need(t, err)
	defer file.Close()
	block := make([]byte, 64<<10)
	for size := len(block); size >= 512; {
		_, err := file.Write(block[:size])
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
}

func (d *disk) heal(t *testing.T) {
	t.Helper()
	shoptest.Need(t, os.Remove(filepath.Join(d.path, "ballast")))
}

// fillTables: Postgres refuses what needs another page. Nothing that it refuses is poison.
func (d *disk) fillTables(s *shoptest.Shop, load *shoptest.Traffic) time.Time {
	s.T.Helper()
	d.fill(s.T)
	refused := func() (lines int) {
		for _, c := range s.Living(shoptest.Consumer) {
			lines += c.Log.Count(noSpace)
		}
		return lines
	}
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		if refused() == 0 {
			return errors.New("no consumer was told that the disk is full")
		}
		return nil
	})
	began := time.Now()
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		if time.Since(began) < shoptest.Size(2*time.Second, 20*time.Second) {
			return errors.New("it is full for a moment only")
		}
		return nil
	})
	if state := shoptest.One[string](s, `select state from shard where number = 0`); state != "open" {
		s.T.Errorf("the shard is %s because a disk is full", state)
	}
	d.heal(s.T)
	s.Row.Note("consumers were told %d times that the disk is full, and %d orders were taken meanwhile", refused(), load.Reserved.Load())
	return time.Now()
}

// fillLog: Postgres cannot write its log and ends itself. Somebody makes room and starts it again.
func (d *disk) fillLog(s *shoptest.Shop, _ *shoptest.Traffic) time.Time {
	s.T.Helper()
	d.fill(s.T)
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		// Each round begins another file of the log; those that exist already are used up first.
		if _, err := s.Pool.Exec(s.T.Context(), `select pg_logical_emit_message(false, 'suite', 'x'), pg_switch_wal()`); err == nil {
			return errors.New("there is still room for the log")
		}
		text, err := os.ReadFile(s.Postgres.LogPath())
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte(noSpace)) {
			return errors.New("Postgres did not say that its disk is full")
		}
		return nil
	})
	shoptest.Need(s.T, s.Postgres.Kill())
	d.heal(s.T)
	shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
	return time.Now()
}
