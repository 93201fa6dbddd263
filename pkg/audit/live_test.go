package audit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// audits runs audits with a rolling cursor and fails at any alarm.
func audits(s *shop, n, page int) (total audit.Report) {
	s.t.Helper()
	var cursor audit.Cursor
	for i := range n {
		// The rules within Postgres read whole tables; the comparison is what is hurried here.
		r := s.audit(audit.Options{Cursor: cursor, Page: page, SkipInvariants: i%10 > 0})
		for _, d := range r.Drifts {
			s.t.Fatalf("false alarm: %s", d)
		}
		if !r.Compared {
			s.t.Fatalf("nothing was compared: %+v", r)
		}
		cursor = r.Cursor
		total.Orders += r.Orders
		total.SKUs += r.SKUs
		total.Ended += r.Ended
		total.Buyers += r.Buyers
		total.Entries += r.Entries
		total.Restarts += r.Restarts
	}
	return total
}

func TestAuditsUnderLoadRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	s := openShop(t, 20)
	s.write(16)
	s.consumers(2, false)
	r := audits(s, 100, 200)
	if r.Entries == 0 || r.Orders == 0 || r.Ended == 0 || r.Buyers == 0 {
		t.Errorf("the interesting was not reached: %+v", r)
	}
	t.Logf("%d accepted; compared %d orders (%d ended), %d SKUs and %d counts, folded %d entries, %d restarts", s.accepted.Load(), r.Orders, r.Ended, r.SKUs, r.Buyers, r.Entries, r.Restarts)
	s.letters()
	plant(s)
	s.quiet()
}

// plant adds a unit by hand while everything runs, and looks for it in the next audit.
func plant(s *shop) {
	s.t.Helper()
	sku := s.skus[0]
	err := s.rdb.Eval(ctx, `local t = redis.call('HGET', KEYS[1], ARGV[1])
		return redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(t, '^%d+', function(n) return string.format('%d', n + 1) end)))`,
		[]string{s.shard.Keys().State}, sku).Err()
	s.must(err)
	r := s.audit(audit.Options{})
	if len(r.Drifts) != 1 || r.Drifts[0].Class != audit.Tampered || r.Drifts[0].SKU != sku || r.Drifts[0].Redis == "" || r.Drifts[0].Postgres == "" {
		s.t.Errorf("planted a unit of SKU %d, found %v", sku, r.Drifts)
	}
}

func TestAuditsWhileConsumersAreDownRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	s := openShop(t, 5)
	s.write(8)
	r := audits(s, 30, 100)
	s.quiet()
	if r.Entries < 100 {
		t.Errorf("only %d entries were folded", r.Entries)
	}
	s.consume()
	s.clean()
}

func TestAuditsWhileTheLogIsTrimmedRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	s := openShop(t, 5)
	s.write(8)
	s.consumers(2, true)
	restarts, unsettled := 0, 0
	for range 30 {
		r, err := audit.Run(ctx, s.auditor, redisstock.NewSampler(s.shard), audit.Options{Page: 50, SkipInvariants: true, Restarts: 6})
		if errors.Is(err, audit.ErrUnsettled) {
			unsettled++ // allowed: this shop trims right below applied
			continue
		}
		s.must(err)
		for _, d := range r.Drifts {
			t.Fatalf("false alarm: %s", d)
		}
		restarts += r.Restarts
	}
	s.quiet()
	t.Logf("%d restarts, %d gave up", restarts, unsettled)
	s.consume()
	s.clean()
}

// TestAuditsDuringTakeoversRaiseNoFalseAlarm takes a healthy shard over again and again.
func TestAuditsDuringTakeoversRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	s := openShop(t, 5)
	s.write(8)
	s.consumers(2, false)
	s.busy.Go(func() {
		for !s.stop.Load() {
			s.takeover()
			time.Sleep(100 * time.Millisecond)
		}
	})
	compared, restarts := 0, 0
	for range 30 {
		r, err := audit.Run(ctx, s.auditor, redisstock.NewSampler(s.shard), audit.Options{Page: 50, SkipInvariants: true, Restarts: 6})
		if errors.Is(err, audit.ErrUnsettled) {
			continue
		}
		s.must(err)
		for _, d := range r.Drifts {
			t.Fatalf("false alarm: %s", d)
		}
		restarts += r.Restarts
		if r.Compared {
			compared++
		}
	}
	s.quiet()
	t.Logf("%d of 30 compared, %d restarts", compared, restarts)
	if compared == 0 {
		t.Error("no audit was completed")
	}
	s.consume()
	s.clean()
}

