package order_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// part is a call about some of the order's lines.
func part(attempt int64, lines ...order.Line) order.Call {
	return order.Call{ID: "o1", Attempt: attempt, Ack: order.Persisted, Lines: lines}
}

func TestAPartialReserveTakesWhatIsThereAndSaysSo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, sale := range []bool{false, true} {
		w, c := open(t, 1)
		w.Stock("jam", 0, 0)
		r := tea("o1", 12)
		r.Partial, r.Sale, r.Lines = true, sale, append(r.Lines, order.Line{SKU: "jam", Quantity: 3})
		a := must[order.Answer](t)(c.Reserve(ctx, r))
		want := []order.Part{{SKU: "tea", Asked: 12, Quantity: 10}, {SKU: "jam", Asked: 3}}
		if diff := cmp.Diff(want, a.Lines); diff != "" {
			t.Error(diff)
		}
		if again := must[order.Answer](t)(c.Reserve(ctx, r)); !again.Replayed || !cmp.Equal(again.Lines, a.Lines) {
			t.Errorf("again: %+v", again)
		}
		r.ID = "o2"
		var soldOut *order.SoldOutError
		if _, err := c.Reserve(ctx, r); !errors.As(err, &soldOut) || len(soldOut.Lines) != 2 {
			t.Errorf("nothing is there: %v", err)
		}
	}
}

func TestAPartialConfirmGivesTheRestBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, drop := range []bool{false, true} {
		w, c := grown(t, "held")
		call := part(1, order.Line{SKU: "tea", Quantity: 3})
		a := must[order.Answer](t)(c.Confirm(ctx, call))
		want := []order.Part{{SKU: "tea", Asked: 4, Quantity: 3}, {SKU: "jam", Asked: 2}}
		if diff := cmp.Diff(want, a.Lines); diff != "" || a.State != stock.Confirmed {
			t.Error(diff, a.State)
		}
		if f, g := w.FieldOf("tea"), w.FieldOf("jam"); f.Available != 7 || f.Committed != 3 || g.Available != 10 {
			t.Errorf("tea %v, jam %v", f, g)
		}
		if drop {
			w.Drop("o1")
		}
		if again := must[order.Answer](t)(c.Confirm(ctx, call)); !again.Replayed {
			t.Errorf("%+v", again)
		}
		var conflict *order.ConflictError
		if _, err := c.Confirm(ctx, part(1, order.Line{SKU: "tea", Quantity: 2})); !errors.As(err, &conflict) || conflict.Order.Lines[0].Quantity != 3 {
			t.Errorf("with other lines: %v", err)
		}
	}
}

func TestALateConfirmOfAPartIsRecognisedAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, drop := range map[string][2]bool{"kept": {}, "dropped before": {true, false}, "dropped after": {false, true}, "dropped twice": {true, true}} {
		w, c := grown(t, "expired")
		if drop[0] {
			w.Drop("o1")
		}
		call := part(1, order.Line{SKU: "tea", Quantity: 3})
		a := must[order.Answer](t)(c.Confirm(ctx, call))
		if a.Attempt != 2 || a.State != stock.Confirmed || w.FieldOf("tea").Committed != 3 || w.FieldOf("jam").Committed != 0 {
			t.Errorf("%s: %+v, tea %v", name, a, w.FieldOf("tea"))
		}
		if drop[1] {
			w.Drop("o1")
		}
		if again := must[order.Answer](t)(c.Confirm(ctx, call)); !again.Replayed || again.Attempt != 2 {
			t.Errorf("%s: again %+v", name, again)
		}
		var conflict *order.ConflictError
		if a, err := c.Confirm(ctx, part(1, order.Line{SKU: "tea", Quantity: 2})); !errors.As(err, &conflict) {
			t.Errorf("%s: of other lines %+v, %v", name, a, err)
		}
		if w.FieldOf("tea").Committed != 3 {
			t.Errorf("%s: tea %v", name, w.FieldOf("tea"))
		}
	}
}

// What was released of a hold before it expired is not taken again by its late confirm.
func TestALateConfirmTakesWhatStoodLast(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, drop := range []bool{false, true} {
		w, c := grown(t, "held")
		must[order.Answer](t)(c.Release(ctx, part(1, order.Line{SKU: "tea", Quantity: 1})))
		w.Tick(time.Hour)
		if drop {
			w.Drop("o1")
		}
		for range 2 {
			if a := must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Persisted))); a.Attempt != 2 {
				t.Errorf("%+v", a)
			}
		}
		if f, g := w.FieldOf("tea"), w.FieldOf("jam"); f.Committed != 1 || f.OnHand() != 10 || g.Committed != 2 {
			t.Errorf("dropped %v: tea %v, jam %v", drop, f, g)
		}
	}
}

func TestTheLastUnitCanBeKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	w.Stock("jam", 1, 0)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 10)))
	call := part(1, order.Line{SKU: "tea", Quantity: 10}, order.Line{SKU: "jam", Quantity: 1})
	if a := must[order.Answer](t)(c.Replace(ctx, call)); len(a.Lines) != 2 || a.Replayed {
		t.Errorf("%+v", a)
	}
	call.Lines[1].Quantity = 2
	var soldOut *order.SoldOutError
	want := []order.ShortLine{{SKU: "tea", Asked: 10, Available: 10}, {SKU: "jam", Asked: 2, Available: 1}}
	if _, err := c.Replace(ctx, call); !errors.As(err, &soldOut) || !cmp.Equal(want, soldOut.Lines) {
		t.Errorf("%v %+v", err, soldOut)
	}
	// The reserve's own repeat still knows what was asked.
	if a := must[order.Answer](t)(c.Reserve(ctx, tea("o1", 10))); !a.Replayed || len(a.Lines) != 2 || a.Lines[1].Asked != 0 {
		t.Errorf("%+v", a)
	}
}

func TestAHoldIsNeverShortenedAndBoundedFromNow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := grown(t, "held")
	until := func(millis int64) (order.Answer, error) {
		return c.Extend(ctx, order.Extension{ID: "o1", Attempt: 1, Until: millis, Ack: order.Memory})
	}
	for range 3 {
		end := must[order.Answer](t)(c.Extend(ctx, order.Extension{ID: "o1", Attempt: 1, TTL: stock.MaxTTLMillis, Ack: order.Memory})).ExpiresMillis
		if a := must[order.Answer](t)(until(end - 1)); !a.Replayed || a.ExpiresMillis != end {
			t.Errorf("%+v", a)
		}
		var bounds *order.OutOfBoundsError
		if _, err := until(end + 1); !errors.As(err, &bounds) {
			t.Errorf("%v", err)
		}
		w.Tick(12 * time.Hour)
	}
	for _, e := range []order.Extension{{}, {TTL: 1000, Until: 1}, {TTL: 999}, {TTL: stock.MaxTTLMillis + 1}, {Until: -1}} {
		e.ID, e.Attempt, e.Ack = "o1", 1, order.Memory
		if _, err := c.Extend(ctx, e); !errors.As(err, new(*stock.FieldError)) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

func TestEachSKUIsNamedOnce(t *testing.T) {
	t.Parallel()
	_, c := grown(t, "held")
	call := part(1, order.Line{SKU: "tea", Quantity: 1}, order.Line{SKU: "jam", Quantity: 1}, order.Line{SKU: "tea", Quantity: 1})
	var field *stock.FieldError
	if _, err := c.Release(context.Background(), call); !errors.As(err, &field) || field.Field != "lines" || field.Value != `"tea"` {
		t.Errorf("%v", err)
	}
	call.Lines = []order.Line{}
	if _, err := c.Release(context.Background(), call); !errors.As(err, &field) {
		t.Errorf("an empty list: %v", err)
	}
}

// operations are those that change the order in this state, by what is answered.
var operations = []struct{ state, call string }{
	{"none", "reserve"}, {"none", "sale"}, {"held", "confirm"}, {"held", "confirm part"}, {"held", "release"}, {"held", "release part"},
	{"held", "extend"}, {"held", "replace"}, {"expired", "confirm"}, {"expired", "confirm part"},
	{"confirmed", "fulfil"}, {"confirmed", "fulfil part"}, {"confirmed", "cancel"}, {"confirmed", "cancel part"},
	{"fulfilled", "return part"}, {"fulfilled", "return scrap"},
}

func TestALostReplyIsUnknownAndTheRepeatFindsTheOutcome(t *testing.T) {
	t.Parallel()
	for _, row := range operations {
		w, c := grown(t, row.state)
		w.After = func(op stock.Operation, out *stock.Outcome) error {
			if out.Code == stock.Accepted {
				return stock.ErrUnknown
			}
			return nil
		}
		first := try(w, c, row.call)
		if first != stock.ErrUnknown.Error() && first != "written" {
			t.Errorf("%v: %s", row, first)
		}
		w.After = nil
		if got := try(w, c, row.call); got[len(got)-1] != '*' {
			t.Errorf("%v: the repeat is answered %s", row, got)
		}
		balanced(t, w)
	}
}

func TestWhatATakeoverLosesIsDoneAgain(t *testing.T) {
	t.Parallel()
	for _, row := range operations {
		w, _ := grown(t, row.state)
		c := patient(t, w)
		w.Stopped = true
		lost := 1
		if row.state == "expired" {
			lost = 2 // the first answer is that it has to be taken again
		}
		onceMoved(t, w, lost, func() {
			w.Lose()
			w.Locked(func() { w.Stopped = false })
		})
		if got := try(w, c, row.call); got == "written" || got[0] == '*' {
			t.Errorf("%v: %s", row, got)
		}
		balanced(t, w)
		if got := try(w, c, row.call); got[len(got)-1] != '*' {
			t.Errorf("%v: the repeat is answered %s", row, got)
		}
	}
}

func TestADocumentWaitsUntilPostgresHasTheConfirm(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	a := order.Amendment{DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Reason: "shipped", Ack: order.Persisted}
	for _, lines := range [][]order.Line{nil, {{SKU: "tea", Quantity: 1}}} {
		a.Lines = lines
		w, c := open(t, 1)
		w.Stopped = true
		r := tea("o1", 4)
		r.Sale = true
		must[order.Answer](t)(c.Reserve(ctx, r))
		var closed *stock.ClosedError
		if _, err := c.Amend(ctx, a); !errors.As(err, &closed) || closed.Reason != "behind" {
			t.Errorf("behind: %v", err)
		}
		waiting := patient(t, w)
		var beside sync.WaitGroup
		beside.Go(func() {
			w.Apply()
			w.Locked(func() { w.Stopped = false })
		})
		defer beside.Wait()
		d := must[order.Document](t)(waiting.Amend(ctx, a))
		if d.State != order.Applied || d.Attempt != 1 || len(d.Lines) != 1 {
			t.Errorf("%+v", d)
		}
	}
}

func TestAReturnWaitsUntilPostgresHasTheFulfilment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := grown(t, "confirmed")
	w.Stopped = true
	a := order.Amendment{DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Reason: "table", Ack: order.Memory}
	must[order.Document](t)(c.Amend(ctx, a))
	back := order.Amendment{DocumentID: "d2", Kind: stock.DocumentReturn, OrderID: "o1", Reason: "table", Ack: order.Persisted}
	var closed *stock.ClosedError
	if d, err := c.Amend(ctx, back); !errors.As(err, &closed) || closed.Reason != "behind" {
		t.Errorf("%+v, %v", d, err)
	}
	w.Apply()
	w.Stopped = false
	if d := must[order.Document](t)(c.Amend(ctx, back)); len(d.Lines) != 2 || w.FieldOf("tea").Available != 10 {
		t.Errorf("%+v, tea %v", d, w.FieldOf("tea"))
	}
}

