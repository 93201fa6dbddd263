package reconcilerapp

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

const soon = 20 * time.Second

func TestAFreshInstallationOpensByOnePassAndIsCleanAfterIt(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	doc := s.want(repair.ExitRepaired)
	for n, shard := range doc.Shards {
		if len(shard.Acts) != 1 || shard.Acts[0].Verb != "takeover" || shard.Acts[0].Class != "missing" || shard.Acts[0].State != repair.Done {
			t.Errorf("shard %d: %+v", n, shard.Acts)
		}
		s.opened(n, 0, 0)
	}
	if len(s.repairs()) != 2 {
		t.Errorf("repairs %+v", s.repairs())
	}
	sku := s.sku("tea", 10, 0)
	s.hold(0, "o1", sku, 3, 60_000)
	s.want(repair.ExitClean) // with a log that nobody has persisted
	s.persist(0)
	s.want(repair.ExitClean)
	for range 2 { // --once of a clean system changes nothing but the turn
		before := s.dump()
		doc := s.want(repair.ExitClean)
		if a := doc.Shards[0].Audit; !a.Compared || a.SKUs != 1 || a.Orders == 0 {
			t.Errorf("audit %+v", a)
		}
		if after := s.dump(); without(before, "turn") != without(after, "turn") {
			t.Errorf("a clean pass changed something:\n%s\n%s", before, after)
		}
	}
	if code, out := s.run("once"); code != 0 || !strings.Contains(out, "once: clean (exit 0)") {
		t.Errorf("the command once: %d %s", code, out)
	}
	if len(s.repairs()) != 2 {
		t.Errorf("repairs %+v", s.repairs())
	}
}

// without leaves a table out of a dump.
func without(dump, table string) string {
	lines, skip := []string{}, false
	for _, line := range strings.Split(dump, "\n") {
		if !strings.HasPrefix(line, "(") && line != "" {
			skip = line == table
		}
		if !skip {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func TestServeOpensAFlushedAndARestartedRedisAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.serve()
	epoch := s.opened(0, 0, soon)
	s.consume()
	sku := s.sku("tea", 10, 0)
	s.hold(0, "o1", sku, 3, 600_000)
	s.eventually("7|3|0", sku)

	check(t, s.rdb.FlushAll(t.Context()).Err())
	epoch = s.opened(0, epoch, soon)
	s.eventually("7|3|0", sku)
	s.hold(0, "o2", sku, 1, 600_000)
	s.eventually("6|4|0", sku)

	check(t, s.server.Restart(t.Context()))
	epoch = s.opened(0, epoch, soon)
	s.eventually("6|4|0", sku)

	// Somebody moves the sequence back by hand: the state is not what the process remembers.
	check(t, s.rdb.HSet(t.Context(), redisstock.NewKeys("sp", 0).State, "n", "somebody").Err())
	epoch = s.opened(0, epoch, soon)
	check(t, s.rdb.Del(t.Context(), redisstock.NewKeys("sp", 0).Orders).Err())
	s.opened(0, epoch, soon)
	s.eventually("6|4|0", sku)
	sandboxtest.Eventually(t, soon, func() error {
		classes := map[string]int{}
		for _, r := range s.repairs() {
			classes[r.Class+" "+r.Verb]++
			if r.Ended.IsZero() || len(r.Before) < 10 || len(r.After) < 10 {
				return fmt.Errorf("repair without evidence: %+v", r)
			}
		}
		if classes["missing takeover"] < 2 || classes["torn takeover"] < 2 {
			return fmt.Errorf("repairs %v", classes)
		}
		return nil
	})
	s.want(repair.ExitClean) // while the other has the turn
}

// eventually waits until both stores say so of shard 0.
func (s *shop) eventually(want string, sku int64) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, soon, func() error {
		stocks, err := s.ledger.Stocks(s.t.Context(), []int64{sku})
		if err != nil {
			return err
		}
		q := stocks[sku].Quantities
		if in, pg := s.state(0, sku), fmt.Sprintf("%d|%d|%d", q.Available, q.Held, q.Committed); in != want || pg != want {
			return fmt.Errorf("Redis has %s, Postgres %s, want %s", in, pg, want)
		}
		return nil
	})
}

