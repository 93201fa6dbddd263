package faults

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// takeovers are faults in the middle of everything that a shop does, after each of which limits are counted anew.
var takeovers = []struct {
	name, class string
	whole       bool
	hit         func(*shoptest.Shop)
}{
	{"FLUSHALL", "missing", false, func(s *shoptest.Shop) { shoptest.Need(s.T, s.RDB.FlushAll(s.T.Context()).Err()) }},
	{"kill -9 and restart", "unopened", true, func(s *shoptest.Shop) {
		shoptest.Need(s.T, s.Redis.Kill())
		shoptest.Need(s.T, s.Redis.Restart(s.T.Context()))
	}},
}

// TestTakeoverInTheMiddleOfEverything lets Redis fail while callers do all that can be done with orders, some of them
// up to their limit. Whoever was at the limit cannot buy afterwards, and whoever was not can buy exactly what is left.
func TestTakeoverInTheMiddleOfEverything(t *testing.T) {
	for _, fault := range takeovers {
		if fault.whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(fault.name, " ", "_"), func(t *testing.T) {
			r := shoptest.Begin(t, "mix with limits: "+fault.name)
			r.Class = fault.class
			s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1})
			mix := s.Mix(shoptest.MixPlan{Callers: 8, Think: 60 * time.Millisecond, Limits: true, Papers: 4, Seed: shoptest.Seed(t)})
			s.Supply(1_000, "one", "probe")
			buyers := newBuyers(s, "one", 2)
			mix.More(shoptest.Size[int64](150, 1500))
			for range shoptest.Size(1, 5) {
				epoch, hit := s.Epoch(0), time.Now()
				fault.hit(s)
				sandboxtest.Eventually(t, 2*shoptest.Patience, func() error {
					a := shoptest.Reserve(t.Context(), s.Client(0), api.NewOrderID(), "probe", 1, 1)
					if !a.Accepted() || a.Epoch() <= epoch {
						return fmt.Errorf("it does not sell: %s", a.String())
					}
					return nil
				})
				r.Opened(time.Since(hit))
				buyers.press()
				mix.More(shoptest.Size[int64](150, 1500))
				s.Age() // the next fault is another day's
			}
			mix.Stop()
			if class := shoptest.One[string](s, `select class from repair where verb = 'takeover' order by id desc limit 1`); class != fault.class {
				t.Errorf("it was taken over as %q", class)
			}
			buyers.press()
			books := mix.Judge()
			books.Prove()
			r.Note("%v", books)
			r.Note("%d buyers of a SKU with limit 2: each has 2, and not one got a third", len(buyers.names))
			s.Finish()
		})
	}
}

// buyers are people of whom one half has all that a limit allows, and the other half less.
type buyers struct {
	*shoptest.Shop
	sku   string
	limit int64
	names []string
	tries int
}

// newBuyers gives a SKU a limit and lets buyer n have n units of it, up to the limit, persisted.
func newBuyers(s *shoptest.Shop, sku string, limit int64) *buyers {
	s.T.Helper()
	b := &buyers{Shop: s, sku: sku, limit: limit}
	s.Limit(sku, limit)
	for n := range 12 {
		b.names = append(b.names, fmt.Sprintf("buyer-%d", n))
		if n%3 > 0 {
			b.want(n, int64(n%3), http.StatusCreated)
		}
	}
	s.Drain()
	return b
}

// want lets a buyer ask, as often as it takes to have an answer, for a sale that is persisted.
func (b *buyers) want(n int, units int64, status int) {
	b.T.Helper()
	b.tries++
	order := fmt.Sprintf("limit-%d-%d", n, b.tries)
	sandboxtest.Eventually(b.T, shoptest.Patience, func() error {
		a := shoptest.Call(b.T.Context(), order, func(ctx context.Context) (api.Reservation, error) {
			return b.Client(n).Reserve(ctx, &api.ReserveRequest{OrderID: order, Buyer: b.names[n], Lines: []api.Line{{SKU: b.sku, Quantity: units}}, Sale: true})
		})
		switch {
		case !a.Settled() || a.Status == http.StatusAccepted:
			return fmt.Errorf("no answer: %s", a.String())
		case a.Status == http.StatusOK:
			a.Status = http.StatusCreated // asked before
		}
		if a.Status != status {
			b.T.Errorf("%s asks for %d: want status %d: %s", b.names[n], units, status, a.String())
		}
		return nil
	})
}

// press lets everybody buy what is left to them, and then one unit more, which the limit refuses.
func (b *buyers) press() {
	b.T.Helper()
	have := map[string]int64{}
	for n, name := range b.names {
		has := shoptest.One[int64](b.Shop, `select coalesce(sum(l.now), 0) from reservation r join reservation_line l using (shard, order_id, attempt)
			where r.buyer = $1 and l.sku = $2 and r.state = 'confirmed'`, name, b.Numbers[b.sku])
		b.want(n, b.limit-has+1, http.StatusTooManyRequests)
		if has < b.limit {
			b.want(n, b.limit-has, http.StatusCreated)
		}
		b.want(n, 1, http.StatusTooManyRequests)
		have[name] = b.limit
	}
	b.Drain()
	if err := b.Counted(b.sku, have); err != nil {
		b.T.Error(err)
	}
}
