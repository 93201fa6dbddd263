package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestWhatIsInFlightIsNotRepairedAndWhatIsPlantedIsNamedOnce: field case H6.
func TestWhatIsInFlightIsNotRepairedAndWhatIsPlantedIsNamedOnce(t *testing.T) {
	r := shoptest.Begin(t, "H6 a reconciler that repairs while consumers lag")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Slow: true, ReconcilerArgs: []string{"--audit-every", "1s"}})
	skus := shoptest.Names("tea", 12)
	s.Supply(1_000_000, skus...)
	lasts := shoptest.Size(6*time.Second, 3*time.Minute)
	s.LedgerPath.Delay(250 * time.Millisecond) // about eight replies a batch: a lag of 2 s
	load := s.Traffic(shoptest.Size(16, 100), 50*time.Millisecond, false, skus[:9]...)
	began := time.Now()
	var most int64
	watch := s.Living(shoptest.Reconciler)[0]
	audits := watch.Metric("stockpipe_reconciler_audits_total", `result="completed"`)
	sandboxtest.Eventually(t, lasts+shoptest.Patience, func() error {
		if lag, err := s.Lag(t.Context()); err == nil {
			most = max(most, lag)
		}
		if time.Since(began) < lasts {
			return errors.New("the sale goes on")
		}
		return nil
	})
	audits = watch.Metric("stockpipe_reconciler_audits_total", `result="completed"`) - audits
	const wrong = `select count(*) from repair where class not in ('missing', 'overdue', 'document')`
	if n := shoptest.One[int64](s, wrong); n != 0 {
		t.Errorf("%d repairs of what was in flight", n)
	}
	if most == 0 || audits < shoptest.Size(1.0, 3) {
		t.Errorf("a lag of %d entries and %v audits: nothing was in flight", most, audits)
	}
	orders := load.Reserved.Load()
	r.Note("%d orders in %.0f s with a lag of up to %d entries, %v audits: 0 repairs", orders, lasts.Seconds(), most, audits)

	// Two figures and an order that nobody made, while the sale goes on.
	s.Plant(skus[9], 7)
	s.Plant(skus[10], -7)
	s.PlantOrder("ghost", skus[11])
	const named = `select count(*) from repair where class = 'tampered' and verb = 'freeze' and before->>'%s' = $1`
	sandboxtest.Eventually(t, shoptest.Size(2*shoptest.Patience, 5*shoptest.Patience), func() error { // the order within one sweep, page by page
		for _, sku := range skus[9:] {
			if shoptest.One[string](s, `select doubt from stock where sku = $1`, s.Numbers[sku]) == "" {
				return fmt.Errorf("%s is not frozen", sku)
			}
		}
		return nil
	})
	after := watch.Metric("stockpipe_reconciler_audits_total", `result="completed"`) + 3
	sandboxtest.Eventually(t, shoptest.Patience, func() error { // further audits see the same again
		if watch.Metric("stockpipe_reconciler_audits_total", `result="completed"`) < after {
			return errors.New("too few audits")
		}
		return nil
	})
	load.Stop()
	for _, sku := range skus[9:11] {
		if n := shoptest.One[int64](s, fmt.Sprintf(named, "SKU"), fmt.Sprint(s.Numbers[sku])); n != 1 {
			t.Errorf("%s was repaired %d times", sku, n)
		}
	}
	if n := shoptest.One[int64](s, fmt.Sprintf(named, "Order"), "ghost"); n != 1 {
		t.Errorf("the order was repaired %d times", n)
	}
	if n := shoptest.One[int64](s, wrong); n != 3 {
		t.Errorf("%d repairs of 3 plants", n)
	}
	s.LedgerPath.Delay(0)
	s.Drain()
	// An operator looks, and then lets the ledger win: each of the three is named with both figures.
	plants := map[string]string{skus[9]: "1000007|0|0", skus[10]: "999993|0|0", "ghost": ""}
	for _, a := range s.Reconcile("--plan").Acts() {
		if a.Class != "tampered" {
			t.Errorf("found besides: %+v", a)
		}
		what := a.SKU
		if a.Order != "" {
			what = a.Order
		}
		want, is := plants[what]
		if !is || want != "" && shoptest.Available(t, a.Redis) != shoptest.Available(t, want) || a.Order != "" && (a.Redis == "" || a.Postgres != "") {
			t.Errorf("found %+v", a)
		}
		delete(plants, what)
	}
	if len(plants) != 0 {
		t.Errorf("not found: %v", plants)
	}
	if v := s.RepairByLedger(); v.Exit != 1 {
		t.Errorf("the repair: exit %d, %+v", v.Exit, v.Acts())
	}
	for _, sku := range skus[9:] {
		if got := s.InRedis(sku); got != "1000000|0|0" {
			t.Errorf("%s is %s after the repair", sku, got)
		}
	}
	r.Note("+7, -7 and an extra order were each frozen once, named with both figures, and put right by ledger-wins")
	s.Finish()
}