// What Postgres says for good needs no Redis.
func TestAFinalRefusalOfADocumentDoesNotAskRedis(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"released": "state:released", "cancelled": "state:cancelled", "fulfilled": "state:fulfilled", "held": "closed", "none": "closed",
	} {
		w, _ := grown(t, state)
		p := w.Parts()
		p.Records = unreachable{p.Records}
		c := must[*order.Clerk](t)(order.NewClerk(p))
		if got := try(w, c, "cancel"); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
}

// unreachable is a Redis that answers nothing of orders.
type unreachable struct{ order.Records }

func (unreachable) Record(context.Context, int, string) (stock.Reservation, bool, error) {
	return stock.Reservation{}, false, errors.New("connection refused")
}

func TestADocumentOfAnOrderThatATakeoverLostIsRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := grown(t, "held")
	w.Stopped = true
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Memory)))
	w.Lose()
	var state *order.StateError
	a := order.Amendment{DocumentID: "d1", Kind: stock.DocumentCancel, OrderID: "o1", Attempt: 1, Reason: "changed", Ack: order.Persisted}
	if _, err := c.Amend(ctx, a); !errors.As(err, &state) || state.Order.State != stock.Held {
		t.Errorf("%v", err)
	}
}

func TestParcelsCancellationsAndReturnsAddUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, drop := range []bool{false, true} {
		w, c := grown(t, "confirmed") // 4 tea, 2 jam
		if drop {
			w.Drop("o1")
		}
		amend := func(id, kind string, scrap bool, lines ...order.Line) (order.Document, error) {
			return c.Amend(ctx, order.Amendment{DocumentID: id, Kind: kind, OrderID: "o1", Lines: lines, Scrap: scrap, Reason: "table", Ack: order.Persisted})
		}
		must[order.Document](t)(amend("d1", stock.DocumentFulfil, false, order.Line{SKU: "tea", Quantity: 1}, order.Line{SKU: "tea", Quantity: 1}))
		must[order.Document](t)(amend("d2", stock.DocumentCancel, false, order.Line{SKU: "jam", Quantity: 2}))
		var lacks *order.InsufficientError
		_, err := amend("d3", stock.DocumentCancel, false, order.Line{SKU: "tea", Quantity: 3}, order.Line{SKU: "jam", Quantity: 1})
		want := []order.ShortLine{{SKU: "tea", Asked: 3, Available: 2}, {SKU: "jam", Asked: 1, Available: 0}}
		if !errors.As(err, &lacks) || !cmp.Equal(want, lacks.Lines) {
			t.Errorf("%v", err)
		}
		d := must[order.Document](t)(amend("d4", stock.DocumentFulfil, false))
		if diff := cmp.Diff([]order.Line{{SKU: "tea", Quantity: 2}}, d.Lines); diff != "" {
			t.Error(diff)
		}
		must[order.Document](t)(amend("d5", stock.DocumentReturn, true, order.Line{SKU: "tea", Quantity: 1}))
		d = must[order.Document](t)(amend("d6", stock.DocumentReturn, false))
		if diff := cmp.Diff([]order.Line{{SKU: "tea", Quantity: 3}}, d.Lines); diff != "" {
			t.Error(diff)
		}
		if _, err := amend("d7", stock.DocumentReturn, false); !errors.As(err, &lacks) {
			t.Errorf("%v", err)
		}
		if f, g := w.FieldOf("tea"), w.FieldOf("jam"); f.Available != 9 || f.OnHand() != 9 || g.Available != 10 {
			t.Errorf("dropped %v: tea %v, jam %v", drop, f, g)
		}
		found := must[order.Found](t)(c.Lookup(ctx, "o1", nil))
		wantLines := []order.Part{{SKU: "tea", Asked: 4, Fulfilled: 4}, {SKU: "jam", Asked: 2}}
		if m := found.Matches[0]; m.Ledger.State != stock.Fulfilled || !cmp.Equal(wantLines, m.Ledger.Lines) || (m.Redis == nil) != drop {
			t.Errorf("dropped %v: %+v", drop, m)
		}
		for id, kind := range map[string]string{"d4": stock.DocumentFulfil, "d6": stock.DocumentReturn} {
			if d, err := amend(id, kind, false); err != nil || !d.Replayed || d.State != order.Applied {
				t.Errorf("%s again: %+v, %v", id, d, err)
			}
		}
		if _, err := amend("d1", stock.DocumentCancel, false); !errors.As(err, new(*order.DocumentConflictError)) {
			t.Errorf("another document under the id: %v", err)
		}
		if _, err := amend("d8", stock.DocumentCancel, false, order.Line{SKU: "ham", Quantity: 1}); !errors.As(err, new(*stock.FieldError)) {
			t.Errorf("a SKU of another order: %v", err)
		}
	}
}

