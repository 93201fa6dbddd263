package sale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// intent is what a buyer does with a hold.
type intent int

const (
	pay intent = iota
	giveBack
	leave // close the browser: the hold has to expire
)

// A buyer comes for one order.
type buyer struct {
	number int
	order  *Order
	intent intent
	clicks int           // how often each button is pressed
	pays   time.Duration // how long until it pays or gives back
	hot    bool          // it wants the hot article
}

// buyer n is always the same one: who comes does not depend on what happens.
func (s *Sale) buyer(n int) *buyer {
	chance := rand.New(rand.NewPCG(uint64(n), 0x5eed))
	b := &buyer{number: n, clicks: 1, pays: time.Duration(10+chance.IntN(40)) * time.Millisecond}
	switch p := chance.IntN(100); {
	case p < 80:
		b.intent = pay
	case p < 88:
		b.intent = giveBack
	default:
		b.intent = leave
	}
	if chance.IntN(100) < 8 {
		b.clicks = 2
	}
	b.order = &Order{ID: fmt.Sprintf("%s-%06d", s.plan.Run, n), Lines: s.basket(chance)}
	b.hot = b.order.Lines[0].SKU == s.Hot()
	s.mu.Lock()
	s.orders = append(s.orders, b.order)
	s.mu.Unlock()
	return b
}

// basket holds the hot article mostly; an order takes its lines from one shard.
func (s *Sale) basket(chance *rand.Rand) []api.Line {
	hot := s.articles[0]
	if len(s.articles) == 1 {
		return []api.Line{{SKU: hot.SKU, Quantity: 1}}
	}
	side := s.articles[1+chance.IntN(len(s.articles)-1)]
	line := api.Line{SKU: side.SKU, Quantity: 1 + chance.Int64N(mostUnits)}
	switch p := chance.IntN(100); {
	case p < 75:
		return []api.Line{{SKU: hot.SKU, Quantity: 1}}
	case p < 85 && side.Shard == hot.Shard:
		return []api.Line{{SKU: hot.SKU, Quantity: 1}, line}
	default:
		return []api.Line{line}
	}
}

// serve lets a buyer do everything it came for.
func (s *Sale) serve(ctx context.Context, b *buyer) {
	first := b.order.Told == ""
	s.reserve(ctx, b)
	if first {
		s.Decided.Add(1)
	}
	s.count(b, first)
	if b.order.Told != Held {
		return
	}
	switch b.intent {
	case pay:
		if sleepUntil(ctx, time.Now().Add(b.pays)) {
			s.confirm(ctx, b)
		}
	case giveBack:
		if sleepUntil(ctx, time.Now().Add(b.pays)) {
			s.release(ctx, b)
		}
	case leave:
		s.Left.Add(1)
	}
}

// count books the answer to a reservation. Who was refused the hot article comes again at the end.
func (s *Sale) count(b *buyer, first bool) {
	switch b.order.Told {
	case Held:
		s.Accepted.Add(1)
		if !first {
			s.Refused.Add(-1)
		}
	case Refused:
		if !first {
			return
		}
		s.Refused.Add(1)
		if b.hot {
			s.mu.Lock()
			s.waiting = append(s.waiting, b)
			s.mu.Unlock()
		}
	case Unknown:
		s.Unknown.Add(1)
	}
}

func (s *Sale) reserve(ctx context.Context, b *buyer) {
	request := api.ReserveRequest{OrderID: b.order.ID, Buyer: fmt.Sprintf("buyer-%d", b.number), Lines: b.order.Lines}
	if b.intent == leave {
		request.TTL = leaveTTL
	}
	s.press(ctx, b, Held, &s.Reserves, func(ctx context.Context, c *api.Client) (api.Reservation, error) {
		asked := request
		return c.Reserve(ctx, &asked)
	})
}