func TestHoldsEndOnceWhateverTheNumberOfReconcilers(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	s.consume()
	sku := s.sku("tea", 1000, 0)
	for i := range 100 {
		s.hold(0, fmt.Sprint("o", i), sku, 1, 1000)
	}
	s.hold(0, "long", sku, 1, 600_000)
	s.eventually("899|101|0", sku)
	for range 3 {
		s.serve()
	}
	s.eventually("999|1|0", sku)
	s.want(repair.ExitClean)
	s.eventually("999|1|0", sku)
	log, err := s.rdb.XRange(t.Context(), redisstock.NewKeys("sp", 0).Log, "-", "+").Result()
	check(t, err)
	ended := 0
	for _, entry := range log {
		if ops := fmt.Sprint(entry.Values["o"]); strings.HasPrefix(ops, "E") {
			ended += strings.Count(ops, " ")
		}
	}
	if ended != 100 {
		t.Errorf("%d holds ended in the log", ended)
	}
}

func TestPassesSideBySideEndEachHoldOnceAndAreClean(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 1000, 0)
	for i := range 100 {
		s.hold(0, fmt.Sprint("o", i), sku, 1, 1000)
	}
	s.persist(0)
	sandboxtest.Eventually(t, soon, func() error { // due by both clocks
		if n, err := s.ledger.Overdue(t.Context(), 0, 0); err != nil || n < 100 {
			return fmt.Errorf("%d due, %s", n, fmt.Sprint(err))
		}
		return nil
	})
	var wait sync.WaitGroup
	expired := make([]int, 3)
	for i := range expired {
		wait.Go(func() {
			doc := s.result("--once")
			if expired[i] = doc.Shards[0].Expired; doc.Exit != repair.ExitClean {
				t.Errorf("exit %d: %s", doc.Exit, text(doc))
			}
		})
	}
	wait.Wait()
	if sum := expired[0] + expired[1] + expired[2]; sum != 100 {
		t.Errorf("expired %v", expired)
	}
	s.persist(0)
	s.same(0, sku, "1000|0|0")
}

func TestADocumentThatWasWrittenAndNotMovedIsMovedOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 10, 0)
	s.persist(0)
	write := func(id string, deadline int64) ledger.Document {
		doc, _, err := s.ledger.WriteDocument(t.Context(), ledger.NewDocument{
			ID: id, Kind: stock.DocumentReceive, Reason: "delivery", Lines: []stock.Line{{SKU: sku, Asked: 5}}, DeadlineMillis: deadline,
		})
		check(t, err)
		return doc
	}
	// The sender died between the write and the call; beyond one's deadline; and after one's call, which nobody persisted.
	write("lost-1", s.deadline())
	late := write("late-1", 1)
	sent := write("sent-1", s.deadline())
	s.do(0, sent.Operation(), stock.Accepted)
	s.exec(`update stock_document set written = now() - interval '1 minute'`)
	doc := s.want(repair.ExitClean)
	if doc.Shards[0].Documents != 2 {
		t.Errorf("finished %d", doc.Shards[0].Documents)
	}
	s.want(repair.ExitClean)
	// The sender comes back after its deadline.
	out, err := s.desk.Do(t.Context(), 0, late.Operation())
	check(t, err)
	if out.Code != stock.Replayed {
		t.Errorf("the late sender was answered %s", out.Code)
	}
	s.persist(0)
	s.same(0, sku, "25|0|0")
	for _, id := range []string{"lost-1", "late-1", "sent-1"} {
		if d, err := s.ledger.Document(t.Context(), id); err != nil || d.State != ledger.DocumentApplied {
			t.Errorf("%s is %s, %v", id, d.State, err)
		}
	}
	if len(s.repairs()) != 3 {
		t.Errorf("repairs %+v", s.repairs())
	}
}

