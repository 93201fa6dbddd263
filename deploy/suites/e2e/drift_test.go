package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// TestWhatIsInFlightIsNotRepairedAndWhatIsPlantedIsNamedOnce: field case H6.
func TestWhatIsInFlightIsNotRepairedAndWhatIsPlantedIsNamedOnce(t *testing.T) {
	r := begin(t, "H6 a reconciler that repairs while consumers lag")
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1, slow: true, reconcilerArgs: []string{"--audit-every", "1s"}})
	skus := names("tea", 12)
	s.supply(1_000_000, skus...)
	lasts := size(6*time.Second, 3*time.Minute)
	s.ledgerPath.Delay(250 * time.Millisecond) // about eight replies a batch: a lag of 2 s
	load := s.traffic(size(16, 100), 50*time.Millisecond, false, skus[:9]...)
	began := time.Now()
	var most int64
	watch := s.living(reconciler)[0]
	audits := watch.metric("stockpipe_reconciler_audits_total", `result="completed"`)
	sandboxtest.Eventually(t, lasts+patience, func() error {
		if lag, err := s.lag(t.Context()); err == nil {
			most = max(most, lag)
		}
		if time.Since(began) < lasts {
			return errors.New("the sale goes on")
		}
		return nil
	})
	audits = watch.metric("stockpipe_reconciler_audits_total", `result="completed"`) - audits
	const wrong = `select count(*) from repair where class not in ('missing', 'overdue', 'document')`
	if n := one[int64](s, wrong); n != 0 {
		t.Errorf("%d repairs of what was in flight", n)
	}
	if most == 0 || audits < 3 {
		t.Errorf("a lag of %d entries and %v audits: nothing was in flight", most, audits)
	}
	orders := load.reserved.Load()
	r.note("%d orders in %.0f s with a lag of up to %d entries, %v audits: 0 repairs", orders, lasts.Seconds(), most, audits)

	// Two figures and an order that nobody made, while the sale goes on.
	s.plant(skus[9], 7)
	s.plant(skus[10], -7)
	s.plantOrder("ghost", skus[11])
	const named = `select count(*) from repair where class = 'tampered' and verb = 'freeze' and before->>'%s' = $1`
	sandboxtest.Eventually(t, size(2*patience, 5*patience), func() error { // the order within one sweep, page by page
		for _, sku := range skus[9:] {
			if one[string](s, `select doubt from stock where sku = $1`, s.numbers[sku]) == "" {
				return fmt.Errorf("%s is not frozen", sku)
			}
		}
		return nil
	})
	after := watch.metric("stockpipe_reconciler_audits_total", `result="completed"`) + 3
	sandboxtest.Eventually(t, patience, func() error { // further audits see the same again
		if watch.metric("stockpipe_reconciler_audits_total", `result="completed"`) < after {
			return errors.New("too few audits")
		}
		return nil
	})
	load.stop()
	for _, sku := range skus[9:11] {
		if n := one[int64](s, fmt.Sprintf(named, "SKU"), fmt.Sprint(s.numbers[sku])); n != 1 {
			t.Errorf("%s was repaired %d times", sku, n)
		}
	}
	if n := one[int64](s, fmt.Sprintf(named, "Order"), "ghost"); n != 1 {
		t.Errorf("the order was repaired %d times", n)
	}
	if n := one[int64](s, wrong); n != 3 {
		t.Errorf("%d repairs of 3 plants", n)
	}
	s.ledgerPath.Delay(0)
	s.drain()
	// An operator looks, and then lets the ledger win: each of the three is named with both figures.
	plants := map[string]string{skus[9]: "1000007|0|0", skus[10]: "999993|0|0", "ghost": ""}
	for _, a := range s.reconcile("--plan").acts() {
		if a.Class != "tampered" {
			t.Errorf("found besides: %+v", a)
		}
		what := a.SKU
		if a.Order != "" {
			what = a.Order
		}
		want, is := plants[what]
		if !is || want != "" && available(t, a.Redis) != available(t, want) || a.Order != "" && (a.Redis == "" || a.Postgres != "") {
			t.Errorf("found %+v", a)
		}
		delete(plants, what)
	}
	if len(plants) != 0 {
		t.Errorf("not found: %v", plants)
	}
	if v := s.repairByLedger(); v.Exit != 1 {
		t.Errorf("the repair: exit %d, %+v", v.Exit, v.acts())
	}
	for _, sku := range skus[9:] {
		if got := s.inRedis(sku); got != "1000000|0|0" {
			t.Errorf("%s is %s after the repair", sku, got)
		}
	}
	r.note("+7, -7 and an extra order were each frozen once, named with both figures, and put right by ledger-wins")
	s.finish()
}

// plantOrder writes a hold into Redis that no entry of the log made.
func (s *shop) plantOrder(order, sku string) {
	s.t.Helper()
	status, err := s.shard(s.homes[sku]).Status(s.t.Context())
	need(s.t, err)
	record := event.FormatRecord(&stock.Reservation{
		ID: order, State: stock.Held, Attempt: 1, ExpiresMillis: time.Now().Add(time.Hour).UnixMilli(),
		Receipt: stock.Receipt{Position: stock.Position{Epoch: status.Epoch, Seq: 1}},
		Lines:   stock.Lines{{SKU: s.numbers[sku], Asked: 1, Now: 1}},
	})
	need(s.t, s.rdb.HSet(s.t.Context(), s.keys(sku).Orders, order, record).Err())
}
