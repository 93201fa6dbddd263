package reconcilerapp

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// historyShop has three epochs of history, the last one open, with every kind of ending.
func historyShop(t *testing.T) (s *shop, tea int64) {
	t.Helper()
	s = newShop(t, 1)
	s.want(repair.ExitRepaired)
	tea = s.sku("tea", 1000, 0)
	mug := s.sku("mug", 20, 0)
	for round := range 3 {
		for i := range 10 {
			id := fmt.Sprintf("o%d.%d", round, i)
			ttl := int64(600_000)
			if i == 4 || i == 5 {
				ttl = 1000
			}
			s.hold(0, id, tea, int64(i+1), ttl)
			switch i {
			case 1:
				s.move(stock.Confirm, id, 1)
			case 2, 3:
				s.move(stock.Release, id, 1)
			}
		}
		s.expireDue(fmt.Sprintf("o%d.4", round))
		s.expireDue(fmt.Sprintf("o%d.5", round))
		s.do(0, stock.Operation{Kind: stock.LateConfirm, ID: fmt.Sprintf("o%d.5", round), Attempt: 1}, stock.Accepted)
		s.do(0, stock.Operation{Kind: stock.Reserve, ID: fmt.Sprintf("o%d.3", round), Attempt: 2, TTL: 60_000, Lines: stock.Lines{{SKU: tea, Asked: 1, Now: 1}}}, stock.Accepted)
		s.sale(fmt.Sprintf("s%d", round), mug, 2)
		s.paper(fmt.Sprintf("d%d", round), tea, -7)
		s.persist(0)
		if round < 2 {
			if code, out := s.run("takeover", "--shard", "0"); code != 0 {
				t.Fatalf("%d %s", code, out)
			}
			s.persist(0)
		}
	}
	return s, tea
}

func TestAHistoryVerifiesAndItsDigestsStay(t *testing.T) {
	t.Parallel()
	s, _ := historyShop(t)
	first := s.result("verify").Verifications[0]
	if !first.Whole || len(first.Flaws) > 0 || first.Available+first.Held+first.Committed != 1020-21 || first.Moved != 1020-21 || first.New < 2 || first.Open == 0 {
		t.Fatalf("%+v", first)
	}
	second := s.result("verify", "--shard", "0").Verifications[0]
	if second.New != 0 || second.Digests != first.Digests || second.Events != first.Events {
		t.Errorf("%+v then %+v", first, second)
	}
	code, out := s.run("verify")
	if code != 0 || !strings.Contains(out, "999 that documents brought") || !strings.Contains(out, "verify: clean") {
		t.Errorf("%d %s", code, out)
	}
}

func TestAHistoryVerifiesAtAnyOfItsPositions(t *testing.T) {
	t.Parallel()
	s, _ := historyShop(t)
	closed, err := s.ledger.ClosedEpochs(t.Context(), 0)
	check(t, err)
	for _, e := range closed {
		for _, seq := range []int64{1, e.LastSeq / 2, e.LastSeq} {
			if seq < 1 || seq > e.LastSeq {
				continue
			}
			doc := s.result("verify", "--shard", "0", "--at", fmt.Sprintf("%d-%d", e.Epoch, seq))
			v := doc.Verifications[0]
			if doc.Exit != repair.ExitClean || v.Whole || v.Available+v.Held+v.Committed != v.Moved || v.At != fmt.Sprintf("%d-%d", e.Epoch, seq) {
				t.Errorf("%s", text(doc))
			}
		}
	}
	doc := s.result("verify", "--shard", "0", "--at", fmt.Sprintf("%d-%d", closed[len(closed)-1].Epoch, 100_000))
	if doc.Exit != repair.ExitUnchecked || !strings.Contains(doc.Verifications[0].Error, "no such position") {
		t.Errorf("%s", text(doc))
	}
}

func TestAnEditOfHistoryIsNamedByItsEpoch(t *testing.T) {
	t.Parallel()
	s, tea := historyShop(t)
	s.want(repair.ExitClean)
	for n := 0; ; n++ { // as serve does, page by page
		found, err := s.ledger.KeepDigest(t.Context(), 0, func(context.Context) error { return nil })
		check(t, err)
		if !found {
			if n < 2 {
				t.Fatalf("%d digests", n)
			}
			break
		}
	}
	closed, err := s.ledger.ClosedEpochs(t.Context(), 0)
	check(t, err)
	var old ledger.ClosedEpoch
	for _, e := range closed {
		if e.LastSeq > 5 && old.Epoch == 0 {
			old = e
		}
	}
	row, err := s.ledger.Shard(t.Context(), 0)
	check(t, err)
	for _, edit := range []struct {
		fact, do, undo, want string
		epoch                int64
	}{
		{"a buyer of an old event", `update event set buyer = 'x' where epoch = %[1]d and seq = 5 and idx = 0`, `update event set buyer = '' where epoch = %[1]d and seq = 5 and idx = 0`, "history was edited", old.Epoch},
		{"an old time", `update event set at_ms = at_ms + 1 where epoch = %[1]d and seq = 5`, `update event set at_ms = at_ms - 1 where epoch = %[1]d and seq = 5`, "history was edited", old.Epoch},
		{"an event moved", `update event set seq = 100000 where epoch = %[1]d and seq = 5`, `update event set seq = 5 where epoch = %[1]d and seq = 100000`, "what was between is gone", old.Epoch},
		{"an epoch's end moved", `update epoch_end set last_seq = last_seq - 1 where epoch = %[1]d`, `update epoch_end set last_seq = last_seq + 1 where epoch = %[1]d`, "events behind its end", old.Epoch},
		{"a stock row", `update stock set available = available + 1, held = held - 1 where sku = %[2]d`, `update stock set available = available - 1, held = held + 1 where sku = %[2]d`, "the row in the table stock says", row.Epoch},
		{"a reservation", `update reservation set buyer = 'x' where state = 'held' and order_id = 'o2.0'`, `update reservation set buyer = '' where order_id = 'o2.0'`, "order o2.0", row.Epoch},
		{"an order that is gone", `update reservation set state = 'released' where order_id = 'o2.0'`, `update reservation set state = 'held' where order_id = 'o2.0'`, "order o2.0", row.Epoch},
	} {
		fill := func(sql string) string {
			if strings.Contains(sql, "%") {
				return strings.NewReplacer("%[1]d", fmt.Sprint(edit.epoch), "%[2]d", fmt.Sprint(tea)).Replace(sql)
			}
			return sql
		}
		s.exec(fill(edit.do))
		doc := s.result("verify")
		found := false
		for _, f := range doc.Verifications[0].Flaws {
			found = found || f.Epoch == edit.epoch && strings.Contains(f.String(), edit.want)
		}
		if doc.Exit != repair.ExitOperator || !found {
			t.Errorf("%s: %s", edit.fact, text(doc))
		}
		s.exec(fill(edit.undo))
		if doc := s.result("verify"); doc.Exit != repair.ExitClean {
			t.Fatalf("%s, undone: %s", edit.fact, text(doc))
		}
	}
}
