package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// countedWithin bounds how long orders of a SKU are refused once a limit was switched on: the reconciler hears of it and
// takes the shard over by itself, within a second or two if the last takeover has lasted, and else when it has.
const countedWithin = takeover.SettledAfter + 5*time.Second

// TestABuyerGetsTheLimitAndNoMore: 200 requests of one buyer at once, through two producers, before and after all that
// could make a shop forget what the buyer has.
func TestABuyerGetsTheLimitAndNoMore(t *testing.T) {
	r := shoptest.Begin(t, "limit of 2: one buyer, 200 requests at once")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(1_000, "tea")
	limit(s, "tea", 2)
	awaitCounted(s, "tea")

	b := &buyer{shop: s, name: "bob@example.org"}
	b.rush(2)
	s.Drain()
	s.Shelf("tea", "998|2|0")
	b.giveBack()
	b.rush(2)

	for _, fault := range []struct {
		name string
		hit  func()
	}{
		{"kill -9 and restart of Redis", func() {
			shoptest.Need(t, s.Redis.Kill())
			shoptest.Need(t, s.Redis.Restart(t.Context()))
		}},
		{"FLUSHALL", func() { shoptest.Need(t, s.RDB.FlushAll(t.Context()).Err()) }},
	} {
		s.Drain()
		epoch, hit := s.Epoch(0), time.Now()
		fault.hit()
		opened := awaitEpoch(s, epoch, "tea").Sub(hit)
		b.rush(0) // what is held stands in Postgres and was counted from there
		b.giveBack()
		b.rush(2)
		r.Note("%s: sold and counted again %.1f s later", fault.name, opened.Seconds())
	}
	// A sale and a parcel still count; a cancellation gives back, and what somebody else has does not matter.
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), b.has[0]), http.StatusOK)
	document(s, "fulfil", "p1")(s.Patient(1).Fulfil(t.Context(), b.has[0], &api.AmendRequest{DocumentID: "p1"}))
	b.rush(0)
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), b.has[1]), http.StatusOK)
	document(s, "cancel", "c1")(s.Patient(0).Cancel(t.Context(), b.has[1], &api.AmendRequest{DocumentID: "c1"}))
	b.has = b.has[:1]
	b.rush(1)
	(&buyer{shop: s, name: "ann"}).rush(2)
	if a := reserveFor(s, 0, "", "nobody", "tea", 1); a.Status != http.StatusUnprocessableEntity || a.Problem == nil || a.Problem.Code != api.CodeBuyer {
		t.Errorf("an order without a buyer: %s", a.String())
	}
	s.Drain()
	s.Shelf("tea", "996|3|0")
	s.Finish()
}

// A buyer asks for one unit at a time, under a new order id each.
type buyer struct {
	shop  *shoptest.Shop
	name  string
	asked int
	has   []string
}

// rush asks 200 times at once and wants so many requests taken, and every other refused with the numbers.
func (b *buyer) rush(want int) {
	s := b.shop
	s.T.Helper()
	answers := make([]shoptest.Answer, 200)
	first := b.asked
	b.asked += len(answers)
	shoptest.Crowd(len(answers), len(answers), func(i int) {
		answers[i] = reserveFor(s, i, b.name, fmt.Sprintf("%s-%d", b.name[:3], first+i), "tea", 1)
	})
	for _, a := range answers {
		switch {
		case a.Status == http.StatusCreated:
			b.has = append(b.has, a.Order)
			want--
		case a.Status != http.StatusTooManyRequests || a.Problem == nil || a.Problem.Code != api.CodeLimit || a.Problem.Limit != 2 || a.Problem.Have == nil || *a.Problem.Have != 2:
			s.T.Errorf("neither taken nor told what the buyer has: %s", a.String())
		}
	}
	if want != 0 {
		s.T.Errorf("%s got %d units less than were due", b.name, want)
	}
}

// giveBack releases all.
func (b *buyer) giveBack() {
	b.shop.T.Helper()
	for i, order := range b.has {
		b.shop.Told(shoptest.Release(b.shop.T.Context(), b.shop.Client(i), order), http.StatusOK)
	}
	b.has = nil
}