func TestADocumentInTheLogIsNotGivenANewDeadline(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	sku := s.sku("tea", 10, 0)
	s.persist(0)
	doc, _, err := s.ledger.WriteDocument(t.Context(), ledger.NewDocument{
		ID: "d1", Kind: stock.DocumentReceive, Reason: "delivery", Lines: []stock.Line{{SKU: sku, Asked: 5}}, DeadlineMillis: s.deadline(),
	})
	check(t, err)
	s.do(0, doc.Operation(), stock.Accepted)
	// Its record is gone and its deadline is over, but its entry is on its way.
	check(t, s.rdb.HDel(t.Context(), redisstock.NewKeys("sp", 0).Orders, "~d1").Err())
	s.exec(`update stock_document set deadline_ms = 1, written = now() - interval '1 minute' where id = 'd1'`)
	s.result("--once")
	s.persist(0)
	if got := s.state(0, sku); !strings.HasPrefix(got, "15|0|0") {
		t.Errorf("moved twice: %s", got)
	}
}

func TestAPlanChangesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	plan := func(exit int, verb string) repair.Report {
		t.Helper()
		before := s.dump()
		doc := s.result("--plan")
		if after := s.dump(); after != before {
			t.Errorf("the plan changed something:\n%s\n%s", before, after)
		}
		if doc.Exit != exit {
			t.Fatalf("exit %d, want %d: %s", doc.Exit, exit, text(doc))
		}
		if verb != "" && (len(doc.Shards[0].Acts) == 0 || doc.Shards[0].Acts[0].Verb != verb) {
			t.Errorf("want %s: %s", verb, text(doc))
		}
		return doc.Shards[0]
	}
	plan(repair.ExitRepaired, "takeover") // never opened
	s.want(repair.ExitRepaired)
	plan(repair.ExitClean, "")
	sku := s.sku("tea", 10, 0)
	s.persist(0)
	s.hold(0, "o1", sku, 1, 60_000)
	plan(repair.ExitClean, "")
	s.setStock(sku, "16|1|0")
	if act := plan(repair.ExitOperator, "freeze").Acts[0]; act.Redis != "16|1|0" || act.Postgres != "9|1|0" {
		t.Errorf("figures: %+v", act)
	}
	check(t, s.server.Restart(t.Context()))
	if act := plan(repair.ExitRepaired, "takeover").Acts[0]; act.Class != "unopened" || act.GivesUp != "nothing that the log still has" {
		t.Errorf("%+v", act)
	}
	check(t, s.rdb.FlushAll(t.Context()).Err())
	if act := plan(repair.ExitRepaired, "takeover").Acts[0]; act.Class != "missing" || act.GivesUp == "" {
		t.Errorf("%+v", act)
	}
}

// setStock is somebody's hand.
func (s *shop) setStock(sku int64, text string) {
	s.t.Helper()
	check(s.t, s.rdb.HSet(s.t.Context(), redisstock.NewKeys("sp", 0).State, fmt.Sprint(sku), text).Err())
}

