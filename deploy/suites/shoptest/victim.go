package shoptest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A Victim is a shop with what its fault needs.
type Victim struct {
	*Shop
	Replica     *sandbox.Redis
	Replication *faultproxy.Proxy // between master and replica
	Load        *Traffic
	Mixed       *Mix // beside the load, nil if there is none

	process string // the run id of Redis when the shop was opened
}

// Lives reports whether Redis is the process that it was when the shop was opened.
func (v *Victim) Lives() bool { return v.process != "" && v.process == v.runID() }

func (v *Victim) runID() string {
	return v.RDB.InfoMap(v.T.Context(), "server").Item("Server", "run_id")
}

// Suffering makes a victim, with a replica if there is to be one.
func Suffering(r *Row, p Plan, replicated bool) *Victim {
	r.T.Helper()
	p.Proxied = true
	if !replicated {
		v := &Victim{Shop: Open(r, p)}
		v.process = v.runID()
		return v
	}
	p.Redis.ExtraArgs = []string{"--min-replicas-to-write", "1"}
	v := &Victim{Shop: Found(r, p)}
	v.Replication = sandboxtest.Proxy(r.T, v.Redis.Addr())
	v.Replica = sandboxtest.Redis(r.T, sandbox.RedisOptions{ReplicaOf: v.Replication.Addr(), MaxMemory: "1gb"})
	follower := v.Connect(v.Replica.Addr())
	sandboxtest.Eventually(r.T, Patience, func() error {
		info := follower.Info(r.T.Context(), "replication").Val()
		if !strings.Contains(info, "master_link_status:up") {
			return errors.New(Shorten(info))
		}
		return nil
	})
	v.StartAll()
	v.AwaitReady()
	v.process = v.runID()
	return v
}

// More waits until so many more orders were accepted.
func (v *Victim) More(orders int64) {
	v.T.Helper()
	v.Load.More(orders)
}

// AwaitSale waits for the first acceptance under a newer epoch, and says when it was told.
func (v *Victim) AwaitSale(old int64) (opened time.Time) {
	v.T.Helper()
	seen := 0
	sandboxtest.Eventually(v.T, 2*Patience, func() error {
		answers := v.Load.Answers()
		for _, a := range answers[seen:] {
			if a.Accepted() && a.Epoch() > old {
				opened = a.Ended
				return nil
			}
		}
		seen = len(answers)
		if seen == 0 {
			return errors.New("nobody came")
		}
		return fmt.Errorf("nothing is sold under an epoch after %d; last %s", old, answers[seen-1].String())
	})
	return opened
}

// SellOut buys what is left, and a little more. A producer may come to know a moment after another that the shop is open:
// callers ask again where they are told 503.
func (v *Victim) SellOut(units int) []Answer {
	v.T.Helper()
	answers := make([]Answer, units+50)
	Crowd(len(answers), 32, func(i int) {
		answers[i] = Reserve(v.T.Context(), v.Patient(i), fmt.Sprintf("rest-%d", i), "tea", 1, 3600)
	})
	if Counts(answers)[http.StatusConflict] == 0 {
		v.T.Errorf("nobody was told sold out: %v", Counts(answers))
	}
	return answers
}

// JudgeGap wants that whoever asked after the fault was accepted under the new epoch, or told 503 or unknown; before it sold
// again nobody was told anything else, least of all sold out.
func (v *Victim) JudgeGap(answers []Answer, old int64, gone, opened time.Time) (refused int) {
	v.T.Helper()
	for _, a := range answers {
		if a.Began.Before(gone) {
			continue
		}
		switch a.Status {
		case http.StatusCreated, http.StatusOK:
			if a.Epoch() <= old {
				v.T.Errorf("sold under the old epoch %d after the fault: %s", old, a.String())
			}
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout, 0:
			refused++
		default:
			if a.Ended.Before(opened) {
				v.T.Errorf("while nothing could be known: %s", a.String())
			}
		}
	}
	return refused
}

// JudgeEnd wants that what stands in both stores are exactly the units, and exactly the orders that were told so, besides some
// whose callers got no answer.
func (v *Victim) JudgeEnd(answers []Answer, persisted, lost map[string]bool, old int64, units int) {
	v.T.Helper()
	unknown := map[string]bool{}
	for _, a := range answers {
		if a.Status == 0 || a.Status == http.StatusGatewayTimeout {
			unknown[a.Order] = true
		}
		if lost[a.Order] && a.Epoch() > old {
			v.T.Errorf("lost under the new epoch: %s", a.String())
		}
	}
	stored, _ := v.Reservations("tea")
	for order := range stored {
		if !persisted[order] && !unknown[order] {
			v.T.Errorf("order %s is in Postgres, and nobody was told so", order)
		}
	}
	for order := range persisted {
		if stored[order] == "" {
			v.T.Errorf("order %s is called persisted and is not in Postgres", order)
		}
	}
	if len(stored) != units {
		v.T.Errorf("%d orders stand for %d units", len(stored), units)
	}
	v.Shelf("tea", fmt.Sprintf("0|%d|0", units))
}

