package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// aged makes everything that came to rest older.
func (w *teller) aged(by time.Duration) {
	w.t.Helper()
	exec(w.t, w.l, `update reservation set moved = moved - $1::interval`, by)
	exec(w.t, w.l, `update stock_document set settled = settled - $1::interval`, by)
}

// idsOf reads all pages as a pass does.
func (w *teller) idsOf(limit int) (ids []string) {
	w.t.Helper()
	var at ForgetCursor
	for {
		page, next, err := w.l.ForgetPage(context.Background(), w.shard, w.l.Retention(), at, limit)
		check(w.t, err)
		for _, e := range page {
			ids = append(ids, e.ID)
		}
		if at = next; len(page) < limit {
			return ids
		}
		check(w.t, w.l.KeepForgotten(context.Background(), w.shard, at))
	}
}

func TestWhatCameToRestIsForgottenOnceInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	w.apply(w.entry(reserve("held", 1, lines(tea, 1)), reserve("gone", 1, lines(tea, 1)), reserve("again", 1, lines(tea, 1))))
	w.sold("sold", lines(tea, 1))
	sold := w.at
	w.sold("sent", lines(tea, 1))
	w.apply(w.entry(move(stock.Release, "gone", 1), move(stock.Release, "again", 1)))
	released := w.at
	w.apply(w.entry(reserve("again", 2, lines(tea, 1))))
	w.carried(draftOf("p", stock.DocumentFulfil, "sent", nil))
	if ids := w.idsOf(2); len(ids) > 0 {
		t.Errorf("forgotten at once: %v", ids)
	}
	w.aged(25 * time.Hour)
	w.sold("young", lines(tea, 1))

	// Of the order that began anew only the newest attempt is known, and that is held.
	want := []string{"~" + OpeningID(tea), "sold", "gone", "sent", "~p"}
	page, next, err := w.l.ForgetPage(ctx, 0, w.l.Retention(), ForgetCursor{}, 2)
	check(t, err)
	endings := []stock.Ending{
		{ID: want[0], Receipt: stock.Receipt{Position: stock.Position{Epoch: w.at.Epoch, Seq: 2}}},
		{ID: "sold", Receipt: stock.Receipt{Position: sold}},
	}
	if diff := cmp.Diff(endings, page); diff != "" {
		t.Error(diff)
	}
	// A pass that died before it kept its cursor begins there again; one that kept it goes on.
	if ids := w.idsOf(100); cmp.Diff(want, ids) != "" {
		t.Errorf("all of them: %v", ids)
	}
	check(t, w.l.KeepForgotten(ctx, 0, next))
	page, next, err = w.l.ForgetPage(ctx, 0, w.l.Retention(), ForgetCursor{}, 100)
	check(t, err)
	if len(page) != 3 || page[0] != (stock.Ending{ID: "gone", Receipt: stock.Receipt{Position: released}}) {
		t.Errorf("the rest: %+v", page)
	}
	check(t, w.l.KeepForgotten(ctx, 0, next))
	check(t, w.l.KeepForgotten(ctx, 0, ForgetCursor{Moved: next.Moved.Add(-time.Hour)}))
	if ids := w.idsOf(100); len(ids) > 0 {
		t.Errorf("forgotten twice: %v", ids)
	}
	var bad *stock.FieldError
	if _, _, err := w.l.ForgetPage(ctx, 0, w.l.Retention()-1, ForgetCursor{}, 1); !errors.As(err, &bad) {
		t.Errorf("younger than the retention: %v", err)
	}
	if _, _, err := w.l.ForgetPage(ctx, 9, w.l.Retention(), ForgetCursor{}, 1); !errors.Is(err, ErrUnknownShard) {
		t.Errorf("no such shard: %v", err)
	}
}

func TestManyThatEndedAtOnceAreAllListed(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	var ops, ends []stock.Operation
	want := []string{"~" + OpeningID(tea)}
	for i := range 50 {
		id := fmt.Sprintf("o%02d", i)
		want = append(want, id)
		ops, ends = append(ops, reserve(id, 1, lines(tea, 1))), append(ends, move(stock.Release, id, 1))
	}
	w.apply(w.entry(ops...), w.entry(ends...))
	w.aged(25 * time.Hour)
	if ids := w.idsOf(7); cmp.Diff(want, ids) != "" {
		t.Errorf("%v", ids)
	}
}

