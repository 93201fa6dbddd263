package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A fault is something that happens to Redis while producers sell.
type fault struct {
	name    string
	replica bool // Redis has one, behind a proxy of its own
	split   bool // the old server goes on selling to those who still reach it, until the takeover
	workers bool // the consumers live through it; else they are killed before, so that Postgres lags
	loses   bool // some holds must be lost, or the fault was none
	whole   bool // runs in the full size only
	within  time.Duration

	before func(*victim) // while orders come, before the last of them
	hit    func(*victim)
}

// A victim is a shop with what its fault needs.
type victim struct {
	*shop
	replica     *sandbox.Redis
	replication *faultproxy.Proxy // between master and replica
	load        *traffic
}

const autoOpen = 15 * time.Second // for a takeover by itself, on a busy machine

var redisFaults = []fault{
	{name: "FLUSHALL", loses: true, within: autoOpen,
		hit: func(v *victim) { need(v.t, v.rdb.FlushAll(v.t.Context()).Err()) }},
	{name: "kill -9 and restart", within: autoOpen,
		hit: func(v *victim) {
			need(v.t, v.redis.Kill())
			need(v.t, v.redis.Restart(v.t.Context()))
		}},
	{name: "stale replica promoted, ahead of Postgres", replica: true, loses: true, within: autoOpen,
		before: (*victim).cutReplica, hit: (*victim).promoteReplica},
	{name: "stale replica promoted, behind Postgres", replica: true, workers: true, whole: true, within: autoOpen,
		before: func(v *victim) {
			v.cutReplica()
			v.more(50)
			v.drain() // the replica is behind what Postgres has
		}, hit: (*victim).promoteReplica},
	{name: "A9 demoted, connections kept", replica: true, workers: true, within: 5 * time.Second,
		hit: (*victim).swapRoles},
	{name: "A9 address moved, old master alive", replica: true, workers: true, split: true, whole: true, within: autoOpen,
		before: (*victim).cutReplica, hit: (*victim).moveAddress},
	{name: "A9 restart with a large log, LOADING", whole: true, within: autoOpen,
		before: (*victim).fill, hit: (*victim).restartLoading},
	{name: "A4 SCRIPT FLUSH, FUNCTION FLUSH", workers: true, within: autoOpen,
		before: func(v *victim) { need(v.t, v.rdb.ScriptFlush(v.t.Context()).Err()) },
		hit:    func(v *victim) { need(v.t, v.rdb.FunctionFlush(v.t.Context()).Err()) }},
	{name: "B3 log deleted under blocked readers", workers: true, within: autoOpen,
		hit: func(v *victim) {
			if n := v.rdb.Del(v.t.Context(), redisstock.NewKeys(prefix, 0).Log).Val(); n != 1 {
				v.t.Error("there was no log to delete")
			}
		}},
}

// TestRedisFaults lets each fault happen while two producers sell one SKU, and sells the rest afterwards: whatever
// was lost can be sold again, and not one unit more.
func TestRedisFaults(t *testing.T) {
	for _, f := range redisFaults {
		if f.whole && !full {
			continue
		}
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) { suffer(begin(t, "redis: "+f.name), f) })
	}
}

func suffer(r *row, f fault) {
	t := r.t
	units := size(600, 5_000)
	v := f.victim(r)
	v.supply(int64(units), "tea")
	epoch := v.epoch(0)
	v.load = v.traffic(16, size(60*time.Millisecond, 40*time.Millisecond), true, "tea")
	v.more(100)
	if !f.workers {
		v.killAll(consumer)
	}
	if f.before != nil {
		f.before(v)
	}
	v.more(50)

	hit := time.Now()
	f.hit(v)
	gone := time.Now() // what is asked from here on meets the fault
	opened := v.awaitSale(epoch)
	if f.split {
		gone = opened // what its old server sold until then is persisted or reported lost
	}
	if took := opened.Sub(hit); took > f.within {
		t.Errorf("it sold again after %v, at most %v is promised", took, f.within)
	}
	for range 2 - len(v.living(consumer)) {
		v.start(consumer)
	}
	v.more(20)
	v.load.stop()
	answers := append(v.load.answers(), v.sellOut(units)...)
	v.drain()

	refused := v.judgeGap(answers, epoch, gone, opened)
	persisted, lost := v.standings(answers)
	v.judgeEnd(answers, persisted, lost, epoch, units)
	if f.loses && len(lost) == 0 {
		t.Error("nothing was lost: the fault was none")
	}
	r.note("sold again %.1f s after the fault, without anybody; %d calls refused until then (slowest answer %.1f s)",
		opened.Sub(hit).Seconds(), refused, slowest(answers, hit, opened).Seconds())
	r.note("%d told 201: %d persisted, %d reported lost, 0 silent; %d of %d units sold in the end",
		counts(answers)[http.StatusCreated]+counts(answers)[http.StatusOK], len(persisted), len(lost), one[int64](v.shop, `select held from stock where sku = $1`, v.numbers["tea"]), units)
	if f.workers {
		v.judgeVoices(time.Since(hit))
	}
	v.finish()
}

