package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestAKilledProducerLeavesNoHalfOrder: field case H3. Producers are killed at random moments of reserve, confirm and
// release; their callers ask another one with the same ids.
func TestAKilledProducerLeavesNoHalfOrder(t *testing.T) {
	r := begin(t, "H3 producers killed under load")
	kills := size(8, 200)
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1})
	skus := names("tea", 5)
	s.supply(1_000_000, skus...)
	load := s.come(&traffic{insist: true, skus: skus}, 16, 4*time.Millisecond)
	chance := rand.New(rand.NewPCG(3, 3))
	for range kills {
		want := load.reserved.Load() + 1 + chance.Int64N(60)
		sandboxtest.Eventually(t, patience, func() error {
			if load.reserved.Load() < want {
				return fmt.Errorf("%d orders of %d", load.reserved.Load(), want)
			}
			return nil
		})
		all := s.living(producer)
		all[chance.IntN(len(all))].kill()
		s.start(producer)
	}
	load.stop()
	s.drain()
	answers := load.answers()
	persisted, lost := s.standings(answers)
	if len(lost) != 0 {
		t.Errorf("%d orders were lost although neither store failed", len(lost))
	}
	states := map[string]string{}
	for _, sku := range skus {
		_, some := s.reservations(sku)
		for order, state := range some {
			states[order] = state
		}
	}
	accepted := 0
	for _, a := range answers {
		switch {
		case !a.settled():
			t.Errorf("nobody could settle: %s", a.String())
		case a.accepted():
			accepted++
			if !persisted[a.order] || states[a.order] == "" {
				t.Errorf("accepted and not in Postgres: %s", a.String())
			}
		}
	}
	confirmed := 0
	for _, a := range load.ends {
		if a.status != http.StatusOK && a.status != http.StatusAccepted || states[a.order] != a.state {
			t.Errorf("told %d to be %s, in Postgres %s: %s", a.status, a.state, states[a.order], a.String())
		}
		confirmed++
	}
	if len(states) != accepted {
		t.Errorf("%d orders in Postgres, %d accepted", len(states), accepted)
	}
	if load.repeats.Load() == 0 {
		t.Error("no caller had to ask again: nobody was hit")
	}
	ops := s.logIsLedger()
	r.note("%d producers killed -9: %d orders accepted and %d ended, all in Postgres as told, %d calls sent again, %d operations in log and ledger alike",
		kills, accepted, confirmed, load.repeats.Load(), ops)
	s.finish()
}
