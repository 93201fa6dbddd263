package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A mishap is a fault of the long run. It mends what it broke before it returns.
type mishap struct {
	name   string
	forces bool // a takeover
	happen func(*soak)
}

var mishaps = []mishap{
	{"redis killed and restarted", true, func(s *soak) {
		shoptest.Need(s.T, s.master.Kill())
		shoptest.Need(s.T, s.master.Restart(s.T.Context()))
	}},
	{"FLUSHALL", true, func(s *soak) { shoptest.Need(s.T, s.RDB.FlushAll(s.T.Context()).Err()) }},
	{"FUNCTION FLUSH", true, func(s *soak) { shoptest.Need(s.T, s.RDB.FunctionFlush(s.T.Context()).Err()) }},
	{"state deleted", true, func(s *soak) { s.delete(s.keys().State) }},
	{"orders deleted", true, func(s *soak) { s.delete(s.keys().Orders) }},
	{"log deleted", true, func(s *soak) { s.delete(s.keys().Log) }},
	{"older orders restored", true, func(s *soak) { s.rewind(s.keys().Orders) }},
	{"older state restored", true, func(s *soak) { s.rewind(s.keys().State) }},
	{"stale replica promoted", true, (*soak).promote},

	{"consumer killed", false, func(s *soak) { s.replace(shoptest.Consumer) }},
	{"producer killed", false, func(s *soak) { s.replace(shoptest.Producer) }},
	{"reconciler killed", false, func(s *soak) { s.replace(shoptest.Reconciler) }},
	{"consumer stopped for 7 s", false, func(s *soak) {
		one := s.pick(shoptest.Consumer)
		one.Pause()
		s.wait(7 * time.Second)
		one.Resume()
	}},
	{"redis connections cut", false, func(s *soak) { s.Path.CloseAll() }},
	{"redis unreachable for 3 s", false, func(s *soak) {
		s.Path.BlackHole(true)
		s.wait(3 * time.Second)
		s.Path.BlackHole(false)
	}},
	{"redis stopped for 3 s", false, func(s *soak) {
		shoptest.Need(s.T, s.master.Pause())
		s.wait(3 * time.Second)
		shoptest.Need(s.T, s.master.Resume())
	}},
	{"postgres slow for 8 s", false, func(s *soak) {
		s.LedgerPath.Delay(200 * time.Millisecond)
		s.wait(8 * time.Second)
		s.LedgerPath.Delay(0)
	}},
	{"postgres unreachable for 6 s", false, func(s *soak) {
		s.LedgerPath.BlackHole(true)
		s.wait(6 * time.Second)
		s.LedgerPath.BlackHole(false)
	}},
	{"postgres backends ended", false, func(s *soak) {
		s.Exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	}},
	{"postgres connections cut", false, func(s *soak) { s.LedgerPath.CloseAll() }},
}

// A soak is a shop in its long run.
type soak struct {
	*shoptest.Shop
	master *sandbox.Redis
	load   *shoptest.Traffic
	chance *rand.Rand
}

func (s *soak) keys() redisstock.Keys { return redisstock.NewKeys(shoptest.Prefix, 0) }

// wait lets a time pass that is a part of a fault or the pause between two.
func (s *soak) wait(d time.Duration) { time.Sleep(d) }

func (s *soak) delete(key string) {
	s.T.Helper()
	if s.RDB.Del(s.T.Context(), key).Val() != 1 {
		s.T.Errorf("there was no %s to delete", key)
	}
}

// rewind puts a key back to what it was some orders ago.
func (s *soak) rewind(key string) {
	s.T.Helper()
	old, err := s.RDB.Dump(s.T.Context(), key).Result()
	shoptest.Need(s.T, err)
	s.more(20)
	shoptest.Need(s.T, s.RDB.RestoreReplace(s.T.Context(), key, 0, old).Err())
}

