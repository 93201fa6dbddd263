package faults

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// TestAnIsolatedOldMasterSellsForAWhileAndLosesAllOfIt puts a master behind a partition together with a producer of
// its own, while its replica is promoted on the other side.
func TestAnIsolatedOldMasterSellsForAWhileAndLosesAllOfIt(t *testing.T) {
	t.Run("without_Postgres", func(t *testing.T) {
		isolate(shoptest.Begin(t, "redis: old master and a producer cut off, Postgres too"), false)
	})
	if !shoptest.Full {
		return
	}
	t.Run("with_Postgres", func(t *testing.T) {
		isolate(shoptest.Begin(t, "redis: old master and a producer cut off, Postgres reached"), true)
	})
}

// isolatedAge is the --epoch-max-age of all producers of the row.
const isolatedAge = 4 * time.Second

// An island is the producer behind the partition, the callers who reach it, and its ways out.
type island struct {
	*shoptest.Victim
	producer *shoptest.Role
	redis    *faultproxy.Proxy // to the old master
	postgres *faultproxy.Proxy

	mu       sync.Mutex
	reserves []shoptest.Answer
	confirms []shoptest.Answer
}

func isolate(r *shoptest.Row, ledger bool) {
	t := r.T
	r.Class = "unopened"
	const units = 20_000 // nobody sells out: what is told is what a sale is told
	age := []string{"--epoch-max-age", isolatedAge.String()}
	v := shoptest.Suffering(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, ProducerArgs: age}, true)
	// The old master would stop by itself once its replica is silent for this long; here it is told not to.
	shoptest.Need(t, v.RDB.ConfigSet(t.Context(), "min-replicas-max-lag", "3600").Err())
	i := strand(v)
	v.Supply(units, "tea")
	epoch := v.Epoch(0)
	v.Load = v.Come(&shoptest.Traffic{Leave: true, Skus: []string{"tea"}}, 12, 60*time.Millisecond)
	stop := i.sell()
	v.More(50)

	// The partition: the master, its own producer and their callers on one side.
	v.CutReplica()
	cut := time.Now()
	if !ledger {
		i.postgres.BlackHole(true)
	}
	oldest := v.RDB
	v.MoveAddress()
	v.Path.CloseAll()
	opened := v.AwaitSale(epoch)
	r.Opened(opened.Sub(cut))
	i.awaitSilence(epoch)
	v.More(20)
	sold, last := i.under(epoch, cut)
	if !ledger && sold == 0 {
		t.Error("nothing was sold behind the partition: it was none")
	}
	bound := isolatedAge
	if ledger {
		bound = opened.Sub(cut) + 2*time.Second // the poll of 500 ms, on a machine that does much else
	}
	if took := last.Sub(cut); sold > 0 && took > bound+time.Second {
		t.Errorf("the isolated producer sold for %v, at most %v is promised", took, bound)
	}
	r.Note("sold again %.1f s after the partition; %d orders sold behind it, the last %.1f s after it", opened.Sub(cut).Seconds(), sold, max(0, last.Sub(cut).Seconds()))
	if now := oldest.Info(t.Context(), "replication").Val(); now == "" {
		t.Error("the old master is gone: nobody isolated it")
	}

	// It heals: the producer finds the new master and the ledger, and sells under the new epoch.
	i.redis.Retarget(v.Replica.Addr())
	i.redis.CloseAll()
	i.postgres.BlackHole(false)
	i.awaitReturn(epoch)
	stop()
	v.Load.Stop()
	i.judge(epoch, cut, units)
	v.Finish()
}

// strand starts the producer that will be on the island.
func strand(v *shoptest.Victim) *island {
	v.T.Helper()
	config := v.Pool.Config().ConnConfig
	i := &island{Victim: v, redis: sandboxtest.Proxy(v.T, v.Redis.Addr()),
		postgres: sandboxtest.Proxy(v.T, fmt.Sprintf("%s:%d", config.Host, config.Port))}
	address, of := v.Address, v.Plan.PostgresOf
	v.Address = i.redis.Addr()
	through := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", config.User, config.Password, i.postgres.Addr(), config.Database)
	v.Plan.PostgresOf = func(string) string { return through }
	i.producer = v.Start(shoptest.Producer)
	v.Address, v.Plan.PostgresOf = address, of
	v.AwaitReady()
	// The traffic outside does not reach it.
	v.Mu.Lock()
	v.Roles = slices.DeleteFunc(v.Roles, func(r *shoptest.Role) bool { return r == i.producer })
	v.Mu.Unlock()
	v.T.Cleanup(func() { i.producer.Process.Kill() })
	return i
}

