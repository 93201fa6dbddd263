package faults

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A request is one that a producer dies in, about another order each time. Those with documents are in calls.
type request struct {
	name  string
	held  bool                // the order stands as a hold before
	units func(*tally, int64) // what it moves
	kind  string              // first letter of its operation
	ask   func(ctx context.Context, c *api.Client, id string) error
}

// A tally is what the shelf must have in the end.
type tally struct{ available, held, committed int64 }

func (t *tally) String() string { return fmt.Sprintf("%d|%d|%d", t.available, t.held, t.committed) }

// deadUnits is the quantity of each of these requests.
const deadUnits = 3

// requests are all that moves stock without a document.
var requests = []request{
	{name: "reserve", kind: "R", units: func(t *tally, n int64) { t.available -= n; t.held += n },
		ask: func(ctx context.Context, c *api.Client, id string) error { return reserve(ctx, c, id, false) }},
	{name: "sale", kind: "S", units: func(t *tally, n int64) { t.available -= n; t.committed += n },
		ask: func(ctx context.Context, c *api.Client, id string) error { return reserve(ctx, c, id, true) }},
	{name: "confirm", kind: "C", held: true, units: func(t *tally, n int64) { t.held -= n; t.committed += n },
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Confirm(ctx, id, api.AttemptRequest{})
			return err
		}},
	{name: "release", kind: "X", held: true, units: func(t *tally, n int64) { t.held -= n; t.available += n },
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Release(ctx, id, api.AttemptRequest{Ack: api.Persisted})
			return err
		}},
	{name: "replace", kind: "P", held: true, units: func(t *tally, _ int64) { t.available -= 2; t.held += 2 },
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Replace(ctx, id, api.ReplaceRequest{Lines: []api.Line{{SKU: "tea", Quantity: deadUnits + 2}}, Ack: api.Persisted})
			return err
		}},
	{name: "extend", kind: "U", held: true, units: func(*tally, int64) {},
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Extend(ctx, id, api.ExtendRequest{Until: inFiveHours, Ack: api.Persisted})
			return err
		}},
	{name: "confirm-part", kind: "C", held: true, units: func(t *tally, n int64) { t.held -= n; t.committed++; t.available += n - 1 },
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Confirm(ctx, id, api.AttemptRequest{Lines: []api.Result{{SKU: "tea", Quantity: 1}}})
			return err
		}},
	{name: "release-part", kind: "X", held: true, units: func(t *tally, _ int64) { t.held--; t.available++ },
		ask: func(ctx context.Context, c *api.Client, id string) error {
			_, err := c.Release(ctx, id, api.AttemptRequest{Lines: []api.Result{{SKU: "tea", Quantity: deadUnits - 1}}, Ack: api.Persisted})
			return err
		}},
}

func reserve(ctx context.Context, c *api.Client, id string, sale bool) error {
	ask := &api.ReserveRequest{OrderID: id, Lines: []api.Line{{SKU: "tea", Quantity: deadUnits}}, Ack: api.Persisted, Sale: sale}
	if !sale {
		ask.TTL = 3600
	}
	_, err := c.Reserve(ctx, ask)
	return err
}

// TestProducerKilledAtEachStep: field case H3. The producer dies in the middle of a request, and the caller has no
// answer; the same request at another producer settles it, and it was done once.
func TestProducerKilledAtEachStep(t *testing.T) {
	for _, point := range []failpoint.Point{failpoint.OrderRead, failpoint.OrderDecided, failpoint.OrderAnswered} {
		if !shoptest.Full && point != failpoint.OrderDecided {
			continue
		}
		t.Run(string(point), func(t *testing.T) {
			r := shoptest.Begin(t, "H3 producer killed at "+string(point))
			s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, Failing: true})
			s.Supply(1_000, "tea")
			shelf := &tally{available: 1_000}
			died := 0
			for i := range requests {
				dieIn(s, &requests[i], point, shelf)
				died += 2
			}
			s.Drain()
			s.Shelf("tea", shelf.String())
			r.Note("%d producers killed; each request was settled by the next one, or left as its caller knows it, and done once", died)
			s.Finish()
		})
	}
}