// victim makes the shop, with a replica if there is to be one.
func (f fault) victim(r *row) *victim {
	r.t.Helper()
	p := plan{producers: 2, consumers: 2, reconcilers: 1, proxied: true}
	if !f.replica {
		return &victim{shop: open(r, p)}
	}
	p.redis.ExtraArgs = []string{"--min-replicas-to-write", "1"}
	v := &victim{shop: found(r, p)}
	v.replication = sandboxtest.Proxy(r.t, v.redis.Addr())
	v.replica = sandboxtest.Redis(r.t, sandbox.RedisOptions{ReplicaOf: v.replication.Addr(), MaxMemory: "1gb"})
	follower := v.connect(v.replica.Addr())
	sandboxtest.Eventually(r.t, patience, func() error {
		info := follower.Info(r.t.Context(), "replication").Val()
		if !strings.Contains(info, "master_link_status:up") {
			return errors.New(shorten(info))
		}
		return nil
	})
	v.startAll()
	v.awaitReady()
	return v
}

// more waits until so many more orders were accepted.
func (v *victim) more(orders int64) {
	v.t.Helper()
	want := v.load.reserved.Load() + orders
	sandboxtest.Eventually(v.t, patience, func() error {
		if n := v.load.reserved.Load(); n < want {
			return fmt.Errorf("%d orders accepted, want %d", n, want)
		}
		return nil
	})
}

