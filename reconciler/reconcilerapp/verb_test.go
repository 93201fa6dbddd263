package reconcilerapp

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

func TestTheLedgerWinsWhereAnOperatorTypesRepair(t *testing.T) {
	t.Parallel()
	s, tea, mug := gapShop(t)
	s.hold(0, "a", tea, 2, 600_000)
	s.persist(0)
	s.setStock(tea, "120|2|0")
	s.want(repair.ExitOperator) // frozen
	s.persist(0)
	s.setStock(mug, "49|0|0")
	dump := s.dump()
	plan := s.result("repair", "--shard", "0", "--plan")
	if now := s.dump(); now != dump {
		t.Errorf("the plan changed something")
	}
	gives, thaws := 0, 0
	for _, a := range plan.Shards[0].Acts {
		if a.Verb == "takeover" && a.State == repair.Proposed && a.GivesUp == "what Redis has instead" {
			gives++
		}
		if a.Verb == "thaw" && a.SKU == tea {
			thaws++
		}
	}
	if plan.Exit != repair.ExitRepaired || plan.Mode != "plan of repair" || gives != 2 || thaws != 1 {
		t.Fatalf("plan: %s", text(plan))
	}
	doc := s.result("repair", "--shard", "0")
	if doc.Exit != repair.ExitClean || doc.Shards[0].Class != "healthy" {
		t.Fatalf("%s", text(doc))
	}
	s.persist(0)
	s.same(0, tea, "98|2|0")
	s.same(0, mug, "50|0|0")
	s.hold(0, "b", tea, 1, 600_000) // it sells again
	s.persist(0)
	s.clean()
}

func TestARepairThawsASKUThatWasPutRightByHand(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.setStock(tea, "99|0|0")
	s.want(repair.ExitOperator)
	s.persist(0)
	s.setStock(tea, "100|0|0|0|f|0") // by the hand that had changed it
	if doc := s.result("audit"); doc.Exit != repair.ExitOperator || !strings.Contains(text(doc), "frozen because") {
		t.Errorf("audit: %s", text(doc))
	}
	if doc := s.result("repair", "--shard", "0"); doc.Exit != repair.ExitClean {
		t.Fatalf("%s", text(doc))
	}
	s.persist(0)
	s.same(0, tea, "100|0|0")
	s.clean()
}

func TestAllShardsAreTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, 3)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 10, 1)
	s.persist(1)
	var before [3]int64
	for n := range before {
		before[n] = s.opened(n, 0, 0)
	}
	plan := s.result("takeover", "--all", "--plan")
	if plan.Exit != repair.ExitRepaired || len(plan.Shards) != 3 || plan.Shards[2].Acts[0].GivesUp == "" {
		t.Errorf("plan: %s", text(plan))
	}
	if epoch := s.opened(1, 0, 0); epoch != before[1] {
		t.Errorf("the plan took shard 1 over")
	}
	s.halt(2, "by hand")
	if doc := s.result("takeover", "--all"); doc.Exit != repair.ExitClean || len(doc.Shards) != 3 {
		t.Fatalf("%s", text(doc))
	}
	for n := range before {
		s.opened(n, before[n], 0)
		s.persist(n)
	}
	s.same(1, tea, "10|0|0")
	if doc := s.result("audit", "--every-order"); doc.Exit != repair.ExitClean || len(doc.Shards) != 3 || doc.Shards[1].Audit.SKUs != 1 {
		t.Errorf("%s", text(doc))
	}
}

func TestAPlanBesideAVerbSaysWhatItGivesUp(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	s.hold(0, "a", tea, 1, 600_000)
	s.hold(0, "b", tea, 1, 600_000)
	s.halt(0, "by hand")
	s.want(repair.ExitOperator)
	dump := s.dump()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"takeover", "--shard", "0"}, "gives up: 2 entries of the log"},
		{[]string{"retry", "--shard", "0"}, "gives up: nothing"},
		{[]string{"gapfill", "--shard", "0"}, "nothing is missing"},
		{[]string{"repair", "--shard", "0"}, "gives up: 2 entries of the log"},
	} {
		_, out := s.run(append(c.args, "--plan")...)
		if !strings.Contains(out, c.want) || !strings.Contains(out, "plan of "+c.args[0]) {
			t.Errorf("%v: %s", c.args, out)
		}
	}
	if now := s.dump(); now != dump {
		t.Errorf("a plan changed something:\n%s\n%s", dump, now)
	}
	if code, out := s.run("retry", "--shard", "0"); code != 0 {
		t.Errorf("%d %s", code, out)
	}
}

func TestVerbsThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"takeover"}, "exactly one"},
		{[]string{"takeover", "--shard", "1", "--all"}, "exactly one"},
		{[]string{"takeover", "--shard", "1024"}, "1023"},
		{[]string{"repair"}, "--shard"},
		{[]string{"repair", "--shard=-1"}, "1023"},
		{[]string{"gapfill"}, "--shard"},
		{[]string{"audit", "--shard=-2"}, "1023"},
		{[]string{"verify", "--at", "1-2"}, "1023"},
		{[]string{"verify", "--shard", "0", "--at", "x"}, "<epoch>-<seq>"},
		{[]string{"explain"}, "text"},
		{[]string{"explain", "a", "--limit", "0"}, "1 to 1000"},
	} {
		var settings Config
		_, err := config.ParseArgs(Name, Description, &settings, c.args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	s := newShop(t, 1)
	for _, args := range [][]string{{"audit", "--plan"}, {"verify", "--plan"}, {"explain", "a", "--plan"}, {"status", "--plan"}, {"takeover", "--shard", "0", "--once"}} {
		if code, _, errs := s.try(args...); code != exitFailed || !strings.Contains(errs, "leave") {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
	if code, out, errs := s.try("audit", "--shard", "5"); code != repair.ExitUnchecked || !strings.Contains(out+errs, "shards 0 to 0") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if code, out := s.run("explain", "nobody"); code != 0 || !strings.Contains(out, "nobody knows") {
		t.Errorf("%d %s", code, out)
	}
}

func TestAStoryHasAllAttemptsAndBothStores(t *testing.T) {
	t.Parallel()
	s, tea, _ := gapShop(t)
	both := s.sku("o1", 7, 0) // the text of an order is a SKU's, too
	s.hold(0, "o1", tea, 2, 600_000)
	s.move(stock.Release, "o1", 1)
	s.do(0, stock.Operation{Kind: stock.Reserve, ID: "o1", Attempt: 2, TTL: 600_000, Buyer: "u7", Lines: stock.Lines{{SKU: tea, Asked: 3, Now: 3}}}, stock.Accepted)
	s.paper("d1", tea, 5)
	s.persist(0)
	s.move(stock.Confirm, "o1", 2) // Postgres does not know it yet
	check(t, s.ledger.RecordOutcome(t.Context(), ledger.Outcome{Shard: 0, OrderID: "o1", Attempt: 1, Code: ledger.OutcomeLost}))
	doc := s.result("explain", "o1")
	if doc.Exit != 0 || len(doc.Story.Orders) != 1 || len(doc.Story.SKUs) != 1 || doc.Story.SKUs[0].SKU != both {
		t.Fatalf("%s", text(doc))
	}
	o := doc.Story.Orders[0]
	if len(o.Attempts) != 2 || len(o.Events) != 3 || len(o.Outcomes) != 1 || !strings.Contains(o.Attempts[0], "released") || !strings.Contains(o.Attempts[1], "held") ||
		!strings.Contains(o.Attempts[1], "(persisted)") || !strings.HasPrefix(o.Redis, "confirmed") || !strings.Contains(o.Redis, "(accepted)") {
		t.Errorf("%s", text(doc))
	}
	s.setStock(tea, "1|1|1")
	s.want(repair.ExitOperator)
	s.persist(0)
	k := s.result("explain", "tea", "--limit", "4").Story.SKUs[0]
	if len(k.Movements) != 4 || len(k.Documents) != 2 || len(k.Repairs) == 0 || k.Doubt == "" || !strings.HasPrefix(k.Redis, "1|1|1") || !strings.HasPrefix(k.Postgres, "102|0|3") {
		t.Errorf("%+v", k)
	}
	if !strings.Contains(k.Movements[0], "(+0 -3 +3) by C o1") {
		t.Errorf("movements %q", k.Movements)
	}
	code, out := s.run("explain", "o1", "--shard", "0")
	for _, want := range []string{"order o1 in shard 0", `SKU "o1"`, "in Redis", "attempt 2", "told"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

func TestWhoServesKeepsTheDigestsOfClosedEpochs(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	s.sku("tea", 10, 0)
	s.persist(0)
	if code, out := s.run("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	s.serve()
	sandboxtest.Eventually(t, 4*soon, func() error {
		closed, err := s.ledger.ClosedEpochs(t.Context(), 0)
		if err != nil {
			return err
		}
		for _, e := range closed {
			if e.Digest == "" {
				return fmt.Errorf("epoch %d has no digest", e.Epoch)
			}
		}
		return nil
	})
	if v := s.result("verify").Verifications[0]; v.New != 0 || v.Digests < 2 {
		t.Errorf("%+v", v)
	}
}