// promote makes a replica that misses the last orders the master, and ends the old one.
func (s *soak) promote() {
	s.T.Helper()
	replica := sandboxtest.Redis(s.T, sandbox.RedisOptions{MaxMemory: "1gb"}) // told below: it restarts as a master
	follower := s.Connect(replica.Addr())
	host, port, _ := strings.Cut(s.master.Addr(), ":")
	shoptest.Need(s.T, follower.ReplicaOf(s.T.Context(), host, port).Err())
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if info := follower.Info(s.T.Context(), "replication").Val(); !strings.Contains(info, "master_link_status:up") {
			return fmt.Errorf("the replica has no link: %s", shoptest.Shorten(info))
		}
		return nil
	})
	shoptest.Need(s.T, follower.ReplicaOf(s.T.Context(), "NO", "ONE").Err())
	s.more(20)
	shoptest.Need(s.T, s.master.Kill())
	s.Path.Retarget(replica.Addr())
	s.master, s.RDB = replica, follower
}

func (s *soak) pick(kind string) *shoptest.Role {
	roles := s.Living(kind)
	return roles[s.chance.IntN(len(roles))]
}

func (s *soak) replace(kind string) {
	s.T.Helper()
	s.pick(kind).Kill()
	s.Start(kind)
}

// more waits until so many more orders were accepted.
func (s *soak) more(orders int64) {
	s.T.Helper()
	want := s.load.Reserved.Load() + orders
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		if n := s.load.Reserved.Load(); n < want {
			return fmt.Errorf("%d orders accepted, want %d", n, want)
		}
		return nil
	})
}

// lasts is how long the run goes on: STOCKPIPE_SOAK, or what the size asks for.
func lasts(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("STOCKPIPE_SOAK")
	if text == "" {
		return shoptest.Size(9*time.Second, 20*time.Minute)
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > 24*time.Hour {
		t.Fatalf("STOCKPIPE_SOAK is %q: use a time up to 24h, as in 20m", text)
	}
	return d
}

// TestSoak sells for a long time, and every now and then something happens that was drawn from a seed.
func TestSoak(t *testing.T) {
	r := shoptest.Begin(t, "soak: a random fault every now and then")
	seed, duration := shoptest.Seed(t), lasts(t)
	least, most := shoptest.Size(3*time.Second, 20*time.Second), shoptest.Size(4*time.Second, 60*time.Second)
	// Half of the SKUs sell out, again and again as holds are given back or end; the others never do.
	units := map[string]int64{}
	skus := shoptest.Names("tea", 20)
	for i, sku := range skus {
		units[sku] = []int64{300, 100_000}[i%2]
	}
	s := &soak{chance: rand.New(rand.NewPCG(seed, 2))}
	s.Shop = shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 2, Proxied: true, Watched: true})
	s.master = s.Redis
	for sku, n := range units {
		s.Supply(n, sku)
	}
	mix := s.Mix(shoptest.MixPlan{Callers: 4, Think: shoptest.Size(120*time.Millisecond, 400*time.Millisecond), Limits: true, Seed: seed})
	s.load = s.Traffic(shoptest.Size(8, 12), 80*time.Millisecond, false, skus...)
	s.load.Beside = mix
	s.more(50)
	gauge := s.gauge()

	began, forced, played := time.Now(), 0, 0
	var slowest time.Duration
	for {
		pause := least + time.Duration(s.chance.Int64N(int64(most-least)))
		if time.Since(began)+pause > duration {
			break
		}
		s.wait(pause)
		m := s.next(played, forced)
		epoch, hit := s.load.Epoch.Load(), time.Now()
		t.Logf("%5.0f s: %s (epoch %d, %d orders)", time.Since(began).Seconds(), m.name, epoch, s.load.Reserved.Load())
		m.happen(s)
		mended := time.Now()
		s.goesOn(m, epoch)
		if m.forces {
			forced++
			slowest = max(slowest, time.Since(hit))
		} else {
			slowest = max(slowest, time.Since(mended))
		}
		played++
	}
	s.load.Stop()
	r.Opened(slowest)
	r.Note("%d faults in %v, %d forced a takeover (seed %d)", played, duration.Round(time.Second), forced, seed)
	if 2*forced < played {
		t.Errorf("%d of %d faults forced a takeover: at least half should", forced, played)
	}
	gauge(r)
	s.judge(r, units)
	r.Note("%v", mix.Judge())
	s.Finish()
}

// next draws what happens; at least half of all has to force a takeover.
func (s *soak) next(played, forced int) mishap {
	for {
		m := mishaps[s.chance.IntN(len(mishaps))]
		if m.forces || 2*forced > played {
			return m
		}
	}
}

