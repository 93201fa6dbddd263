package faults

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// afterTurn is how long a takeover may take whose reconciler died or stands still in the middle of it: its turn has
// to end first, which a standby notices within a second.
const afterTurn = ledger.DefaultTurnTTL + shoptest.AutoOpen

// TestReconcilerStalledInATakeover stops a reconciler before each step of a takeover. Another one finishes it, and
// the one that was stopped goes on where it stood: it must do no harm.
func TestReconcilerStalledInATakeover(t *testing.T) {
	inEachStep(t, "stalled", map[takeover.Step]bool{takeover.StepClose: true}, func(step takeover.Step) shoptest.Trial {
		var stalled *shoptest.Role
		return shoptest.Trial{
			Hit: func(v *shoptest.Victim) { stalled = failIn(v, step, shoptest.Stop) },
			After: func(v *shoptest.Victim) {
				epoch := v.Epoch(0)
				stalled.Resume()
				awaitAttempts(v)
				// Before its claim it has none that is outdated: it takes the shop over once more, and nothing is lost.
				if now := v.Epoch(0); now != epoch && step != takeover.StepClaim {
					v.T.Errorf("the attempt that stood still before %q moved the shop from epoch %d to %d", step, epoch, now)
				}
				v.More(20)
			},
		}
	})
}

// TestReconcilerKilledInATakeover ends one before each step.
func TestReconcilerKilledInATakeover(t *testing.T) {
	inEachStep(t, "killed", map[takeover.Step]bool{takeover.StepOpen: true}, func(step takeover.Step) shoptest.Trial {
		return shoptest.Trial{Hit: func(v *shoptest.Victim) { failIn(v, step, shoptest.Kill) }}
	})
}

// inEachStep plays a trial for each step; in the small size only for some.
func inEachStep(t *testing.T, how string, smoke map[takeover.Step]bool, trial func(takeover.Step) shoptest.Trial) {
	t.Helper()
	var trials []shoptest.Trial
	for _, step := range takeover.Steps {
		one := trial(step)
		one.Name = fmt.Sprintf("%s before %s", how, step)
		one.Classes = []string{"unopened"}
		one.Plan = shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 2, Failing: true}
		one.Workers, one.Whole, one.Within = true, !smoke[step], afterTurn
		trials = append(trials, one)
	}
	play(t, "takeover", trials)
}

// failIn makes a takeover necessary and the reconciler fail that works at it; it says which one that was.
func failIn(v *shoptest.Victim, step takeover.Step, how string) *shoptest.Role {
	v.T.Helper()
	point := failpoint.Takeover(string(step))
	reconcilers := v.Living(shoptest.Reconciler)
	for _, r := range reconcilers {
		r.Arm(point, how)
	}
	shoptest.Need(v.T, v.RDB.FunctionFlush(v.T.Context()).Err())
	var failed *shoptest.Role
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		for _, r := range reconcilers {
			if r.Failed(point) {
				failed = r
				return nil
			}
		}
		return fmt.Errorf("no reconciler came to %s", point)
	})
	for _, r := range reconcilers {
		if r != failed && !r.Disarm(point) {
			v.T.Error("both reconcilers came to ", point)
		}
	}
	failed.AwaitFailure(point)
	return failed
}

// awaitAttempts waits until every takeover that was begun has ended, well or not.
func awaitAttempts(v *shoptest.Victim) {
	v.T.Helper()
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if n := shoptest.One[int64](v.Shop, `select count(*) from repair where verb = 'takeover' and ended is null`); n != 0 {
			return fmt.Errorf("%d takeovers are under way", n)
		}
		if row, err := v.Ledger.Shard(v.T.Context(), 0); err != nil || row.State != ledger.StateOpen {
			return errors.Join(err, fmt.Errorf("the shard is %s", row.State))
		}
		return nil
	})
}

// TestOpenWhoseReplyIsLost: nobody knows whether the shard was opened, so it is taken over once more, under another
// epoch; the same epoch is never opened twice.
func TestOpenWhoseReplyIsLost(t *testing.T) {
	lose := func(arm func(*faultproxy.Proxy, faultproxy.Match) *faultproxy.Fault) func(*shoptest.Victim) {
		return func(v *shoptest.Victim) {
			// Nobody but a reconciler calls open, so it is only its path that breaks.
			fault := arm(v.Path, faultproxy.Contains("_open\r\n"))
			shoptest.Need(v.T, v.RDB.FunctionFlush(v.T.Context()).Err())
			select {
			case <-fault.Done():
			case <-time.After(shoptest.Patience):
				v.T.Fatal("nobody called open")
			}
		}
	}
	twice := func(v *shoptest.Victim) {
		if n := shoptest.One[int64](v.Shop, `select count(*) from repair where verb = 'takeover' and class not in ('missing', 'uncounted')`); n < 2 {
			v.T.Errorf("%d takeovers: the one whose open was lost was not begun anew", n)
		}
		if n := shoptest.One[int64](v.Shop, `select count(*) from (select from event where starts_with(body, 'O') group by shard, epoch having count(*) > 1) twice`); n != 0 {
			v.T.Errorf("%d epochs were opened twice", n)
		}
	}
	play(t, "takeover", []shoptest.Trial{
		{Name: "reply to open swallowed", Classes: []string{"unopened"}, Workers: true, Whole: true, Within: shoptest.AutoOpen,
			Hit: lose((*faultproxy.Proxy).SwallowReply), After: twice},
		{Name: "cut after open", Classes: []string{"unopened"}, Workers: true, Within: shoptest.AutoOpen,
			Hit: lose((*faultproxy.Proxy).CutAfterExecution), After: twice},
	})
}

// TestTwoOperatorsTakeOverAtOnce lets commands fight for the same shard while it sells; each of them opens it or says
// that another one is at it.
func TestTwoOperatorsTakeOverAtOnce(t *testing.T) {
	play(t, "takeover", []shoptest.Trial{{
		Name: "three commands at once", Workers: true, Whole: true,
		Plan:    shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1},
		Classes: []string{"healthy"}, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			codes := make([]int, 3)
			said := make([]string, len(codes))
			shoptest.Crowd(len(codes), len(codes), func(i int) {
				out, complaint, code := v.Command("takeover", "--shard", "0")
				codes[i], said[i] = code, out+complaint
			})
			opened := 0
			for i, code := range codes {
				if code == 0 {
					opened++
				} else if !strings.Contains(said[i], "turn") && !strings.Contains(said[i], "newer") {
					v.T.Errorf("a command ended with %d: %s", code, said[i])
				}
			}
			if opened == 0 {
				v.T.Errorf("none of them opened the shard: %q", said)
			}
			v.Row.Note("%d of %d commands opened it", opened, len(codes))
		},
	}})
}