func (i *island) client() *api.Client {
	return &api.Client{Base: i.producer.API, HTTP: i.HTTP, Tries: 1}
}

// sell lets callers of the island reserve, and every fourth confirm, until they are told to stop.
func (i *island) sell() (stop func()) {
	enough := make(chan struct{})
	var wait sync.WaitGroup
	for caller := range 4 {
		wait.Go(func() {
			for n := 0; ; n++ {
				order := fmt.Sprintf("isle-%d-%d", caller, n)
				a := shoptest.Reserve(i.T.Context(), i.client(), order, "tea", 1, 3600)
				i.note(&i.reserves, a)
				if n%4 == 0 && a.Accepted() {
					i.note(&i.confirms, shoptest.Confirm(i.T.Context(), i.client(), order))
				}
				select {
				case <-enough:
					return
				case <-time.After(60 * time.Millisecond):
				}
			}
		})
	}
	var once sync.Once
	stop = func() { once.Do(func() { close(enough); wait.Wait() }) }
	i.T.Cleanup(stop)
	return stop
}

func (i *island) note(list *[]shoptest.Answer, a shoptest.Answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	*list = append(*list, a)
}

func (i *island) answers() (reserves, confirms []shoptest.Answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.reserves), slices.Clone(i.confirms)
}

// awaitSilence waits until the island was refused everything for a while.
func (i *island) awaitSilence(epoch int64) {
	i.T.Helper()
	sandboxtest.Eventually(i.T, shoptest.Patience, func() error {
		reserves, _ := i.answers()
		tail := reserves[max(0, len(reserves)-20):]
		for _, a := range tail {
			if a.Accepted() {
				return fmt.Errorf("it sells: %s", a.String())
			}
		}
		return nil
	})
}

// awaitReturn waits until the island sells under a newer epoch.
func (i *island) awaitReturn(epoch int64) {
	i.T.Helper()
	sandboxtest.Eventually(i.T, shoptest.Patience, func() error {
		reserves, _ := i.answers()
		if last := reserves[len(reserves)-1]; !last.Accepted() || last.Epoch() <= epoch {
			return errors.New(last.String())
		}
		return nil
	})
}

// under counts what the island accepted under an epoch in calls that began after the partition, and when it told the
// last of them.
func (i *island) under(epoch int64, cut time.Time) (sold int, last time.Time) {
	reserves, _ := i.answers()
	for _, a := range reserves {
		if a.Accepted() && a.Epoch() == epoch && a.Began.After(cut) {
			sold++
			if a.Ended.After(last) {
				last = a.Ended
			}
		}
	}
	return sold, last
}

// judge: not one order of the island was told persisted and is not; what it sold after the partition is lost, every
// one by its receipt; and both sides together sold what there was.
func (i *island) judge(epoch int64, cut time.Time, units int) {
	t := i.T
	t.Helper()
	i.Drain()
	reserves, confirms := i.answers()
	all := append(i.Load.Answers(), reserves...)
	persisted, lost := i.Standings(all)
	for _, a := range reserves {
		if a.Accepted() && a.Epoch() == epoch && a.Began.After(cut) && !lost[a.Order] {
			t.Errorf("sold behind the partition and not reported lost: %s", a.String())
		}
	}
	told := 0
	for _, a := range confirms {
		if a.Status != http.StatusOK {
			continue
		}
		told++
		receipt, err := stock.ParseReceipt(a.Reservation.Receipt)
		shoptest.Need(t, err)
		standing, err := i.Patient(0).Await(t.Context(), a.Order, receipt.String())
		if err != nil || standing != api.StandingPersisted {
			t.Errorf("told paid and kept: %s; its receipt is %q (%v)", a.String(), standing, err)
		}
	}
	stored, _ := i.Reservations("tea")
	if len(stored) > units {
		t.Errorf("%d orders stand for %d units", len(stored), units)
	}
	for order := range persisted {
		if stored[order] == "" {
			t.Errorf("order %s is called persisted and is not in Postgres", order)
		}
	}
	if i.InRedis("tea") != i.InPostgres("tea") {
		t.Errorf("tea is %s in Redis and %s in Postgres", i.InRedis("tea"), i.InPostgres("tea"))
	}
	i.Row.Note("%d told 201: %d persisted, %d reported lost, 0 silent; %d confirms told 200, all persisted", len(persisted)+len(lost), len(persisted), len(lost), told)
}
