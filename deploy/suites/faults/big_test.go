package faults

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestABigShopSellsAgainSoon lets Redis fail while it has many records inside the retention, all of which have to be
// put or compared before it may sell again.
func TestABigShopSellsAgainSoon(t *testing.T) {
	if !shoptest.Full {
		t.Skip("a row of the full size: make test-faults plays it")
	}
	for _, fault := range []struct {
		name, class string
		whole       bool
		hit         func(*shoptest.Shop)
	}{
		{"FLUSHALL", "missing", false, func(s *shoptest.Shop) { shoptest.Need(s.T, s.RDB.FlushAll(s.T.Context()).Err()) }},
		{"kill -9 and restart", "unopened", true, func(s *shoptest.Shop) {
			shoptest.Need(s.T, s.Redis.Kill())
			shoptest.Need(s.T, s.Redis.Restart(s.T.Context()))
		}},
	} {
		if fault.whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(fault.name, " ", "_"), func(t *testing.T) {
			records := shoptest.Size(20_000, 300_000)
			r := shoptest.Alone(t, "redis: "+fault.name+", 300,000 records")
			r.Class = fault.class
			s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1})
			skus := shoptest.Names("tea", 40)
			s.Supply(1_000_000, append(skus, "sold")...)
			s.Counter().Hold(records, "bulk", 12*time.Hour, skus...)
			s.Drain()
			load := s.Traffic(4, 20*time.Millisecond, true, "sold")
			sandboxtest.Eventually(t, shoptest.Patience, func() error {
				if load.Reserved.Load() < 20 {
					return errors.New("nobody came yet")
				}
				return nil
			})
			epoch, hit := s.Epoch(0), time.Now()
			fault.hit(s)
			ended := time.Now()
			sandboxtest.Eventually(t, 2*shoptest.Patience, func() error {
				if load.Epoch.Load() <= epoch {
					return fmt.Errorf("nothing is sold under an epoch after %d", epoch)
				}
				return nil
			})
			open := time.Since(ended)
			r.Opened(open)
			load.Stop()
			if shoptest.Full && open > 5*time.Second {
				t.Errorf("it sold again %v after the fault had ended, at most 5 s is promised", open)
			}
			if class := shoptest.One[string](s, `select class from repair where verb = 'takeover' order by id desc limit 1`); class != fault.class {
				t.Errorf("it was taken over as %q", class)
			}
			r.Note("%d records, sold again %.1f s after the fault had ended (%.1f s after it began)", records, open.Seconds(), time.Since(hit).Seconds())
			r.Note("its steps: %s", shoptest.One[string](s, `select coalesce(string_agg(x->>'Step' || ' ' || ((x->>'Took')::bigint / 1000000) || ' ms', ', '), '') from
				(select after->'takeover'->'Steps' steps from repair where verb = 'takeover' order by id desc limit 1) r, jsonb_array_elements(r.steps) x where (x->>'Took')::bigint > 50000000`))
			persisted, lost := s.Standings(load.Answers())
			r.Note("%d of the buyers' holds persisted, %d reported lost", len(persisted), len(lost))
			s.Finish()
		})
	}
}
