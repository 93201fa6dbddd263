package protocol

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/stock/stocktest"
)

// A shop serves the tables: what buyers and the warehouse do goes through a Clerk, what the reconciler and a
// strategy's own callers do straight to the Desk.
type shop struct {
	*house
	clerk  *order.Clerk
	begun  bool
	forgot bool // records were dropped before their time, which an audit would report
}

var _ stocktest.Shop = (*shop)(nil)

// openShop starts a shop; begin opens it.
func openShop(t testing.TB, text string, shards int) *shop {
	t.Helper()
	return &shop{house: newHouse(t, text, shards)}
}

// begin opens the shop with empty stores; oneShard keeps all SKUs in one shard, for carts.
func (s *shop) begin(ctx context.Context, oneShard bool) error {
	if s.begun {
		s.renew()
	}
	s.begun, s.forgot = true, false
	var err error
	if s.clerk, err = s.house.clerk(oneShard); err != nil {
		return err
	}
	return s.takeOver(ctx)
}

func (s *shop) each(f func(shard int) error) error {
	for n := range s.shards {
		if err := f(n); err != nil {
			return fmt.Errorf("shard %d: %w", n, err)
		}
	}
	return nil
}

func (s *shop) takeOver(ctx context.Context) error {
	return s.each(func(shard int) error {
		_, err := s.takeover(ctx, shard)
		return err
	})
}

// Look reads Redis.
func (s *shop) Look(ctx context.Context, sku string) (stock.Quantities, error) {
	found, err := s.ledger.SKU(ctx, sku)
	if err != nil {
		return stock.Quantities{}, err
	}
	f, _, err := s.shards[found.Shard].Field(ctx, found.Number)
	return f.Quantities, err
}

// Do carries out a step.
func (s *shop) Do(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	switch step.Verb {
	case stocktest.Reserve, stocktest.Sale:
		r := order.Request{ID: step.ID, Attempt: step.Attempt, Buyer: step.Buyer, TTL: step.TTL.Milliseconds(), Sale: step.Verb == stocktest.Sale, Ack: order.Memory}
		for _, l := range step.Lines {
			r.Lines = append(r.Lines, order.Line{SKU: l.SKU, Quantity: l.Units})
		}
		a, err := s.clerk.Reserve(ctx, &r)
		return told(step.Verb, a, err)
	case stocktest.Confirm:
		a, err := s.clerk.Confirm(ctx, step.ID, step.Attempt, order.Memory)
		return told(step.Verb, a, err)
	case stocktest.Release:
		a, err := s.clerk.Release(ctx, step.ID, step.Attempt, order.Memory)
		return told(step.Verb, a, err)
	case stocktest.Stock:
		d, err := s.clerk.Create(ctx, step.Lines[0].SKU, step.Lines[0].Units, order.Memory)
		return toldDocument(d, err)
	case stocktest.Receive, stocktest.Adjust:
		m := order.Movement{
			DocumentID: step.ID, Kind: string(step.Verb), SKU: step.Lines[0].SKU, Units: step.Lines[0].Units, Reason: "table", Ack: order.Memory,
		}
		d, err := s.clerk.Move(ctx, m)
		if err == nil && d.State == order.Written {
			// Refused in Redis; the clerk says so only once the ledger has it.
			if err := s.each(func(shard int) error { return s.catchUp(ctx, shard) }); err != nil {
				return stocktest.Answer{}, err
			}
			d, err = s.clerk.Move(ctx, m)
		}
		return toldDocument(d, err)
	case stocktest.Expire, stocktest.Late:
		return s.move(ctx, step)
	case stocktest.Freeze, stocktest.Close, stocktest.Opens, stocktest.Lift:
		return s.set(ctx, step)
	}
	return s.world(ctx, step)
}

// world carries out the steps that no customer sends.
func (s *shop) world(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	done := stocktest.Answer{Word: stocktest.Done}
	switch step.Verb {
	case stocktest.Tick:
		return done, s.tick(ctx, step.Span)
	case stocktest.Apply:
		return done, s.each(func(shard int) error { return s.catchUp(ctx, shard) })
	case stocktest.Takeover:
		s.forgot = false
		return done, s.takeOver(ctx)
	case stocktest.Lose:
		s.forgot = false
		if err := s.rdb.FlushAll(ctx).Err(); err != nil {
			return done, err
		}
		return done, s.takeOver(ctx)
	case stocktest.Forget:
		return done, s.forget(ctx, step.ID)
	case stocktest.Standing:
		_, r, err := s.find(ctx, step.ID)
		if err != nil || r == nil {
			return stocktest.Answer{Word: stocktest.Unknown}, err
		}
		return stocktest.Answer{Word: stocktest.Word(r.State), State: r.State, Attempt: r.Attempt, Units: r.Lines.Units()}, nil
	}
	return done, fmt.Errorf("this shop does not know the verb %q", step.Verb)
}

// find looks for an order's record in every shard.
func (s *shop) find(ctx context.Context, id string) (int, *stock.Reservation, error) {
	for n, shard := range s.shards {
		r, ok, err := shard.Record(ctx, id)
		if err != nil || ok {
			return n, &r, err
		}
	}
	return 0, nil, nil
}