func (s *Sale) confirm(ctx context.Context, b *buyer) {
	s.press(ctx, b, Confirmed, &s.Confirms, func(ctx context.Context, c *api.Client) (api.Reservation, error) {
		r, err := c.Confirm(ctx, b.order.ID, api.AttemptRequest{})
		if err == nil && !r.IsPersisted() {
			// Redis took it; the promise to the buyer is made once Postgres has it.
			standing, err := c.Await(ctx, b.order.ID, r.Receipt)
			if err == nil && standing == api.StandingLost {
				err = fmt.Errorf("receipt %s: %w", r.Receipt, errLost)
			}
			return r, err
		}
		return r, err
	})
	if b.order.Told == Confirmed {
		s.Confirmed.Add(1)
		for _, l := range b.order.Lines {
			if l.SKU == s.Hot() {
				s.Sold.Add(l.Quantity)
			}
		}
	}
}

func (s *Sale) release(ctx context.Context, b *buyer) {
	s.press(ctx, b, Released, nil, func(ctx context.Context, c *api.Client) (api.Reservation, error) {
		return c.Release(ctx, b.order.ID, api.AttemptRequest{})
	})
	if b.order.Told == Released {
		s.Released.Add(1)
	}
}

var errLost = errors.New("the shop says that it is lost")

// reply is the answer to one click.
type reply struct {
	reservation api.Reservation
	err         error
	took        time.Duration
}

// press sends the same request once for each click, all at once and each to another producer, and writes down what
// the order was told: that it succeeded, if any click did.
func (s *Sale) press(ctx context.Context, b *buyer, success Told, times *Times, send func(context.Context, *api.Client) (api.Reservation, error)) {
	ctx, cancel := context.WithTimeout(ctx, pressTime)
	defer cancel()
	replies := make([]reply, b.clicks)
	var wait sync.WaitGroup
	for i := range replies {
		wait.Go(func() {
			began := time.Now()
			r, err := send(ctx, s.clients[(b.number+i)%len(s.clients)])
			replies[i] = reply{r, err, time.Since(began)}
		})
	}
	wait.Wait()
	b.order.Repeats += b.clicks - 1
	s.Repeats.Add(int64(b.clicks - 1))
	if times != nil {
		for _, r := range replies {
			times.add(r.took)
		}
	}
	s.conclude(b.order, success, replies)
}

// conclude is what the buyer makes of the answers.
func (s *Sale) conclude(o *Order, success Told, replies []reply) {
	var accepted []api.Reservation
	worst := Refused
	for _, r := range replies {
		switch told := s.judge(r.err); {
		case r.err == nil:
			accepted = append(accepted, r.reservation)
		case told == Unknown || worst == Refused:
			worst = told
		}
	}
	if len(accepted) == 0 {
		o.Told = worst
		return
	}
	o.Told = success
	o.Accepted, o.Receipt = true, accepted[0].Receipt
	fresh := 0
	for _, r := range accepted {
		if !r.Replayed {
			fresh++
		}
		if r.Receipt != accepted[0].Receipt || r.Attempt != accepted[0].Attempt {
			o.Twice = fmt.Sprintf("answered with the receipts %s and %s", accepted[0].Receipt, r.Receipt)
		}
	}
	if fresh > 1 {
		o.Twice = fmt.Sprintf("%d of %d equal requests were carried out", fresh, len(replies))
	}
}

// judge turns a refusal into what the buyer was told.
func (s *Sale) judge(err error) Told {
	var p *api.Problem
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errLost):
		return Vanished
	case !errors.As(err, &p), errors.Is(err, api.ErrUnknown):
		s.trouble.Add(1)
		return Unknown
	}
	switch p.Code {
	case api.CodeSoldOut, api.CodeShortfall:
		return Refused
	case api.CodeUnknownOrder:
		return Vanished
	case api.CodeClosed:
		s.trouble.Add(1)
		if p.Reason == "frozen" || p.Reason == "halted" {
			s.trouble.Add(mostTrouble) // that lasts until an operator comes
		}
		return Closed
	}
	s.trouble.Add(1)
	return Unknown
}