// awaitSale waits for the first acceptance under a newer epoch, and says when it was told.
func (v *victim) awaitSale(old int64) (opened time.Time) {
	v.t.Helper()
	seen := 0
	sandboxtest.Eventually(v.t, 2*patience, func() error {
		answers := v.load.answers()
		for _, a := range answers[seen:] {
			if a.accepted() && a.epoch() > old {
				opened = a.ended
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

// sellOut buys what is left, and a little more.
func (v *victim) sellOut(units int) []answer {
	v.t.Helper()
	answers := make([]answer, units+50)
	crowd(len(answers), 32, func(i int) {
		answers[i] = reserve(v.t.Context(), v.client(i), fmt.Sprintf("rest-%d", i), "tea", 1, 3600)
	})
	if counts(answers)[http.StatusConflict] == 0 {
		v.t.Errorf("nobody was told sold out: %v", counts(answers))
	}
	return answers
}

// judgeGap: whoever asked after the fault was accepted under the new epoch, or told 503 or unknown; before it sold
// again nobody was told anything else, least of all sold out.
func (v *victim) judgeGap(answers []answer, old int64, gone, opened time.Time) (refused int) {
	v.t.Helper()
	for _, a := range answers {
		if a.began.Before(gone) {
			continue
		}
		switch a.status {
		case http.StatusCreated, http.StatusOK:
			if a.epoch() <= old {
				v.t.Errorf("sold under the old epoch %d after the fault: %s", old, a.String())
			}
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout, 0:
			refused++
		default:
			if a.ended.Before(opened) {
				v.t.Errorf("while nothing could be known: %s", a.String())
			}
		}
	}
	return refused
}

// judgeEnd: what stands in both stores are exactly the units, and exactly the orders that were told so, besides some
// whose callers got no answer.
func (v *victim) judgeEnd(answers []answer, persisted, lost map[string]bool, old int64, units int) {
	v.t.Helper()
	unknown := map[string]bool{}
	for _, a := range answers {
		if a.status == 0 || a.status == http.StatusGatewayTimeout {
			unknown[a.order] = true
		}
		if lost[a.order] && a.epoch() > old {
			v.t.Errorf("lost under the new epoch: %s", a.String())
		}
	}
	stored, _ := v.reservations("tea")
	for order := range stored {
		if !persisted[order] && !unknown[order] {
			v.t.Errorf("order %s is in Postgres, and nobody was told so", order)
		}
	}
	for order := range persisted {
		if stored[order] == "" {
			v.t.Errorf("order %s is called persisted and is not in Postgres", order)
		}
	}
	if len(stored) != units {
		v.t.Errorf("%d orders stand for %d units", len(stored), units)
	}
	v.shelf("tea", fmt.Sprintf("0|%d|0", units))
}

// judgeVoices: a consumer that can not read says so calmly.
func (v *victim) judgeVoices(since time.Duration) {
	v.t.Helper()
	for _, c := range v.living(consumer) {
		errs := c.log.count(`"level":"error"`)
		if float64(errs) > since.Seconds()+2 {
			v.t.Errorf("%s wrote %d errors in %v: %s", c.name, errs, since, c.log.tail())
		}
	}
}

func slowest(answers []answer, from, to time.Time) time.Duration {
	var most time.Duration
	for _, a := range answers {
		if a.began.After(from) && a.began.Before(to) {
			most = max(most, a.ended.Sub(a.began))
		}
	}
	return most
}

// cutReplica stops what the replica hears of its master.
func (v *victim) cutReplica() { v.replication.BlackHole(true) }

// promoteReplica ends the master and makes its replica, which missed the last orders, the new one.
func (v *victim) promoteReplica() {
	v.t.Helper()
	newest := v.newest(v.rdb)
	need(v.t, v.redis.Kill())
	follower := v.connect(v.replica.Addr())
	need(v.t, follower.ReplicaOf(v.t.Context(), "NO", "ONE").Err())
	if has := v.newest(follower); has == newest {
		v.t.Errorf("the replica is not stale: it has %s, too", has)
	}
	v.path.Retarget(v.replica.Addr())
	v.rdb = follower
}

// newest is the id of the last entry of a server's log.
func (v *victim) newest(rdb *redis.Client) string {
	v.t.Helper()
	last, err := rdb.XRevRangeN(v.t.Context(), redisstock.NewKeys(prefix, 0).Log, "+", "-", 1).Result()
	need(v.t, err)
	if len(last) == 0 {
		return "no entry"
	}
	return last[0].ID
}

// moveAddress promotes the stale replica and leads new connections to it, while the old master lives and every
// connection to it stays.
func (v *victim) moveAddress() {
	v.t.Helper()
	follower := v.connect(v.replica.Addr())
	need(v.t, follower.ReplicaOf(v.t.Context(), "NO", "ONE").Err())
	v.path.Retarget(v.replica.Addr())
	if role := v.rdb.Info(v.t.Context(), "replication").Val(); !strings.Contains(role, "role:master") {
		v.t.Errorf("the old master is none: %s", shorten(role))
	}
	v.rdb = follower
}

// swapRoles makes the replica the master and the master its replica, and leaves all connections where they are.
func (v *victim) swapRoles() {
	v.t.Helper()
	old, follower := v.rdb, v.connect(v.replica.Addr())
	need(v.t, follower.ConfigSet(v.t.Context(), "min-replicas-to-write", "1").Err())
	need(v.t, follower.ReplicaOf(v.t.Context(), "NO", "ONE").Err())
	v.path.Retarget(v.replica.Addr())
	host, port, _ := strings.Cut(v.replica.Addr(), ":")
	need(v.t, old.ReplicaOf(v.t.Context(), host, port).Err())
	if err := old.Set(v.t.Context(), "probe", "1", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		v.t.Errorf("the demoted master answers a write with %v", err)
	}
	v.rdb = follower
}

// fill makes the log that Redis reads at its start large.
func (v *victim) fill() {
	v.t.Helper()
	const megabytes = 300
	value := strings.Repeat("x", 1000)
	crowd(megabytes, 4, func(i int) {
		_, err := v.rdb.Pipelined(v.t.Context(), func(p redis.Pipeliner) error {
			for k := range 1000 {
				p.Set(v.t.Context(), fmt.Sprintf("junk:%d:%d", i, k), value, 0)
			}
			return nil
		})
		if err != nil {
			v.t.Error(err)
		}
	})
}

// restartLoading restarts Redis and wants it to be seen loading.
func (v *victim) restartLoading() {
	v.t.Helper()
	need(v.t, v.redis.Kill())
	restarted := make(chan error, 1)
	go func() { restarted <- v.redis.Restart(v.t.Context()) }()
	loading := 0
	for {
		if err := v.rdb.Get(v.t.Context(), "probe").Err(); err != nil && strings.HasPrefix(err.Error(), "LOADING") {
			loading++
		}
		select {
		case err := <-restarted:
			need(v.t, err)
			if loading == 0 {
				v.t.Error("Redis was never seen loading")
			}
			told := 0
			for _, a := range v.load.answers() {
				if a.problem != nil && a.problem.Reason == "loading" {
					told++
				}
			}
			v.row.note("%d answers of 503 loading", told)
			return
		case <-time.After(time.Millisecond):
		}
	}
}
