package reconcilerapp

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

func (s *shop) change(sku int64, change stock.Change) {
	s.t.Helper()
	s.do(0, stock.Operation{Kind: stock.Configure, ID: "~~shop", Lines: stock.Lines{{SKU: sku}}, Change: change}, stock.Accepted)
}

func (s *shop) limit(sku, units int64) {
	s.t.Helper()
	s.change(sku, stock.Change{Opens: stock.Keep, Limit: units})
}

func (s *shop) order(sku int64, id, buyer string, units int64) stock.Operation {
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: 600_000, Buyer: buyer, Lines: stock.Lines{{SKU: sku, Asked: units, Now: units}}}
}

func (s *shop) buy(sku int64, id, buyer string, units int64) {
	s.t.Helper()
	s.do(0, s.order(sku, id, buyer, units), stock.Accepted)
}

func (s *shop) setCount(sku int64, buyer, units string) {
	s.t.Helper()
	check(s.t, s.rdb.HSet(s.t.Context(), redisstock.NewKeys("sp", 0).Buyers, fmt.Sprintf("%d:%s", sku, buyer), units).Err())
}

// document writes one and does not move it.
func (s *shop) document(n ledger.NewDocument) ledger.Document {
	s.t.Helper()
	n.Reason, n.DeadlineMillis = "test", s.deadline()
	doc, _, err := s.ledger.WriteDocument(s.t.Context(), n)
	check(s.t, err)
	return doc
}

func TestWhoServesCountsBuyersSoonAfterALimitWasSwitchedOn(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.serve("--audit-every", "1h") // so only who asks is heard
	epoch := s.opened(0, 0, soon)
	tea := s.sku("tea", 100, 0)
	s.buy(tea, "early", "u7", 3)
	stop := s.consume()
	defer stop()
	s.exec(`update shard set opened = opened - interval '1 hour'`) // or the takeover waits until this one has lasted
	s.limit(tea, 5)
	sandboxtest.Eventually(t, soon, func() error {
		out, err := s.desk.Do(t.Context(), 0, s.order(tea, "late", "u7", 1))
		if err == nil && out.Code == stock.Uncounted {
			err = errors.Join(errors.New("not counted yet"), s.ledger.TellDoubt(t.Context(), 0, repair.AskCount))
		}
		if err == nil && out.Code != stock.Accepted {
			t.Fatalf("%+v", out)
		}
		return err
	})
	took := s.opened(0, epoch, soon)
	s.do(0, s.order(tea, "much", "u7", 2), stock.LimitReached)
	s.do(0, s.order(tea, "enough", "u7", 1), stock.Accepted)
	// It does not begin again: the mark is there.
	for range 5 {
		check(t, s.ledger.TellDoubt(t.Context(), 0, repair.AskCount))
		time.Sleep(200 * time.Millisecond)
	}
	if now := s.opened(0, 0, 0); now != took {
		t.Errorf("epoch %d, then %d", took, now)
	}
	n := 0
	for _, r := range s.repairs() {
		if r.Class == string(takeover.Uncounted) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d takeovers", n)
	}
}

func TestAFreezeKeepsTheOtherSettingsOfASKU(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 10, 0)
	s.change(tea, stock.Change{Opens: 1234, Closed: stock.On, Limit: 7})
	s.persist(0)
	s.want(repair.ExitRepaired)
	s.change(tea, stock.Change{Opens: 99, Limit: stock.Keep}) // the ledger has not heard of it
	s.setStock(tea, strings.Replace(s.state(0, tea), "10|", "11|", 1))
	s.want(repair.ExitOperator)
	if got := s.state(0, tea); got != "11|0|0|99|fc|7" {
		t.Errorf("frozen: %s", got)
	}
	s.persist(0)
	if doc := s.result("repair", "--shard", "0"); doc.Exit != repair.ExitClean {
		t.Fatalf("%s", text(doc))
	}
	s.persist(0)
	if got := s.state(0, tea); got != "10|0|0|99|c|7" {
		t.Errorf("thawed: %s", got)
	}
	s.want(repair.ExitClean)
}

