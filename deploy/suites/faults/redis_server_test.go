package faults

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func killAndRestart(v *shoptest.Victim) {
	shoptest.Need(v.T, v.Redis.Kill())
	shoptest.Need(v.T, v.Redis.Restart(v.T.Context()))
}

// losesNothing: what a whole log still had was applied before its epoch was closed, so that not one receipt is lost.
func losesNothing(v *shoptest.Victim) {
	v.T.Helper()
	current := v.Epoch(0)
	for _, a := range v.Load.Answers() {
		if !a.Accepted() || a.Epoch() >= current {
			continue
		}
		receipt, err := stock.ParseReceipt(a.Reservation.Receipt)
		shoptest.Need(v.T, err)
		if end := shoptest.One[int64](v.Shop, `select coalesce((select last_seq from epoch_end where shard = 0 and epoch = $1), 0)`, receipt.Epoch); receipt.Seq > end {
			v.T.Errorf("order %s is lost: its receipt is %s and its epoch ended at %d", a.Order, a.Reservation.Receipt, end)
		}
	}
}

// restartEmpty kills the master and takes its files away, so that it comes back with nothing and its replica copies
// that.
func restartEmpty(v *shoptest.Victim) {
	v.T.Helper()
	shoptest.Need(v.T, v.Redis.Kill())
	shoptest.Need(v.T, os.RemoveAll(filepath.Join(v.Redis.Dir(), "appendonlydir")))
	shoptest.Need(v.T, v.Redis.Restart(v.T.Context()))
}

func replicaHasOnlyTheNewEpoch(v *shoptest.Victim) {
	v.T.Helper()
	follower := v.Connect(v.Replica.Addr())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return linked(v, follower, true) })
	key := redisstock.NewKeys(shoptest.Prefix, 0).Log
	first, err := follower.XRangeN(v.T.Context(), key, "-", "+", 1).Result()
	shoptest.Need(v.T, err)
	if want := fmt.Sprintf("%d-", v.Epoch(0)); len(first) == 0 || !strings.HasPrefix(first[0].ID, want) {
		v.T.Errorf("the replica's log begins with %v, want an entry of epoch %s", first, want)
	}
}

// linked says whether a replica has, or has not, a connection to its master.
func linked(v *shoptest.Victim, follower *redis.Client, want bool) error {
	info := follower.Info(v.T.Context(), "replication").Val()
	if strings.Contains(info, "master_link_status:up") != want {
		return errors.New(shoptest.Shorten(info))
	}
	return nil
}

// deadlines is longer than any call gives Redis to begin with it.
const deadlines = 3 * time.Second

// pauseAndPromote stops the master with calls in its sockets, and makes its replica the new one.
func pauseAndPromote(v *shoptest.Victim) {
	v.T.Helper()
	follower := v.Connect(v.Replica.Addr())
	shoptest.Need(v.T, v.Redis.Pause())
	const callers = 16
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { // what is sent now waits in the sockets
		if n := v.Load.Next.Load() - int64(len(v.Load.Answers())); n < callers {
			return fmt.Errorf("%d calls wait for their answer", n)
		}
		return nil
	})
	shoptest.Need(v.T, follower.ReplicaOf(v.T.Context(), "NO", "ONE").Err())
	v.Path.Retarget(v.Replica.Addr())
	v.RDB = follower
}

// wakeTooLate lets the old master go on, with requests in its sockets that are older than their deadlines: none moves
// anything.
func wakeTooLate(v *shoptest.Victim) {
	v.T.Helper()
	// The takeover may be faster than the deadlines of the calls in its sockets: one that wakes before them sells into
	// its old epoch, and all of that is lost. This row is about what is left in the sockets after them.
	asleep := time.Now().Add(deadlines)
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if left := time.Until(asleep); left > 0 {
			return fmt.Errorf("the last deadline passes in %v", left)
		}
		return nil
	})
	shoptest.Need(v.T, v.Redis.Resume())
	old := v.Connect(v.Redis.Addr())
	var woke time.Time
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if err := old.Ping(v.T.Context()).Err(); err != nil {
			return err
		}
		woke = time.Now()
		return nil
	})
	// A server reads what waits in its sockets before it answers those who connect after it woke; two more round trips
	// of a sale are far behind that.
	v.More(50)
	calls := old.Info(v.T.Context(), "commandstats").Val()
	if !strings.Contains(calls, "cmdstat_fcall:") {
		v.T.Errorf("the old master was asked for nothing: %s", shoptest.Shorten(calls))
	}
	stale := old.XRevRangeN(v.T.Context(), redisstock.NewKeys(shoptest.Prefix, 0).Log, "+", "-", 1).Val()
	if len(stale) == 0 {
		v.T.Fatal("the old master has no log")
	}
	at, err := stock.ParsePosition(stale[0].ID)
	shoptest.Need(v.T, err)
	end := shoptest.One[int64](v.Shop, `select coalesce((select last_seq from epoch_end where shard = 0 and epoch = $1), -1)`, at.Epoch)
	told := int64(0)
	for _, a := range v.Load.Answers() {
		if a.Accepted() && a.Epoch() == at.Epoch {
			receipt, err := stock.ParseReceipt(a.Reservation.Receipt)
			shoptest.Need(v.T, err)
			told = max(told, receipt.Seq)
			if a.Ended.After(woke) {
				v.T.Errorf("an answer of the old master came through after it woke: %s", a.String())
			}
		}
	}
	v.Row.Note("old master woke at %s, its epoch ended at %d, told up to %d", stale[0].ID, end, told)
	if at.Seq > end+1 { // at most the entry that it was at when it stopped
		v.T.Errorf("the old master's log goes to %s, its epoch ended at %d: late requests moved something", stale[0].ID, end)
	}
}