func TestTamperedSKUsAreFrozenAndNamedOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea, mug, pot := s.sku("tea", 100, 0), s.sku("mug", 50, 0), s.sku("pot", 5, 0)
	s.persist(0)
	s.setStock(tea, "107|0|0")
	s.setStock(mug, "43|0|0")
	doc := s.want(repair.ExitOperator)
	want := map[string][3]string{
		"tea": {fmt.Sprintf("sp:{0}:state field %d", tea), "107|0|0", "100|0|0"},
		"mug": {fmt.Sprintf("sp:{0}:state field %d", mug), "43|0|0", "50|0|0"},
	}
	if len(doc.Shards[0].Acts) != len(want) {
		t.Errorf("acts: %s", text(doc))
	}
	for _, a := range doc.Shards[0].Acts {
		if got := [3]string{a.Key, a.Redis, a.Postgres}; got != want[a.Name] || a.Verb != "freeze" || a.Repair == 0 {
			t.Errorf("%s: %+v", a.Name, a)
		}
	}
	for sku, text := range map[int64]string{tea: "107|0|0|0|f|0", mug: "43|0|0|0|f|0"} {
		if got := s.state(0, sku); got != text {
			t.Errorf("Redis has %s, want %s", got, text)
		}
		s.do(0, stock.Operation{Kind: stock.Reserve, ID: fmt.Sprint("f", sku), Attempt: 1, TTL: 60_000, Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}}, stock.FrozenSKU)
	}
	s.hold(0, "p1", pot, 1, 60_000) // what is not in doubt goes on
	repairs := len(s.repairs())
	if repairs != 3 {
		t.Errorf("repairs %+v", s.repairs())
	}
	s.want(repair.ExitOperator)
	s.persist(0)
	s.want(repair.ExitOperator)
	if len(s.repairs()) != repairs {
		t.Errorf("repaired again: %+v", s.repairs())
	}
	if _, out := s.run("once"); !strings.Contains(out, "sp:{0}:state field") || !strings.Contains(out, "107|0|0") || !strings.Contains(out, "100|0|0") {
		t.Errorf("the text does not name it: %s", out)
	}
	// The operator decides for the ledger.
	if code, out := s.run("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("takeover: %d %s", code, out)
	}
	s.persist(0)
	s.same(0, tea, "100|0|0")
	s.same(0, mug, "50|0|0")
	s.same(0, pot, "4|1|0")
	s.hold(0, "t1", tea, 1, 60_000)
	s.want(repair.ExitClean)
}

func TestLedgerWinsRepairsOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea, mug := s.sku("tea", 100, 0), s.sku("mug", 50, 0)
	s.persist(0)
	s.hold(0, "o1", tea, 1, 60_000)
	s.setStock(tea, "106|1|0")
	s.setStock(mug, "43|0|0")
	s.hold(0, "o2", tea, 1, 60_000) // its after-image disagrees
	s.persist(0)
	doc := s.want(repair.ExitRepaired, "--on-tampered", "ledger-wins")
	if acts := doc.Shards[0].Acts; len(acts) != 3 || acts[0].Verb != "takeover" || acts[2].Verb != "thaw" {
		t.Errorf("acts: %s", text(doc))
	}
	s.persist(0)
	s.same(0, tea, "98|2|0")
	s.same(0, mug, "50|0|0")
	s.want(repair.ExitClean, "--on-tampered", "ledger-wins")
	s.hold(0, "o3", tea, 1, 60_000)
}

func TestServeFreezesWhatIsTamperedWithAndOthersSellOn(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.serve("--audit-every", "200ms")
	s.opened(0, 0, soon)
	s.consume()
	tea := s.sku("tea", 100, 0)
	s.eventually("100|0|0", tea)
	s.setStock(tea, "93|0|0")
	sandboxtest.Eventually(t, soon, func() error {
		if got := s.state(0, tea); got != "93|0|0|0|f|0" {
			return errors.New(got)
		}
		return nil
	})
	s.want(repair.ExitOperator) // it waits for the turn for as long as it lasts, and looks; meanwhile fifty audits went by
	frozen := 0
	for _, r := range s.repairs() {
		if r.Class == "tampered" {
			frozen++
		}
	}
	if frozen != 1 {
		t.Errorf("repairs %+v", s.repairs())
	}
}

func TestARecordThatIsTamperedWithIsNamedAndItsSKUFrozen(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 100, 0)
	s.hold(0, "o1", tea, 2, 60_000)
	s.persist(0)
	check(t, s.rdb.HDel(t.Context(), redisstock.NewKeys("sp", 0).Orders, "o1").Err())
	doc := s.want(repair.ExitOperator)
	if acts := doc.Shards[0].Acts; len(acts) != 1 || acts[0].Key != "sp:{0}:orders field o1" || acts[0].Redis != "" || acts[0].Postgres == "" {
		t.Errorf("acts: %s", text(doc))
	}
	if got := s.state(0, tea); got != "98|2|0|0|f|0" {
		t.Errorf("Redis has %s", got)
	}
}