func TestDocumentsOfEveryKindAreFinishedByThePass(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 100, 0)
	for _, id := range []string{"a", "b", "c"} {
		s.buy(tea, id, "u7", 10)
		s.move(stock.Confirm, id, 1)
	}
	s.persist(0)
	one := []stock.Line{{SKU: tea, Asked: 4}}
	ofOrder := func(id string) ledger.DocumentOrder { return ledger.DocumentOrder{ID: id} }
	s.document(ledger.NewDocument{ID: "f", Kind: stock.DocumentFulfil, Order: ofOrder("a")})
	s.document(ledger.NewDocument{ID: "part", Kind: stock.DocumentFulfil, Order: ofOrder("b"), Lines: one})
	s.document(ledger.NewDocument{ID: "x", Kind: stock.DocumentCancel, Order: ofOrder("c")})
	s.document(ledger.NewDocument{ID: "x2", Kind: stock.DocumentCancel, Order: ofOrder("b"), Lines: one})
	s.document(ledger.NewDocument{ID: "n", Kind: stock.DocumentCount, Lines: []stock.Line{{SKU: tea, Asked: 97}}})
	finished := 0
	sandboxtest.Eventually(t, soon, func() error {
		doc := s.result("--once")
		if finished += doc.Shards[0].Documents; doc.Exit != repair.ExitClean || finished < 5 {
			return fmt.Errorf("%d finished, exit %d: %s", finished, doc.Exit, text(doc))
		}
		return nil
	})
	s.persist(0)
	s.document(ledger.NewDocument{ID: "r", Kind: stock.DocumentReturn, Order: ofOrder("a"), Lines: one})
	sandboxtest.Eventually(t, soon, func() error {
		if doc := s.result("--once"); doc.Shards[0].Documents != 1 {
			return fmt.Errorf("%s", text(doc))
		}
		return nil
	})
	s.persist(0)
	// 100, less 10 and 4 shipped, 4 back, 3 missing by the count; of b 2 are left.
	s.same(0, tea, "85|0|2")
	s.clean()
	if v := s.result("verify"); v.Exit != repair.ExitClean {
		t.Errorf("%s", text(v))
	}
}

func TestDocumentsWhoseDeadlinePassedAreRenewedOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 10, 0)
	s.buy(tea, "a", "", 4)
	s.move(stock.Confirm, "a", 1)
	s.persist(0)
	doc := s.document(ledger.NewDocument{ID: "x", Kind: stock.DocumentCancel, Order: ledger.DocumentOrder{ID: "a"}})
	s.exec(`update stock_document set deadline_ms = 1, written = written - interval '1 minute' where id = 'x'`)
	late := doc.Operation()
	late.Deadline = 1
	s.do(0, late, stock.Overdue)
	if doc := s.want(repair.ExitClean); doc.Shards[0].Documents != 1 {
		t.Errorf("%s", text(doc))
	}
	s.do(0, late, stock.Replayed) // a sender that wakes up moves nothing
	s.persist(0)
	s.same(0, tea, "10|0|0")
	s.clean()
}

// aged makes all that came to rest older, orders and documents.
func (s *shop) aged(by time.Duration) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`update reservation set moved = moved - interval '%d s' where state <> 'held'`, int(by.Seconds())))
	s.exec(fmt.Sprintf(`update stock_document set settled = settled - interval '%d s'`, int(by.Seconds())))
}

func (s *shop) records() int64 {
	s.t.Helper()
	n, err := s.rdb.HLen(s.t.Context(), redisstock.NewKeys("sp", 0).Orders).Result()
	check(s.t, err)
	return n - 1 // the sentinel
}