// goesOn waits until orders are accepted again, after a takeover if the mishap forces one.
func (s *soak) goesOn(m mishap, epoch int64) {
	s.T.Helper()
	if m.forces {
		sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
			if s.load.Epoch.Load() <= epoch {
				return fmt.Errorf("%s: nothing is sold under an epoch after %d", m.name, epoch)
			}
			return nil
		})
	}
	s.more(20)
}

// judge asks what became of every order that was told accepted, and compares with what stands.
func (s *soak) judge(r *shoptest.Row, units map[string]int64) {
	t := s.T
	t.Helper()
	s.Drain()
	answers := s.load.Answers()
	persisted, lost := s.Standings(answers)
	unknown := map[string]bool{}
	for i := range answers {
		if a := &answers[i]; a.Status == 0 || a.Status == http.StatusGatewayTimeout {
			unknown[a.Order] = true
		}
	}
	strangers := 0
	stands := map[string]string{}
	for sku, stocked := range units {
		receipts, states := s.Reservations(sku)
		maps.Copy(stands, states)
		for order := range receipts {
			if !persisted[order] && !unknown[order] {
				strangers++
			}
		}
		if over := shoptest.One[int64](s.Shop, `select coalesce(sum(l.now), 0) from reservation r join reservation_line l using (shard, order_id, attempt)
			where l.sku = $1 and r.state in ('held', 'confirmed')`, s.Numbers[sku]) - stocked; over > 0 {
			t.Errorf("%d units of %s are sold too many", over, sku)
		}
	}
	for i := range s.load.Ends {
		a := &s.load.Ends[i]
		if a.Accepted() && a.State == "confirmed" && stands[a.Order] != "confirmed" {
			t.Errorf("order %s was told confirmed and is %q", a.Order, stands[a.Order])
		}
	}
	if strangers > 0 {
		t.Errorf("%d orders stand of which nobody was told", strangers)
	}
	told := shoptest.Counts(answers)
	r.Note("%d calls, %d told 201: %d persisted, %d reported lost, 0 silent, 0 oversold; %d told sold out", len(answers),
		told[http.StatusCreated]+told[http.StatusOK], len(persisted), len(lost), told[http.StatusConflict])
}

// gauge looks at the memory and goroutines of all roles while the run goes on; what it returns compares the last
// third with the one before.
func (s *soak) gauge() func(*shoptest.Row) {
	type sample map[string]float64 // kind and metric → the most of one process
	var samples []sample
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(shoptest.Size(500*time.Millisecond, 5*time.Second))
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			one := sample{}
			for _, role := range s.Living("") {
				found, err := role.Scrape(ctx)
				if err != nil {
					continue // it died a moment ago, or is stopped
				}
				for _, name := range []string{"process_resident_memory_bytes", "go_goroutines"} {
					one[role.Kind+" "+name] = max(one[role.Kind+" "+name], found[name])
				}
			}
			samples = append(samples, one)
		}
	}()
	return func(r *shoptest.Row) {
		cancel()
		<-done
		third := len(samples) / 3
		if third == 0 {
			s.T.Error("no sample of memory was taken")
			return
		}
		middle := func(part []sample, of string) float64 {
			var values []float64
			for _, one := range part {
				if v := one[of]; v > 0 {
					values = append(values, v)
				}
			}
			slices.Sort(values)
			if len(values) == 0 {
				return 0
			}
			return values[len(values)/2]
		}
		var grown []string
		for _, kind := range []string{shoptest.Producer, shoptest.Consumer, shoptest.Reconciler} {
			for metric, unit := range map[string]string{"process_resident_memory_bytes": "MB", "go_goroutines": "goroutines"} {
				was, is := middle(samples[third:2*third], kind+" "+metric), middle(samples[2*third:], kind+" "+metric)
				if shoptest.Full && is > 1.05*was {
					s.T.Errorf("%s: %s grew from %.0f in the middle third to %.0f in the last", kind, metric, was, is)
				}
				scale := 1.0
				if unit == "MB" {
					scale = 1 << 20
				}
				grown = append(grown, fmt.Sprintf("%s %.0f→%.0f %s", kind, was/scale, is/scale, unit))
			}
		}
		slices.Sort(grown)
		r.Note("middle → last third: %s", strings.Join(grown, ", "))
	}
}