// attachAndLeave gives a healthy master a replica that nobody asked for, and takes it away again.
func attachAndLeave(v *shoptest.Victim) {
	v.T.Helper()
	replica := sandboxtest.Redis(v.T, sandbox.RedisOptions{ReplicaOf: v.Redis.Addr(), MaxMemory: "1gb"})
	follower := v.Connect(replica.Addr())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return linked(v, follower, true) })
	v.More(50)
	if n := v.RDB.Info(v.T.Context(), "replication").Val(); !strings.Contains(n, "connected_slaves:1") {
		v.T.Errorf("the master has no replica: %s", shoptest.Shorten(n))
	}
	shoptest.Need(v.T, replica.Kill())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if n := v.RDB.Info(v.T.Context(), "replication").Val(); !strings.Contains(n, "connected_slaves:0") {
			return errors.New(shoptest.Shorten(n))
		}
		return nil
	})
	v.More(50)
}

func nobodyRefused(v *shoptest.Victim) {
	v.T.Helper()
	for _, a := range v.Load.Answers() {
		if !a.Accepted() {
			v.T.Errorf("on a healthy master: %s", a.String())
		}
	}
}

// leaveAndReturn ends the replica without which the master may not write: callers are told so, and it is the only
// thing they are told.
func leaveAndReturn(v *shoptest.Victim) {
	v.T.Helper()
	before := len(v.Load.Answers())
	shoptest.Need(v.T, v.Replica.Kill())
	left := time.Now()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return refusedFor(v, before, "replicas") })
	shoptest.Need(v.T, v.Replica.Restart(v.T.Context()))
	follower := v.Connect(v.Replica.Addr())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error { return linked(v, follower, true) })
	returned := time.Now()
	v.More(20)
	v.Row.Opened(time.Since(returned))
	for _, a := range v.Load.Answers()[before:] {
		if !a.Accepted() && (a.Status != http.StatusServiceUnavailable || a.Problem.Reason != "replicas") {
			v.T.Errorf("while a replica was missing: %s", a.String())
		}
	}
	v.Row.Note("503 replicas for %.1f s, sold again %.1f s after its return", returned.Sub(left).Seconds(), time.Since(returned).Seconds())
}

// refusedFor looks for an answer of 503 with a reason among those since the nth.
func refusedFor(v *shoptest.Victim, since int, reason string) error {
	for _, a := range v.Load.Answers()[since:] {
		if a.Status == http.StatusServiceUnavailable && a.Problem != nil && a.Problem.Reason == reason {
			return nil
		}
	}
	return fmt.Errorf("nobody was told %q", reason)
}

const foreignLibrary = `#!lua name=stockpipe_1
redis.register_function('stockpipe_1_else', function() return 'another program' end)
`

// replaceLibrary puts another text in the place of ours. It is nothing that a takeover may undo: it names the library,
// and goes on by itself once an operator deleted the other text.
func replaceLibrary(v *shoptest.Victim, text string) {
	v.T.Helper()
	before := len(v.Load.Answers())
	shoptest.Need(v.T, v.RDB.FunctionLoadReplace(v.T.Context(), text).Err())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		for _, reason := range []string{"fenced", "rebuilding"} {
			if refusedFor(v, before, reason) == nil {
				return nil
			}
		}
		return errors.New("nobody was refused")
	})
	keeper := v.Living(shoptest.Reconciler)[0]
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		for _, line := range keeper.Log.Lines() {
			if strings.Contains(line, `"state":"operator"`) && strings.Contains(line, "FUNCTION DELETE stockpipe_1") {
				return nil
			}
		}
		return errors.New("the other text is not named to the operator")
	})
	sold := v.Load.Reserved.Load()
	shoptest.Need(v.T, v.RDB.FunctionDelete(v.T.Context(), "stockpipe_1").Err())
	v.Row.Note("named to the operator; %d orders until FUNCTION DELETE, which is all that it needed", sold)
}
