package ordertest

import (
	"context"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// SKU finds a SKU.
func (w *World) SKU(_ context.Context, text string) (order.SKU, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.skus[text]
	if !ok && w.LedgerAway == nil {
		return s, order.ErrUnknownSKU
	}
	return s, w.LedgerAway
}

// SKUs finds several.
func (w *World) SKUs(_ context.Context, texts []string) (map[string]order.SKU, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]order.SKU{}
	for _, text := range texts {
		if s, ok := w.skus[text]; ok {
			out[text] = s
		}
	}
	return out, w.LedgerAway
}

// Names turns numbers into texts.
func (w *World) Names(_ context.Context, numbers []int64) (map[int64]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[int64]string{}
	for _, number := range numbers {
		if text, ok := w.texts[number]; ok {
			out[number] = text
		}
	}
	return out, w.LedgerAway
}

// Forget is heard; this world remembers nothing beside the truth.
func (w *World) Forget(string) {}

func (w *World) judge(r stock.Receipt) stock.Standing {
	if w.lost[r] {
		return stock.StandingLost
	}
	if slices.ContainsFunc(w.behind, func(e entry) bool { return e.receipt == r }) {
		return stock.StandingAccepted
	}
	if r.Epoch > w.epoch || r.Epoch == w.epoch && r.Seq > w.seq[r.Shard] {
		return stock.StandingUnknown
	}
	return stock.StandingPersisted
}

// Wait waits until the ledger knows.
func (w *World) Wait(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	for {
		w.mu.Lock()
		s, applied := w.judge(r), w.applied
		w.mu.Unlock()
		if s == stock.StandingPersisted || s == stock.StandingLost {
			return s, nil
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return stock.StandingAccepted, ctx.Err()
		}
	}
}

// Resolve judges an acceptance now.
func (w *World) Resolve(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	return w.Standing(ctx, r)
}

// Standing judges a receipt now.
func (w *World) Standing(_ context.Context, r stock.Receipt) (stock.Standing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge(r), w.LedgerAway
}

// Lookup gives the rows of Postgres.
func (w *World) Lookup(_ context.Context, id string) ([]stock.Reservation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []stock.Reservation
	for shard := range len(w.rows) {
		if r, ok := w.rows[shard][id]; ok {
			out = append(out, r)
		}
	}
	return out, w.LedgerAway
}

// Attempt gives one row of Postgres.
func (w *World) Attempt(_ context.Context, shard int, id string, attempt int64) (stock.Reservation, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.attempts[attemptKey{shard, id, attempt}]
	return r, ok && w.LedgerAway == nil, w.LedgerAway
}

// Shortfall keeps the order's id.
func (w *World) Shortfall(_ context.Context, _ int, id string, _ int64, _ []stock.Short) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Shortfalls = append(w.Shortfalls, id)
	return w.LedgerAway
}

// Record reads Redis.
func (w *World) Record(_ context.Context, shard int, id string) (stock.Reservation, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.records[shard][id]; r != nil {
		return *r, true, nil
	}
	return stock.Reservation{}, false, nil
}

// Field reads a SKU in Redis.
func (w *World) Field(_ context.Context, shard int, sku int64) (event.Field, stock.Position, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.fields[sku]; f != nil {
		return *f, stock.Position{Epoch: w.epoch, Seq: w.seq[shard]}, true, nil
	}
	return event.Field{}, stock.Position{}, false, nil
}

// Counted is whether Redis counts what buyers have of a SKU in full.
func (w *World) Counted(_ context.Context, _ int, sku int64) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counted[sku], nil
}

// Now is Redis' time.
func (w *World) Now(context.Context, int) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, nil
}

// Figure is what Postgres has.
func (w *World) Figure(_ context.Context, sku string) (event.Field, stock.Position, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.shelves[w.skus[sku].Number]
	return f, stock.Position{Epoch: w.epoch, Seq: w.seq[w.skus[sku].Shard]}, ok, w.LedgerAway
}