// TestALimitIsCountedBeforeItIsSoldUnder switches a limit on for a SKU of which people have units already.
func TestALimitIsCountedBeforeItIsSoldUnder(t *testing.T) {
	r := shoptest.Begin(t, "limit switched on while the SKU sells")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(100, "tea", "mug")
	// What each has before: sold and shipped, sold, held, given back.
	for _, o := range []struct {
		order, buyer string
		units        int64
	}{{"u1-a", "u1", 1}, {"u1-b", "u1", 1}, {"u1-c", "u1", 1}, {"u2-a", "u2", 1}, {"u3-a", "u3", 2}} {
		s.Told(reserveFor(s, 0, o.buyer, o.order, "tea", o.units), http.StatusCreated)
	}
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), "u1-a"), http.StatusOK)
	document(s, "fulfil", "p1")(s.Patient(0).Fulfil(t.Context(), "u1-a", &api.AmendRequest{DocumentID: "p1"}))
	s.Told(shoptest.Confirm(t.Context(), s.Client(0), "u1-b"), http.StatusOK)
	s.Told(shoptest.Release(t.Context(), s.Client(0), "u3-a"), http.StatusOK)

	// While nobody counts, nobody buys: a limit that starts from nothing would be a guess.
	awaitLasted(s)
	keeper := s.Living(shoptest.Reconciler)[0]
	keeper.Pause()
	epoch := s.Epoch(0)
	limit(s, "tea", 2)
	for i, who := range []string{"u1", "u2", "u4"} {
		a := reserveFor(s, i, who, "early-"+who, "tea", 1)
		if a.Status != http.StatusServiceUnavailable || a.Problem == nil || a.Problem.Code != api.CodeUncounted || a.Problem.RetryAfterMillis <= 0 {
			t.Errorf("before anybody counted: %s", a.String())
		}
	}
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "m1", "mug", 1, 3600), http.StatusCreated) // others sell on
	keeper.Resume()
	waited := awaitCounted(s, "tea")
	if waited > takeover.SettledAfter/2 {
		t.Errorf("the reconciler took %v", waited)
	}
	if n := shoptest.One[int64](s, `select count(*) from epoch_end where epoch >= $1`, epoch); n != 1 || s.Epoch(0) == epoch {
		t.Errorf("%d epochs have ended since: one takeover counts", n)
	}
	if class := shoptest.One[string](s, `select class from repair where verb = 'takeover' order by id desc limit 1`); class != "uncounted" {
		t.Errorf("the takeover was for %q", class)
	}
	for _, c := range []struct {
		buyer      string
		have, more int64
	}{{"u1", 3, 0}, {"u2", 1, 1}, {"u3", 0, 2}, {"u4", 0, 2}} {
		a := reserveFor(s, 0, c.buyer, "much-"+c.buyer, "tea", 3)
		if a.Problem == nil || a.Problem.Code != api.CodeLimit || a.Problem.Have == nil || *a.Problem.Have != c.have {
			t.Errorf("%s has %d: %s", c.buyer, c.have, a.String())
		}
		if c.more > 0 {
			s.Told(reserveFor(s, 1, c.buyer, "fits-"+c.buyer, "tea", c.more), http.StatusCreated)
		}
		s.Told(reserveFor(s, 0, c.buyer, "over-"+c.buyer, "tea", 1), http.StatusTooManyRequests)
	}
	r.Note("refused as uncounted until the reconciler had taken over by itself, %.1f s after it could; then exact for 4 buyers", waited.Seconds())
	s.Finish()
}

// limit switches a limit on; the answer says that what buyers have is still to be counted.
func limit(s *shoptest.Shop, sku string, units int64) {
	s.T.Helper()
	set, err := s.Patient(0).Configure(s.T.Context(), sku, api.SettingsRequest{BuyerLimit: &units})
	shoptest.Need(s.T, err)
	if set.Settings.BuyerLimit != units || set.Hint == "" {
		s.T.Errorf("a limit was switched on: %+v", set)
	}
}

// awaitCounted waits until every producer sells a SKU whose limit was switched on, and says how long it took.
func awaitCounted(s *shoptest.Shop, sku string) time.Duration {
	s.T.Helper()
	began := time.Now()
	awaitSale(s, sku, countedWithin)
	return time.Since(began)
}

// awaitSale asks each producer, for a buyer of its own, until it sells a SKU, and gives the unit back. Until then it may
// say that it is closed, or that what buyers have is not counted.
func awaitSale(s *shoptest.Shop, sku string, within time.Duration) {
	s.T.Helper()
	for n := range s.Living(shoptest.Producer) {
		sandboxtest.Eventually(s.T, within, func() error {
			a := reserveFor(s, n, "probe", "probe-"+sku, sku, 1)
			if a.Status == http.StatusServiceUnavailable && a.Problem != nil && (a.Problem.Code == api.CodeUncounted || a.Problem.Code == api.CodeClosed) {
				return a.Err
			}
			if !a.Accepted() {
				s.T.Errorf("a unit for the probe: %s", a.String())
			}
			return nil
		})
	}
	s.Told(shoptest.Release(s.T.Context(), s.Client(0), "probe-"+sku), http.StatusOK)
}

// awaitLasted waits until the takeover that opened shard 0 has lasted: the reconciler leaves that much time between two
// takeovers that are no hurry.
func awaitLasted(s *shoptest.Shop) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, 2*takeover.SettledAfter, func() error {
		for _, shard := range shoptest.One[[]float64](s, `select array_agg(extract(epoch from now() - opened)::float8) from shard`) {
			if shard < takeover.SettledAfter.Seconds() {
				return fmt.Errorf("it is open for %.1f s", shard)
			}
		}
		return nil
	})
}

// awaitEpoch waits until a newer epoch of shard 0 is open and every producer sells the SKU in it, and says when.
func awaitEpoch(s *shoptest.Shop, old int64, sku string) time.Time {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if _, err := s.Lag(s.T.Context()); err != nil {
			return err
		}
		if s.Epoch(0) == old {
			return errors.New("nobody took the shop over")
		}
		return nil
	})
	awaitSale(s, sku, shoptest.Patience)
	return time.Now()
}

// reserveFor asks for units in a buyer's name, once, at the nth producer.
func reserveFor(s *shoptest.Shop, n int, buyer, order, sku string, units int64) shoptest.Answer {
	a := ask(s, order, &api.ReserveRequest{Buyer: buyer, Lines: []api.Line{{SKU: sku, Quantity: units}}, TTL: 3600}, s.Client(n))
	a.SKU, a.Units = sku, units
	return a
}
