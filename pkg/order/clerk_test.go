package order_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tea(id string, quantity int64) *order.Request {
	return &order.Request{ID: id, Attempt: 1, TTL: 60_000, Ack: order.Memory, Lines: []order.Line{{SKU: "tea", Quantity: quantity}}}
}

// on is a call about the whole of an order.
func on(id string, attempt int64, ack order.Level) order.Call {
	return order.Call{ID: id, Attempt: attempt, Ack: ack}
}

func open(t *testing.T, shards int) (*ordertest.World, *order.Clerk) {
	t.Helper()
	w := ordertest.New(shards)
	w.Stock("tea", 10, shards-1)
	return w, w.Clerk()
}

// patient is a clerk that waits for the world rather than for a clock.
func patient(t *testing.T, w *ordertest.World) *order.Clerk {
	t.Helper()
	p := w.Parts()
	p.Patience = 10 * time.Second
	c, err := order.NewClerk(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// onceMoved runs f beside the call, as soon as the n-th operation was decided.
func onceMoved(t *testing.T, w *ordertest.World, n int, f func()) {
	t.Helper()
	var once sync.Once
	var beside sync.WaitGroup
	count := 0
	w.After = func(stock.Operation, *stock.Outcome) error {
		if count++; count == n {
			once.Do(func() { beside.Go(f) })
		}
		return nil
	}
	t.Cleanup(beside.Wait)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func kinds(w *ordertest.World) string {
	var b strings.Builder
	for _, op := range w.Operations {
		b.WriteByte(byte(op.Kind))
	}
	return b.String()
}

func TestWhatATakeoverLostIsSentAgainUnderTheSameAttempt(t *testing.T) {
	t.Parallel()
	for _, sale := range []bool{false, true} {
		w, _ := open(t, 1)
		c := patient(t, w)
		w.Stopped = true
		onceMoved(t, w, 1, func() {
			w.Lose()
			w.Locked(func() { w.Stopped = false })
		})
		r := tea("o1", 4)
		r.Ack, r.Sale = order.Persisted, sale
		a := must[order.Answer](t)(c.Reserve(context.Background(), r))
		if a.Level != order.Persisted || a.Attempt != 1 || a.Receipt.Epoch != 2 || len(w.Operations) != 2 {
			t.Errorf("%+v after %d operations", a, len(w.Operations))
		}
		if f := w.FieldOf("tea"); f.Available != 6 || f.OnHand() != 10 {
			t.Errorf("tea stands at %v", f)
		}
	}
}

func TestALostConfirmIsSentAgain(t *testing.T) {
	t.Parallel()
	w, _ := open(t, 1)
	c := patient(t, w)
	must[order.Answer](t)(c.Reserve(context.Background(), tea("o1", 4)))
	w.Stopped = true
	onceMoved(t, w, 1, func() {
		w.Lose()
		w.Locked(func() { w.Stopped = false })
	})
	a := must[order.Answer](t)(c.Confirm(context.Background(), on("o1", 1, order.Persisted)))
	if a.Level != order.Persisted || a.State != stock.Confirmed || a.Receipt.Epoch != 2 || kinds(w) != "RCC" {
		t.Errorf("%+v after %s", a, kinds(w))
	}
}

func TestAnAcceptanceOfAnOldMasterDoesNotCount(t *testing.T) {
	t.Parallel()
	w, c := open(t, 1)
	w.Stopped = true
	first := true
	w.After = func(stock.Operation, *stock.Outcome) error {
		if first {
			first = false
			w.Lose() // the epoch moved on while the reply was under way
		}
		return nil
	}
	a := must[order.Answer](t)(c.Reserve(context.Background(), tea("o1", 4)))
	if a.Receipt.Epoch != 2 || len(w.Operations) != 2 {
		t.Errorf("%+v after %d operations", a, len(w.Operations))
	}
}

func TestSoldOutOfAnOldMasterIsNotBelieved(t *testing.T) {
	t.Parallel()
	w, c := open(t, 1)
	first := true
	w.After = func(_ stock.Operation, out *stock.Outcome) error {
		if first {
			first = false
			w.Lose()
			*out = stock.Outcome{Code: stock.SoldOut, Short: []stock.Short{{SKU: 1, Asked: 4}}}
			w.Drop("o1")
		}
		return nil
	}
	if _, err := c.Reserve(context.Background(), tea("o1", 4)); err != nil {
		t.Error(err)
	}
	if len(w.Operations) != 2 {
		t.Errorf("%d operations", len(w.Operations))
	}
}

func TestAReceiptThatCannotBeJudgedIsUnknown(t *testing.T) {
	t.Parallel()
	w, c := open(t, 1)
	w.After = func(stock.Operation, *stock.Outcome) error {
		w.Locked(func() { w.LedgerAway = errors.New("gone") })
		return nil
	}
	if _, err := c.Reserve(context.Background(), tea("o1", 4)); !errors.Is(err, stock.ErrUnknown) {
		t.Errorf("%v", err)
	}
}

func TestAnOrderWithoutARecordIsDecidedByTheLedger(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	confirm := func(c *order.Clerk) (order.Answer, error) { return c.Confirm(ctx, on("o1", 1, order.Persisted)) }
	release := func(c *order.Clerk) (order.Answer, error) { return c.Release(ctx, on("o1", 1, order.Memory)) }
	again := func(attempt int64, quantity int64) func(c *order.Clerk) (order.Answer, error) {
		return func(c *order.Clerk) (order.Answer, error) {
			r := tea("o1", quantity)
			r.Attempt = attempt
			return c.Reserve(ctx, r)
		}
	}
	for _, row := range []struct {
		state string
		call  func(*order.Clerk) (order.Answer, error)
		want  string
		sent  string
	}{
		{"none", confirm, "*order.UnknownOrderError", "C"},
		{"none", release, "*order.UnknownOrderError", "X"},
		{"none", again(2, 4), "held 2 memory false", "RR"},
		{"expired", confirm, "confirmed 2 persisted false", "RCS"},
		{"expired", release, "expired 1 persisted true", "RX"},
		{"expired", again(2, 4), "held 2 memory false", "RRR"},
		{"released", confirm, "*order.StateError", "RXC"},
		{"released", release, "released 1 persisted true", "RXX"},
		{"released", again(2, 5), "held 2 memory false", "RXRR"},
		{"confirmed", confirm, "confirmed 1 persisted true", "RCC"},
		{"confirmed", release, "*order.StateError", "RCX"},
		{"confirmed", again(2, 4), "*order.ConflictError", "RCR"},
		{"held", confirm, "*stock.ClosedError", "RCC"},
		{"held", release, "*stock.ClosedError", "RXX"},
		{"held", again(2, 4), "*order.ConflictError", "RR"},
	} {
		w, c := open(t, 1)
		if row.state != "none" {
			must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
		}
		switch row.state {
		case "expired":
			w.Tick(time.Hour)
		case "released":
			must[order.Answer](t)(release(c))
		case "confirmed":
			must[order.Answer](t)(confirm(c))
		}
		w.Drop("o1")
		a, err := row.call(c)
		got := fmt.Sprint(a.State, " ", a.Attempt, " ", a.Level, " ", a.Replayed)
		if err != nil {
			got = fmt.Sprintf("%T", err)
		}
		if got != row.want || kinds(w) != row.sent {
			t.Errorf("%s: %s after %s, want %s after %s (%v)", row.state, got, kinds(w), row.want, row.sent, err)
		}
		if f := w.FieldOf("tea"); f.OnHand() != 10 {
			t.Errorf("%s: tea stands at %v", row.state, f)
		}
	}
}

func TestAnOldCallCannotTouchANewerAttempt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	must[order.Answer](t)(c.Release(ctx, on("o1", 1, order.Memory)))
	second := tea("o1", 4)
	second.Attempt = 2
	must[order.Answer](t)(c.Reserve(ctx, second))
	var conflict *order.ConflictError
	if _, err := c.Confirm(ctx, on("o1", 1, order.Persisted)); !errors.As(err, &conflict) || conflict.Order.Attempt != 2 {
		t.Errorf("confirm: %v", err)
	}
	if _, err := c.Release(ctx, on("o1", 1, order.Memory)); !errors.As(err, &conflict) {
		t.Errorf("release: %v", err)
	}
	if _, err := c.Confirm(ctx, on("o1", 3, order.Persisted)); !errors.As(err, &conflict) {
		t.Errorf("confirm of a future attempt: %v", err)
	}
	if a := must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4))); !a.Replayed || a.Attempt != 2 || a.State != stock.Held {
		t.Errorf("reserve: %+v", a)
	}
	if f := w.FieldOf("tea"); f.Held != 4 || f.Available != 6 {
		t.Errorf("tea stands at %v", f)
	}
}

