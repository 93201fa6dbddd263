package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A call is one of those that a shop makes, each under an id of its own.
type call struct {
	name     string
	function string // of the library whose reply is lost, or a command of Redis
	kind     string // letter of its event; empty: it changes nothing
	prepare  func(s *shoptest.Shop, id string)
	do       func(ctx context.Context, c *api.Client, id string) (status string, err error) // where it stands
	want     string
	event    func(s *shoptest.Shop, id string) string // id of its event, if it is not the order's
	shelf    string                                   // of its SKU afterwards, which had 100 units
}

// inFiveHours is named by every try alike, so that a repeat changes nothing.
var inFiveHours = time.Now().Add(5 * time.Hour).UTC().Format(time.RFC3339)

// calls are every kind. The SKU of each has the id's name.
var calls = []call{
	{name: "reserve", function: "stockpipe_1_apply", kind: "R", want: "held", shelf: "98|2|0",
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Reserve(ctx, &api.ReserveRequest{OrderID: id, Lines: []api.Line{{SKU: id, Quantity: 2}}, TTL: 3600})
		})},
	{name: "sale", function: "stockpipe_1_apply", kind: "S", want: "confirmed", shelf: "98|0|2",
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Reserve(ctx, &api.ReserveRequest{OrderID: id, Lines: []api.Line{{SKU: id, Quantity: 2}}, Sale: true})
		})},
	{name: "confirm", function: "stockpipe_1_settle", kind: "C", want: "confirmed", shelf: "98|0|2", prepare: held(3600), do: reservation(confirm)},
	{name: "late-confirm", function: "stockpipe_1_apply", kind: "L", want: "confirmed", shelf: "98|0|2", prepare: expired, do: reservation(confirm)},
	{name: "release", function: "stockpipe_1_settle", kind: "X", want: "released", shelf: "100|0|0", prepare: held(3600),
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Release(ctx, id, api.AttemptRequest{})
		})},
	{name: "receive", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "107|0|0", event: movement,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Receive(ctx, id, &api.ReceiveRequest{DocumentID: id, Quantity: 7})
		})},
	{name: "adjust", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "93|0|0", event: movement,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Adjust(ctx, id, &api.AdjustRequest{DocumentID: id, Quantity: -7, Reason: "damaged"})
		})},
	{name: "count", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "120|0|0", event: movement,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Count(ctx, id, &api.CountRequest{DocumentID: id, Counted: 120})
		})},
	{name: "fulfil", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "98|0|1", event: movement, prepare: sold,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Fulfil(ctx, id, &api.AmendRequest{DocumentID: id, Lines: []api.Line{{SKU: id, Quantity: 1}}})
		})},
	{name: "cancel", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "100|0|0", event: movement, prepare: sold,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Cancel(ctx, id, &api.AmendRequest{DocumentID: id})
		})},
	{name: "return", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "99|0|0", event: movement, prepare: shipped,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Return(ctx, id, &api.ReturnRequest{DocumentID: id, Lines: []api.Line{{SKU: id, Quantity: 1}}})
		})},
	{name: "scrap", function: "stockpipe_1_apply", kind: "M", want: "applied", shelf: "98|0|0", event: movement, prepare: shipped,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Return(ctx, id, &api.ReturnRequest{DocumentID: id, Scrap: true})
		})},
	{name: "adjust-too-much", function: "stockpipe_1_apply", kind: "m", want: "refused", shelf: "100|0|0", event: movement,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Adjust(ctx, id, &api.AdjustRequest{DocumentID: id, Quantity: -101, Reason: "stolen"})
		})},
	{name: "partial", function: "stockpipe_1_apply", kind: "R", want: "held", shelf: "0|100|0",
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Reserve(ctx, &api.ReserveRequest{OrderID: id, Lines: []api.Line{{SKU: id, Quantity: 150}}, TTL: 3600, Policy: "partial"})
		})},
	{name: "replace", function: "stockpipe_1_apply", kind: "P", want: "held", shelf: "95|5|0", prepare: held(3600),
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Replace(ctx, id, api.ReplaceRequest{Lines: []api.Line{{SKU: id, Quantity: 5}}})
		})},
	{name: "extend", function: "stockpipe_1_settle", kind: "U", want: "held", shelf: "98|2|0", prepare: held(3600),
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Extend(ctx, id, api.ExtendRequest{Until: inFiveHours})
		})},
	{name: "confirm-part", function: "stockpipe_1_settle", kind: "C", want: "confirmed", shelf: "99|0|1", prepare: held(3600),
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Confirm(ctx, id, api.AttemptRequest{Lines: []api.Result{{SKU: id, Quantity: 1}}})
		})},
	{name: "release-part", function: "stockpipe_1_settle", kind: "X", want: "held", shelf: "99|1|0", prepare: held(3600),
		do: reservation(func(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
			return c.Release(ctx, id, api.AttemptRequest{Lines: []api.Result{{SKU: id, Quantity: 1}}})
		})},
	{name: "create", function: "stockpipe_1_apply", kind: "N", want: "applied", shelf: "100|0|0", prepare: nothing, event: opening,
		do: document(func(ctx context.Context, c *api.Client, id string) (api.Document, error) {
			return c.Create(ctx, id, api.OpeningRequest{Opening: 100})
		})},
	{name: "look-up", function: "hget", want: "persisted", shelf: "98|2|0", prepare: held(3600),
		do: func(ctx context.Context, c *api.Client, id string) (string, error) {
			found, err := c.Order(ctx, id, "")
			return found.Standing, err
		}},
}

