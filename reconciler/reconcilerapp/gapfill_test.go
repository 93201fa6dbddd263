package reconcilerapp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// gapShop is an open shop whose consumers are down: what happens stands in the log only.
func gapShop(t *testing.T) (s *shop, tea, mug int64) {
	t.Helper()
	s = newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea, mug = s.sku("tea", 100, 0), s.sku("mug", 50, 0)
	s.persist(0)
	return s, tea, mug
}

// log is the ids of the log beyond Postgres.
func (s *shop) log() []string {
	s.t.Helper()
	row, err := s.ledger.Shard(s.t.Context(), 0)
	check(s.t, err)
	entries, err := s.rdb.XRange(s.t.Context(), redisstock.NewKeys("sp", 0).Log, "("+row.Position().String(), "+").Result()
	check(s.t, err)
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

// lose deletes entries of the log.
func (s *shop) lose(ids ...string) {
	s.t.Helper()
	n, err := s.rdb.XDel(s.t.Context(), redisstock.NewKeys("sp", 0).Log, ids...).Result()
	check(s.t, err)
	if int(n) != len(ids) {
		s.t.Fatalf("%d of %d entries deleted", n, len(ids))
	}
}

func (s *shop) move(kind stock.Kind, order string, attempt int64) {
	s.t.Helper()
	s.do(0, stock.Operation{Kind: kind, ID: order, Attempt: attempt}, stock.Accepted)
}

func (s *shop) sale(order string, sku, units int64) {
	s.t.Helper()
	s.do(0, stock.Operation{Kind: stock.Sale, ID: order, Attempt: 1, Buyer: "b." + order, Lines: stock.Lines{{SKU: sku, Asked: units, Now: units}}}, stock.Accepted)
}

// paper writes a document and moves it.
func (s *shop) paper(id string, sku, units int64) {
	s.t.Helper()
	doc, _, err := s.ledger.WriteDocument(s.t.Context(), ledger.NewDocument{
		ID: id, Kind: stock.DocumentAdjust, Reason: "test", Lines: []stock.Line{{SKU: sku, Asked: units}}, DeadlineMillis: s.deadline(),
	})
	check(s.t, err)
	s.do(0, doc.Operation(), stock.Accepted)
}

// expireDue lets the hold of an order end: Redis' clock has to agree.
func (s *shop) expireDue(order string) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, soon, func() error {
		out, err := s.desk.Do(s.t.Context(), 0, stock.Operation{Kind: stock.Expire, ID: order, Attempt: 1})
		if err != nil || out.Code != stock.Accepted {
			return fmt.Errorf("%v: %s", out.Code, fmt.Sprint(err))
		}
		return nil
	})
}

// orders is how every order stands in Redis, without its place in the log.
func (s *shop) orders() map[string]string {
	s.t.Helper()
	all, err := s.rdb.HGetAll(s.t.Context(), redisstock.NewKeys("sp", 0).Orders).Result()
	check(s.t, err)
	delete(all, "~")
	for id, text := range all {
		parts := strings.Split(text, "|")
		all[id] = strings.Join(slices.Delete(parts, 1, 2), "|")
	}
	return all
}

// filled repairs the gap and proves that nothing was lost.
func (s *shop) filled(skus ...int64) {
	s.t.Helper()
	before, states := s.orders(), map[int64]string{}
	for _, sku := range skus {
		states[sku] = s.state(0, sku)
	}
	if doc := s.want(repair.ExitOperator); doc.Shards[0].Acts[0].Class != "gap-lost" || !strings.Contains(doc.Shards[0].Acts[0].Remedy, "gapfill --shard 0") {
		s.t.Fatalf("no gap: %s", text(doc))
	}
	dump := s.dump()
	plan := s.result("gapfill", "--shard", "0", "--plan")
	if act := plan.Shards[0].Acts[0]; plan.Exit != repair.ExitRepaired || act.Gap == nil || !act.Gap.Proven || act.GivesUp != "nothing" {
		s.t.Fatalf("plan: %s", text(plan))
	}
	if now := s.dump(); now != dump {
		s.t.Errorf("the plan changed something:\n%s\n%s", dump, now)
	}
	doc := s.result("gapfill", "--shard", "0")
	if doc.Exit != repair.ExitClean || doc.Shards[0].Acts[0].State != repair.Done {
		s.t.Fatalf("gapfill: %s", text(doc))
	}
	s.persist(0)
	for id, was := range before {
		if now := s.orders()[id]; now != was {
			s.t.Errorf("%s was %s and is %s", id, was, now)
		}
	}
	for _, sku := range skus {
		s.same(0, sku, states[sku])
	}
	s.clean()
	for _, r := range s.repairs() {
		if r.Verb == "gapfill" && (r.Ended.IsZero() || !strings.Contains(string(r.Before), `"missing"`) || !strings.Contains(string(r.After), "entries were applied")) {
			s.t.Errorf("repair %+v", r)
		}
	}
}

