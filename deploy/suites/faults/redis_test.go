package faults

import (
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// redisTrials are faults of the server: it dies, is emptied, is replaced by another, or lost what only its process
// knew.
var redisTrials = []shoptest.Trial{
	{Name: "FLUSHALL", Classes: []string{"missing"}, Loses: true, Limits: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.FlushAll(v.T.Context()).Err()) }},
	{Name: "kill -9 and restart, AOF everysec", Classes: []string{"unopened"}, Limits: true, Within: shoptest.AutoOpen, Hit: killAndRestart},
	{Name: "kill -9 and restart, AOF always", Classes: []string{"unopened"}, Whole: true, Within: shoptest.AutoOpen,
		Plan: plan(sandbox.RedisOptions{Fsync: "always"}), Hit: killAndRestart, After: losesNothing},
	{Name: "kill -9 and restart, AOF no fsync", Classes: []string{"unopened"}, Whole: true, Within: shoptest.AutoOpen,
		Plan: plan(sandbox.RedisOptions{Fsync: "no"}), Hit: killAndRestart},
	{Name: "kill -9 and restart, AOF off by --unsafe-aof", Classes: []string{"missing"}, Whole: true, Loses: true, Within: shoptest.AutoOpen,
		Plan: withoutAOF(), Hit: killAndRestart, After: func(v *shoptest.Victim) { // the audit at the end is made without --unsafe-aof
			shoptest.Need(v.T, v.RDB.ConfigSet(v.T.Context(), "appendonly", "yes").Err())
		}},
	{Name: "empty restart with a replica attached", Classes: []string{"missing"}, Replica: true, Loses: true, Whole: true, Within: shoptest.AutoOpen,
		Hit: restartEmpty, After: replicaHasOnlyTheNewEpoch},

	{Name: "stale replica promoted, ahead of Postgres", Classes: []string{"unopened"}, Replica: true, Loses: true, Limits: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).CutReplica, Hit: (*shoptest.Victim).PromoteReplica},
	{Name: "stale replica promoted, behind Postgres", Classes: []string{"rewound", "unopened"}, Replica: true, Workers: true, Whole: true, Within: shoptest.AutoOpen,
		Before: func(v *shoptest.Victim) {
			v.CutReplica()
			v.More(50)
			v.Drain() // the replica is behind what Postgres has
		}, Hit: (*shoptest.Victim).PromoteReplica},
	// Missing: a probe may meet the old master while it is emptied for its resync.
	{Name: "A9 demoted, connections kept", Classes: []string{"unopened", "rewound", "missing"}, Replica: true, Workers: true, Within: 5 * time.Second,
		Hit: (*shoptest.Victim).SwapRoles},
	{Name: "A9 address moved, old master alive", Classes: []string{"unopened", "rewound"}, Replica: true, Workers: true, Split: true, Whole: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).CutReplica, Hit: (*shoptest.Victim).MoveAddress},
	{Name: "A9 restart with a large log, LOADING", Classes: []string{"unopened"}, Calm: true, Whole: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).Fill, Hit: (*shoptest.Victim).RestartLoading},
	{Name: "paused master wakes after the takeover on its replica", Classes: []string{"unopened"}, Replica: true, Workers: true, Within: shoptest.AutoOpen,
		Hit: pauseAndPromote, After: wakeTooLate},

	{Name: "a replica attaches to and leaves a healthy master", Workers: true, Calm: true, Whole: true, Hit: attachAndLeave, After: nobodyRefused},
	{Name: "the replica that min-replicas asks for leaves and returns", Replica: true, Workers: true, Calm: true, Whole: true, Hit: leaveAndReturn},

	{Name: "A4 SCRIPT FLUSH, FUNCTION FLUSH", Classes: []string{"unopened"}, Workers: true, Within: shoptest.AutoOpen,
		Before: func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.ScriptFlush(v.T.Context()).Err()) },
		Hit:    func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.FunctionFlush(v.T.Context()).Err()) }, After: losesNothing},
	{Name: "library replaced by the same text", Classes: []string{"unopened"}, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			shoptest.Need(v.T, v.RDB.FunctionLoadReplace(v.T.Context(), redisstock.Library()).Err())
		},
		After: losesNothing},
	{Name: "library replaced by an edited text of the same name", Classes: []string{"unopened"}, Whole: true,
		Hit: func(v *shoptest.Victim) { replaceLibrary(v, redisstock.Library()+"-- edited\n") }, After: losesNothing},
	{Name: "library replaced by a foreign text of the same name", Classes: []string{"unopened"}, Whole: true,
		Hit: func(v *shoptest.Victim) { replaceLibrary(v, foreignLibrary) }, After: losesNothing},
	{Name: "SWAPDB", Classes: []string{"missing"}, Whole: true, Loses: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.Do(v.T.Context(), "SWAPDB", 0, 1).Err()) }},
	{Name: "DEBUG RELOAD", Classes: []string{"unopened"}, Whole: true, Within: shoptest.AutoOpen,
		Plan:  plan(sandbox.RedisOptions{ExtraArgs: []string{"--enable-debug-command", "yes"}}),
		Hit:   func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.Do(v.T.Context(), "DEBUG", "RELOAD").Err()) },
		After: losesNothing},
}

// TestRedisFaults lets each fault happen while two producers sell one SKU.
func TestRedisFaults(t *testing.T) { play(t, "redis", redisTrials) }

// plan is the usual shop on a Redis with options of its own.
func plan(options sandbox.RedisOptions) shoptest.Plan {
	return shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Redis: options}
}

// withoutAOF is a shop whose operator said that it may do without the append-only file.
func withoutAOF() shoptest.Plan {
	p := plan(sandbox.RedisOptions{NoAOF: true})
	p.ProducerArgs, p.ReconcilerArgs = []string{"--unsafe-aof"}, []string{"--unsafe-aof"}
	return p
}
