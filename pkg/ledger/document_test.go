package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestOpeningWrittenTwiceIsOneDocument(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	first, created, err := l.WriteOpening(context.Background(), "tea}", 10, 1, farAway)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	// The deadline and the shard of a repeat do not count: the SKU lives where it lives.
	second, created, err := l.WriteOpening(context.Background(), "tea}", 10, 0, farAway+1)
	if err != nil || created {
		t.Fatal(created, err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
	number := first.Lines[0].SKU
	want := stock.Operation{
		Kind: stock.NewSKU, ID: fmt.Sprintf("~~open:%d", number), SKU: "tea}", Deadline: farAway,
		Lines: stock.Lines{{SKU: number, Asked: 10, Now: 10}},
	}
	if diff := cmp.Diff(want, first.Operation()); diff != "" || first.Shard != 1 || first.State != DocumentWritten {
		t.Errorf("%+v: %s", first, diff)
	}
	op := first.Operation()
	if err := event.CheckOperation(&op); err != nil {
		t.Error(err)
	}
}

func TestOtherOpeningIsAConflictThatNamesBoth(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	opened(t, l, "tea", 10)
	_, _, err := l.WriteOpening(context.Background(), "tea", 11, 0, farAway)
	var conflict *ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("got %v, want a ConflictError", err)
	}
	want := ConflictError{ID: "tea", Field: "opening stock", Stored: "10", Asked: "11"}
	if diff := cmp.Diff(want, *conflict); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentOpeningsCreateOneSKU(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	var mu sync.Mutex
	creations, ids := 0, map[string]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			doc, created, err := l.WriteOpening(context.Background(), "tea", 10, 0, farAway)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[doc.ID] = true
			if created {
				creations++
			}
		})
	}
	wg.Wait()
	if creations != 1 || len(ids) != 1 {
		t.Errorf("%d creations, documents %v; want one", creations, ids)
	}
}

func TestOpeningOfAnUnknownShardWritesNothing(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	if _, _, err := l.WriteOpening(context.Background(), "tea", 10, 5, farAway); err == nil {
		t.Error("shard 5 of 1 was accepted")
	}
	if _, err := l.SKU(context.Background(), "tea"); !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("got %v", err)
	}
}

func TestBadDocumentsNameTheirField(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	tea := opened(t, l, "tea", 10)
	far, _, err := l.WriteOpening(context.Background(), "far", 1, 1, farAway)
	if err != nil {
		t.Fatal(err)
	}
	good := NewDocument{
		ID: "d1", Kind: stock.DocumentReceive, Reason: "po", DeadlineMillis: farAway,
		Lines: []stock.Line{{SKU: tea.Number, Asked: 1}},
	}
	for field, spoil := range map[string]func(*NewDocument){
		"id":        func(d *NewDocument) { d.ID = "~open:1" },
		"kind":      func(d *NewDocument) { d.Kind = stock.DocumentOpening },
		"reason":    func(d *NewDocument) { d.Reason = "two words" },
		"note":      func(d *NewDocument) { d.Note = "nul\x00" },
		"note ":     func(d *NewDocument) { d.Note = strings.Repeat("x", MaxNoteBytes+1) },
		"deadline":  func(d *NewDocument) { d.DeadlineMillis = 0 },
		"lines":     func(d *NewDocument) { d.Lines = nil },
		"lines ":    func(d *NewDocument) { d.Lines = []stock.Line{{SKU: tea.Number, Asked: -1}} },
		"lines  ":   func(d *NewDocument) { d.Lines = make([]stock.Line, stock.MaxCallLines+1) },
		"lines   ":  func(d *NewDocument) { d.Lines = append(d.Lines, stock.Line{SKU: tea.Number, Asked: -1}) },
		"lines[0]":  func(d *NewDocument) { d.Lines = []stock.Line{{SKU: tea.Number, Asked: 1 << 62}} },
		"lines    ": func(d *NewDocument) { d.Lines = append(d.Lines, stock.Line{SKU: far.Lines[0].SKU, Asked: 1}) },
		"lines     ": func(d *NewDocument) {
			d.Lines = append(d.Lines, stock.Line{SKU: tea.Number, Asked: stock.MaxMovementQuantity})
		},
	} {
		d := good
		d.Lines = append([]stock.Line(nil), good.Lines...)
		spoil(&d)
		_, created, err := l.WriteDocument(context.Background(), d)
		var bad *stock.FieldError
		if !errors.As(err, &bad) || bad.Field != strings.TrimSpace(field) || created {
			t.Errorf("%s: got %v", field, err)
		}
	}
	unknown := good
	unknown.Lines = []stock.Line{{SKU: 1 << 40, Asked: 1}}
	if _, _, err := l.WriteDocument(context.Background(), unknown); !errors.Is(err, ErrUnknownSKU) {
		t.Errorf("got %v, want ErrUnknownSKU", err)
	}
	if _, err := l.Document(context.Background(), "d1"); !errors.Is(err, ErrUnknownDocument) {
		t.Errorf("something was written: %v", err)
	}
}

