package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAKilledProducerLeavesNoHalfOrder: field case H3. Producers are killed at random moments of reserve, confirm and
// release; their callers ask another one with the same ids.
func TestAKilledProducerLeavesNoHalfOrder(t *testing.T) {
	r := shoptest.Begin(t, "H3 producers killed under load")
	kills := shoptest.Size(8, 200)
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
	skus := shoptest.Names("tea", 5)
	s.Supply(1_000_000, skus...)
	load := s.Come(&shoptest.Traffic{Insist: true, Skus: skus}, 16, 4*time.Millisecond)
	chance := rand.New(rand.NewPCG(3, 3))
	for range kills {
		want := load.Reserved.Load() + 1 + chance.Int64N(60)
		sandboxtest.Eventually(t, shoptest.Patience, func() error {
			if load.Reserved.Load() < want {
				return fmt.Errorf("%d orders of %d", load.Reserved.Load(), want)
			}
			return nil
		})
		all := s.Living(shoptest.Producer)
		all[chance.IntN(len(all))].Kill()
		s.Start(shoptest.Producer)
	}
	load.Stop()
	s.Drain()
	answers := load.Answers()
	persisted, lost := s.Standings(answers)
	if len(lost) != 0 {
		t.Errorf("%d orders were lost although neither store failed", len(lost))
	}
	states := map[string]string{}
	for _, sku := range skus {
		_, some := s.Reservations(sku)
		for order, state := range some {
			states[order] = state
		}
	}
	accepted := 0
	for _, a := range answers {
		switch {
		case !a.Settled():
			t.Errorf("nobody could settle: %s", a.String())
		case a.Accepted():
			accepted++
			if !persisted[a.Order] || states[a.Order] == "" {
				t.Errorf("accepted and not in Postgres: %s", a.String())
			}
		}
	}
	confirmed := 0
	for _, a := range load.Ends {
		if a.Status != http.StatusOK && a.Status != http.StatusAccepted || states[a.Order] != a.State {
			t.Errorf("told %d to be %s, in Postgres %s: %s", a.Status, a.State, states[a.Order], a.String())
		}
		confirmed++
	}
	if len(states) != accepted {
		t.Errorf("%d orders in Postgres, %d accepted", len(states), accepted)
	}
	if load.Repeats.Load() == 0 {
		t.Error("no caller had to ask again: nobody was hit")
	}
	ops := s.LogIsLedger()
	r.Note("%d producers killed -9: %d orders accepted and %d ended, all in Postgres as told, %d calls sent again, %d operations in log and ledger alike",
		kills, accepted, confirmed, load.Repeats.Load(), ops)
	s.Finish()
}