// clean audits and verifies.
func (s *shop) clean() {
	s.t.Helper()
	if doc := s.result("audit", "--every-order"); doc.Exit != repair.ExitClean || !doc.Shards[0].Audit.Compared || len(doc.Shards[0].Acts) > 0 {
		s.t.Errorf("audit: %s", text(doc))
	}
	doc := s.result("verify")
	if doc.Exit != repair.ExitClean || !doc.Verifications[0].Whole || doc.Verifications[0].Images > 0 {
		s.t.Errorf("verify: %s", text(doc))
	}
}

func TestALostEntryInTheMiddleIsPutBackFromRecords(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	for i := range 6 {
		s.hold(0, fmt.Sprint("o", i), tea, int64(i+1), 600_000)
		s.sale(fmt.Sprint("s", i), mug, 1)
	}
	ids := s.log()
	s.lose(ids[5]) // a sale, and in truth perhaps others of its call
	s.filled(tea, mug)
	found, err := s.ledger.Lookup(t.Context(), "s2")
	check(t, err)
	if len(found) != 1 || found[0].Reservation.State != stock.Confirmed || found[0].Reservation.Buyer != "b.s2" {
		t.Errorf("%+v", found)
	}
	code, out := s.run("explain", "s2")
	if code != 0 || !strings.Contains(out, "(persisted)") || !strings.Contains(out, "confirmed") {
		t.Errorf("explain: %d %s", code, out)
	}
}

func TestALogTrimmedAbovePostgresIsPutBack(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	s.hold(0, "early", tea, 5, 600_000)
	s.persist(0)
	s.move(stock.Release, "early", 1) // in Postgres a hold, ended in the gap
	for i := range 8 {
		s.hold(0, fmt.Sprint("o", i), tea, 2, 600_000)
	}
	for i := range 4 {
		s.move(stock.Confirm, fmt.Sprint("o", i), 1)
	}
	s.sale("s", mug, 50)
	ids := s.log()
	check(t, s.rdb.XTrimMinID(t.Context(), redisstock.NewKeys("sp", 0).Log, ids[10]).Err())
	s.filled(tea, mug)
}

func TestAReserveLostBeforeItsConfirmIsPutBack(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	s.hold(0, "a", tea, 7, 600_000)
	s.do(0, stock.Operation{Kind: stock.Reserve, ID: "b", Attempt: 1, TTL: 60_000, Buyer: "bo", Lines: stock.Lines{{SKU: tea, Asked: 1, Now: 1}, {SKU: mug, Asked: 2, Now: 2}}}, stock.Accepted)
	s.hold(0, "c", mug, 1, 600_000)
	s.move(stock.Confirm, "a", 1)
	s.move(stock.Release, "b", 1)
	ids := s.log()
	s.lose(ids[0], ids[1])
	s.filled(tea, mug)
}

func TestDocumentsInAGapAreSettled(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.paper("d1", tea, 40)
	s.paper("d2", tea, -15)
	salt := s.sku("salt", 9, 0) // a SKU whose opening is lost
	s.hold(0, "a", tea, 110, 600_000)
	s.hold(0, "b", salt, 4, 600_000)
	s.hold(0, "z", salt, 1, 600_000)
	ids := s.log()
	s.lose(ids[0], ids[1], ids[2], ids[3])
	s.filled(tea, salt)
	for _, id := range []string{"d1", "d2"} {
		doc, err := s.ledger.Document(t.Context(), id)
		check(t, err)
		if doc.State != ledger.DocumentApplied {
			t.Errorf("%+v", doc)
		}
	}
	if code, out := s.run("explain", "d1"); code != 0 || !strings.Contains(out, "applied") {
		t.Errorf("explain: %d %s", code, out)
	}
}

func TestOrdersThatEndedInAGapAreReconstructed(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	s.hold(0, "e1", tea, 3, 1000)
	s.hold(0, "late", tea, 2, 1000)
	s.persist(0)
	s.hold(0, "e2", tea, 4, 1000)
	s.hold(0, "again", mug, 1, 600_000)
	for _, id := range []string{"e1", "e2", "late"} {
		s.expireDue(id)
	}
	s.do(0, stock.Operation{Kind: stock.LateConfirm, ID: "late", Attempt: 1}, stock.Accepted)
	s.move(stock.Release, "again", 1)
	s.do(0, stock.Operation{Kind: stock.Reserve, ID: "again", Attempt: 2, TTL: 600_000, Lines: stock.Lines{{SKU: mug, Asked: 5, Now: 5}}}, stock.Accepted)
	s.hold(0, "after", mug, 1, 600_000)
	ids := s.log()
	s.lose(ids[:len(ids)-1]...)
	s.filled(tea, mug)
}

