package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
)

// TestTheHotSKUIsSoldExactlyOnceWhileAuditsRun sells one SKU to far more callers than there are units, through two
// producers, while other SKUs move and audits run one after the other; then one unit is added by hand.
func TestTheHotSKUIsSoldExactlyOnceWhileAuditsRun(t *testing.T) {
	r := begin(t, "oversell")
	orders, units, audits := size(5_000, 100_000), size(200, 1_000), size(5, 100)
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1})
	mugs := names("mug", 10)
	s.supply(int64(units), "tea")
	s.supply(1_000_000, mugs...)

	others := s.traffic(8, size(4*time.Millisecond, 80*time.Millisecond), false, mugs...)
	var audited sync.WaitGroup
	var checked, restarts, compared, aside int
	audited.Go(func() {
		for range audits {
			v := s.reconcile("--plan")
			checked++
			restarts += v.restarts()
			if v.compared() {
				compared++
			}
			if v.Exit != 0 || !v.compared() || len(v.acts()) > 0 {
				t.Errorf("audit %d under load: exit %d, compared %v, %+v", checked, v.Exit, v.compared(), v.acts())
			}
		}
		aside = int(others.reserved.Load())
	})

	began := time.Now()
	answers := make([]answer, orders)
	crowd(orders, 256, func(i int) {
		answers[i] = reserve(t.Context(), s.client(i), fmt.Sprintf("tea-%06d", i), "tea", 1, 3600)
	})
	took := time.Since(began)
	audited.Wait()

	sold := map[string]string{} // by the callers' own list: order → receipt
	for _, a := range answers {
		switch {
		case a.status == http.StatusCreated:
			sold[a.order] = a.reservation.Receipt
		case a.status != http.StatusConflict:
			t.Errorf("neither sold nor sold out: %s", a.String())
		}
	}
	if len(sold) != units {
		t.Errorf("%d orders got one of %d units", len(sold), units)
	}
	s.plantedUnitIsNamed(mugs[3])
	others.stop()
	s.drain()
	persisted, _ := s.reservations("tea")
	if diff := cmp.Diff(sold, persisted); diff != "" {
		t.Errorf("what callers were told (-) is not what is persisted (+):\n%s", diff)
	}
	s.shelf("tea", fmt.Sprintf("0|%d|0", units))
	r.note("%d reservations by 256 callers through 2 producers in %.1f s (%.0f/s): %d told 201, %d persisted, as sets equal: %v",
		orders, took.Seconds(), float64(orders)/took.Seconds(), len(sold), len(persisted), maps.Equal(sold, persisted))
	r.note("%d audits under load: %d compared, %d restarts, no false alarm, %d other orders meanwhile", checked, compared, restarts, aside)

	// The unit that was planted is the only thing that is wrong, and goes by the policy.
	if v := s.repairByLedger(); v.Exit != 1 {
		t.Errorf("the repair of what was planted: exit %d, %+v", v.Exit, v.acts())
	}
	s.finish()
}

// plant changes the available units of a SKU in Redis by hand, in one step, as an HSET between two orders would.
func (s *shop) plant(sku string, units int) {
	s.t.Helper()
	const script = `
		local text = redis.call('HGET', KEYS[1], ARGV[1])
		local bar = string.find(text, '|', 1, true)
		local planted = string.format('%d', tonumber(string.sub(text, 1, bar - 1)) + tonumber(ARGV[2])) .. string.sub(text, bar)
		return redis.call('HSET', KEYS[1], ARGV[1], planted)`
	need(s.t, s.rdb.Eval(s.t.Context(), script, []string{s.keys(sku).State}, s.numbers[sku], units).Err())
}

// plantedUnitIsNamed adds one unit to a SKU that is being sold, and wants the next audit to name the key and both
// figures, and nothing else.
func (s *shop) plantedUnitIsNamed(sku string) {
	s.t.Helper()
	s.plant(sku, 1)
	v := s.reconcile("--plan")
	if v.Exit != 2 || len(v.acts()) != 1 {
		s.t.Errorf("a planted unit: exit %d, %+v", v.Exit, v.acts())
		return
	}
	found := v.acts()[0]
	key := fmt.Sprintf("%s field %d", redisstock.NewKeys(prefix, s.homes[sku]).State, s.numbers[sku])
	if found.Class != "tampered" || found.Key != key || found.SKU != sku || available(s.t, found.Redis)-available(s.t, found.Postgres) != 1 {
		s.t.Errorf("a planted unit was found as %+v", found)
	}
	s.row.note("a planted unit was named: %s has %s, Postgres and the log say %s", found.Key, found.Redis, found.Postgres)
}

// available is the first figure of a field.
func available(t *testing.T, field string) int64 {
	t.Helper()
	var units int64
	if _, err := fmt.Sscanf(field, "%d|", &units); err != nil {
		t.Errorf("the field %q has no figure: %v", field, err)
	}
	return units
}

// repairByLedger lets one pass put what Postgres and the log say.
func (s *shop) repairByLedger() verdict {
	s.t.Helper()
	for _, r := range s.living(reconciler) {
		r.stop()
	}
	return s.reconcile("--once", "--on-tampered", "ledger-wins")
}