func TestALostEntryHaltsTheShardUntilAnOperatorTakesItOver(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea := s.sku("tea", 100, 0)
	s.persist(0)
	s.hold(0, "o1", tea, 1, 60_000)
	s.hold(0, "o2", tea, 1, 60_000)
	log := redisstock.NewKeys("sp", 0).Log
	entries, err := s.rdb.XRange(t.Context(), log, "-", "+").Result()
	check(t, err)
	check(t, s.rdb.XDel(t.Context(), log, entries[len(entries)-2].ID).Err())
	doc := s.want(repair.ExitOperator)
	if act := doc.Shards[0].Acts[0]; act.Class != "gap-lost" || act.Verb != "halt" || act.Remedy == "" {
		t.Errorf("%+v", act)
	}
	for range 2 {
		doc = s.want(repair.ExitOperator)
		if act := doc.Shards[0].Acts[0]; act.Class != "halted" || !strings.Contains(act.GivesUp, "1 entries") {
			t.Errorf("%+v", act)
		}
	}
	_, err = s.desk.Do(t.Context(), 0, stock.Operation{Kind: stock.Release, ID: "o1", Attempt: 1})
	if !redisstock.IsClosed(err) {
		t.Errorf("a halted shard answers %v", err)
	}
	code, out := s.run("takeover", "--shard", "0")
	if code != 0 || !strings.Contains(out, "gives up: 1 entries") {
		t.Errorf("takeover: %d %s", code, out)
	}
	s.persist(0)
	s.same(0, tea, "100|0|0")
	s.want(repair.ExitClean)
}

func TestAnotherLedgersRedisIsRefusedUnlessAdopted(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.want(repair.ExitRepaired)
	other := newShop(t, 1)
	other.exec(`update ledger set id = 'another'`) // copies of one template have one id
	code, out := s.run("--once", "--postgres-url", other.url)
	if code != repair.ExitOperator || !strings.Contains(out, "takeover --shard 0 --adopt") {
		t.Errorf("foreign: %d %s", code, out)
	}
	if code, out := s.run("--plan", "--postgres-url", other.url); code != repair.ExitOperator {
		t.Errorf("foreign: %d %s", code, out)
	}
	if code, out := s.run("takeover", "--shard", "0", "--postgres-url", other.url); code != repair.ExitOperator {
		t.Errorf("not adopted: %d %s", code, out)
	}
	s.want(repair.ExitClean)
	if code, out := s.run("takeover", "--shard", "0", "--adopt", "--postgres-url", other.url); code != 0 {
		t.Errorf("adopted: %d %s", code, out)
	}
	s.want(repair.ExitOperator)
}

func TestAStandbyTakesTheTurnWhenItsHolderStops(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	first := s.serve("--reconciler-id", "first")
	epoch := s.opened(0, 0, soon)
	s.serve("--reconciler-id", "second")
	check(t, first())
	check(t, s.rdb.FlushAll(t.Context()).Err())
	s.opened(0, epoch, soon)
	repairs := s.repairs()
	if last := repairs[len(repairs)-1]; last.By != "second" {
		t.Errorf("%+v", last)
	}
}

func TestADeadHoldersTurnPasses(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	has, err := s.ledger.TakeTurn(t.Context(), 0, "dead", 3*time.Second)
	check(t, err)
	if !has {
		t.Fatal("no turn")
	}
	s.want(repair.ExitRepaired) // after the turn's end
}

func TestAPassWithoutTheTurnOnlyLooks(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	keep := func() {
		if has, err := s.ledger.TakeTurn(t.Context(), 0, "another", ledger.DefaultTurnTTL); err != nil || !has {
			t.Errorf("the other reconciler lost its turn: %v", err)
		}
	}
	keep()
	over, kept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(kept)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				keep()
			case <-over:
				return
			}
		}
	}()
	doc := s.result("--once")
	close(over)
	<-kept
	if doc.Exit != repair.ExitUnchecked {
		t.Fatal(text(doc))
	}
	if act := doc.Shards[0].Acts[0]; act.State != repair.Left {
		t.Errorf("%+v", act)
	}
	if n := s.rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
}

