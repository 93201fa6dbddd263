package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
)

// TestTheHotSKUIsSoldExactlyOnceWhileAuditsRun sells one SKU to far more callers than there are units, through two
// producers, while other SKUs move and audits run one after the other; then one unit is added by hand.
func TestTheHotSKUIsSoldExactlyOnceWhileAuditsRun(t *testing.T) {
	r := shoptest.Begin(t, "oversell")
	orders, units, audits := shoptest.Size(5_000, 100_000), shoptest.Size(200, 1_000), shoptest.Size(5, 100)
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
	mugs := shoptest.Names("mug", 10)
	s.Supply(int64(units), "tea")
	s.Supply(1_000_000, mugs...)

	others := s.Traffic(8, shoptest.Size(4*time.Millisecond, 80*time.Millisecond), false, mugs...)
	var audited sync.WaitGroup
	var checked, restarts, compared, aside int
	audited.Go(func() {
		for range audits {
			v := s.Reconcile("--plan")
			checked++
			restarts += v.Restarts()
			if v.Compared() {
				compared++
			}
			if v.Exit != 0 || !v.Compared() || len(v.Acts()) > 0 {
				t.Errorf("audit %d under load: exit %d, compared %v, %+v", checked, v.Exit, v.Compared(), v.Acts())
			}
		}
		aside = int(others.Reserved.Load())
	})

	began := time.Now()
	answers := make([]shoptest.Answer, orders)
	shoptest.Crowd(orders, 256, func(i int) {
		answers[i] = shoptest.Reserve(t.Context(), s.Client(i), fmt.Sprintf("tea-%06d", i), "tea", 1, 3600)
	})
	took := time.Since(began)
	audited.Wait()

	sold := map[string]string{} // by the callers' own list: order → receipt
	for _, a := range answers {
		switch {
		case a.Status == http.StatusCreated:
			sold[a.Order] = a.Reservation.Receipt
		case a.Status != http.StatusConflict:
			t.Errorf("neither sold nor sold out: %s", a.String())
		}
	}
	if len(sold) != units {
		t.Errorf("%d orders got one of %d units", len(sold), units)
	}
	plantedUnitIsNamed(s, mugs[3])
	others.Stop()
	s.Drain()
	persisted, _ := s.Reservations("tea")
	if diff := cmp.Diff(sold, persisted); diff != "" {
		t.Errorf("what callers were told (-) is not what is persisted (+):\n%s", diff)
	}
	s.Shelf("tea", fmt.Sprintf("0|%d|0", units))
	r.Note("%d reservations by 256 callers through 2 producers in %.1f s (%.0f/s): %d told 201, %d persisted, as sets equal: %v",
		orders, took.Seconds(), float64(orders)/took.Seconds(), len(sold), len(persisted), maps.Equal(sold, persisted))
	r.Note("%d audits under load: %d compared, %d restarts, no false alarm, %d other orders meanwhile", checked, compared, restarts, aside)

	// The unit that was planted is the only thing that is wrong, and goes by the policy.
	if v := s.RepairByLedger(); v.Exit != 1 {
		t.Errorf("the repair of what was planted: exit %d, %+v", v.Exit, v.Acts())
	}
	s.Finish()
}

// plantedUnitIsNamed adds one unit to a SKU that is being sold, and wants the next audit to name the key and both
// figures, and nothing else.
func plantedUnitIsNamed(s *shoptest.Shop, sku string) {
	s.T.Helper()
	s.Plant(sku, 1)
	v := s.Reconcile("--plan")
	if v.Exit != 2 || len(v.Acts()) != 1 {
		s.T.Errorf("a planted unit: exit %d, %+v", v.Exit, v.Acts())
		return
	}
	found := v.Acts()[0]
	key := fmt.Sprintf("%s field %d", redisstock.NewKeys(shoptest.Prefix, s.Homes[sku]).State, s.Numbers[sku])
	if found.Class != "tampered" || found.Key != key || found.SKU != sku || shoptest.Available(s.T, found.Redis)-shoptest.Available(s.T, found.Postgres) != 1 {
		s.T.Errorf("a planted unit was found as %+v", found)
	}
	s.Row.Note("a planted unit was named: %s has %s, Postgres and the log say %s", found.Key, found.Redis, found.Postgres)
}