func TestDocumentKeepsItsOutcomeForEver(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	tea, mug := opened(t, l, "tea", 10), opened(t, l, "mug", 10)
	n := NewDocument{
		ID: "adj-1", Kind: stock.DocumentAdjust, Reason: "damage", Note: "fell down", DeadlineMillis: farAway,
		Lines: []stock.Line{{SKU: mug.Number, Asked: -2}, {SKU: tea.Number, Asked: 5}, {SKU: mug.Number, Asked: -1}},
	}
	doc, created, err := l.WriteDocument(context.Background(), n)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	want := stock.Operation{
		Kind: stock.Movement, ID: "~adj-1", Document: "adjust", Reason: "damage", Deadline: farAway,
		Lines: stock.Lines{{SKU: tea.Number, Asked: 5, Now: 5}, {SKU: mug.Number, Asked: -3, Now: -3}},
	}
	op := doc.Operation()
	if diff := cmp.Diff(want, op); diff != "" {
		t.Error(diff)
	}
	if err := event.CheckOperation(&op); err != nil {
		t.Error(err)
	}
	exec(t, l, `update stock_document set state = 'refused', epoch = 3, seq = 4, idx = 5, settled = now() where id = 'adj-1'`)
	n.DeadlineMillis++ // a repeat comes later: its deadline is no content
	again, created, err := l.WriteDocument(context.Background(), n)
	if err != nil || created {
		t.Fatal(created, err)
	}
	receipt := stock.Receipt{Position: stock.Position{Epoch: 3, Seq: 4}, Index: 5}
	if again.State != DocumentRefused || again.Receipt != receipt || again.Settled.IsZero() || again.DeadlineMillis != farAway {
		t.Errorf("the repeat answers %+v", again)
	}
	for field, other := range map[string]func(*NewDocument){
		"kind": func(d *NewDocument) {
			d.Kind = stock.DocumentReceive
			d.Lines = []stock.Line{{SKU: tea.Number, Asked: 5}}
		},
		"reason": func(d *NewDocument) { d.Reason = "theft" },
		"note":   func(d *NewDocument) { d.Note = "" },
		"lines":  func(d *NewDocument) { d.Lines = d.Lines[:2] },
	} {
		d := n
		other(&d)
		var conflict *ConflictError
		if _, _, err := l.WriteDocument(context.Background(), d); !errors.As(err, &conflict) || conflict.Field != field {
			t.Errorf("other %s: got %v", field, err)
		}
	}
}

func TestDocumentsOnTheSameSKUsInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	var skus []SKU
	for i := range 6 {
		skus = append(skus, opened(t, l, fmt.Sprint("sku", i), 100))
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 20 {
				n := NewDocument{ID: fmt.Sprintf("d-%d-%d", worker%4, i), Kind: stock.DocumentReceive, Reason: "po", DeadlineMillis: farAway}
				for j := range skus { // half of the workers name them backwards
					at := j
					if worker%2 == 1 {
						at = len(skus) - 1 - j
					}
					n.Lines = append(n.Lines, stock.Line{SKU: skus[at].Number, Asked: int64(i + 1)})
				}
				if _, _, err := l.WriteDocument(context.Background(), n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestADocumentDoesNotWaitForTheHolderOfTheShard(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	tea := opened(t, l, "tea", 10)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// As Apply does, with the stock row of a new SKU whose foreign key looks at the row of the SKU.
	if _, err := tx.Exec(ctx, `select number from shard where number = 0 for no key update`); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.WriteOpening(ctx, "mug", 1, 0, farAway); err != nil {
		t.Errorf("a new SKU waits for the applier: %v", err)
	}
	n := NewDocument{
		ID: "d", Kind: stock.DocumentReceive, Reason: "po", DeadlineMillis: farAway,
		Lines: []stock.Line{{SKU: tea.Number, Asked: 1}},
	}
	if _, _, err := l.WriteDocument(ctx, n); err != nil {
		t.Errorf("a document waits for the applier: %v", err)
	}
}

func TestTheApplierDoesNotWaitForADocument(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	tea := opened(t, l, "tea", 10)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := lockSKUs(ctx, tx, stock.Lines{{SKU: tea.Number, Asked: 1}}); err != nil {
		t.Fatal(err)
	}
	_, err = l.pool.Exec(ctx, `insert into stock (sku, shard, available, held, committed) values ($1, 0, 10, 0, 0)`, tea.Number)
	if err != nil {
		t.Errorf("the stock row of a new SKU waits for a document: %v", err)
	}
}

func TestLostReplyOfACommitIsHealedByARepeat(t *testing.T) {
	t.Parallel()
	url := sandboxtest.Database(t, migrations.Up)
	proxy := sandboxtest.Proxy(t, sandboxtest.Postgres(t).Addr())
	l := openURL(t, strings.Replace(url, sandboxtest.Postgres(t).Addr(), proxy.Addr(), 1), 1)
	tea := opened(t, l, "tea", 10)
	n := NewDocument{
		ID: "d", Kind: stock.DocumentReceive, Reason: "po", DeadlineMillis: farAway,
		Lines: []stock.Line{{SKU: tea.Number, Asked: 1}},
	}
	fault := proxy.CutAfterExecution(faultproxy.Contains("commit"))
	if _, _, err := l.WriteDocument(context.Background(), n); err == nil {
		t.Fatal("the lost commit was answered as a success")
	}
	<-fault.Done()
	doc, created, err := l.WriteDocument(context.Background(), n)
	if err != nil || created || doc.State != DocumentWritten {
		t.Errorf("the repeat: %+v, created %v, %v", doc, created, err)
	}
}

func TestPendingDocumentsComePageByPage(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	tea := opened(t, l, "tea", 10)
	for i := range 5 {
		_, _, err := l.WriteDocument(context.Background(), NewDocument{
			ID: fmt.Sprintf("d%d", i), Kind: stock.DocumentReceive, Reason: "po", DeadlineMillis: farAway,
			Lines: []stock.Line{{SKU: tea.Number, Asked: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	exec(t, l, `update stock_document set written = now() - interval '1 minute' where id <> 'd4'`)
	exec(t, l, `update stock_document set state = 'applied', settled = now() where id = 'd1'`)
	var ids []string
	for after := ""; ; after = ids[len(ids)-1] {
		page, err := l.PendingDocuments(context.Background(), 0, 30*time.Second, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, d := range page {
			ids = append(ids, d.ID)
		}
	}
	if diff := cmp.Diff([]string{"d0", "d2", "d3", OpeningID(tea.Number)}, ids); diff != "" {
		t.Error(diff)
	}
	if other, err := l.PendingDocuments(context.Background(), 1, 0, "", 10); err != nil || len(other) != 0 {
		t.Errorf("shard 1 has %v, %v", other, err)
	}
}

func TestADeadlineIsRenewedOnceAndOnlyWhileWritten(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	id := OpeningID(opened(t, l, "tea", 10).Number)
	renew := func(from, to int64) bool {
		t.Helper()
		done, err := l.RenewDocument(context.Background(), id, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	if !renew(farAway, farAway+5) || renew(farAway, farAway+6) {
		t.Error("of two that knew the old deadline, exactly the first renews it")
	}
	exec(t, l, `update stock_document set state = 'applied', settled = now()`)
	if renew(farAway+5, farAway+9) {
		t.Error("a settled document got a new deadline")
	}
	if doc, err := l.Document(context.Background(), id); err != nil || doc.DeadlineMillis != farAway+5 {
		t.Errorf("%+v, %v", doc, err)
	}
}

func TestADeadlineIsHalfTheRetentionAtMostAnHour(t *testing.T) {
	t.Parallel()
	for retention, want := range map[time.Duration]int64{
		24 * time.Hour: 1000 + 3_600_000, 2 * time.Hour: 1000 + 3_600_000, time.Minute: 1000 + 30_000,
	} {
		if got := (&Ledger{retention: retention}).Deadline(1000); got != want {
			t.Errorf("retention %v: %d, want %d", retention, got, want)
		}
	}
}