// JudgeVoices wants that a consumer that can not read says so calmly.
func (v *Victim) JudgeVoices(since time.Duration) {
	v.T.Helper()
	for _, c := range v.Living(Consumer) {
		errs := c.Log.Count(`"level":"error"`)
		if float64(errs) > since.Seconds()+2 {
			v.T.Errorf("%s wrote %d errors in %v: %s", c.Name, errs, since, c.Log.Tail())
		}
	}
}

// Slowest is the longest that anybody waited who asked between two times.
func Slowest(answers []Answer, from, to time.Time) time.Duration {
	var most time.Duration
	for _, a := range answers {
		if a.Began.After(from) && a.Began.Before(to) {
			most = max(most, a.Ended.Sub(a.Began))
		}
	}
	return most
}

// CutReplica stops what the replica hears of its master, once it has heard of the shop: one that has nothing is empty, and
// not stale.
func (v *Victim) CutReplica() {
	v.T.Helper()
	v.AwaitReplica()
	v.Replication.BlackHole(true)
}

// AwaitReplica waits until the replica has entries of the shop: one whose link is up may have none of them yet.
func (v *Victim) AwaitReplica() {
	v.T.Helper()
	follower := v.Connect(v.Replica.Addr())
	sandboxtest.Eventually(v.T, Patience, func() error {
		if has := v.Newest(follower); !strings.HasPrefix(has, fmt.Sprint(v.Epoch(0), "-")) {
			return fmt.Errorf("the replica has %s", has)
		}
		return nil
	})
}

// PromoteReplica ends the master and makes its replica, which missed the last orders, the new one.
func (v *Victim) PromoteReplica() {
	v.T.Helper()
	newest := v.Newest(v.RDB)
	Need(v.T, v.Redis.Kill())
	follower := v.Connect(v.Replica.Addr())
	Need(v.T, follower.ReplicaOf(v.T.Context(), "NO", "ONE").Err())
	if has := v.Newest(follower); has == newest {
		v.T.Errorf("the replica is not stale: it has %s, too", has)
	}
	v.Path.Retarget(v.Replica.Addr())
	v.RDB = follower
}

// Newest is the id of the last entry of a server's log.
func (v *Victim) Newest(rdb *redis.Client) string {
	v.T.Helper()
	last, err := rdb.XRevRangeN(v.T.Context(), redisstock.NewKeys(Prefix, 0).Log, "+", "-", 1).Result()
	Need(v.T, err)
	if len(last) == 0 {
		return "no entry"
	}
	return last[0].ID
}

// MoveAddress promotes the stale replica and leads new connections to it, while the old master lives and every
// connection to it stays.
func (v *Victim) MoveAddress() {
	v.T.Helper()
	follower := v.Connect(v.Replica.Addr())
	Need(v.T, follower.ReplicaOf(v.T.Context(), "NO", "ONE").Err())
	v.Path.Retarget(v.Replica.Addr())
	if role := v.RDB.Info(v.T.Context(), "replication").Val(); !strings.Contains(role, "role:master") {
		v.T.Errorf("the old master is none: %s", Shorten(role))
	}
	v.RDB = follower
}

// SwapRoles makes the replica the master and the master its replica, and leaves all connections where they are.
func (v *Victim) SwapRoles() {
	v.T.Helper()
	old, follower := v.RDB, v.Connect(v.Replica.Addr())
	Need(v.T, follower.ConfigSet(v.T.Context(), "min-replicas-to-write", "1").Err())
	Need(v.T, follower.ReplicaOf(v.T.Context(), "NO", "ONE").Err())
	v.Path.Retarget(v.Replica.Addr())
	host, port, _ := strings.Cut(v.Replica.Addr(), ":")
	Need(v.T, old.ReplicaOf(v.T.Context(), host, port).Err())
	if err := old.Set(v.T.Context(), "probe", "1", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		v.T.Errorf("the demoted master answers a write with %v", err)
	}
	v.RDB = follower
}

// Fill makes the log that Redis reads at its start large.
func (v *Victim) Fill() {
	v.T.Helper()
	const megabytes = 300
	value := strings.Repeat("x", 1000)
	Crowd(megabytes, 4, func(i int) {
		_, err := v.RDB.Pipelined(v.T.Context(), func(p redis.Pipeliner) error {
			for k := range 1000 {
				p.Set(v.T.Context(), fmt.Sprintf("junk:%d:%d", i, k), value, 0)
			}
			return nil
		})
		if err != nil {
			v.T.Error(err)
		}
	})
}

// RestartLoading restarts Redis and wants it to be seen loading.
func (v *Victim) RestartLoading() {
	v.T.Helper()
	Need(v.T, v.Redis.Kill())
	restarted := make(chan error, 1)
	go func() { restarted <- v.Redis.Restart(v.T.Context()) }()
	loading := 0
	for {
		if err := v.RDB.Get(v.T.Context(), "probe").Err(); err != nil && strings.HasPrefix(err.Error(), "LOADING") {
			loading++
		}
		select {
		case err := <-restarted:
			Need(v.T, err)
			if loading == 0 {
				v.T.Error("Redis was never seen loading")
			}
			told := 0
			for _, a := range v.Load.Answers() {
				if a.Problem != nil && a.Problem.Reason == "loading" {
					told++
				}
			}
			v.Row.Note("%d answers of 503 loading", told)
			return
		case <-time.After(time.Millisecond):
		}
	}
}
