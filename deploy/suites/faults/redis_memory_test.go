package faults

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAFullRedisTakesNothingAndGoesOnByItself lets memory and then the disk run out under a sale: nobody is sold
// anything that could not be kept, no takeover happens, and with room again the sale goes on.
func TestAFullRedisTakesNothingAndGoesOnByItself(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		trial := shoptest.Trial{Workers: true, Calm: true, Before: holdSpares, Hit: fillMemory, After: func(v *shoptest.Victim) { v.Shelf("spare", "9|0|1") }}
		trial.Play(shoptest.Begin(t, "redis: maxmemory reached"))
	})
	if !shoptest.Full {
		return
	}
	t.Run("disk", func(t *testing.T) {
		r := shoptest.Begin(t, "redis: disk full, AOF everysec")
		d := mountSmallDisk(r)
		trial := shoptest.Trial{Workers: true, Calm: true, Plain: true, Plan: plan(sandbox.RedisOptions{MaxMemory: "64mb", ExtraArgs: []string{"--dir", d.path}}), Hit: d.fill}
		trial.Play(r)
	})
}

// holdSpares leaves two holds of a SKU of their own, which are paid and given back while Redis is full.
func holdSpares(v *shoptest.Victim) {
	v.T.Helper()
	v.Supply(10, "spare")
	for _, order := range []string{"spare-paid", "spare-back"} {
		v.Told(shoptest.Reserve(v.T.Context(), v.Client(0), order, "spare", 1, 3600), http.StatusCreated)
	}
	v.Drain()
}

// fillMemory lowers the limit below what is used. What takes units is refused, what gives them back or sells what is
// held already goes on.
func fillMemory(v *shoptest.Victim) {
	v.T.Helper()
	before := len(v.Load.Answers())
	was := v.RDB.ConfigGet(v.T.Context(), "maxmemory").Val()["maxmemory"]
	shoptest.Need(v.T, v.RDB.ConfigSet(v.T.Context(), "maxmemory", "1mb").Err())
	full := time.Now()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return refusedFor(v, before, "memory") })
	v.Told(shoptest.Reserve(v.T.Context(), v.Client(0), "spare-new", "spare", 1, 3600), http.StatusServiceUnavailable)
	v.Told(shoptest.Confirm(v.T.Context(), v.Client(0), "spare-paid"), http.StatusOK)
	v.Told(shoptest.Release(v.T.Context(), v.Client(1), "spare-back"), http.StatusOK)
	for _, a := range v.Load.Answers()[before:] {
		if !a.Accepted() && a.Status != http.StatusServiceUnavailable {
			v.T.Errorf("in a full Redis: %s", a.String())
		}
	}
	shoptest.Need(v.T, v.RDB.ConfigSet(v.T.Context(), "maxmemory", was).Err())
	room := time.Now()
	v.More(20)
	v.Row.Opened(time.Since(room))
	v.Row.Note("503 memory for %.1f s, a confirm and a release went through, sold again %.1f s after there was room", room.Sub(full).Seconds(), time.Since(room).Seconds())
}

// A smallDisk is a small file system for one server's files, with a file on it that takes the room away.
type smallDisk struct {
	path    string
	ballast *os.File
}

// mountSmallDisk needs the right to mount. The cleanup takes it away however the row ends, a panic included, and lazily:
// a server that still has files there does not keep it mounted.
func mountSmallDisk(r *shoptest.Row) *smallDisk {
	t := r.T
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a full disk needs the right to mount: run the suite as root")
	}
	folder := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=8m,mode=0777", "stockpipe-suite", folder).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a full disk needs the right to mount: %v: %s", err, strings.TrimSpace(string(out)))
	}
	// Before the folder goes, which only works once nothing is mounted there, and after the servers, which end first.
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", folder).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", folder, err, out)
		}
	})
	ballast, err := os.Create(filepath.Join(folder, "ballast"))
	shoptest.Need(t, err)
	t.Cleanup(func() { _ = ballast.Close() })
	return &smallDisk{path: folder, ballast: ballast}
}

// fill leaves no room, so that Redis cannot write its append-only file; then there is room again.
func (d *smallDisk) fill(v *shoptest.Victim) {
	v.T.Helper()
	if dir := v.RDB.ConfigGet(v.T.Context(), "dir").Val()["dir"]; dir != d.path {
		v.T.Fatalf("Redis keeps its files in %q", dir)
	}
	before := len(v.Load.Answers())
	full := time.Now()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		d.grow()
		return refusedFor(v, before, "disk")
	})
	if status := v.RDB.Info(v.T.Context(), "persistence").Val(); !strings.Contains(status, "aof_last_write_status:err") {
		v.T.Errorf("the disk is not full for Redis: %s", shoptest.Shorten(status))
	}
	shoptest.Need(v.T, d.ballast.Truncate(0))
	room := time.Now()
	v.More(20)
	v.Row.Opened(time.Since(room))
	v.Row.Note("503 disk for %.1f s, sold again %.1f s after there was room", room.Sub(full).Seconds(), time.Since(room).Seconds())
}