// A document that was written while Redis had the order's record finds it there, however late it comes.
func TestARecordThatADocumentCountsOnIsKeptUntilItIsSettled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	w.sold("o", lines(tea, 5))
	parcel, no := w.written(draftOf("p", stock.DocumentFulfil, "o", lines(tea, 1))), w.written(draftOf("no", stock.DocumentFulfil, "o", lines(tea, 1)))
	exec(t, w.l, `update reservation set moved = moved - interval '25 hours'`)
	if ids := w.idsOf(100); len(ids) > 0 {
		t.Errorf("forgotten under a document: %v", ids)
	}
	// One more that joins those that wait counts on the record, too: it is kept for them.
	joined := w.written(draftOf("j", stock.DocumentCancel, "o", lines(tea, 1)))
	for _, doc := range []Document{parcel, no, joined} {
		if doc.Order.Asked != 1 {
			t.Errorf("%s does not count on the record: %+v", doc.ID, doc.Order)
		}
	}
	closed := w.closeEpoch()
	snapshot, err := w.l.Snapshot(ctx, w.claim)
	check(t, err)
	kept := false
	check(t, snapshot.Records(ctx, func(page []takeover.Record) error {
		for _, r := range page {
			kept = kept || r.ID == "o" && strings.HasPrefix(r.Text, "c|")
		}
		return nil
	}))
	check(t, snapshot.Close())
	if !kept {
		t.Error("a takeover leaves it out")
	}
	w.reopen(closed)
	refused := no.Operation()
	refused.Refused = true
	w.apply(w.entry(refused), w.entry(joined.Operation()), w.entry(parcel.Operation()))
	w.same()
	// Settled, each is a sign of life: the record stays for one more retention.
	if age := time.Since(w.stands("o").Moved); age > time.Minute {
		t.Errorf("its last move is %v old", age)
	}
	w.aged(25 * time.Hour)
	if ids := w.idsOf(100); len(ids) != 5 {
		t.Errorf("after all: %v", ids)
	}
}

func TestARefusedDocumentKeepsTheRecordAsLongAsAnAppliedOne(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	w.sold("o", lines(tea, 5))
	at := w.at
	no := w.written(draftOf("no", stock.DocumentFulfil, "o", lines(tea, 1)))
	w.aged(25 * time.Hour)
	refused := no.Operation()
	refused.Refused = true
	w.apply(w.entry(refused))
	w.same()
	got := w.stands("o")
	if time.Since(got.Moved) > time.Minute || got.Reservation.Receipt.Position != at {
		t.Errorf("%+v", got)
	}
}

// Whoever lets Redis forget waits for documents that were written under the old fence, and then sees them.
func TestTheFenceWaitsForADocumentThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	tea := w.sku(100)
	w.sold("o", lines(tea, 5))
	exec(t, w.l, `update reservation set moved = moved - interval '25 hours'`)
	exec(t, w.l, `update forgetting set fence = fence - interval '2 hours'`)
	n := draftOf("p", stock.DocumentFulfil, "o", nil)
	d, err := n.check()
	check(t, err)
	tx, err := w.l.pool.Begin(ctx)
	check(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	created, err := d.write(ctx, tx)
	check(t, err)
	type answer struct {
		page []stock.Ending
		err  error
	}
	told := make(chan answer, 1)
	go func() { // received below
		page, _, err := w.l.ForgetPage(ctx, 0, w.l.Retention(), ForgetCursor{}, 10)
		told <- answer{page, err}
	}()
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if count(t, w.l, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 0 {
			return errors.New("nobody waits")
		}
		return nil
	})
	check(t, tx.Commit(ctx))
	got := <-told
	check(t, got.err)
	if !created || d.order.Asked != 1 || len(got.page) > 0 {
		t.Errorf("created %v, counts on the record %v, forgotten %v", created, d.order.Asked, got.page)
	}
}
