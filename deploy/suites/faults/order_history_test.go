package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
)

// TestHistoriesOfOrdersWithLostReplies lets callers reserve, replace, lengthen, confirm and release the same few orders
// at once, whole and in part, while replies are lost on their way. A single shop in which each call acts once explains
// what all of them were told.
func TestHistoriesOfOrdersWithLostReplies(t *testing.T) {
	r := shoptest.Begin(t, "histories: all that an order can do, replies lost")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1, Proxied: true})
	seed := shoptest.Seed(t)
	rounds := shoptest.Size(6, 120)
	skus := shoptest.Names("few", rounds)
	s.Supply(fewUnits, skus...)
	stories := make([]*story, rounds)
	shoptest.Crowd(rounds, 6, func(i int) {
		stories[i] = &story{Shop: s, sku: skus[i], history: shoptest.NewOrderHistory(fewUnits)}
		stories[i].play(rand.New(rand.NewPCG(seed, uint64(i))))
	})
	s.Drain()
	deeds, lost, words := 0, 0, map[string]int{}
	for i, one := range stories {
		now := time.Now()
		one.history.Add(shoptest.OrderDeed{Verb: "look"}, shoptest.OrderWord{Word: "ok", Units: shoptest.Available(t, s.InRedis(one.sku))}, now, now.Add(time.Millisecond))
		explained, err := one.history.Explained()
		shoptest.Need(t, err)
		if !explained {
			t.Errorf("seed %d, round %d: nothing explains what the callers of %s were told: %v", seed, i, one.sku, one.history)
		}
		deeds, lost = deeds+one.history.Deeds(), lost+one.lost
		for word, n := range one.words {
			words[word] += n
		}
	}
	if lost == 0 {
		t.Error("no reply was lost")
	}
	for _, word := range []string{"ok", "sold out", "refused"} {
		if words[word] == 0 {
			t.Errorf("nobody was told %q: %v", word, words)
		}
	}
	r.Note("%d histories of %d deeds explained, %d replies lost, told %v (seed %d)", rounds, deeds, lost, words, seed)
	s.Finish()
}

const fewUnits = 6

// A story is callers of three orders of one SKU.
type story struct {
	*shoptest.Shop
	sku     string
	history *shoptest.OrderHistory

	mu    sync.Mutex
	lost  int
	words map[string]int
}

// play lets four callers do what they like with the orders. Every second call loses a reply.
func (y *story) play(chance *rand.Rand) {
	y.words = map[string]int{}
	const callers, calls, orders = 4, 6, 3
	base := time.Now().Add(2 * time.Hour).Unix()
	var wait sync.WaitGroup
	for n := range callers {
		own := rand.New(rand.NewPCG(chance.Uint64(), uint64(n)))
		wait.Go(func() {
			for i := range calls {
				d := drawDeed(own, orders, base)
				if i == 0 { // most find their order there
					d = shoptest.OrderDeed{Order: n % orders, Verb: []string{"reserve", "partial"}[n%orders%2], Units: int64(2 + n%orders)}
				}
				y.call(n, d, own.IntN(2) == 0, own.IntN(12) == 0)
			}
		})
	}
	wait.Wait()
}

// drawDeed draws a call. An order is always asked for with the same units and policy: what else it would be is another order.
func drawDeed(chance *rand.Rand, orders int, base int64) shoptest.OrderDeed {
	d := shoptest.OrderDeed{Order: chance.IntN(orders), Units: 1 + chance.Int64N(4)}
	switch p := chance.IntN(10); {
	case p < 2:
		d.Verb, d.Units = []string{"reserve", "partial"}[d.Order%2], int64(2+d.Order)
	case p < 5:
		d.Verb = "replace"
	case p < 6:
		d.Verb, d.Until = "extend", base+60*chance.Int64N(60)
	case p < 8:
		d.Verb = "confirm"
		if chance.IntN(2) == 0 {
			d.Units = shoptest.Whole
		}
	default:
		d.Verb = "release"
		if d.Units--; chance.IntN(3) == 0 {
			d.Units = shoptest.Whole
		}
	}
	return d
}

// call makes a call, whose reply from Redis is lost if it is to be, and notes what it was told. Its producer tries again
// by itself; so what was told last may be about the second time that it arrived.
func (y *story) call(n int, d shoptest.OrderDeed, lose, silently bool) {
	order := fmt.Sprintf("%s-order-%d", y.sku, d.Order)
	var fault *faultproxy.Fault
	if lose {
		match := func(request []byte) bool {
			return faultproxy.Contains("fcall")(request) && bytes.Contains(request, []byte(order))
		}
		if fault = y.Path.CutAfterExecution(match); silently {
			fault.Disarm()
			fault = y.Path.SwallowReply(match)
		}
	}
	a := shoptest.Call(y.T.Context(), order, func(ctx context.Context) (api.Reservation, error) { return y.ask(ctx, n, d, order) })
	lost := fault != nil && !fault.Disarm()
	word := shoptest.WordOf(&a, d)
	y.mu.Lock()
	defer y.mu.Unlock()
	if lost {
		y.lost++
	}
	y.words[word.Word]++
	if a.Status == http.StatusServiceUnavailable {
		word = shoptest.OrderWord{} // of its last try: an earlier one may have arrived
	}
	earlier := d
	earlier.Carried = word != (shoptest.OrderWord{}) // or each of them may also have arrived later, or never
	y.history.Add(earlier, shoptest.OrderWord{}, a.Began, a.Ended)
	y.history.Add(d, word, a.Began, a.Ended)
}

func (y *story) ask(ctx context.Context, n int, d shoptest.OrderDeed, order string) (api.Reservation, error) {
	c := y.Client(n)
	lines := []api.Line{{SKU: y.sku, Quantity: d.Units}}
	request := api.AttemptRequest{Ack: api.Memory}
	if d.Units != shoptest.Whole {
		request.Lines = []api.Result{{SKU: y.sku, Quantity: d.Units}}
	}
	switch d.Verb {
	case "reserve":
		return c.Reserve(ctx, &api.ReserveRequest{OrderID: order, Lines: lines, TTL: 3600})
	case "partial":
		return c.Reserve(ctx, &api.ReserveRequest{OrderID: order, Lines: lines, TTL: 3600, Policy: "partial"})
	case "replace":
		return c.Replace(ctx, order, api.ReplaceRequest{Lines: lines})
	case "extend":
		return c.Extend(ctx, order, api.ExtendRequest{Until: time.Unix(d.Until, 0).UTC().Format(time.RFC3339)})
	case "confirm":
		return c.Confirm(ctx, order, request)
	}
	return c.Release(ctx, order, request)
}