func TestARepeatedLateConfirmIsTheSameConfirm(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 1)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	w.Tick(time.Hour)
	first := must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Persisted)))
	again := must[order.Answer](t)(c.Confirm(ctx, on("o1", 1, order.Persisted)))
	first.Replayed = true
	if diff := cmp.Diff(first, again); diff != "" || first.Attempt != 2 || kinds(w) != "RCLC" {
		t.Errorf("%s after %s", diff, kinds(w))
	}
}

func TestAConfirmOfAnAttemptLongGoneIsNoRepeatOfALaterOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, c := open(t, 1)
	for attempt := range int64(3) {
		r := tea("o1", 4)
		r.Attempt = attempt + 1
		must[order.Answer](t)(c.Reserve(ctx, r))
		if attempt < 2 {
			must[order.Answer](t)(c.Release(ctx, on("o1", r.Attempt, order.Memory)))
		}
	}
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 3, order.Persisted)))
	var conflict *order.ConflictError
	if a, err := c.Confirm(ctx, on("o1", 1, order.Persisted)); !errors.As(err, &conflict) {
		t.Errorf("%+v %v", a, err)
	}
}

func TestAnOrderIsFoundInItsShard(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, c := open(t, 4)
	w.Stock("jam", 10, 1)
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	must[order.Answer](t)(c.Release(ctx, on("o1", 1, order.Memory)))
	second := &order.Request{ID: "o1", Attempt: 2, TTL: 60_000, Ack: order.Memory, Lines: []order.Line{{SKU: "jam", Quantity: 1}}}
	must[order.Answer](t)(c.Reserve(ctx, second))
	a := must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, order.Persisted)))
	if a.Receipt.Shard != 1 || a.Lines[0].SKU != "jam" {
		t.Errorf("%+v", a)
	}
	found := must[order.Found](t)(c.Lookup(ctx, "o1", nil))
	if len(found.Matches) != 2 || found.Receipt != a.Receipt || found.Standing != stock.StandingPersisted {
		t.Errorf("%+v", found)
	}
	w.Drop("o1")
	if a := must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, order.Persisted))); a.Receipt.Shard != 1 || !a.Replayed {
		t.Errorf("without records: %+v", a)
	}
	if _, err := c.Release(ctx, on("o9", 1, order.Memory)); !errors.As(err, new(*order.UnknownOrderError)) {
		t.Errorf("%v", err)
	}
}