// TestALostReplyOfAnyCallIsSettledByRepeatingIt loses, cuts and delays the reply of every kind of call: it is carried
// out once, its caller is told nothing that is not so, and the same id sent again says how it stands.
func TestALostReplyOfAnyCallIsSettledByRepeatingIt(t *testing.T) {
	r := shoptest.Begin(t, "replies: lost, cut and slow, of every call")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Proxied: true})
	for _, how := range []string{"lost", "cut", "slow"} {
		first := make([]string, len(calls))
		abreast := len(calls)
		each := func(do func(i int, id string)) {
			shoptest.Crowd(len(calls), abreast, func(i int) { do(i, calls[i].name+"-"+how) })
		}
		each(func(i int, id string) { ready(s, &calls[i], id) })
		s.Drain()
		if how == "slow" {
			s.Path.Delay(1300 * time.Millisecond) // a producer waits 1 s for a reply
		} else {
			abreast = 3 // operations of one moment share a call, and each is tried three times: so each loses a reply
		}
		each(func(i int, id string) { first[i] = suffer(s, &calls[i], id, how) })
		s.Path.Delay(0)
		abreast = len(calls)
		each(func(i int, id string) { settle(s, &calls[i], id) })
		s.Drain()
		for i := range calls {
			once(s, &calls[i], calls[i].name+"-"+how)
		}
		r.Note("%s: %s", how, strings.Join(first, ", "))
	}
	s.Finish()
}

func ready(s *shoptest.Shop, c *call, id string) {
	if c.kind != "N" {
		s.Supply(100, id)
	}
	if c.prepare != nil {
		c.prepare(s, id)
	}
}

// suffer makes the call whose reply is lost, and wants it to be answered honestly: as it will stand, or as not known.
func suffer(s *shoptest.Shop, c *call, id, how string) string {
	match := func(request []byte) bool {
		return faultproxy.Contains(c.function)(request) && bytes.Contains(request, []byte(id))
	}
	var fault *faultproxy.Fault
	switch how {
	case "lost":
		fault = s.Path.SwallowReply(match)
	case "cut":
		fault = s.Path.CutAfterExecution(match)
	}
	ctx, cancel := context.WithTimeout(s.T.Context(), shoptest.CallPatience)
	defer cancel()
	began := time.Now()
	stands, err := c.do(ctx, s.Client(0), id)
	took := time.Since(began)
	told := stands
	var problem *api.Problem
	switch {
	case errors.As(err, &problem):
		told = fmt.Sprint(problem.Status)
		if problem.Status != http.StatusServiceUnavailable && problem.Status != http.StatusGatewayTimeout {
			s.T.Errorf("%s, reply %s: %v", c.name, how, err)
		}
	case err != nil:
		told = "nothing"
		s.T.Errorf("%s, reply %s: no answer within %v: %v", c.name, how, took, err)
	case stands != c.want && stands != "written" && stands != "unknown":
		s.T.Errorf("%s, reply %s: told %q, want %q", c.name, how, stands, c.want)
	}
	if fault != nil {
		select {
		case <-fault.Done():
		case <-time.After(shoptest.Patience):
			s.T.Errorf("%s: no reply was %s", c.name, how)
		}
	}
	return fmt.Sprintf("%s %s after %.1f s", c.name, told, took.Seconds())
}

