package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

	persisting sync.Mutex
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
	call := order.Call{ID: step.ID, Attempt: step.Attempt, Lines: lines(step), Ack: order.Memory}
	switch step.Verb {
	case stocktest.Reserve, stocktest.Sale:
		a, err := s.clerk.Reserve(ctx, &order.Request{
			ID: step.ID, Attempt: step.Attempt, Buyer: step.Buyer, Lines: lines(step), TTL: step.TTL.Milliseconds(),
			Sale: step.Verb == stocktest.Sale, Partial: step.Partial, Ack: order.Memory,
		})
		return told(step.Verb, a, err)
	case stocktest.Confirm:
		a, err := s.clerk.Confirm(ctx, call)
		return told(step.Verb, a, err)
	case stocktest.Release:
		a, err := s.clerk.Release(ctx, call)
		return told(step.Verb, a, err)
	case stocktest.Replace:
		a, err := s.clerk.Replace(ctx, call)
		return told(step.Verb, a, err)
	case stocktest.Extend:
		now, err := s.now(ctx, 0)
		if err != nil {
			return stocktest.Answer{}, err
		}
		a, err := s.clerk.Extend(ctx, order.Extension{ID: step.ID, Attempt: step.Attempt, Until: now + step.Span.Milliseconds(), Ack: order.Memory})
		return told(step.Verb, a, err)
	case stocktest.Stock, stocktest.Receive, stocktest.Adjust, stocktest.Count, stocktest.Fulfil, stocktest.Cancel, stocktest.Return:
		return s.document(ctx, step)
	case stocktest.Expire, stocktest.Late:
		return s.move(ctx, step)
	case stocktest.Freeze, stocktest.Close, stocktest.Opens, stocktest.Lift, stocktest.Limit:
		return s.set(ctx, step)
	}
	return s.world(ctx, step)
}

func lines(step stocktest.Step) []order.Line {
	var out []order.Line
	for _, l := range step.Lines {
		out = append(out, order.Line{SKU: l.SKU, Quantity: l.Units})
	}
	return out
}

// document sends a document. One of an order, and a count, look at the ledger, which has to catch up first.
func (s *shop) document(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	if step.Order != "" || step.Verb == stocktest.Count {
		if err := s.persist(ctx); err != nil {
			return stocktest.Answer{}, err
		}
	}
	d, err := s.send(ctx, step)
	if err == nil && d.State == order.Written {
		// Refused in Redis; the clerk says so only once the ledger has it.
		if err := s.persist(ctx); err != nil {
			return stocktest.Answer{}, err
		}
		d, err = s.send(ctx, step)
	}
	return toldDocument(d, err)
}

// persist lets every shard's ledger catch up, one caller at a time.
func (s *shop) persist(ctx context.Context) error {
	s.persisting.Lock()
	defer s.persisting.Unlock()
	return s.each(func(shard int) error { return s.catchUp(ctx, shard) })
}

func (s *shop) send(ctx context.Context, step stocktest.Step) (order.Document, error) {
	const reason = "table"
	switch {
	case step.Verb == stocktest.Stock:
		return s.clerk.Create(ctx, step.Lines[0].SKU, step.Lines[0].Units, order.Memory)
	case step.Verb == stocktest.Count:
		return s.clerk.Count(ctx, order.Count{DocumentID: step.ID, SKU: step.Lines[0].SKU, Counted: step.Lines[0].Units, Reason: reason, Ack: order.Memory})
	case step.Order != "":
		return s.clerk.Amend(ctx, order.Amendment{
			DocumentID: step.ID, Kind: string(step.Verb), OrderID: step.Order, Attempt: step.Attempt, Lines: lines(step), Scrap: step.Scrap,
			Reason: reason, Ack: order.Memory,
		})
	}
	return s.clerk.Move(ctx, order.Movement{
		DocumentID: step.ID, Kind: string(step.Verb), SKU: step.Lines[0].SKU, Units: step.Lines[0].Units, Scrap: step.Scrap, Reason: reason, Ack: order.Memory,
	})
}

// world carries out the steps that no customer sends.
func (s *shop) world(ctx context.Context, step stocktest.Step) (stocktest.Answer, error) {
	done := stocktest.Answer{Word: stocktest.Done}
	switch step.Verb {
	case stocktest.Tick:
		return done, s.tick(ctx, step.Span)
	case stocktest.Apply:
		return done, s.persist(ctx)
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
		return stocktest.Stands(stocktest.Word(r.State), *r), nil
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
	op := stock.Operation{Kind: kind, ID: step.ID, Attempt: step.Attempt}
	for _, l := range step.Lines {
		sku, err := s.ledger.SKU(ctx, l.SKU)
		if err != nil {
			return stocktest.Answer{}, err
		}
		op.Lines = append(op.Lines, stock.Line{SKU: sku.Number, Now: l.Units})
	}
	slices.SortFunc(op.Lines, func(a, b stock.Line) int { return int(a.SKU - b.SKU) })
	out, err := s.desk.Do(ctx, shard, op)
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
		Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: sku.Number}}, Change: stocktest.ChangeOf(step, now),
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
		out := stocktest.Told(verb, stock.Outcome{Code: stock.Accepted, Reservation: stock.Reservation{State: a.State}}, nil)
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
	var limit *order.LimitError
	switch {
	case errors.As(err, &limit):
		return stocktest.Answer{Word: stocktest.OverLimit, Has: stocktest.Short{Asked: limit.Limit, Available: limit.Have}}, nil
	case errors.As(err, new(*order.BuyerRequiredError)):
		return stocktest.Answer{Word: stocktest.NoBuyer}, nil
	case errors.As(err, new(*order.UncountedError)):
		return stocktest.Answer{Word: stocktest.Uncounted}, nil
	case errors.As(err, new(*order.OutOfBoundsError)):
		return stocktest.Answer{Word: stocktest.Beyond}, nil
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
	var lacking *order.InsufficientError
	switch {
	case errors.As(err, &refused):
		return stocktest.Answer{Word: stocktest.Refused, Left: left(refused.Lines)}, nil
	case errors.As(err, &lacking):
		return stocktest.Answer{Word: stocktest.Lacking, Left: left(lacking.Lines)}, nil
	case errors.As(err, &conflict):
		return stocktest.Answer{Word: stocktest.Conflict}, nil
	case err != nil:
		return told(stocktest.Receive, order.Answer{}, err)
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
		out.Units, out.Shipped = out.Units+l.Quantity, out.Shipped+l.Fulfilled
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
