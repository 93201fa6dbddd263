package faults

import (
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
)

var redisTrials = []shoptest.Trial{
	{Name: "FLUSHALL", Classes: []string{"missing"}, Loses: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.FlushAll(v.T.Context()).Err()) }},
	{Name: "kill -9 and restart", Classes: []string{"unopened"}, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			shoptest.Need(v.T, v.Redis.Kill())
			shoptest.Need(v.T, v.Redis.Restart(v.T.Context()))
		}},
	{Name: "stale replica promoted, ahead of Postgres", Classes: []string{"unopened"}, Replica: true, Loses: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).CutReplica, Hit: (*shoptest.Victim).PromoteReplica},
	{Name: "stale replica promoted, behind Postgres", Classes: []string{"rewound", "unopened"}, Replica: true, Workers: true, Whole: true, Within: shoptest.AutoOpen,
		Before: func(v *shoptest.Victim) {
			v.CutReplica()
			v.More(50)
			v.Drain() // the replica is behind what Postgres has
		}, Hit: (*shoptest.Victim).PromoteReplica},
	{Name: "A9 demoted, connections kept", Classes: []string{"unopened"}, Replica: true, Workers: true, Within: 5 * time.Second,
		Hit: (*shoptest.Victim).SwapRoles},
	{Name: "A9 address moved, old master alive", Classes: []string{"unopened", "rewound"}, Replica: true, Workers: true, Split: true, Whole: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).CutReplica, Hit: (*shoptest.Victim).MoveAddress},
	{Name: "A9 restart with a large log, LOADING", Classes: []string{"unopened"}, Whole: true, Within: shoptest.AutoOpen,
		Before: (*shoptest.Victim).Fill, Hit: (*shoptest.Victim).RestartLoading},
	{Name: "A4 SCRIPT FLUSH, FUNCTION FLUSH", Classes: []string{"unopened"}, Workers: true, Within: shoptest.AutoOpen,
		Before: func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.ScriptFlush(v.T.Context()).Err()) },
		Hit:    func(v *shoptest.Victim) { shoptest.Need(v.T, v.RDB.FunctionFlush(v.T.Context()).Err()) }},
	{Name: "B3 log deleted under blocked readers", Classes: []string{"missing"}, Workers: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			if n := v.RDB.Del(v.T.Context(), redisstock.NewKeys(shoptest.Prefix, 0).Log).Val(); n != 1 {
				v.T.Error("there was no log to delete")
			}
		}},
}

// TestRedisFaults lets each fault happen while two producers sell one SKU.
func TestRedisFaults(t *testing.T) { play(t, "redis", redisTrials) }
