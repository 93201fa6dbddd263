package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// past writes closed epochs 3 and 5 and an open one, with events of two operations each.
func past(t *testing.T, l *Ledger, entries int) {
	t.Helper()
	exec(t, l, `insert into epoch_end (shard, epoch, last_seq) values (0, 3, $1), (0, 5, 0)`, entries)
	exec(t, l, `update shard set epoch = 8, applied = 1 where number = 0`)
	exec(t, l, `insert into event (shard, epoch, seq, idx, id, body, at_ms, after_image)
select 0, 3, s, i, 'o' || s || '.' || i, 'C1', 1000 + s, case when i = 0 then '7=1|2|3 17=4|5|6' else '' end from generate_series(1, $1) s, generate_series(0, 1) i`, entries)
	exec(t, l, `insert into event (shard, epoch, seq, idx, id, body, at_ms) values (0, 8, 1, 0, '~~open', 'O3-4', 1)`)
}

func TestTheFirstDigestOfAnEpochStands(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	past(t, l, HistoryPage) // two pages and a bit
	rests := 0
	for want := range 3 {
		found, err := l.KeepDigest(t.Context(), 0, func(context.Context) error { rests++; return nil })
		if err != nil || found != (want < 2) {
			t.Fatalf("digest %d: %v %v", want, found, err)
		}
	}
	if rests != 2 {
		t.Errorf("it rested %d times", rests)
	}
	closed, err := l.ClosedEpochs(t.Context(), 0)
	if err != nil || len(closed) != 2 || closed[0].Events != 2*HistoryPage || closed[1].Events != 0 || len(closed[0].Digest) != 64 || closed[0].Digest == closed[1].Digest {
		t.Fatalf("%+v %v", closed, err)
	}
	kept, err := l.StoreDigest(t.Context(), 0, ClosedEpoch{Epoch: 3, LastSeq: 9, Events: 1, Digest: closed[1].Digest})
	if err != nil || kept.Digest != closed[0].Digest || kept.LastSeq != HistoryPage {
		t.Errorf("another digest came in its place: %+v %v", kept, err)
	}
}

func TestADigestThatIsInterruptedIsNotKept(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	past(t, l, HistoryPage)
	stop := errors.New("stop")
	if found, err := l.KeepDigest(t.Context(), 0, func(context.Context) error { return stop }); found || !errors.Is(err, stop) {
		t.Errorf("%v %v", found, err)
	}
	closed, err := l.ClosedEpochs(t.Context(), 0)
	if err != nil || closed[0].Digest != "" || !closed[0].Computed.IsZero() && closed[0].Computed.Unix() != 0 {
		t.Errorf("%+v %v", closed, err)
	}
}

func TestADigestTellsEveryFieldApart(t *testing.T) {
	t.Parallel()
	base := Told{Receipt: stock.Receipt{Position: stock.Position{Epoch: 1, Seq: 2}, Index: 3}, ID: "a", Buyer: "b", Body: "C1", AtMillis: 4, After: "1=2|3|4"}
	seen := map[string]string{}
	for name, change := range map[string]func(*Told){
		"nothing": func(*Told) {}, "epoch": func(t *Told) { t.Receipt.Epoch++ }, "seq": func(t *Told) { t.Receipt.Seq++ }, "idx": func(t *Told) { t.Receipt.Index++ },
		"id": func(t *Told) { t.ID = "b" }, "buyer": func(t *Told) { t.Buyer = "" }, "body": func(t *Told) { t.Body = "X1" }, "time": func(t *Told) { t.AtMillis++ },
		"image": func(t *Told) { t.After = "" }, "shifted": func(t *Told) { t.ID, t.Buyer = "ab", "" },
	} {
		one := base
		change(&one)
		d := NewDigest()
		d.Add(&one)
		sum, events := d.Sum()
		if other, there := seen[sum]; there || events != 1 {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[sum] = name
	}
}

func TestAHistoryIsReadInPagesAcrossEntries(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	past(t, l, HistoryPage)
	after := stock.Receipt{Position: stock.Position{Epoch: 3}}
	n := 0
	for {
		page, err := l.History(t.Context(), after, HistoryPage)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			if want := fmt.Sprintf("o%d.%d", n/2+1, n%2); e.ID != want {
				t.Fatalf("event %d is %s, want %s", n, e.ID, want)
			}
			n++
			after = e.Receipt
		}
		if len(page) < HistoryPage {
			break
		}
	}
	if n != 2*HistoryPage {
		t.Errorf("%d events", n)
	}
}

func TestAStoryOfASKUFindsItsNumberAndNoOther(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	past(t, l, 3)
	for sku, want := range map[int64]int{7: 2, 17: 2, 1: 0, 71: 0} {
		found, err := l.EventsOfSKU(t.Context(), 0, sku, 2)
		if err != nil || len(found) != want {
			t.Errorf("SKU %d: %+v %v", sku, found, err)
		}
		if want > 0 && found[0].Receipt.Seq != 3 {
			t.Errorf("the newest is %+v", found[0])
		}
	}
	entry, err := l.EntryOf(t.Context(), 0, stock.Position{Epoch: 3, Seq: 2})
	if err != nil || len(entry) != 2 || entry[1].ID != "o2.1" {
		t.Errorf("%+v %v", entry, err)
	}
	events, err := l.EventsOf(t.Context(), 0, "o2.1", 5)
	if err != nil || len(events) != 1 {
		t.Errorf("%+v %v", events, err)
	}
}

func TestARepairIsFoundByWhatItsEvidenceNames(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	for _, before := range []string{
		`{"Drift": {"Order": "o1", "SKU": 0}}`, `{"Drift": {"Order": "o10"}}`, `[{"SKU": 7}]`, `{"sku": 7, "doubt": "x"}`, `{"text": "about o1"}`,
	} {
		if _, err := l.BeginRepair(t.Context(), Repair{Class: "tampered", Verb: "freeze", By: "test", Before: []byte(before)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		texts []string
		sku   int64
		want  []int64
	}{
		{[]string{"o1"}, 0, []int64{1}}, {[]string{"o10", "o1"}, 0, []int64{2, 1}}, {nil, 7, []int64{4, 3}}, {nil, 0, nil}, {[]string{"nobody"}, 1, nil},
	} {
		found, err := l.RepairsNaming(t.Context(), 0, c.texts, c.sku, 10)
		var ids []int64
		for _, r := range found {
			ids = append(ids, r.ID)
		}
		if err != nil || !cmp.Equal(ids, c.want) {
			t.Errorf("%v %d: %v %v, want %v", c.texts, c.sku, ids, err, c.want)
		}
	}
}

func TestOnlyWaitingDocumentsOfTheShardAreFound(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	if _, _, err := l.WriteOpening(t.Context(), "tea", 5, 1, 1000); err != nil {
		t.Fatal(err)
	}
	exec(t, l, `insert into stock_document (id, shard, kind, lines, deadline_ms, state) values ('done', 1, 'adjust', '[{"sku": 1, "units": 2}]', 1, 'applied')`)
	exec(t, l, `insert into stock_document (id, shard, kind, lines, deadline_ms) values ('other', 0, 'adjust', '[{"sku": 1, "units": 2}]', 1)`)
	found, err := l.WaitingDocuments(t.Context(), 1, []string{"~open:1", "done", "other", "nobody"})
	if err != nil || len(found) != 1 || found["~open:1"].SKU != "tea" {
		t.Errorf("%+v %v", found, err)
	}
	if at, err := l.LastClosed(t.Context(), 1, 99); err != nil || at != (stock.Position{}) {
		t.Errorf("%v %v", at, err)
	}
}
