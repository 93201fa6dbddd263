package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// retention is the shortest that the programs take. Records go a few seconds later: a commit may come late.
var retention = []string{"--retention", "10s"}

// openForgetful makes a shop whose Redis soon forgets what came to rest.
func openForgetful(r *shoptest.Row, p shoptest.Plan) *shoptest.Shop {
	r.T.Helper()
	p.ProducerArgs = append(p.ProducerArgs, retention...)
	p.ReconcilerArgs = append(p.ReconcilerArgs, retention...)
	p.ConsumerArgs = append(p.ConsumerArgs, append(retention, "--log-keep", "1s")...)
	s := shoptest.Open(r, p)
	var err error
	s.Ledger.Close() // all who share a ledger need the same retention
	s.Ledger, err = ledger.Open(r.T.Context(), ledger.Config{URL: s.URL, Name: "suite", MaxConns: 4, Retention: 10 * time.Second})
	shoptest.Need(r.T, err)
	r.T.Cleanup(s.Ledger.Close)
	return s
}

// finishForgetful is Finish for a shop with a retention of its own: the command is told of it, too.
func finishForgetful(s *shoptest.Shop) {
	s.T.Helper()
	s.Drain()
	for _, r := range s.Living(shoptest.Producer) {
		if n := r.Metric("stockpipe_desk_unclassified_total"); n != 0 {
			s.T.Errorf("%s saw %v errors that no rule knows", r.Name, n)
		}
	}
	for _, r := range s.Living(shoptest.Reconciler) {
		r.Stop()
	}
	s.Drain()
	v := s.Reconcile(append([]string{"--once"}, retention...)...)
	if v.Exit != 0 || !v.Compared() || len(v.Acts()) != 0 {
		s.T.Errorf("the audit is not clean (exit %d, compared %v): %s %+v", v.Exit, v.Compared(), v.Error, v.Acts())
	}
	s.Drain()
}

// records counts those that Redis holds, of orders and of documents.
func records(s *shoptest.Shop) int64 {
	s.T.Helper()
	n, err := s.RDB.HLen(s.T.Context(), s.Keys("").Orders).Result()
	shoptest.Need(s.T, err)
	return n - 1 // the sentinel
}

// TestRepeatsAnswerAsBeforeWhenTheRecordIsGone plays every call about orders in every state twice: while Redis has their
// records, and when it has dropped them. Then the orders go on.
func TestRepeatsAnswerAsBeforeWhenTheRecordIsGone(t *testing.T) {
	r := shoptest.Begin(t, "repeats after the record was dropped")
	s := openForgetful(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1})
	s.Supply(100, "tea", "mug")
	l := &letters{shop: s}
	l.prepare()

	before, asked := l.answers(), time.Now()
	s.Drain()
	sandboxtest.Eventually(t, 2*shoptest.Patience, func() error {
		if n := records(s); n != 1 { // the hold that lasts
			return fmt.Errorf("Redis has %d records: %v", n, s.RDB.HKeys(t.Context(), s.Keys("").Orders).Val())
		}
		return nil
	})
	r.Note("%d records dropped %.0f s after their last change", len(l.orders)+len(l.papers), time.Since(asked).Seconds())
	after := l.answers()
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("before: %s\nafter:  %s", before[i], after[i])
		}
	}
	if n := records(s); n != 1 {
		t.Errorf("repeats made %d records", n-1)
	}
	s.Shelf("tea", "89|3|3")

	// An ended order goes on as its next attempt, and only as that; a late confirm takes again.
	for i, order := range []string{"released", "cancelled"} {
		a := s.Told(ask(s, order, l.next(2), s.Client(i)), http.StatusCreated)
		if a.Reservation.Attempt != 2 {
			t.Errorf("the next attempt: %s", a.String())
		}
		s.Told(ask(s, order, l.next(2), s.Client(i+1)), http.StatusOK)
		tell(s, i, order, confirm(2), http.StatusOK)
	}
	stands(s, tell(s, 0, "expired", confirm(1), http.StatusOK), "confirmed", 2, 1)
	if a := tell(s, 1, "expired", confirm(1), http.StatusOK); a.Reservation.Attempt != 2 || !a.Reservation.Replayed {
		t.Errorf("the repeat of a late confirm: %s", a.String())
	}
	// What is sold and dropped can be shipped, cancelled and taken back.
	document(s, "fulfil", "late-ship")(s.Patient(0).Fulfil(t.Context(), "confirmed", &api.AmendRequest{DocumentID: "late-ship", Lines: []api.Line{{SKU: "tea", Quantity: 1}}}))
	document(s, "cancel", "late-cancel")(s.Patient(1).Cancel(t.Context(), "confirmed", &api.AmendRequest{DocumentID: "late-cancel"}))
	document(s, "return", "late-return")(s.Patient(0).Return(t.Context(), "fulfilled", &api.ReturnRequest{DocumentID: "late-return"}))
	s.Drain()
	s.Shelf("tea", "85|3|7")
	// A reservation as such begins anew: whoever sends an id again after that time means it, and both stay in the books.
	anew := s.Told(ask(s, "partly", l.cart(), s.Client(0)), http.StatusCreated)
	stands(s, anew, "held", 2, 1)
	s.Drain()
	if n := shoptest.One[int64](s, `select count(*) from reservation where order_id = 'partly'`); n != 2 {
		t.Errorf("%d orders are in the books under the id", n)
	}
	r.Note("%d calls answered as before; then next attempts, a late confirm, a parcel, a cancellation and a return of orders that Redis did not know", len(before))
	finishForgetful(s)
}