// dieIn kills a producer in a request. The first time another producer is asked the same; the second time nobody
// is.
func dieIn(s *shoptest.Shop, ask *request, point failpoint.Point, shelf *tally) {
	s.T.Helper()
	ctx := s.T.Context()
	for _, again := range []bool{true, false} {
		id := fmt.Sprintf("%s-%v", ask.name, again)
		steady := s.Patient(0) // before the one that dies: the first that lives
		if ask.held {
			shoptest.Need(s.T, reserve(ctx, steady, id, false))
			shelf.available, shelf.held = shelf.available-deadUnits, shelf.held+deadUnits
		}
		doomed := s.Start(shoptest.Producer)
		s.AwaitReady()
		doomed.Arm(point, shoptest.Kill)
		once := &api.Client{Base: doomed.API, HTTP: s.HTTP, Tries: 1}
		if err := ask.ask(ctx, once, id); err == nil {
			s.T.Errorf("%s: the producer that died at %s answered", ask.name, point)
		}
		doomed.AwaitFailure(point)
		if doomed.Alive() {
			s.T.Errorf("%s: the producer lived through %s", ask.name, point)
		}
		if again {
			for range 2 { // and once more: a repeat of what is settled
				if err := ask.ask(ctx, steady, id); err != nil {
					s.T.Errorf("%s after a crash at %s: %v", ask.name, point, err)
				}
			}
			ask.units(shelf, deadUnits)
		} else if point != failpoint.OrderRead {
			ask.units(shelf, deadUnits)
		}
		ask.judge(s, id, again || point != failpoint.OrderRead)
	}
}

// judge: the operation stands once in Postgres, or not at all.
func (q *request) judge(s *shoptest.Shop, id string, done bool) {
	s.T.Helper()
	s.Drain()
	want := int64(0)
	if done {
		want = 1
	}
	if n := s.Events(id, q.kind); n != want {
		s.T.Errorf("%s %s was done %d times, want %d", q.name, id, n, want)
	}
}

// TestReconcilerKilledInItsDuties: a reconciler dies or stands still between reading what is due and hearing what
// Redis decided. Its standby goes on: each hold ends once, each document is applied once.
func TestReconcilerKilledInItsDuties(t *testing.T) {
	for _, row := range []struct {
		at    failpoint.Point
		how   string
		whole bool
	}{
		{failpoint.ExpiryRead, shoptest.Kill, true},
		{failpoint.ExpiryDecided, shoptest.Kill, false},
		{failpoint.ExpiryDecided, shoptest.Stop, true},
		{failpoint.FinishingRead, shoptest.Stop, true},
	} {
		if row.whole && !shoptest.Full {
			continue
		}
		t.Run(string(row.at)+"_"+row.how, func(t *testing.T) {
			r := shoptest.Begin(t, fmt.Sprintf("reconciler fails at %s (%s)", row.at, row.how))
			r.Class = "overdue"
			if row.at == failpoint.FinishingRead {
				r.Class = "document"
			}
			s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Failing: true})
			s.Supply(1_000, "tea")
			failing := s.Living(shoptest.Reconciler)[0]
			failing.Arm(row.at, row.how)
			const holds = 40
			shoptest.Crowd(holds, 8, func(i int) {
				s.Told(shoptest.Reserve(t.Context(), s.Client(i), fmt.Sprintf("hold-%d", i), "tea", 1, 1), http.StatusCreated)
			})
			want := "1000|0|0"
			if row.at == failpoint.FinishingRead {
				doomed := s.Start(shoptest.Producer)
				s.AwaitReady()
				doomed.Arm(failpoint.DocumentWritten, shoptest.Kill)
				_, err := (&api.Client{Base: doomed.API, HTTP: s.HTTP, Tries: 1}).Receive(t.Context(), "tea", &api.ReceiveRequest{DocumentID: "paper", Quantity: deadUnits})
				if err == nil {
					t.Error("the producer that was killed answered")
				}
				want = "1003|0|0"
			}
			failing.AwaitFailure(row.at)
			s.Start(shoptest.Reconciler)
			sandboxtest.Eventually(t, shoptest.Patience, func() error {
				if got := s.InPostgres("tea"); got != want {
					return fmt.Errorf("tea is %s, want %s", got, want)
				}
				return nil
			})
			if row.how == shoptest.Stop {
				failing.Resume()
				sandboxtest.Eventually(t, shoptest.Patience, failing.Ready)
			}
			s.Drain()
			if n := shoptest.One[int64](s, `select count(*) from event where starts_with(body, 'E')`); n != holds {
				t.Errorf("%d expiries of %d holds", n, holds)
			}
			if row.at == failpoint.FinishingRead {
				if n := s.Events("~paper", "M"); n != 1 {
					t.Errorf("the document was applied %d times", n)
				}
			}
			r.Note("%d holds ended once each", holds)
			s.Finish()
		})
	}
}
