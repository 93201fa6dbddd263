package faults

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A machine is whose clock is wrong.
const (
	ofRedis    = "Redis"
	ofPostgres = "Postgres"
)

const (
	forward  = time.Hour
	backward = -2 * time.Hour
)

// clockedPlan is a shop in which one machine has a clock of its own.
func clockedPlan(t *testing.T, machine string, p shoptest.Plan) (shoptest.Plan, *shoptest.Clock) {
	t.Helper()
	clock := shoptest.NewClock(t)
	switch machine {
	case ofRedis:
		p.Redis.Env = clock.Env()
	case ofPostgres:
		p.Postgres = &sandbox.PostgresOptions{NoFsync: true, Env: clock.Env()}
	default:
		p.Clocks = map[string]*shoptest.Clock{machine: clock}
	}
	return p, clock
}

// TestClockOfOneMachineIsWrong sets the clock of one machine an hour ahead or two hours back while the shop sells and
// holds are due, and right again. A hold never ends before its time.
func TestClockOfOneMachineIsWrong(t *testing.T) {
	for _, machine := range []string{ofRedis, ofPostgres, shoptest.Producer, shoptest.Consumer, shoptest.Reconciler} {
		for _, by := range []time.Duration{forward, backward} {
			if !shoptest.Full && (machine != ofRedis || by != forward) { // Postgres' is set back in the smoke row of takeovers
				continue
			}
			t.Run(fmt.Sprintf("%s_%v", machine, by), func(t *testing.T) {
				r := shoptest.Begin(t, fmt.Sprintf("clock of %s %+.0f h, then mended", machine, by.Hours()))
				wrongClock(r, machine, by)
			})
		}
	}
}

func wrongClock(r *shoptest.Row, machine string, by time.Duration) {
	t := r.T
	plan, clock := clockedPlan(t, machine, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
	v := shoptest.Suffering(r, plan, false)
	units := shoptest.Size(800, 4_000)
	v.Supply(int64(units), "tea")
	v.Supply(100, "mug")
	epoch := v.Epoch(0)
	v.Load = v.Traffic(4, 200*time.Millisecond, true, "tea")
	v.More(50)

	const ttl = 4 * time.Second
	holds := watchHolds(v)
	holds.take("before", ttl)
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if v.State("before") == "" {
			return errors.New("the hold is not persisted")
		}
		return nil
	})
	clock.Set(by)
	v.More(20) // it goes on selling
	holds.take("during", ttl)
	if machine == ofRedis || machine == ofPostgres {
		r.Class = "skew"
		skewed(v, machine, by)
	} else {
		for _, role := range v.Living(machine) {
			if ahead := role.Ahead(); (ahead - by).Abs() > 5*time.Second {
				t.Errorf("the clock of %s is %v ahead, want %v", role.Name, ahead, by)
			}
		}
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error { return holds.over(ttl + time.Second) })
	during := holds.ended()
	holds.take("late", ttl)
	clock.Set(0)
	v.More(20)
	holds.take("after", ttl)
	// A hold that was made by a clock which was ahead lasts until that time has come: an hour late at most, never early.
	late := machine == ofRedis && by > 0
	waiting := []string{"before", "during", "after"}
	if !late && !(machine == ofPostgres && by > 0) {
		waiting = append(waiting, "late")
	}
	holds.await(waiting)
	v.Load.Stop()
	answers := append(v.Load.Answers(), v.SellOut(units)...)
	v.Drain()
	persisted, lost := v.Standings(answers)
	v.JudgeEnd(answers, persisted, lost, epoch, units)
	if len(lost) != 0 || v.Epoch(0) != epoch {
		t.Errorf("%d orders were lost, and epoch %d became %d: a clock is no reason for a takeover", len(lost), epoch, v.Epoch(0))
	}
	holds.stop()
	r.Note("%d of 2 holds ended while it was wrong, none before its time; %d told 201, 0 lost, %d of %d units sold", during, len(persisted), units, units)
	v.Finish()
}

// skewed: the difference is found, told and alerted on, and asks for a person.
func skewed(v *shoptest.Victim, machine string, by time.Duration) {
	v.T.Helper()
	if machine == ofPostgres {
		by = -by
	}
	reconciler := v.Living(shoptest.Reconciler)[0]
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if got := reconciler.Metric("stockpipe_reconciler_clock_skew_seconds"); got < by.Seconds()-2 || got > by.Seconds()+2 {
			return fmt.Errorf("the skew is told as %v s, it is %v", got, by)
		}
		if reconciler.Log.Count(`"skew"`) == 0 {
			return fmt.Errorf("%s did not say so", reconciler.Name)
		}
		return nil
	})
	plan := v.Reconcile("--plan")
	if plan.Exit != 2 || !slices.ContainsFunc(plan.Acts(), func(a shoptest.Act) bool { return a.Class == "skew" && a.State == "operator" }) {
		v.T.Errorf("a plan (exit %d) does not name the skew: %+v", plan.Exit, plan.Acts())
	}
}

// holdWatch takes holds and sees when each of them has ended in Postgres, by a clock that is right.
type holdWatch struct {
	victim *shoptest.Victim
	stop   func()

	mu    sync.Mutex
	began map[string]time.Time
	ttl   map[string]time.Duration
	gone  map[string]time.Time
}

func watchHolds(v *shoptest.Victim) *holdWatch {
	h := &holdWatch{victim: v, began: map[string]time.Time{}, ttl: map[string]time.Duration{}, gone: map[string]time.Time{}}
	done, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
			h.look()
		}
	}()
	h.stop = sync.OnceFunc(func() { close(quit); <-done })
	v.T.Cleanup(h.stop)
	return h
}

