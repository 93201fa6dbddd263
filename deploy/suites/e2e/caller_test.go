package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// ask sends a reservation under an order id, once.
func ask(s *shoptest.Shop, order string, request *api.ReserveRequest, c *api.Client) shoptest.Answer {
	request.OrderID = order
	return shoptest.Call(s.T.Context(), order, func(ctx context.Context) (api.Reservation, error) { return c.Reserve(ctx, request) })
}

// A verb is a call about an order that stands.
type verb func(ctx context.Context, c *api.Client, order string) (api.Reservation, error)

func confirm(attempt int64, results ...api.Result) verb {
	return func(ctx context.Context, c *api.Client, order string) (api.Reservation, error) {
		return c.Confirm(ctx, order, api.AttemptRequest{Attempt: attempt, Lines: results})
	}
}

func release(attempt int64, results ...api.Result) verb {
	return func(ctx context.Context, c *api.Client, order string) (api.Reservation, error) {
		return c.Release(ctx, order, api.AttemptRequest{Attempt: attempt, Lines: results})
	}
}

func replace(attempt int64, lines ...api.Line) verb {
	return func(ctx context.Context, c *api.Client, order string) (api.Reservation, error) {
		return c.Replace(ctx, order, api.ReplaceRequest{Attempt: attempt, Lines: lines})
	}
}

func extend(request api.ExtendRequest) verb {
	return func(ctx context.Context, c *api.Client, order string) (api.Reservation, error) {
		return c.Extend(ctx, order, request)
	}
}

// tell makes a call about an order at the nth producer, once, and wants its status.
func tell(s *shoptest.Shop, n int, order string, do verb, want int) shoptest.Answer {
	s.T.Helper()
	c := s.Client(n)
	return s.Told(shoptest.Call(s.T.Context(), order, func(ctx context.Context) (api.Reservation, error) { return do(ctx, c, order) }), want)
}

// stands checks the lines of an answer: what stands of each SKU, in the order given.
func stands(s *shoptest.Shop, a shoptest.Answer, state string, units ...int64) {
	s.T.Helper()
	if a.Reservation.State != state || len(a.Reservation.Lines) != len(units) {
		s.T.Errorf("want %s with %v: %s", state, units, a.String())
		return
	}
	for i, line := range a.Reservation.Lines {
		if line.Quantity != units[i] {
			s.T.Errorf("want %s with %v: %s", state, units, a.String())
			return
		}
	}
}

// document takes the answer to a document of a kind and wants it applied, and persisted.
func document(s *shoptest.Shop, kind, id string) func(api.Document, error) api.Document {
	return func(d api.Document, err error) api.Document {
		s.T.Helper()
		if err != nil || d.DocumentID != id || d.Kind != kind || d.State != "applied" || d.Level != api.Persisted {
			s.T.Errorf("%s %s: %+v, %v", kind, id, d, err)
		}
		return d
	}
}

// refused wants a refusal with a code.
func refused(s *shoptest.Shop, err error, code string) api.Problem {
	s.T.Helper()
	p := problem(err)
	if p.Code != code {
		s.T.Errorf("want a refusal as %s, got %v", code, err)
	}
	return p
}

// problem is the refusal that an error is; an empty one if it is none.
func problem(err error) api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return *p
	}
	return api.Problem{}
}

// waitUntil waits for a time by the clock of Redis, which is the only one that decides.
func waitUntil(s *shoptest.Shop, moment time.Time) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		now, err := s.Shard(0).Time(s.T.Context())
		if err == nil && now.Before(moment) {
			err = fmt.Errorf("it is %v, too early by %v", now, moment.Sub(now))
		}
		return err
	})
}

// slug makes a part of an order id of a SKU's text.
func slug(sku string) string { return strings.ReplaceAll(sku, " ", "-") }
