package shoptest

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// MaxHistoryOrders bounds the orders of one history: what explains it is searched for.
const MaxHistoryOrders = 4

// Whole is the number of units of an OrderDeed that is about all of the order.
const Whole = -1

// An OrderDeed is one call about an order of one SKU, or a look at the shelf. It names what shall stand, never a
// difference; so a repeat finds its result and changes nothing.
type OrderDeed struct {
	Order   int    // 0 to MaxHistoryOrders-1
	Verb    string // reserve, partial, replace, extend, confirm, release, look
	Units   int64  // asked for, or what shall stand; of a confirm and a release also Whole
	Until   int64  // extend: Unix seconds
	Carried bool   // an earlier try of a call: it may have been carried out, whatever the last one answered
}

// An OrderWord is what a call was told. Empty: nothing.
type OrderWord struct {
	Word  string // ok, sold out, conflict, refused, unknown order
	State string // ok: where the order stands
	Units int64  // and with how many units; of a look what is available
	Until int64  // how long it is held, where an extend said so
}

// held is an order of a counter.
type held struct {
	state             string
	asked, now, until int64
}

// A counter is the sequential shop that every history must be explained by.
type counter struct {
	available int64
	orders    [MaxHistoryOrders]held
}

// do is the rule of each call: what is told, and how the shop stands then.
func (c counter) do(d OrderDeed) (counter, OrderWord) {
	o := &c.orders[d.Order]
	switch {
	case d.Verb == "look":
		return c, OrderWord{Word: "ok", Units: c.available}
	case d.Verb == "reserve" || d.Verb == "partial":
		word := c.reserve(o, d)
		return c, word
	case o.state == "":
		return c, OrderWord{Word: "unknown order"}
	case d.Verb == "confirm" && o.state == "confirmed":
		if d.Units != Whole && d.Units != o.now {
			return c, OrderWord{Word: "conflict"}
		}
		return c, o.word()
	case d.Verb == "release" && o.state == "released":
		return c, o.word()
	case o.state != "held":
		return c, OrderWord{Word: "refused"}
	}
	left := d.Units
	switch d.Verb {
	case "replace":
		if d.Units-o.now > c.available {
			return c, OrderWord{Word: "sold out"}
		}
	case "extend":
		o.until = max(o.until, d.Until)
		w := o.word()
		w.Until = o.until
		return c, w
	default: // confirm and release
		if left == Whole {
			left = map[string]int64{"confirm": o.now, "release": 0}[d.Verb]
		}
		if left > o.now {
			return c, OrderWord{Word: "conflict"}
		}
	}
	c.available += o.now - left
	o.now = left
	switch {
	case d.Verb == "confirm":
		o.state = "confirmed"
	case d.Verb == "release" && left == 0:
		o.state = "released"
	}
	return c, o.word()
}

func (c *counter) reserve(o *held, d OrderDeed) OrderWord {
	units := d.Units
	if d.Verb == "partial" {
		units = min(units, c.available)
	}
	switch {
	case o.state != "" && o.asked != d.Units:
		return OrderWord{Word: "conflict"}
	case o.state != "":
		return o.word()
	case units > c.available || units == 0:
		return OrderWord{Word: "sold out"}
	}
	c.available -= units
	*o = held{state: "held", asked: d.Units, now: units}
	return o.word()
}

func (o *held) word() OrderWord {
	w := OrderWord{Word: "ok", State: o.state}
	if o.state != "released" {
		w.Units = o.now
	}
	return w
}

// explains reports whether an answer is what the rule tells. Nothing told is explained by anything.
func (w OrderWord) explains(told OrderWord) bool { return told == (OrderWord{}) || told == w }

// An OrderHistory is what callers of a few orders of one SKU saw, in real time.
type OrderHistory struct {
	began time.Time
	units int64
	deeds []porcupine.Operation
}

// NewOrderHistory is one of a SKU with so many units.
func NewOrderHistory(units int64) *OrderHistory {
	return &OrderHistory{began: time.Now(), units: units}
}

// Add notes what was told to a deed that took effect at one moment between two times. Told nothing, it may take effect
// at any later time, or never.
func (h *OrderHistory) Add(d OrderDeed, told OrderWord, from, to time.Time) {
	last := int64(math.MaxInt64)
	if told != (OrderWord{}) || d.Carried {
		last = to.Sub(h.began).Nanoseconds()
	}
	h.deeds = append(h.deeds, porcupine.Operation{Input: d, Output: told, Call: from.Sub(h.began).Nanoseconds(), Return: last})
}

