package order_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// secondTime ends attempt 1 and takes the order again as attempt 2, confirmed.
func secondTime(t *testing.T, w *ordertest.World, c *order.Clerk, released bool, quantity int64) {
	t.Helper()
	ctx := context.Background()
	must[order.Answer](t)(c.Reserve(ctx, tea("o1", 4)))
	if released {
		must[order.Answer](t)(c.Release(ctx, on("o1", 1, order.Memory)))
	} else {
		w.Tick(time.Hour)
	}
	second := tea("o1", quantity)
	second.Attempt = 2
	must[order.Answer](t)(c.Reserve(ctx, second))
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, order.Memory)))
}

func TestAConfirmOfAReleasedAttemptIsNoRepeatOfTheNext(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, drop := range []bool{false, true} {
		w, c := open(t, 1)
		secondTime(t, w, c, true, 4)
		if drop {
			w.Drop("o1")
		}
		for _, ack := range []order.Level{order.Memory, order.Persisted} {
			var conflict *order.ConflictError
			if a, err := c.Confirm(ctx, on("o1", 1, ack)); !errors.As(err, &conflict) || conflict.Order.Attempt != 2 || conflict.Order.State != stock.Confirmed {
				t.Errorf("dropped %v: %+v, %v", drop, a, err)
			}
			if a := must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, ack))); !a.Replayed || a.Attempt != 2 {
				t.Errorf("dropped %v: %+v", drop, a)
			}
		}
	}
}

func TestAConfirmOfAnExpiredAttemptIsARepeatOnlyOfTheSameLines(t *testing.T) {
	t.Parallel()
	for quantity, same := range map[int64]bool{4: true, 5: false} {
		w, c := open(t, 1)
		secondTime(t, w, c, false, quantity)
		a, err := c.Confirm(context.Background(), on("o1", 1, order.Memory))
		var conflict *order.ConflictError
		if same && (err != nil || !a.Replayed || a.Attempt != 2) || !same && !errors.As(err, &conflict) {
			t.Errorf("%d units: %+v, %v", quantity, a, err)
		}
	}
}

func TestAnAttemptThatNeverWasIsNotConfirmedByTheNext(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, c := open(t, 1)
	second := tea("o1", 4)
	second.Attempt = 2
	must[order.Answer](t)(c.Reserve(ctx, second))
	must[order.Answer](t)(c.Confirm(ctx, on("o1", 2, order.Memory)))
	var conflict *order.ConflictError
	if a, err := c.Confirm(ctx, on("o1", 1, order.Memory)); !errors.As(err, &conflict) {
		t.Errorf("%+v, %v", a, err)
	}
}

// Only Postgres knows how an attempt before the present one ended. While it cannot tell, nobody is told "confirmed".
func TestHowAnAttemptEndedIsNotGuessedWhileTheLedgerIsBehindOrAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, released := range []bool{true, false} {
		w, c := open(t, 1)
		w.Stopped = true
		secondTime(t, w, c, released, 4)
		if a, err := c.Confirm(ctx, on("o1", 1, order.Memory)); !errors.Is(err, stock.ErrUnknown) {
			t.Errorf("behind, released %v: %+v, %v", released, a, err)
		}
		// It catches up while somebody waits.
		waiting := patient(t, w)
		onceMoved(t, w, 1, w.Apply)
		a, err := waiting.Confirm(ctx, on("o1", 1, order.Memory))
		var conflict *order.ConflictError
		if released && !errors.As(err, &conflict) || !released && (err != nil || !a.Replayed) {
			t.Errorf("caught up, released %v: %+v, %v", released, a, err)
		}
		w.Locked(func() { w.LedgerAway = errors.New("down") })
		var closed *stock.ClosedError
		if a, err := c.Confirm(ctx, on("o1", 1, order.Memory)); !errors.As(err, &closed) && !errors.Is(err, stock.ErrUnknown) {
			t.Errorf("away, released %v: %+v, %v", released, a, err)
		}
	}
}

func TestARepeatOfAnOrdinaryConfirmAsksPostgresForNothingMore(t *testing.T) {
	t.Parallel()
	w, _ := open(t, 1)
	p := w.Parts()
	p.Orders = unasked{p.Orders, t}
	c := must[*order.Clerk](t)(order.NewClerk(p))
	must[order.Answer](t)(c.Reserve(t.Context(), tea("o1", 4)))
	for range 2 {
		must[order.Answer](t)(c.Confirm(t.Context(), on("o1", 1, order.Memory)))
	}
}

// unasked are orders that nobody may look up.
type unasked struct {
	order.Orders
	t *testing.T
}

func (u unasked) Lookup(context.Context, string) ([]stock.Reservation, error) {
	u.t.Error("an order was looked up")
	return nil, nil
}

func (u unasked) Attempt(context.Context, int, string, int64) (stock.Reservation, bool, error) {
	u.t.Error("an attempt was looked up")
	return stock.Reservation{}, false, nil
}