// settle asks again with the same id until it is told how it stands.
func settle(s *shoptest.Shop, c *call, id string) {
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		stands, err := c.do(s.T.Context(), s.Client(1), id)
		if err == nil && stands != c.want {
			err = fmt.Errorf("%s stands as %q, want %q", id, stands, c.want)
		}
		return err
	})
}

// once: it was carried out exactly once.
func once(s *shoptest.Shop, c *call, id string) {
	s.T.Helper()
	if c.kind == "N" {
		s.Supply(100, id) // learns its number; the same opening again changes nothing
	}
	s.Shelf(id, c.shelf)
	if c.kind == "" {
		return
	}
	event := id
	if c.event != nil {
		event = c.event(s, id)
	}
	if n := s.Events(event, c.kind); n != 1 {
		s.T.Errorf("%s: %d events of kind %s under %s", id, n, c.kind, event)
	}
	if strings.EqualFold(c.kind, "m") {
		if n := s.Events(event, "m") + s.Events(event, "M"); n != 1 {
			s.T.Errorf("document %s was applied or refused %d times", id, n)
		}
	}
}

func reservation(do func(context.Context, *api.Client, string) (api.Reservation, error)) func(context.Context, *api.Client, string) (string, error) {
	return func(ctx context.Context, c *api.Client, id string) (string, error) {
		r, err := do(ctx, c, id)
		return r.State, err
	}
}

func document(do func(context.Context, *api.Client, string) (api.Document, error)) func(context.Context, *api.Client, string) (string, error) {
	return func(ctx context.Context, c *api.Client, id string) (string, error) {
		d, err := do(ctx, c, id)
		var problem *api.Problem
		if errors.As(err, &problem) && problem.Code == api.CodeRefused {
			return "refused", nil
		}
		return d.State, err
	}
}

func confirm(ctx context.Context, c *api.Client, id string) (api.Reservation, error) {
	return c.Confirm(ctx, id, api.AttemptRequest{})
}

func nothing(*shoptest.Shop, string) {}

func held(ttl int64) func(*shoptest.Shop, string) {
	return func(s *shoptest.Shop, id string) {
		s.Told(shoptest.Reserve(s.T.Context(), s.Patient(0), id, id, 2, ttl), http.StatusCreated)
	}
}

func expired(s *shoptest.Shop, id string) {
	held(1)(s, id)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if state := s.State(id); state != "expired" {
			return fmt.Errorf("order %s is %q", id, state)
		}
		return nil
	})
}

// sold is an order of 2 units that Postgres has as confirmed, and shipped one that is fulfilled.
func sold(s *shoptest.Shop, id string) {
	_, err := s.Patient(0).Reserve(s.T.Context(), &api.ReserveRequest{OrderID: id, Lines: []api.Line{{SKU: id, Quantity: 2}}, Sale: true})
	shoptest.Need(s.T, err)
}

func shipped(s *shoptest.Shop, id string) {
	sold(s, id)
	_, err := s.Patient(0).Fulfil(s.T.Context(), id, &api.AmendRequest{DocumentID: id + "-parcel"})
	shoptest.Need(s.T, err)
}

func movement(_ *shoptest.Shop, id string) string { return "~" + id }

func opening(s *shoptest.Shop, id string) string { return fmt.Sprintf("~~open:%d", s.Numbers[id]) }
