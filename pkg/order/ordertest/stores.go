package ordertest

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// deadline is how long a document may wait, in milliseconds.
const deadline = 3_600_000

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
	for text, s := range w.skus {
		out[s.Number] = text
	}
	return out, w.LedgerAway
}

// Forget is heard; this world remembers nothing beside the truth.
func (w *World) Forget(string) {}

func (w *World) judge(r stock.Receipt) stock.Standing {
	if w.lost[r] {
		return stock.StandingLost
	}
	if _, ok := w.behind[r]; ok {
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

// Now is Redis' time.
func (w *World) Now(context.Context, int) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, nil
}

// Figure is what Postgres has: the same as Redis, this world does not tell them apart.
func (w *World) Figure(_ context.Context, sku string) (event.Field, stock.Position, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.fields[w.skus[sku].Number]; f != nil {
		return *f, stock.Position{Epoch: w.epoch, Seq: w.seq[w.skus[sku].Shard]}, true, w.LedgerAway
	}
	return event.Field{}, stock.Position{}, false, w.LedgerAway
}

// Open writes an opening.
func (w *World) Open(_ context.Context, sku string, units int64, shard int, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.LedgerAway != nil {
		return order.Paper{}, false, w.LedgerAway
	}
	if s, ok := w.skus[sku]; ok {
		if s.Opening != units {
			return order.Paper{}, false, &order.DocumentConflictError{Why: fmt.Sprintf("opened with %d", s.Opening)}
		}
		if p := w.papers[openingID(s.Number)]; p != nil {
			return *p, false, nil
		}
		return order.Paper{ID: openingID(s.Number), Shard: s.Shard, SKU: s.Number, State: order.Applied}, false, nil
	}
	s := order.SKU{Number: int64(len(w.skus) + 1), Shard: shard, Opening: units}
	w.skus[sku] = s
	p := &order.Paper{ID: openingID(s.Number), Shard: shard, SKU: s.Number, State: order.Written, Operation: stock.Operation{
		Kind: stock.NewSKU, ID: stock.DocumentID(openingID(s.Number)), Deadline: now + deadline, SKU: sku,
		Lines: stock.Lines{{SKU: s.Number, Asked: units, Now: units}},
	}}
	w.papers[p.ID] = p
	return *p, true, nil
}

func openingID(number int64) string { return fmt.Sprintf("~open:%d", number) }

// Write writes a document.
func (w *World) Write(_ context.Context, d order.Draft, now int64) (order.Paper, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.LedgerAway != nil {
		return order.Paper{}, false, w.LedgerAway
	}
	if p := w.papers[d.ID]; p != nil {
		if w.drafts[d.ID] != d {
			return order.Paper{}, false, &order.DocumentConflictError{Why: "the document stands with other content"}
		}
		return *p, false, nil
	}
	var shard int
	for _, s := range w.skus {
		if s.Number == d.SKU {
			shard = s.Shard
		}
	}
	p := &order.Paper{ID: d.ID, Shard: shard, SKU: d.SKU, State: order.Written, Operation: stock.Operation{
		Kind: stock.Movement, ID: stock.DocumentID(d.ID), Deadline: now + deadline, Document: d.Kind, Reason: d.Reason,
		Lines: stock.Lines{{SKU: d.SKU, Asked: d.Units, Now: d.Units}},
	}}
	w.papers[d.ID], w.drafts[d.ID] = p, d
	return *p, true, nil
}

// Paper reads a document.
func (w *World) Paper(_ context.Context, id string) (order.Paper, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.papers[id]; p != nil {
		return *p, w.LedgerAway
	}
	return order.Paper{}, fmt.Errorf("document %s is unknown", id)
}
