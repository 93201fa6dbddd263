package faults

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// logTrials are edits of the log. While the consumers are down it is the only place that has the last entries: what is
// taken out of it then is lost, which only an operator may accept. What Postgres has is nobody's loss.
var logTrials = []shoptest.Trial{
	gap("an entry that Postgres has not is deleted", true, func(v *shoptest.Victim) string {
		next := beyond(v, 3)
		drop(v, next)
		return next
	}),
	gap("the newest entry is deleted", false, func(v *shoptest.Victim) string {
		newest := v.Newest(v.RDB)
		drop(v, newest)
		return newest
	}),
	gap("the log is trimmed above what Postgres has", false, func(v *shoptest.Victim) string {
		next := beyond(v, 1)
		if n := v.RDB.XTrimMinID(v.T.Context(), keys().Log, beyond(v, 20)).Val(); n == 0 {
			v.T.Error("nothing was trimmed")
		}
		return next
	}),
	olderLog(),
	{Name: "log: an entry that Postgres has is deleted", Workers: true, Calm: true, Whole: true, Hit: func(v *shoptest.Victim) {
		v.Drain()
		drop(v, fmt.Sprintf("%d-%d", v.Epoch(0), 2))
		v.More(50)
	}, After: nobodyRefused},
	{Name: "log: trimmed below what Postgres has", Workers: true, Calm: true, Whole: true, Hit: func(v *shoptest.Victim) {
		if n := v.RDB.XTrimMinID(v.T.Context(), keys().Log, beyond(v, 0)).Val(); n == 0 {
			v.T.Error("nothing was trimmed")
		}
		v.More(50)
	}, After: nobodyRefused},
	foreignEntry("by the server's clock", false, "gap-lost", func(v *shoptest.Victim) string { return "*" }, garbage),
	foreignEntry("of a later epoch", false, "gap-lost", func(v *shoptest.Victim) string { return fmt.Sprintf("%d-1", v.Epoch(0)+1) }, garbage),
	foreignEntry("under the next seq, unreadable", false, "halted", nextSeq, garbage),
}

// TestTamperedLogs edits the log while the shop sells.
func TestTamperedLogs(t *testing.T) { play(t, "tampered", logTrials) }

// beyond is the id of the nth entry after those that Postgres has.
func beyond(v *shoptest.Victim, n int64) string {
	v.T.Helper()
	row, err := v.Ledger.Shard(v.T.Context(), 0)
	shoptest.Need(v.T, err)
	return stock.Position{Epoch: row.Epoch, Seq: row.Applied + n}.String()
}

func drop(v *shoptest.Victim, id string) {
	v.T.Helper()
	if n := v.RDB.XDel(v.T.Context(), keys().Log, id).Val(); n != 1 {
		v.T.Errorf("there was no entry %s to delete", id)
	}
}

// gap takes away what only the log had, and answers the first id that is missing. Nothing is sold from then on until
// an operator gives up what lies behind the hole; all of that is reported lost.
func gap(name string, smoke bool, damage func(*shoptest.Victim) string) shoptest.Trial {
	return shoptest.Trial{Name: "log: " + name, Classes: []string{"halted"}, Plan: watchful(), Calm: true, Whole: !smoke, Loses: true,
		Hit: func(v *shoptest.Victim) { loseTail(v, damage(v)) }}
}

// olderLog puts the log back to what it was 50 orders before.
func olderLog() shoptest.Trial {
	var dump, last string
	return shoptest.Trial{Name: "log: an older one RESTOREd", Classes: []string{"halted"}, Plan: watchful(), Calm: true, Whole: true, Loses: true,
		Before: func(v *shoptest.Victim) { dump, last = dumped(v, keys().Log), v.Newest(v.RDB) },
		Hit: func(v *shoptest.Victim) {
			at, err := stock.ParsePosition(last)
			shoptest.Need(v.T, err)
			restore(v, keys().Log, dump)
			at.Seq++
			loseTail(v, at.String())
		}}
}

// loseTail wants the hole named by its first id, the shard halted and closed, and the operator's takeover to open it.
func loseTail(v *shoptest.Victim, missing string) {
	v.T.Helper()
	v.Row.Class = "gap-lost"
	found := evidence(v, "gap-lost", "halt")
	if found.Key != "log" || found.Position != missing {
		v.T.Errorf("the hole is named %+v, want entry %s of the log", found, missing)
	}
	awaitHalted(v)
	acts := v.Reconcile("--plan").Acts()
	if len(acts) == 0 || acts[0].Class != "halted" || acts[0].State != "operator" {
		v.T.Errorf("the plan for a halted shard: %+v", acts)
	}
	operate(v, "takeover", "--shard", "0")
}

// awaitHalted waits until the shard is halted and nobody is sold anything.
func awaitHalted(v *shoptest.Victim) {
	v.T.Helper()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		row, err := v.Ledger.Shard(v.T.Context(), 0)
		if err == nil && row.State != "halted" {
			err = fmt.Errorf("the shard is %s", row.State)
		}
		return err
	})
	before := len(v.Load.Answers())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return refusedFor(v, before, "halted") })
	sold := v.Load.Reserved.Load()
	v.Row.Note("halted after %d orders", sold)
}

var garbage = []string{"message", "hello"}

func nextSeq(v *shoptest.Victim) string {
	v.T.Helper()
	at, err := stock.ParsePosition(v.Newest(v.RDB))
	shoptest.Need(v.T, err)
	at.Seq++
	return at.String()
}

// foreignEntry adds an entry that no call of the library wrote. The next call of ours finds its place taken, which
// closes the shard; an attempt to open it finds what it may not give up.
func foreignEntry(name string, smoke bool, class string, id func(*shoptest.Victim) string, values []string) shoptest.Trial {
	return shoptest.Trial{Name: "log: a foreign entry " + name, Classes: []string{"halted", "unopened", "torn"}, Plan: watchful(), Calm: true, Workers: true, Whole: !smoke,
		Hit: func(v *shoptest.Victim) {
			v.Row.Class = class
			sandboxtest.Eventually(v.T, shoptest.Patience, func() error { // the next seq may be taken before this one has it
				added, err := v.RDB.XAdd(v.T.Context(), &redis.XAddArgs{Stream: keys().Log, NoMkStream: true, ID: id(v), Values: values}).Result()
				if err == nil && added == "" {
					err = errors.New("there is no log")
				}
				return err
			})
			before := len(v.Load.Answers())
			awaitHalted(v)
			for _, a := range v.Load.Answers()[before:] {
				if a.Status == http.StatusConflict {
					v.T.Errorf("behind a foreign entry: %s", a.String())
				}
			}
			acts := v.Reconcile("--plan").Acts()
			if len(acts) == 0 || acts[0].Class != "halted" || !strings.Contains(acts[0].Text, "-") {
				v.T.Errorf("the plan for a halted shard: %+v", acts)
			}
			v.Row.Note("%s", acts[0].Text)
			operate(v, "takeover", "--shard", "0")
		}}
}