// Explained reports whether one order of the deeds, in which none moves out of its times, is that of a single shop.
func (h *OrderHistory) Explained() (bool, error) {
	model := porcupine.Model{
		Init: func() any { return counter{available: h.units} },
		Step: func(state, input, output any) (bool, any) {
			next, word := state.(counter).do(input.(OrderDeed))
			return word.explains(output.(OrderWord)), next
		},
	}
	switch porcupine.CheckOperationsTimeout(model, h.deeds, historyTime) {
	case porcupine.Ok:
		return true, nil
	case porcupine.Illegal:
		return false, nil
	}
	return false, fmt.Errorf("a history of %d deeds was not judged within %v", len(h.deeds), historyTime)
}

// Deeds is how many there are.
func (h *OrderHistory) Deeds() int { return len(h.deeds) }

// String lists the deeds, for whoever asks why nothing explains them.
func (h *OrderHistory) String() string {
	text := fmt.Sprintf("%d units", h.units)
	for _, o := range h.deeds {
		text += fmt.Sprintf("\n    %8.3f to %8.3f s: %+v told %+v", float64(o.Call)/1e9, float64(o.Return)/1e9, o.Input, o.Output)
	}
	return text
}

// WordOf is what an answer tells about the order of one SKU; empty if it does not tell.
func WordOf(a *Answer, d OrderDeed) OrderWord {
	switch {
	case a.Accepted() || a.Status == http.StatusAccepted:
		w := OrderWord{Word: "ok", State: a.Reservation.State}
		if w.State != "released" {
			for _, l := range a.Reservation.Lines {
				w.Units += l.Quantity
			}
		}
		if until, err := time.Parse(time.RFC3339, a.Reservation.ExpiresAt); err == nil && d.Verb == "extend" {
			w.Until = until.Unix()
		}
		return w
	case a.Problem == nil || !a.Settled():
		return OrderWord{}
	}
	switch a.Problem.Code {
	case api.CodeSoldOut:
		return OrderWord{Word: "sold out"}
	case api.CodeConflict:
		return OrderWord{Word: "conflict"}
	case api.CodeReleased, api.CodeConfirmed, api.CodeCancelled, api.CodeState:
		return OrderWord{Word: "refused"}
	case api.CodeUnknownOrder:
		return OrderWord{Word: "unknown order"}
	}
	return OrderWord{Word: fmt.Sprintf("%d %s", a.Status, a.Problem.Code)} // which no rule tells
}

// ProveOrderHistories shows that the judge condemns a shop in which a call that is sent again acts again, and no other:
// for each verb a history of callers who got no reply and asked once more.
func ProveOrderHistories(t *testing.T) {
	t.Helper()
	for verb, again := range map[string]func(*counter, OrderDeed){
		"reserve": func(c *counter, d OrderDeed) { c.available -= d.Units },
		"partial": func(c *counter, d OrderDeed) { c.available -= min(d.Units, c.available) },
		"replace": func(c *counter, d OrderDeed) { c.available -= d.Units - 2 },
		"confirm": func(c *counter, d OrderDeed) { c.available += 2 - d.Units },
		"release": func(c *counter, d OrderDeed) { c.available += 2 - d.Units },
		"extend":  func(c *counter, d OrderDeed) { c.orders[d.Order].until += 60 },
	} {
		for _, careless := range []bool{false, true} {
			h := tell(verb, careless, again)
			if got, err := h.Explained(); err != nil || got == careless {
				t.Errorf("%s, sent again after a lost reply, acts again: %v; explained: %v (%v): %v", verb, careless, got, err, h)
			}
		}
	}
}

// tell plays three orders of 10 units at one counter. The call in question is sent twice: nobody hears the first reply.
func tell(verb string, careless bool, again func(*counter, OrderDeed)) *OrderHistory {
	h := &OrderHistory{began: time.Unix(0, 0), units: 10}
	c := counter{available: 10}
	clock := 0
	at := func() time.Time { return time.Unix(0, 0).Add(time.Duration(clock) * time.Millisecond) }
	ask := func(d OrderDeed, lost bool) {
		from := at()
		clock += 3
		var word OrderWord
		c, word = c.do(d)
		if lost {
			word = OrderWord{}
		}
		h.Add(d, word, from, at())
		clock -= 1 // the next call begins before this one ends
	}
	first := OrderDeed{Order: 0, Verb: "reserve", Units: 2}
	deed := OrderDeed{Order: 0, Verb: verb, Units: 1, Until: 5_000}
	switch verb {
	case "reserve", "partial":
		deed.Units = 2
	case "replace":
		deed.Units = 4
		fallthrough
	default:
		ask(first, false)
	}
	ask(OrderDeed{Order: 1, Verb: "reserve", Units: 3}, false)
	ask(deed, true)
	if careless {
		again(&c, deed)
	}
	ask(deed, false)
	ask(OrderDeed{Order: 1, Verb: "release", Units: 1}, false)
	ask(OrderDeed{Order: 2, Verb: "partial", Units: 10}, false) // takes whatever is there, and says how much
	ask(OrderDeed{Verb: "look"}, false)
	return h
}