// letters are calls that a shop may send again at any time.
type letters struct {
	shop   *shoptest.Shop
	orders []string
	papers []func(n int) string
}

// cart is what every order asks for, next its repeat as a later attempt.
func (l *letters) cart() *api.ReserveRequest {
	return &api.ReserveRequest{Buyer: "u1", Lines: []api.Line{{SKU: "tea", Quantity: 2}, {SKU: "mug", Quantity: 1}}, TTL: 3600}
}

func (l *letters) next(attempt int64) *api.ReserveRequest {
	request := l.cart()
	request.Attempt = attempt
	return request
}

// prepare brings an order into every state, and documents of every kind.
func (l *letters) prepare() {
	s := l.shop
	s.T.Helper()
	ctx, c := s.T.Context(), s.Patient(0)
	l.orders = []string{"released", "expired", "confirmed", "partly", "fulfilled", "cancelled"}
	for _, order := range l.orders {
		request := l.cart()
		if order == "expired" {
			request.TTL = 1
		}
		s.Told(ask(s, order, request, s.Client(0)), http.StatusCreated)
	}
	s.Told(ask(s, "held", &api.ReserveRequest{Lines: []api.Line{{SKU: "tea", Quantity: 3}}, TTL: 3600}, s.Client(0)), http.StatusCreated)
	tell(s, 0, "released", release(1), http.StatusOK)
	tell(s, 0, "partly", confirm(1, api.Result{SKU: "tea", Quantity: 1}), http.StatusOK)
	for _, order := range []string{"confirmed", "fulfilled", "cancelled"} {
		tell(s, 0, order, confirm(1), http.StatusOK)
	}
	amend := func(kind, id, order string, do func(context.Context, string, *api.AmendRequest) (api.Document, error)) {
		document(s, kind, id)(do(ctx, order, &api.AmendRequest{DocumentID: id}))
		l.papers = append(l.papers, func(n int) string {
			c := s.Client(n)
			if kind == "fulfil" {
				return paper(c.Fulfil(ctx, order, &api.AmendRequest{DocumentID: id}))
			}
			return paper(c.Cancel(ctx, order, &api.AmendRequest{DocumentID: id}))
		})
	}
	amend("fulfil", "ship", "fulfilled", c.Fulfil)
	amend("cancel", "cancel", "cancelled", c.Cancel)
	l.papers = append(l.papers,
		func(n int) string {
			return paper(s.Client(n).Return(ctx, "fulfilled", &api.ReturnRequest{DocumentID: "back", Lines: []api.Line{{SKU: "tea", Quantity: 1}}}))
		},
		func(n int) string {
			return paper(s.Client(n).Receive(ctx, "tea", &api.ReceiveRequest{DocumentID: "in", Quantity: 2}))
		},
		func(n int) string {
			return paper(s.Client(n).Adjust(ctx, "tea", &api.AdjustRequest{DocumentID: "gone", Quantity: -3, Reason: "damaged"}))
		},
		func(n int) string {
			return paper(s.Client(n).Adjust(ctx, "tea", &api.AdjustRequest{DocumentID: "never", Quantity: -9_999, Reason: "typo"}))
		},
		func(n int) string {
			return paper(s.Client(n).Count(ctx, "tea", &api.CountRequest{DocumentID: "count", Counted: 95}))
		},
	)
	awaitState(s, "expired", "expired")
	l.answers() // the papers are written, and every answer from now on is a repeat
}

// answers sends every letter again and puts down what was told, but for where it was known from.
func (l *letters) answers() (told []string) {
	s := l.shop
	s.T.Helper()
	note := func(what string, a shoptest.Answer) {
		text := fmt.Sprintf("%s: %d %s attempt %d %v", what, a.Status, a.Reservation.State, a.Reservation.Attempt, a.Reservation.Lines)
		if a.Problem != nil {
			text += " " + a.Problem.Code
			if a.Problem.Order != nil {
				text += fmt.Sprintf(" %s@%d %v", a.Problem.Order.State, a.Problem.Order.Attempt, a.Problem.Order.Lines)
			}
		}
		told = append(told, text)
	}
	for n, order := range l.orders {
		calls := map[string]verb{
			"released":                release(1),
			"released by line":        release(1, api.Result{SKU: "tea", Quantity: 0}),
			"extended":                extend(api.ExtendRequest{Attempt: 1, TTL: 600}),
			"replaced":                replace(1, api.Line{SKU: "tea", Quantity: 1}),
			"released of a later one": release(9),
			"confirmed":               confirm(1),
			"confirmed in part":       confirm(1, api.Result{SKU: "tea", Quantity: 1}),
		}
		for _, what := range []string{"released", "released by line", "extended", "replaced", "released of a later one", "confirmed", "confirmed in part"} {
			if order == "expired" && strings.HasPrefix(what, "confirmed") {
				continue // that takes again
			}
			c, do := s.Client(n), calls[what]
			note(order+" "+what, shoptest.Call(s.T.Context(), order, func(ctx context.Context) (api.Reservation, error) { return do(ctx, c, order) }))
		}
		known, err := s.Patient(n).Order(s.T.Context(), order, "")
		shoptest.Need(s.T, err)
		told = append(told, fmt.Sprintf("%s looked up: %s, %s", order, known.Standing, known.Matches[0].Ledger.State))
	}
	for n, letter := range l.papers {
		told = append(told, letter(n))
	}
	return told
}

// paper puts the answer to a document down.
func paper(d api.Document, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %s: %s %s, %d units, lines %v", d.Kind, d.DocumentID, d.State, d.Level, d.Quantity, d.Lines)
}
