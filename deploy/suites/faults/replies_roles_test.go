package faults

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestALostReplyOfATakeoverIsAnotherAttempt loses the reply of each function that a takeover calls: none of them is
// sent twice, the attempt ends there, and the next one has a later epoch.
func TestALostReplyOfATakeoverIsAnotherAttempt(t *testing.T) {
	var trials []shoptest.Trial
	for _, function := range []string{"fence", "put", "open", "status"} {
		for _, how := range []string{"cut", "lost"} {
			trials = append(trials, lostInTakeover(function, how))
		}
	}
	play(t, "replies", trials)
}

func lostInTakeover(function, how string) shoptest.Trial {
	var fault *faultproxy.Fault
	return shoptest.Trial{
		Name: "reply of a takeover's " + function + " " + how, Classes: []string{"missing"}, Loses: true, Within: shoptest.AutoOpen,
		Whole: function != "open" || how != "cut",
		Hit: func(v *shoptest.Victim) {
			fault = lose(v, how, "stockpipe_1_"+function)
			shoptest.Need(v.T, v.RDB.FlushAll(v.T.Context()).Err())
		},
		After: func(v *shoptest.Victim) {
			happened(v, fault, function)
			attempts := shoptest.One[int64](v.Shop, `select count(*) from repair where verb = 'takeover' and id > 1`)
			if function != "status" && attempts < 2 {
				v.T.Errorf("%d attempts although the reply of %s was lost", attempts, function)
			}
			if n := v.RDB.XLen(v.T.Context(), keys().Log).Val(); n == 0 {
				v.T.Error("the log is empty")
			}
			opened := 0
			for _, entry := range v.RDB.XRange(v.T.Context(), keys().Log, "-", "+").Val() {
				if entry.ID == fmt.Sprintf("%d-1", v.Epoch(0)) {
					opened++
				}
			}
			if opened != 1 {
				v.T.Errorf("epoch %d was opened %d times", v.Epoch(0), opened)
			}
			v.Row.Note("%d attempts", attempts)
		},
	}
}

// TestLostRepliesOfReadersLoseAndRepeatNothing loses and delays what consumers and audits read: no entry is applied
// twice or left out, and nothing is taken for a drift.
func TestLostRepliesOfReadersLoseAndRepeatNothing(t *testing.T) {
	play(t, "replies", []shoptest.Trial{
		{Name: "of consumers and audits, lost and cut", Plan: watchful(), Workers: true, Calm: true, After: nothingRepaired, Hit: func(v *shoptest.Victim) {
			for _, command := range []string{"xreadgroup", "xack", "exec"} {
				for _, how := range []string{"cut", "lost"} {
					happened(v, lose(v, how, command), command)
				}
			}
		}},
		{Name: "of everybody, slow", Plan: watchful(), Workers: true, Calm: true, Whole: true, After: nothingRepaired, Hit: func(v *shoptest.Victim) {
			before := len(v.Load.Answers())
			v.Path.Delay(1300 * time.Millisecond)
			sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
				for _, a := range v.Load.Answers()[before:] {
					if a.Status == http.StatusGatewayTimeout {
						return nil
					}
				}
				return fmt.Errorf("nobody was told unknown")
			})
			v.Path.Delay(0)
			healed := time.Now()
			v.More(20)
			v.Row.Opened(time.Since(healed))
		}},
	})
}

// lose arms the loss of the next reply to a command or function.
func lose(v *shoptest.Victim, how, what string) *faultproxy.Fault {
	if how == "cut" {
		return v.Path.CutAfterExecution(faultproxy.Contains(what))
	}
	return v.Path.SwallowReply(faultproxy.Contains(what))
}

func happened(v *shoptest.Victim, fault *faultproxy.Fault, what string) {
	v.T.Helper()
	select {
	case <-fault.Done():
	case <-time.After(shoptest.Patience):
		v.T.Errorf("no reply to %s was lost", what)
	}
}

// nothingRepaired: besides the opening of the shop there was nothing to do.
func nothingRepaired(v *shoptest.Victim) {
	v.T.Helper()
	if n := shoptest.One[int64](v.Shop, `select count(*) from repair where class not in ('overdue', 'document') and id > (select min(id) from repair)`); n != 0 {
		v.T.Errorf("%d repairs of a shop of which nothing was lost but replies", n)
	}
}