func TestThePassForgetsAndPruneDeletes(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea, mug := s.sku("tea", 100, 0), s.sku("mug", 100, 0)
	for i := range 30 {
		s.buy(tea, fmt.Sprint("o", i), "u7", 1)
		s.move(stock.Release, fmt.Sprint("o", i), 1)
	}
	s.buy(mug, "counts", "u7", 1)
	s.move(stock.Release, "counts", 1)
	s.buy(tea, "paid", "u7", 1)
	s.move(stock.Confirm, "paid", 1)
	s.limit(mug, 9)
	s.persist(0)
	s.want(repair.ExitRepaired) // counted
	s.persist(0)
	s.buy(tea, "last", "u7", 1)
	s.move(stock.Release, "last", 1)
	s.persist(0)
	s.aged(100 * 24 * time.Hour)
	s.exec(`update reservation set moved = moved + interval '1 day' where order_id = 'last'`)
	if p := s.result("prune", "--plan").Prunings[0]; p.Attempts != 0 {
		t.Errorf("it would delete what Redis has: %+v", p) // nothing was forgotten yet
	}
	if code, out := s.run("prune", "--older-than", "24h"); code == 0 || !strings.Contains(out, "older_than") || !strings.Contains(out, "24h") {
		t.Errorf("what Redis may still know: %d %s", code, out)
	}
	if code, out := s.run("retain", "--retention", "10m"); code != 0 {
		t.Errorf("retain: %d %s", code, out)
	}
	doc := s.want(repair.ExitClean)
	if doc.Shards[0].Forgotten != 35 || s.records() != 0 {
		t.Errorf("%d records are left: %s", s.records(), text(doc))
	}
	if a := s.want(repair.ExitClean).Shards[0]; a.Forgotten != 0 || a.Audit.Orders != 0 {
		t.Errorf("%+v", a)
	}
	before := s.dump()
	plan := s.result("prune", "--plan")
	if s.dump() != before {
		t.Errorf("the plan changed something")
	}
	if p := plan.Prunings[0]; plan.Mode != "plan of prune" || plan.Exit != 0 || p.Attempts != 30 || p.Lines != 30 || !p.Planned {
		t.Errorf("%s", text(plan))
	}
	for _, again := range []int64{30, 0} {
		if p := s.result("prune").Prunings[0]; p.Attempts != again || p.Lines != again {
			t.Errorf("%+v", p)
		}
	}
	s.same(0, tea, "99|0|1")
	s.clean()
	if v := s.result("verify"); v.Exit != repair.ExitClean {
		t.Errorf("%s", text(v))
	}
	// An order that is gone begins anew, through a takeover, too.
	s.buy(tea, "o1", "u8", 2)
	check(t, s.rdb.FlushAll(t.Context()).Err())
	s.want(repair.ExitRepaired)
	s.buy(tea, "o1", "u8", 2)
	s.persist(0)
	s.clean()
	if _, out := s.run("prune"); !strings.Contains(out, "0 attempts of orders with 0 lines") {
		t.Errorf("%s", out)
	}
}

func TestRetentionsAndAgesOutOfBoundsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--retention", "9s"}, "10s to 720h"},
		{[]string{"--retention", "721h"}, "10s to 720h"},
		{[]string{"prune", "--older-than", "10m", "--retention", "10m"}, "above --retention, which is 10m"},
		{[]string{"prune", "--older-than", "0s"}, "above --retention"},
		{[]string{"prune", "--older-than", "87601h"}, "at most 87600h"},
		{[]string{"prune", "--shard=-2"}, "1023"},
	} {
		var settings Config
		_, err := config.ParseArgs(Name, Description, &settings, c.args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	for _, args := range [][]string{{}, {"--retention", "10s"}, {"--retention", "720h"}, {"prune", "--older-than", "11m", "--retention", "10m"}, {"prune"}} {
		var settings Config
		if _, err := config.ParseArgs(Name, Description, &settings, args, io.Discard); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestWhoServesForgetsAndSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	p := s.start("keeper", "--retention", "10m", "--audit-every", "200ms")
	s.opened(0, 0, soon)
	tea := s.sku("tea", 1000, 0)
	for i := range 50 {
		s.buy(tea, fmt.Sprint("o", i), "u7", 1)
		s.move(stock.Release, fmt.Sprint("o", i), 1)
	}
	s.buy(tea, "stays", "u7", 1)
	s.move(stock.Release, "stays", 1)
	s.persist(0)
	s.exec(`update reservation set moved = moved - interval '1 h' where order_id <> 'stays'`)
	sandboxtest.Eventually(t, soon, func() error {
		if n := s.records(); n != 2 { // the order that stays, and the opening of the SKU
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	sandboxtest.Eventually(t, soon, func() error {
		_, shown := p.get("/metrics")
		for _, want := range []string{"stockpipe_reconciler_forgotten_total 50", `stockpipe_reconciler_forget_backlog_seconds{shard="0"}`,
			`stockpipe_reconciler_uncounted_skus{shard="0"} 0`, `stockpipe_reconciler_audit_compared{shard="0",what="ended"} 1`} {
			if !strings.Contains(shown, want) {
				return fmt.Errorf("no %s in %s", want, shown)
			}
		}
		return nil
	})
}

func TestAStoryTellsOfResultsDocumentsAndLimits(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 100, 0)
	s.buy(tea, "o1", "u7", 6)
	s.limit(tea, 9)
	s.persist(0)
	if k := s.result("explain", "tea").Story.SKUs[0]; !strings.Contains(k.Limit, "9 a buyer; nobody has counted yet") {
		t.Errorf("%+v", k)
	}
	s.want(repair.ExitRepaired)
	s.do(0, stock.Operation{Kind: stock.Confirm, ID: "o1", Attempt: 1, Lines: stock.Lines{{SKU: tea, Now: 5}}}, stock.Accepted)
	s.persist(0)
	doc := s.document(ledger.NewDocument{ID: "f1", Kind: stock.DocumentFulfil, Order: ledger.DocumentOrder{ID: "o1"}, Lines: []stock.Line{{SKU: tea, Asked: 2}}})
	s.do(0, doc.Operation(), stock.Accepted)
	s.persist(0)
	story := s.result("explain", "o1").Story.Orders[0]
	for what, text := range map[string][2]string{
		"attempt":  {story.Attempts[0], "6 units asked, 3 to be shipped, 2 shipped"},
		"limit":    {strings.Join(story.Limits, ""), "buyer u7 has 5 of 9 by Postgres; 5 by Redis"},
		"document": {strings.Join(story.Papers, ""), "fulfil f1: applied"},
		"redis":    {story.Redis, "=6:3:2"},
	} {
		if !strings.Contains(text[0], text[1]) {
			t.Errorf("%s: no %q in %q", what, text[1], text[0])
		}
	}
	if d := s.result("explain", "f1").Story.Documents[0]; !strings.Contains(d.Standing, "of order o1, number 1") {
		t.Errorf("%+v", d)
	}
	_, out := s.run("explain", "tea")
	if !strings.Contains(out, "Redis counts what buyers have") {
		t.Errorf("%s", out)
	}
}

func TestLostChangesOfOrdersArePutBackFromRecords(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	for _, id := range []string{"longer", "other", "less", "some", "shipped", "cancelled"} {
		s.buy(tea, id, "u7", 5)
	}
	s.move(stock.Confirm, "shipped", 1)
	s.move(stock.Confirm, "cancelled", 1)
	s.persist(0)
	ship := s.document(ledger.NewDocument{ID: "f", Kind: stock.DocumentFulfil, Order: ledger.DocumentOrder{ID: "shipped"}, Lines: []stock.Line{{SKU: tea, Asked: 2}}})
	cancel := s.document(ledger.NewDocument{ID: "x", Kind: stock.DocumentCancel, Order: ledger.DocumentOrder{ID: "cancelled"}})
	known := len(s.log())
	now, err := s.rdb.Time(t.Context()).Result()
	check(t, err)
	of := func(kind stock.Kind, id string, lines ...stock.Line) stock.Operation {
		return stock.Operation{Kind: kind, ID: id, Attempt: 1, Lines: lines}
	}
	partial := s.order(mug, "partial", "u8", 500)
	partial.Partial = true
	for _, op := range []stock.Operation{
		{Kind: stock.Extend, ID: "longer", Attempt: 1, Until: now.Add(5 * time.Hour).UnixMilli()},
		of(stock.Replace, "other", stock.Line{SKU: tea, Asked: 1, Now: 1}, stock.Line{SKU: mug, Asked: 2, Now: 2}),
		of(stock.Release, "less", stock.Line{SKU: tea, Now: 2}), of(stock.Confirm, "some", stock.Line{SKU: tea, Now: 4}),
		ship.Operation(), cancel.Operation(), partial,
		{Kind: stock.Configure, ID: "~~shop", Lines: stock.Lines{{SKU: mug}}, Change: stock.Change{Opens: 77, Closed: stock.On, Limit: stock.Keep}},
		s.order(tea, "last", "u9", 1),
	} {
		s.do(0, op, stock.Accepted)
	}
	ids := s.log()
	s.lose(ids[known : len(ids)-1]...)
	s.filled(tea, mug)
	s.do(0, ship.Operation(), stock.Replayed)
}

// A document that may have been in the gap, and of which no record says so, makes what became of its order a guess.
func TestALostChangeThatMayHaveBeenADocumentIsNotGuessed(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.buy(tea, "o", "u7", 5)
	s.move(stock.Confirm, "o", 1)
	s.persist(0)
	cancel := s.document(ledger.NewDocument{ID: "x", Kind: stock.DocumentCancel, Order: ledger.DocumentOrder{ID: "o"}, Lines: []stock.Line{{SKU: tea, Asked: 2}}})
	s.do(0, cancel.Operation(), stock.Accepted)
	s.hold(0, "last", tea, 1, 600_000)
	ids := s.log()
	s.lose(ids[len(ids)-2])
	check(t, s.rdb.HDel(t.Context(), redisstock.NewKeys("sp", 0).Orders, "~x").Err())
	s.want(repair.ExitOperator)
	plan := s.result("gapfill", "--shard", "0", "--plan")
	if act := plan.Shards[0].Acts[0]; plan.Exit != repair.ExitOperator || act.Gap == nil || act.Gap.Proven || len(act.Gap.Doubts) == 0 {
		t.Errorf("plan: %s", text(plan))
	}
}