func TestTheFirstEntriesOfAnEpochArePutBack(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	if code, out := s.run("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	s.hold(0, "a", tea, 1, 600_000)
	s.hold(0, "b", mug, 1, 600_000)
	ids := s.log()
	s.lose(ids[0], ids[1])
	s.filled(tea, mug)
}

func TestTwoGapsArePutBackEachInItsPlace(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	for i := range 6 {
		s.hold(0, fmt.Sprint("o", i), tea, int64(i+1), 600_000)
	}
	s.sale("s", mug, 1)
	ids := s.log()
	s.lose(ids[1], ids[4])
	s.filled(tea, mug)
}

func TestAGapThatNobodyCanExplainIsRefusedUnlessTheLossIsAccepted(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.hold(0, "a", tea, 3, 600_000)
	s.hold(0, "b", tea, 2, 600_000)
	s.hold(0, "c", tea, 1, 600_000)
	lost := s.log()[1]
	s.lose(lost)
	check(t, s.rdb.HDel(t.Context(), redisstock.NewKeys("sp", 0).Orders, "b").Err())
	doc := s.result("gapfill", "--shard", "0")
	if act := doc.Shards[0].Acts[len(doc.Shards[0].Acts)-1]; doc.Exit != repair.ExitOperator || act.Gap == nil || act.Gap.Proven ||
		len(act.Gap.Unexplained) != 1 || act.Gap.Unexplained[0].Available != -2 || act.Gap.Unexplained[0].Held != 2 || !strings.Contains(act.Remedy, "--accept-loss") {
		t.Fatalf("%s", text(doc))
	}
	row, err := s.ledger.Shard(t.Context(), 0)
	check(t, err)
	if row.State != ledger.StateHalted {
		t.Errorf("%+v", row)
	}
	doc = s.result("gapfill", "--shard", "0", "--accept-loss")
	if doc.Exit != repair.ExitClean || !strings.Contains(doc.Shards[0].Acts[0].Text, "-2 available, +2 held") || !strings.Contains(doc.Shards[0].Acts[0].GivesUp, "2 entries") {
		t.Fatalf("%s", text(doc))
	}
	at, err := stock.ParsePosition(lost)
	check(t, err)
	standing, err := s.ledger.Standing(t.Context(), stock.Receipt{Position: at})
	check(t, err)
	if standing != stock.StandingLost {
		t.Errorf("the lost entry is %s", standing)
	}
	s.persist(0)
	s.clean()
	if code, out := s.run("explain", "c"); code != 0 || !strings.Contains(out, "given up") || !strings.Contains(out, "answered lost") {
		t.Errorf("explain: %d %s", code, out)
	}
}

func TestAGapfillWhereNothingIsMissingChangesNothing(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.hold(0, "a", tea, 3, 600_000)
	before := len(s.repairs())
	for range 2 {
		if doc := s.result("gapfill", "--shard", "0"); doc.Exit != repair.ExitClean || !strings.Contains(doc.Shards[0].Acts[0].Text, "nothing is missing") {
			t.Fatalf("%s", text(doc))
		}
	}
	s.halt(0, "by hand")
	if doc := s.result("gapfill", "--shard", "0"); doc.Exit != repair.ExitOperator || !strings.Contains(text(doc), "halted for another reason") {
		t.Fatalf("%s", text(doc))
	}
	if now := len(s.repairs()); now != before+1 { // the fence
		t.Errorf("repairs %+v", s.repairs()[before:])
	}
	if code, out := s.run("retry", "--shard", "0"); code != 0 {
		t.Errorf("retry: %d %s", code, out)
	}
	s.persist(0)
	s.clean()
}

func TestAFilledGapIsAnsweredByItsReceipts(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	out := s.do(0, stock.Operation{Kind: stock.Reserve, ID: "a", Attempt: 1, TTL: 600_000, Lines: stock.Lines{{SKU: tea, Asked: 1, Now: 1}}}, stock.Accepted)
	s.hold(0, "b", tea, 1, 600_000)
	s.lose(s.log()[0])
	s.filled(tea)
	standing, err := s.ledger.Standing(t.Context(), out.Receipt)
	check(t, err)
	if standing != stock.StandingPersisted {
		t.Errorf("the receipt is %s", standing)
	}
	due, err := s.ledger.OpenHolds(t.Context(), 0, tea, 10)
	check(t, err)
	if len(due) != 2 || time.Until(due[0].Due) > 11*time.Minute || time.Until(due[0].Due) < 8*time.Minute {
		t.Errorf("%+v", due)
	}
}