func TestEveryHandThatTouchesRedisIsFound(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		hurt func(*shop) string
		want func(audit.Drift) bool
	}{
		{"a unit more", func(s *shop) string { return edit(s, 1) }, isSKU},
		{"a unit less", func(s *shop) string { return edit(s, -1) }, isSKU},
		{"a record edited", func(s *shop) string {
			id := s.anyOrder()
			s.must(s.rdb.HSet(ctx, s.shard.Keys().Orders, id, "r|1-1-0|1|0||1=1").Err())
			return id
		}, isOrder},
		{"a record deleted", func(s *shop) string {
			id := s.anyPersisted() // one that the ledger has not got is missed once it has
			s.must(s.rdb.HDel(ctx, s.shard.Keys().Orders, id).Err())
			return id
		}, isOrder},
		{"a record invented", func(s *shop) string {
			s.must(s.rdb.HSet(ctx, s.shard.Keys().Orders, "ghost", "r|1-1-0|1|0||1=1").Err())
			return "ghost"
		}, isOrder},
		{"an entry deleted", func(s *shop) string {
			row, err := s.ledger.Shard(ctx, 0)
			s.must(err)
			s.must(s.rdb.XDel(ctx, s.shard.Keys().Log, fmt.Sprintf("%d-%d", row.Epoch, row.Applied+2)).Err())
			return ""
		}, isClass(audit.GapLost)},
		{"the newest entry deleted", func(s *shop) string {
			st, err := s.shard.Status(ctx)
			s.must(err)
			s.must(s.rdb.XDel(ctx, s.shard.Keys().Log, st.Last).Err())
			return ""
		}, isClass(audit.GapLost)},
		{"orders deleted", func(s *shop) string { s.must(s.rdb.Del(ctx, s.shard.Keys().Orders).Err()); return "" }, isClass(takeover.Torn)},
		{"state deleted", func(s *shop) string { s.must(s.rdb.Del(ctx, s.shard.Keys().State).Err()); return "" }, isClass(takeover.Missing)},
		{"log deleted", func(s *shop) string { s.must(s.rdb.Del(ctx, s.shard.Keys().Log).Err()); return "" }, isClass(takeover.Missing)},
		{"everything deleted", func(s *shop) string { s.must(s.rdb.FlushAll(ctx).Err()); return "" }, isClass(takeover.Missing)},
		{"functions deleted", func(s *shop) string { s.must(s.rdb.FunctionFlush(ctx).Err()); return "" }, isClass(takeover.Unopened)},
		{"keys of another type", func(s *shop) string {
			for _, key := range []string{s.shard.Keys().State, s.shard.Keys().Orders, s.shard.Keys().Log} {
				s.must(s.rdb.Set(ctx, key, "x", 0).Err())
			}
			return ""
		}, isClass(takeover.Missing)},
		{"restart", func(s *shop) string { s.must(s.server.Stop()); s.must(s.server.Restart(ctx)); return "" }, isClass(takeover.Unopened)},
		{"a count edited", func(s *shop) string {
			field := takeover.BuyerField(event.BuyerKey{SKU: s.limited, Buyer: "b1@x"})
			s.must(s.rdb.HIncrBy(ctx, s.shard.Keys().Buyers, field, 1).Err())
			return fmt.Sprint(s.limited)
		}, isCount},
		{"a count invented", func(s *shop) string {
			s.must(s.rdb.HSet(ctx, s.shard.Keys().Buyers, takeover.BuyerField(event.BuyerKey{SKU: s.limited, Buyer: "ghost"}), 1).Err())
			return fmt.Sprint(s.limited)
		}, isCount},
		{"all counts of a SKU deleted", func(s *shop) string {
			fields, err := s.rdb.HKeys(ctx, s.shard.Keys().Buyers).Result()
			s.must(err)
			for _, field := range fields {
				if strings.Contains(field, ":") {
					s.must(s.rdb.HDel(ctx, s.shard.Keys().Buyers, field).Err())
				}
			}
			return fmt.Sprint(s.limited)
		}, isCount},
		{"a mark deleted", func(s *shop) string {
			s.must(s.rdb.HDel(ctx, s.shard.Keys().Buyers, takeover.MarkField(s.limited)).Err())
			return fmt.Sprint(s.limited)
		}, isClass(takeover.Uncounted)},
		{"a mark invented", func(s *shop) string {
			s.must(s.rdb.HSet(ctx, s.shard.Keys().Buyers, takeover.MarkField(s.skus[1]), "1").Err())
			return fmt.Sprint(s.skus[1])
		}, isSKU},
		{"a limit edited", func(s *shop) string {
			f, _, err := s.shard.Field(ctx, s.limited)
			s.must(err)
			f.Limit++
			s.must(s.rdb.HSet(ctx, s.shard.Keys().State, fmt.Sprint(s.limited), f.String()).Err())
			return fmt.Sprint(s.limited)
		}, isSKU},
		{"the ledger's count edited", func(s *shop) string {
			s.sql(`update bought set units = units + 1 where buyer = (select min(buyer) from bought)`)
			return fmt.Sprint(s.limited)
		}, isCount},
		{"the ledger's shipped units edited", func(s *shop) string {
			s.sql(`update reservation_line set fulfilled = fulfilled + 1 where (shard, order_id, attempt, sku) = (
				select l.shard, l.order_id, l.attempt, l.sku from reservation_line l join reservation r using (shard, order_id, attempt)
				where r.state in ('confirmed', 'fulfilled') and l.sku <> $1 limit 1)`, s.limited)
			return ""
		}, isOrder},
		{"the ledger's stock edited", func(s *shop) string {
			s.sql(`update stock set available = available + 1 where sku = $1`, s.skus[1])
			return fmt.Sprint(s.skus[1])
		}, isSKU},
		{"the ledger's holds edited", func(s *shop) string {
			s.sql(`update stock set held = held + 1 where sku = $1`, s.skus[1])
			return fmt.Sprint(s.skus[1])
		}, isSKU},
		{"the ledger's entry edited", func(s *shop) string {
			s.sql(`update event set at_ms = at_ms + 1 where (epoch, seq) = (select epoch, applied from shard)`)
			return ""
		}, isClass(audit.Fork)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 3)
			s.write(4)
			s.consumers(1, false)
			deadline := time.Now().Add(30 * time.Second)
			for s.accepted.Load() < 150 && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			s.quiet()
			s.consume()
			s.write(2) // some entries that the ledger has not reached
			for was := s.accepted.Load(); s.accepted.Load() < was+20 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			s.quiet()
			s.clean()
			what := c.hurt(s)
			r := s.sweep(40)
			found := false
			for _, d := range r.Drifts {
				found = found || c.want(d) && (what == "" || what == d.Order || what == fmt.Sprint(d.SKU))
				if what != "" && what != d.Order && what != fmt.Sprint(d.SKU) {
					t.Errorf("nobody touched this: %s", d)
				}
			}
			if !found {
				t.Errorf("touched %s, found %v", what, r.Drifts)
			}
		})
	}
}