func TestADocumentNamesTheAttemptOrMeansTheNewest(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := grown(t, "expired")
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Persisted))) // late: attempt 2
	a := order.Amendment{DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Attempt: 1, Reason: "shipped", Ack: order.Persisted}
	var state *order.StateError
	if _, err := c.Amend(ctx, a); !errors.As(err, &state) || state.Order.Attempt != 1 || state.Order.State != stock.Expired {
		t.Errorf("%v", err)
	}
	a.Attempt = 0
	if d := must[order.Document](t)(c.Amend(ctx, a)); d.Attempt != 2 || w.FieldOf("tea").OnHand() != 6 {
		t.Errorf("%+v", d)
	}
	a.Attempt = 3
	a.DocumentID = "d2"
	var conflict *order.ConflictError
	if _, err := c.Amend(ctx, a); !errors.As(err, &conflict) || conflict.Order.Attempt != 2 {
		t.Errorf("%v", err)
	}
}

func TestAnOrderOf1500LinesGoesThroughItsLife(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := ordertest.New(1)
	r := &order.Request{ID: "o1", Attempt: 1, TTL: 60_000, Ack: order.Persisted}
	for i := range stock.MaxOrderLines {
		sku := fmt.Sprint("sku-", i)
		w.Stock(sku, 2, 0)
		r.Lines = append(r.Lines, order.Line{SKU: sku, Quantity: 2})
	}
	p := w.Parts()
	p.MaxLines = stock.MaxOrderLines
	c := must[*order.Clerk](t)(order.NewClerk(p))
	must[order.Answer](t)(c.Reserve(ctx, r))
	for i := range r.Lines {
		r.Lines[i].Quantity = 1
	}
	must[order.Answer](t)(c.Replace(ctx, part(1, r.Lines...)))
	a := must[order.Answer](t)(c.Confirm(ctx, part(1, r.Lines...)))
	if len(a.Lines) != stock.MaxOrderLines || a.Lines[1499] != (order.Part{SKU: "sku-1499", Asked: 2, Quantity: 1}) {
		t.Errorf("%d lines, the last is %+v", len(a.Lines), a.Lines[len(a.Lines)-1])
	}
	whole := order.Amendment{DocumentID: "d", Kind: stock.DocumentCancel, OrderID: "o1", Reason: "all", Ack: order.Persisted}
	must[order.Document](t)(c.Amend(ctx, whole))
	found := must[order.Found](t)(c.Lookup(ctx, "o1", nil))
	if r := found.Matches[0].Redis; r.State != stock.Cancelled || w.FieldOf("sku-1499").Available != 2 {
		t.Errorf("it is %s", r.State)
	}
}

