package shoptest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// PlantOrder writes a hold into Redis that no entry of the log made.
func (s *Shop) PlantOrder(order, sku string) {
	s.T.Helper()
	status, err := s.Shard(s.Homes[sku]).Status(s.T.Context())
	Need(s.T, err)
	record := event.FormatRecord(&stock.Reservation{
		ID: order, State: stock.Held, Attempt: 1, ExpiresMillis: time.Now().Add(time.Hour).UnixMilli(),
		Receipt: stock.Receipt{Position: stock.Position{Epoch: status.Epoch, Seq: 1}},
		Lines:   stock.Lines{{SKU: s.Numbers[sku], Asked: 1, Now: 1}},
	})
	Need(s.T, s.RDB.HSet(s.T.Context(), s.Keys(sku).Orders, order, record).Err())
}

// Plant changes the available units of a SKU in Redis by hand, in one step, as an HSET between two orders would.
func (s *Shop) Plant(sku string, units int) {
	s.T.Helper()
	const script = `
		local text = redis.call('HGET', KEYS[1], ARGV[1])
		local bar = string.find(text, '|', 1, true)
		local planted = string.format('%d', tonumber(string.sub(text, 1, bar - 1)) + tonumber(ARGV[2])) .. string.sub(text, bar)
		return redis.call('HSET', KEYS[1], ARGV[1], planted)`
	Need(s.T, s.RDB.Eval(s.T.Context(), script, []string{s.Keys(sku).State}, s.Numbers[sku], units).Err())
}

// Available is the first figure of a field.
func Available(t *testing.T, field string) int64 {
	t.Helper()
	var units int64
	if _, err := fmt.Sscanf(field, "%d|", &units); err != nil {
		t.Errorf("the field %q has no figure: %v", field, err)
	}
	return units
}

// RepairByLedger lets one pass put what Postgres and the log say.
func (s *Shop) RepairByLedger() Verdict {
	s.T.Helper()
	for _, r := range s.Living(Reconciler) {
		r.Stop()
	}
	return s.Reconcile("--once", "--on-tampered", "ledger-wins")
}