func isSKU(d audit.Drift) bool   { return d.SKU != 0 && d.Class == audit.Tampered }
func isOrder(d audit.Drift) bool { return d.Order != "" && d.Class == audit.Tampered }
func isCount(d audit.Drift) bool { return isSKU(d) && d.Buyer != "" && d.Redis != d.Postgres }
func isClass(c audit.Class) func(audit.Drift) bool {
	return func(d audit.Drift) bool { return d.Class == c }
}

func edit(s *shop, units int64) string {
	f, _, err := s.shard.Field(ctx, s.skus[0])
	s.must(err)
	f.Available += units
	s.must(s.rdb.HSet(ctx, s.shard.Keys().State, fmt.Sprint(s.skus[0]), f.String()).Err())
	return fmt.Sprint(s.skus[0])
}

// TestEditedStockIsFoundWhateverTheLogSaysAfterwards lets the library go on from an edited field, so that the
// after-images disagree, and then lets the consumer freeze the SKU.
func TestEditedStockIsFoundWhateverTheLogSaysAfterwards(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	s.write(2)
	for s.accepted.Load() < 20 {
		time.Sleep(time.Millisecond)
	}
	edit(s, 7)
	for was := s.accepted.Load(); s.accepted.Load() < was+20; {
		time.Sleep(time.Millisecond)
	}
	s.quiet()
	for range 2 {
		r := s.sweep(0)
		if len(r.Drifts) != 1 || r.Drifts[0].SKU != s.skus[0] || r.Drifts[0].Class != audit.Tampered {
			t.Fatalf("found %v", r.Drifts)
		}
		t.Log(r.Drifts[0])
		s.consume()
	}
	s.takeover() // the ledger wins
	s.clean()
}