// forget drops a record that the ledger has at the same position, as the end of the retention does.
func (s *shop) forget(ctx context.Context, id string) error {
	shard, r, err := s.find(ctx, id)
	if err != nil || r == nil {
		return errors.Join(err, fmt.Errorf("no record of %s to forget", id))
	}
	stands, err := s.ledger.Standing(ctx, r.Receipt)
	if err != nil || stands != stock.StandingPersisted {
		return errors.Join(err, fmt.Errorf("the ledger does not have %s (%q): only what it has may be forgotten", id, stands))
	}
	s.forgot = true
	return s.rdb.HDel(ctx, s.shards[shard].Keys().Orders, id).Err()
}

func (s *shop) move(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	shard, _, err := s.find(ctx, step.ID)
	if err != nil {
		return stocktest.Answer{}, err
	}
	kind := stock.Expire
	if step.Verb == stocktest.Late {
		kind = stock.LateConfirm
	}
	out, err := s.desk.Do(ctx, shard, stock.Operation{Kind: kind, ID: step.ID, Attempt: step.Attempt})
	return s.toldOutcome(ctx, step.Verb, out, err)
}

func (s *shop) set(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	sku, err := s.ledger.SKU(ctx, step.Lines[0].SKU)
	if err != nil {
		return stocktest.Answer{}, err
	}
	now, err := s.now(ctx, sku.Shard)
	if err != nil {
		return stocktest.Answer{}, err
	}
	out, err := s.desk.Do(ctx, sku.Shard, stock.Operation{
		Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: sku.Number}}, Settings: stocktest.SettingsOf(step, now),
	})
	return s.toldOutcome(ctx, step.Verb, out, err)
}

func (s *shop) toldOutcome(ctx context.Context, verb stocktest.Verb, out stock.Outcome, err error) (stocktest.Answer, error) {
	if err != nil {
		return stocktest.Answer{}, err
	}
	var numbers []int64
	for _, short := range out.Short {
		numbers = append(numbers, short.SKU)
	}
	names, err := s.ledger.SKUNames(ctx, numbers)
	return stocktest.Told(verb, out, func(number int64) string { return names[number] }), err
}

// told says a Clerk's answer in the words of the tables.
func told(verb stocktest.Verb, a order.Answer, err error) (stocktest.Answer, error) {
	var soldOut *order.SoldOutError
	var shortfall *order.ShortfallError
	var conflict *order.ConflictError
	var state *order.StateError
	var unknown *order.UnknownOrderError
	switch {
	case err == nil:
		out := stocktest.Told(verb, stock.Outcome{Code: stock.Accepted}, nil)
		if a.Replayed {
			out.Word = stocktest.Replayed
		}
		return standing(out.Word, a), nil
	case errors.As(err, &soldOut):
		return stocktest.Answer{Word: stocktest.SoldOut, Left: left(soldOut.Lines)}, nil
	case errors.As(err, &shortfall):
		return stocktest.Answer{Word: stocktest.Shortfall, Left: left(shortfall.Lines)}, nil
	case errors.As(err, &conflict):
		return standing(stocktest.Conflict, conflict.Order), nil
	case errors.As(err, &state):
		return standing(stocktest.Ended, state.Order), nil
	case errors.As(err, &unknown):
		return stocktest.Answer{Word: stocktest.Unknown}, nil
	}
	return toldSKU(verb, err)
}

func toldSKU(verb stocktest.Verb, err error) (stocktest.Answer, error) {
	var unknown *order.UnknownSKUError
	var sku *order.SKUError
	switch {
	case errors.As(err, &unknown):
		return stocktest.Answer{Word: stocktest.Missing}, nil
	case errors.As(err, &sku):
		return stocktest.Told(verb, stock.Outcome{Code: sku.Code}, nil), nil
	}
	return stocktest.Answer{}, err
}

func toldDocument(d order.Document, err error) (stocktest.Answer, error) {
	var refused *order.RefusedError
	var conflict *order.DocumentConflictError
	switch {
	case errors.As(err, &refused):
		return stocktest.Answer{Word: stocktest.Refused, Left: left([]order.ShortLine{refused.Line})}, nil
	case errors.As(err, &conflict):
		return stocktest.Answer{Word: stocktest.Conflict}, nil
	case err != nil:
		return toldSKU(stocktest.Receive, err)
	case d.State != order.Applied:
		return stocktest.Answer{}, fmt.Errorf("the document is only %s", d.State)
	case d.Replayed:
		return stocktest.Answer{Word: stocktest.Replayed}, nil
	}
	return stocktest.Answer{Word: stocktest.Done}, nil
}

func standing(word stocktest.Word, a order.Answer) stocktest.Answer {
	out := stocktest.Answer{Word: word, State: a.State, Attempt: a.Attempt}
	for _, l := range a.Lines {
		out.Units += l.Quantity
	}
	return out
}

func left(lines []order.ShortLine) map[string]stocktest.Short {
	out := map[string]stocktest.Short{}
	for _, l := range lines {
		out[l.SKU] = stocktest.Short{Asked: l.Asked, Available: l.Available}
	}
	return out
}