func TestALostDocumentIsSentAgainAndMovesOnce(t *testing.T) {
	t.Parallel()
	w, _ := open(t, 1)
	c := patient(t, w)
	w.Stopped = true
	onceMoved(t, w, 1, func() {
		w.Lose()
		w.Locked(func() {
			w.Stopped = false
			w.FieldOf("tea").Available = 10 // rebuilt from the ledger
		})
	})
	m := order.Movement{DocumentID: "d1", Kind: stock.DocumentReceive, SKU: "tea", Units: 5, Reason: "received", Ack: order.Persisted}
	d := must[order.Document](t)(c.Move(context.Background(), m))
	if d.State != order.Applied || d.Level != order.Persisted || w.FieldOf("tea").Available != 15 {
		t.Errorf("%+v, tea stands at %v", d, w.FieldOf("tea"))
	}
}

func TestOneOrderFromManyCallersTakesStockOnce(t *testing.T) {
	t.Parallel()
	w, c := open(t, 1)
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			if _, err := c.Reserve(context.Background(), tea("o1", 1)); err != nil {
				t.Error(err)
			}
			if a, err := c.Confirm(context.Background(), on("o1", 1, order.Persisted)); err != nil || a.Level != order.Persisted {
				t.Errorf("%+v %v", a, err)
			}
		})
	}
	callers.Wait()
	if f := w.FieldOf("tea"); f.Available != 9 || f.Committed != 1 {
		t.Errorf("tea stands at %v", f)
	}
}

// nameless is a catalog whose ledger went away after the SKUs were found.
type nameless struct{ order.Catalog }

func (nameless) Names(context.Context, []int64) (map[int64]string, error) {
	return nil, errors.New("down")
}

// Names come from the ledger. Whoever was accepted must not be told that nothing was written because it is away.
func TestAnAcceptedCallIsAcceptedWhoeverCannotNameItsSKUs(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"confirm", "release"} {
		w, _ := open(t, 1)
		p := w.Parts()
		p.Catalog = nameless{p.Catalog}
		c := must[*order.Clerk](t)(order.NewClerk(p))
		must[order.Answer](t)(c.Reserve(t.Context(), tea("o1", 2)))
		call := c.Confirm
		if kind == "release" {
			call = c.Release
		}
		a, err := call(t.Context(), on("o1", 1, order.Memory))
		if err != nil || len(a.Lines) != 1 || a.Lines[0].Quantity != 2 || !strings.HasPrefix(a.Lines[0].SKU, "#") {
			t.Errorf("%s: %+v, %v", kind, a, err)
		}
	}
}

// A refusal that only Redis has may be lost with it, and the document be applied later: whoever was told "refused"
// would have sent another one in its place, and both would move.
func TestARefusalIsToldOnlyWhenTheLedgerHasIt(t *testing.T) {
	t.Parallel()
	for _, ack := range []order.Level{order.Memory, order.Persisted} {
		w, _ := open(t, 1)
		p := w.Parts()
		p.Patience = 50 * time.Millisecond
		c := must[*order.Clerk](t)(order.NewClerk(p))
		w.Stopped = true
		m := order.Movement{DocumentID: "d1", Kind: stock.DocumentAdjust, SKU: "tea", Units: -50, Reason: "damage", Ack: ack}
		d, err := c.Move(t.Context(), m)
		if err != nil || d.State != order.Written {
			t.Errorf("ack %s: %+v, %v before the ledger has it", ack, d, err)
		}
		w.Apply()
		var refused *order.RefusedError
		if d, err := c.Move(t.Context(), m); !errors.As(err, &refused) {
			t.Errorf("ack %s: %+v, %v when the ledger has it", ack, d, err)
		}
	}
}
