package shoptest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// eventually waits as long as rows have patience.
func eventually(s *Shop, check func() error) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, Patience, check)
}

// Limit gives a SKU a limit per buyer and waits until a takeover has counted what buyers have. Neither that takeover
// nor the next one waits for the one before to have lasted, as both would in a shop that was opened a moment ago.
func (s *Shop) Limit(sku string, units int64) {
	s.T.Helper()
	s.Age()
	before := s.Epoch(s.Homes[sku])
	_, err := s.Patient(0).Configure(s.T.Context(), sku, api.SettingsRequest{BuyerLimit: &units})
	Need(s.T, err)
	eventually(s, func() error {
		mark, err := s.RDB.HGet(s.T.Context(), s.Keys(sku).Buyers, strconv.FormatInt(s.Numbers[sku], 10)).Result()
		switch {
		case err != nil:
			return fmt.Errorf("what buyers have of %s is not counted: %w", sku, err)
		case mark != "1" || s.Epoch(s.Homes[sku]) == before:
			return errors.New("no takeover counted it yet")
		}
		return nil
	})
	s.AwaitReady()
	s.Age()
}

// Age makes every shard look as if it had been open for an hour.
func (s *Shop) Age() {
	s.T.Helper()
	s.Exec(`update shard set opened = opened - interval '1 hour'`)
}

// Counted compares what Redis counts of a SKU for each buyer with what they have.
func (s *Shop) Counted(sku string, have map[string]int64) error {
	found, err := s.RDB.HGetAll(s.T.Context(), s.Keys(sku).Buyers).Result()
	if err != nil {
		return err
	}
	var errs []error
	prefix := strconv.FormatInt(s.Numbers[sku], 10) + ":"
	seen := map[string]bool{}
	for field, text := range found {
		buyer, is := strings.CutPrefix(field, prefix)
		if !is {
			continue
		}
		seen[buyer] = true
		if text != strconv.FormatInt(have[buyer], 10) {
			errs = append(errs, fmt.Errorf("Redis counts %s of %s for %s, who has %d", text, sku, buyer, have[buyer]))
		}
	}
	for buyer, units := range have {
		if units > 0 && !seen[buyer] {
			errs = append(errs, fmt.Errorf("Redis counts nothing of %s for %s, who has %d", sku, buyer, units))
		}
	}
	return errors.Join(errs...)
}

// bought is what buyers have of a SKU by Postgres: held, confirmed and shipped.
func (s *Shop) bought(sku string) map[string]int64 {
	s.T.Helper()
	rows, err := s.Pool.Query(s.T.Context(), `select r.buyer, sum(case when r.state in ('held', 'confirmed') then l.now else 0 end + l.fulfilled)::bigint
		from reservation r join reservation_line l using (shard, order_id, attempt) where l.sku = $1 and r.buyer <> '' group by 1`, s.Numbers[sku])
	Need(s.T, err)
	have := map[string]int64{}
	var buyer string
	var units int64
	_, err = pgx.ForEachRow(rows, []any{&buyer, &units}, func() error {
		have[buyer] = units
		return nil
	})
	Need(s.T, err)
	return have
}