func TestWhatCannotBeUsedIsNamedWithItsRemedy(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	empty := sandboxtest.Database(t, nil)
	for _, c := range []struct {
		fact string
		args []string
		code int
		want string
	}{
		{"no schema", []string{"--once", "--postgres-url", empty}, repair.ExitUnchecked, "stockpipe-reconciler migrate"},
		{"no shards", []string{"--once"}, repair.ExitUnchecked, "stockpipe-reconciler init"},
		{"no shards", []string{"serve"}, exitFailed, "stockpipe-reconciler init"},
		{"init", []string{"init", "--shards", "2"}, exitDone, "2 shards"},
		{"init again", []string{"init", "--shards", "2"}, exitDone, "2 shards"},
		{"another number", []string{"init", "--shards", "3"}, exitFailed, "made with 2"},
		{"mixed up", []string{"init", "--once"}, exitFailed, "stand alone"},
		{"migrate again", []string{"migrate"}, exitDone, "schema version"},
		{"no Redis", []string{"--once", "--redis-url", "redis://127.0.0.1:1/0"}, repair.ExitUnchecked, "correct --redis-url"},
		{"no Redis", []string{"serve", "--redis-url", "redis://127.0.0.1:1/0"}, exitFailed, "correct --redis-url"},
		{"no Postgres", []string{"--once", "--json", "--postgres-url", "postgres://127.0.0.1:1/x"}, repair.ExitUnchecked, `"result": "unchecked"`},
		{"unknown shard", []string{"takeover", "--shard", "7"}, repair.ExitUnchecked, "shards 0 to 1"},
		{"status", []string{"status"}, exitDone, "empty, fence absent"},
	} {
		code, out, errs := s.try(c.args...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: %d %s%s", c.fact, code, out, errs)
		}
	}
	check(t, s.rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	code, _, errs := s.try("--once")
	if code != repair.ExitUnchecked || !strings.Contains(errs, "CONFIG SET maxmemory-policy noeviction") {
		t.Errorf("eviction: %d %s", code, errs)
	}
	if code, out, errs := s.try("--once", "--unsafe-eviction"); code != repair.ExitRepaired {
		t.Errorf("unsafe: %d %s%s", code, out, errs)
	}
}

func TestBothSpellingsOfOnceMeanTheSame(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--once"}, {"once"}, {"once", "--json"}, {"--plan"}, {"once", "--plan"}, {}, {"serve"}} {
		var c Config
		command, err := config.ParseArgs(Name, Description, &c, args, io.Discard)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		once := command == "once" || c.Once || c.Plan
		if want := len(args) > 0 && args[0] != "serve"; once != want {
			t.Errorf("%v: command %q, %+v", args, command, c)
		}
	}
}

func TestProducersThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	gone := func() {
		s.exec(`insert into producer (id, libraries, seen) values ('gone', '{1}', now() - interval '2 hours'), ('here', '{1}', now())
on conflict (id) do update set seen = excluded.seen`)
	}
	left := func() string {
		all, err := s.ledger.Producers(t.Context(), 24*time.Hour)
		check(t, err)
		var ids []string
		for _, one := range all {
			ids = append(ids, one.ID)
		}
		return strings.Join(ids, " ")
	}
	gone()
	s.result("--plan")
	if got := left(); got != "gone here" {
		t.Errorf("a plan leaves %q", got)
	}
	s.want(repair.ExitRepaired)
	if got := left(); got != "here" {
		t.Errorf("a pass leaves %q", got)
	}
	gone()
	s.serve()
	sandboxtest.Eventually(t, soon, func() error {
		if got := left(); got != "here" {
			return fmt.Errorf("serving leaves %q", got)
		}
		return nil
	})
}