// grow writes until there is no room.
func (d *smallDisk) grow() {
	for block := make([]byte, 64<<10); len(block) > 0; {
		n, err := d.ballast.Write(block)
		if err != nil || n < len(block) {
			block = block[:len(block)/2] // down to the last byte
		}
	}
}

// TestAnotherLedgersRedisIsRefused leads a shop to the Redis of another one: it sells nothing there and changes
// nothing, and goes on at its own by itself. An operator who means it adopts the other.
func TestAnotherLedgersRedisIsRefused(t *testing.T) {
	for _, adopt := range []bool{false, true} {
		if adopt && !shoptest.Full {
			continue
		}
		name := map[bool]string{false: "led back to its own", true: "adopted"}[adopt]
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := shoptest.Begin(t, "redis: of another ledger, "+name)
			other := anotherShop(r)
			trial := shoptest.Trial{Workers: true, Calm: true, Loses: adopt, Hit: func(v *shoptest.Victim) { meetAnother(v, other, adopt) }}
			if adopt {
				trial.Classes, trial.Workers = []string{"foreign"}, false
			}
			trial.Play(r)
			r.Class = "foreign"
		})
	}
}

// anotherShop is one with a ledger of its own, which opened its Redis and sold one unit there.
func anotherShop(r *shoptest.Row) *shoptest.Shop {
	r.T.Helper()
	other := shoptest.Found(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1})
	other.Exec(`update ledger set id = 'another'`) // copies of one database have one id
	other.OpenLedger()
	other.StartAll()
	other.AwaitReady()
	other.Supply(1_000, "tea")
	other.Told(shoptest.Reserve(r.T.Context(), other.Client(0), "theirs", "tea", 1, 3600), http.StatusCreated)
	other.Drain()
	for _, kind := range []string{shoptest.Producer, shoptest.Consumer, shoptest.Reconciler} {
		other.KillAll(kind) // nobody of theirs changes anything from here on
	}
	return other
}

func meetAnother(v *shoptest.Victim, other *shoptest.Shop, adopt bool) {
	v.T.Helper()
	state := other.RDB.HGetAll(v.T.Context(), keys().State).Val()
	length := other.RDB.XLen(v.T.Context(), keys().Log).Val()
	before := len(v.Load.Answers())
	v.Path.Retarget(other.Redis.Addr())
	v.Path.CloseAll()
	led := time.Now()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		for _, a := range v.Load.Answers()[before:] {
			if a.Status == http.StatusServiceUnavailable && a.Began.After(led) {
				return nil
			}
		}
		return errors.New("nobody was refused")
	})
	acts := v.Reconcile("--plan").Acts()
	if len(acts) == 0 || acts[0].Class != "foreign" || acts[0].State != "operator" || !strings.Contains(acts[0].Text, "another.") {
		v.T.Errorf("the other ledger is not named: %+v", acts)
	}
	for _, a := range v.Load.Answers()[before:] {
		if a.Accepted() && a.Began.After(led) {
			v.T.Errorf("sold in another shop's Redis: %s", a.String())
		}
	}
	if now := other.RDB.HGetAll(v.T.Context(), keys().State).Val(); fmt.Sprint(now) != fmt.Sprint(state) {
		v.T.Errorf("another shop's Redis was changed from %v to %v", state, now)
	}
	if n := other.RDB.XLen(v.T.Context(), keys().Log).Val(); n != length {
		v.T.Errorf("another shop's log went from %d to %d entries", length, n)
	}
	if adopt {
		if _, _, code := v.Command("takeover", "--shard", "0"); code != 2 {
			v.T.Errorf("a takeover without --adopt ended with %d", code)
		}
		operate(v, "takeover", "--shard", "0", "--adopt")
		v.RDB = other.RDB
		return
	}
	v.Path.Retarget(v.Redis.Addr())
	v.Path.CloseAll()
	back := time.Now()
	v.More(20)
	v.Row.Opened(time.Since(back))
	v.Row.Note("refused for %.1f s, sold again %.1f s after it was led back", back.Sub(led).Seconds(), time.Since(back).Seconds())
}