// take reserves one unit under a name.
func (h *holdWatch) take(name string, ttl time.Duration) {
	h.victim.T.Helper()
	h.mu.Lock()
	h.began[name], h.ttl[name] = time.Now(), ttl
	h.mu.Unlock()
	h.victim.Told(shoptest.Reserve(h.victim.T.Context(), h.victim.Patient(0), name, "mug", 1, int64(ttl/time.Second)), http.StatusCreated)
}

// look notes which holds have ended, and complains of those that did so before their time.
func (h *holdWatch) look() {
	rows, err := h.victim.Pool.Query(h.victim.T.Context(), `select id from event where starts_with(body, 'E')`)
	if err != nil {
		return // the next look will tell
	}
	defer rows.Close()
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for rows.Next() {
		var order string
		if rows.Scan(&order) != nil {
			return
		}
		began, ours := h.began[order]
		if _, seen := h.gone[order]; seen {
			continue
		}
		h.gone[order] = now
		if !ours {
			h.victim.T.Errorf("order %s expired, which lasts for longer than this row", order)
			continue
		}
		if lasted := now.Sub(began); lasted < h.ttl[order] {
			h.victim.T.Errorf("hold %q ended after %v, it was to last %v", order, lasted, h.ttl[order])
		}
	}
}

// over is nil once all holds were taken so long ago.
func (h *holdWatch) over(age time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, began := range h.began {
		if since := time.Since(began); since < age {
			return fmt.Errorf("hold %q was taken %v ago", name, since)
		}
	}
	return nil
}

func (h *holdWatch) ended() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.gone)
}

// await waits until holds have ended.
func (h *holdWatch) await(names []string) {
	h.victim.T.Helper()
	sandboxtest.Eventually(h.victim.T, shoptest.Patience, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, name := range names {
			if _, is := h.gone[name]; !is {
				return fmt.Errorf("hold %q lasts; ended have %v", name, slices.Sorted(maps.Keys(h.gone)))
			}
		}
		return nil
	})
}

// TestHoldMadeByAClockThatWasAhead lasts until that time has come by both clocks, and then it ends.
func TestHoldMadeByAClockThatWasAhead(t *testing.T) {
	if !shoptest.Full {
		t.Skip("full size only")
	}
	for _, machine := range []string{ofRedis, ofPostgres} {
		t.Run(machine, func(t *testing.T) {
			r := shoptest.Begin(t, "hold made while "+machine+" was an hour ahead")
			r.Class = "skew"
			redis, postgres := shoptest.NewClock(t), shoptest.NewClock(t)
			s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, Redis: sandbox.RedisOptions{Env: redis.Env()},
				Postgres: &sandbox.PostgresOptions{NoFsync: true, Env: postgres.Env()}})
			s.Supply(10, "mug")
			wrong := map[string]*shoptest.Clock{ofRedis: redis, ofPostgres: postgres}[machine]
			wrong.Set(forward)
			sandboxtest.Eventually(t, shoptest.Patience, func() error {
				if a := shoptest.Reserve(t.Context(), s.Client(0), "late", "mug", 1, 1); !a.Accepted() {
					return fmt.Errorf("%s", a.String())
				}
				return nil
			})
			s.Drain()
			wrong.Set(0)
			sandboxtest.Eventually(t, shoptest.Patience, func() error {
				row := s.Living(shoptest.Reconciler)[0]
				if row.Metric("stockpipe_reconciler_clock_skew_seconds") > 1 {
					return fmt.Errorf("the clocks still differ")
				}
				return nil
			})
			if state := s.State("late"); state == "expired" {
				t.Error("it ended while one clock said that it was too early")
			}
			redis.Set(forward + 5*time.Second) // the hour passes
			postgres.Set(forward + 5*time.Second)
			sandboxtest.Eventually(t, shoptest.Patience, func() error {
				if state := s.State("late"); state != "expired" {
					return fmt.Errorf("it is %s", state)
				}
				return nil
			})
			s.Finish()
		})
	}
}

// TestClockStepsInATakeover: the clock of a server moves while a takeover stands still, which then goes on; or its
// reconciler is dead, and what it held of the shard is over by no clock that went back.
func TestClockStepsInATakeover(t *testing.T) {
	type row struct {
		machine string
		by      time.Duration
		how     string
		step    takeover.Step
	}
	var trials []shoptest.Trial
	for _, c := range []row{
		{ofPostgres, backward, shoptest.Kill, takeover.StepPut},
		{ofPostgres, forward, shoptest.Kill, takeover.StepPut},
		{ofPostgres, backward, shoptest.Stop, takeover.StepClose},
		{ofRedis, forward, shoptest.Stop, takeover.StepPut},
		{ofRedis, backward, shoptest.Stop, takeover.StepOpen},
		{ofRedis, backward, shoptest.Kill, takeover.StepSay},
	} {
		plan, clock := clockedPlan(t, c.machine, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 2, Failing: true})
		trials = append(trials, shoptest.Trial{
			Name:    fmt.Sprintf("%s %+.0f h, reconciler gets %s before %s", c.machine, c.by.Hours(), strings.ToUpper(c.how), c.step),
			Plan:    plan,
			Classes: []string{"unopened"}, Workers: true, Within: afterTurn,
			Plain: true, // its callers name times by a clock that is right
			Whole: c != row{ofPostgres, backward, shoptest.Kill, takeover.StepPut},
			Hit: func(v *shoptest.Victim) {
				failed := failIn(v, c.step, c.how)
				clock.Set(c.by)
				if c.how == shoptest.Stop {
					failed.Resume()
				}
			},
			After: func(v *shoptest.Victim) {
				clock.Set(0)
				if c.how == shoptest.Stop { // what a dead one began stands as it left it
					awaitAttempts(v)
				}
				v.More(20)
			},
		})
	}
	play(t, "clock", trials)
}