func TestAShortfallNamesWhatTheConfirmAskedFor(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, drop := range []bool{false, true} {
		w, c := grown(t, "expired")
		w.Locked(func() { w.FieldOf("tea").Available = 1 })
		if drop {
			w.Drop("o1")
		}
		for _, row := range []struct {
			call order.Call
			want []order.ShortLine
		}{
			{on("o1", 1, order.Persisted), []order.ShortLine{{SKU: "tea", Asked: 4, Available: 1}, {SKU: "jam", Asked: 2, Available: 10}}},
			{part(1, order.Line{SKU: "tea", Quantity: 3}, order.Line{SKU: "jam"}), []order.ShortLine{{SKU: "tea", Asked: 3, Available: 1}}},
		} {
			var short *order.ShortfallError
			if _, err := c.Confirm(ctx, row.call); !errors.As(err, &short) || !cmp.Equal(row.want, short.Lines) {
				t.Errorf("dropped %v: %v, %+v", drop, err, short)
			}
		}
		if len(w.Shortfalls) != 2 {
			t.Errorf("%v are recorded", w.Shortfalls)
		}
	}
}

// Redis answers repeats of the first attempt itself; of a later one without a record Postgres does.
func TestARepeatOfALaterAttemptWithoutARecordIsKnown(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	second := func(quantity int64, sale bool) *order.Request {
		r := tea("o1", quantity)
		r.Attempt, r.Sale = 2, sale
		return r
	}
	for _, confirm := range []bool{false, true} {
		w, c := open(t, 1)
		must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
		must[order.Answer](t)(c.Release(ctx, on("o1", 1, order.Memory)))
		must[order.Answer](t)(c.Reserve(ctx, second(4, false)))
		if confirm {
			must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, order.Memory)))
		}
		w.Drop("o1")
		if a := must[order.Answer](t)(c.Reserve(ctx, second(4, false))); !a.Replayed || a.Level != order.Persisted {
			t.Errorf("%+v", a)
		}
		if _, err := c.Reserve(ctx, second(5, false)); !errors.As(err, new(*order.ConflictError)) {
			t.Errorf("of other lines: %v", err)
		}
		a, err := c.Reserve(ctx, second(4, true))
		if confirm && (err != nil || !a.Replayed) || !confirm && !errors.As(err, new(*order.ConflictError)) {
			t.Errorf("as a sale: %+v, %v", a, err)
		}
	}
}

// Who ships what Redis does not have committed is refused for good, and told what is committed, not what is on the shelf.
func TestADocumentThatRedisRefusesSaysWhatIsCommitted(t *testing.T) {
	t.Parallel()
	w, c := grown(t, "confirmed")
	w.Locked(func() { w.FieldOf("tea").Committed = 3 })
	a := order.Amendment{DocumentID: "d1", Kind: stock.DocumentFulfil, OrderID: "o1", Reason: "shipped", Ack: order.Persisted}
	var refused *order.RefusedError
	want := []order.ShortLine{{SKU: "tea", Asked: -4, Available: 3}, {SKU: "jam", Asked: -2, Available: 2}}
	if _, err := c.Amend(context.Background(), a); !errors.As(err, &refused) || !cmp.Equal(want, refused.Lines) || refused.Holds != nil {
		t.Errorf("%v, %+v", err, refused)
	}
}
