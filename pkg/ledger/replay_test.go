package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Random valid logs, in random batches with repeats: the ledger must be what the log folds to. Every draw gets
// a shard of its own.
func TestTheLedgerIsWhatTheLogFoldsTo(t *testing.T) {
	t.Parallel()
	l := open(t, stock.MaxShards)
	shard := 0
	rapid.Check(t, func(r *rapid.T) {
		w := newTeller(t, l, shard)
		shard++
		if shard == stock.MaxShards {
			t.Fatal("more draws than shards")
		}
		w.t = plain{t, r}
		for range rapid.IntRange(1, 4).Draw(r, "skus") {
			w.sku(int64(rapid.IntRange(0, 200).Draw(r, "opening")))
		}
		var pending []event.Raw
		for i := range rapid.IntRange(1, 40).Draw(r, "entries") {
			if ops := drawOps(r, w, i); len(ops) > 0 {
				pending = append(pending, w.entry(ops...))
			}
			if rapid.IntRange(0, 3).Draw(r, "apply") == 0 {
				applyShuffled(r, w, pending)
				pending = nil
			}
			if rapid.IntRange(0, 19).Draw(r, "takeover") == 0 {
				applyShuffled(r, w, pending)
				pending = nil
				w.takeover()
			}
		}
		applyShuffled(r, w, pending)
		w.same()
	})
}

// plain lets the teller fail the draw, and keeps the databases with the test.
type plain struct {
	testing.TB
	r *rapid.T
}

func (p plain) Helper()                         {}
func (p plain) Fatal(args ...any)               { p.r.Fatal(args...) }
func (p plain) Fatalf(form string, args ...any) { p.r.Fatalf(form, args...) }
func (p plain) Error(args ...any)               { p.r.Error(args...) }
func (p plain) Errorf(form string, args ...any) { p.r.Errorf(form, args...) }

// drawOps picks operations that the book accepts one after the other, as the library would have.
func drawOps(r *rapid.T, w *teller, n int) []stock.Operation {
	trial := event.NewBook(w.shard)
	for sku, q := range w.book.Stock {
		trial.Stock[sku] = q
	}
	for id, o := range w.book.Orders {
		trial.Orders[id] = o
	}
	var ops []stock.Operation
	for i := range rapid.IntRange(1, 6).Draw(r, "ops") {
		op := drawOp(r, w, trial, n*10+i)
		before := map[int64]stock.Quantities{}
		for sku, q := range trial.Stock {
			before[sku] = q
		}
		if _, err := trial.Apply(&event.Entry{Position: stock.Position{Epoch: 1, Seq: 2}, AtMillis: w.clock, Ops: []stock.Operation{op}}, nil); err != nil {
			if op.Order.ID != "" {
				r.Fatal(err)
			}
			trial.Stock = before
			continue
		}
		ops = append(ops, op)
	}
	return ops
}

func drawOp(r *rapid.T, w *teller, trial *event.Book, n int) stock.Operation {
	id := fmt.Sprint("o", rapid.IntRange(0, 9).Draw(r, "order"))
	attempt := int64(1)
	if o := trial.Orders[id]; o != nil {
		attempt = o.Attempt
		if o.State.Ended() {
			attempt += int64(rapid.IntRange(0, 1).Draw(r, "again"))
		}
	}
	var of stock.Lines
	for _, sku := range w.skus {
		if q := int64(rapid.IntRange(0, 9).Draw(r, "units")); q > 0 {
			of = append(of, stock.Line{SKU: sku, Asked: q, Now: q})
		}
	}
	if len(of) == 0 {
		of = lines(w.skus[0], 1)
	}
	switch kind := rapid.SampledFrom([]stock.Kind{'R', 'R', 'R', 'S', 'C', 'C', 'C', 'L', 'X', 'E', 'U', 'P', 'M', 'D', 'D', 'D', 'T'}).Draw(r, "kind"); kind {
	case stock.Reserve, stock.Sale:
		op := reserve(id, attempt, of)
		if kind == stock.Sale {
			op.Kind, op.TTL = kind, 0
		}
		if op.Partial = rapid.IntRange(0, 3).Draw(r, "partial") == 0; op.Partial {
			op.Lines[len(op.Lines)-1].Now = int64(rapid.IntRange(1, int(op.Lines[len(op.Lines)-1].Asked)).Draw(r, "taken"))
		}
		return op
	case stock.Confirm, stock.LateConfirm, stock.Release:
		op := move(kind, id, attempt)
		if o := trial.Orders[id]; o != nil && rapid.Bool().Draw(r, "named") {
			for _, l := range o.Lines {
				if rapid.Bool().Draw(r, "line") {
					op.Lines = append(op.Lines, stock.Line{SKU: l.SKU, Now: int64(rapid.IntRange(0, int(l.Now)).Draw(r, "stands"))})
				}
			}
		}
		return op
	case stock.Extend:
		op := move(kind, id, attempt)
		op.Until = w.clock + int64(rapid.IntRange(60_000, 120_000).Draw(r, "until"))
		return op
	case stock.Replace:
		op := move(kind, id, attempt)
		op.Lines = of
		return op
	case 'D':
		return drawDocument(r, w, trial, id, n)
	case stock.Movement:
		signed := slices.Clone(of)
		for i := range signed {
			if rapid.Bool().Draw(r, "out") {
				signed[i].Asked, signed[i].Now = -signed[i].Asked, -signed[i].Now
			}
		}
		doc, _, err := w.l.WriteDocument(context.Background(), NewDocument{
			ID: fmt.Sprintf("%d-%d", w.shard, n), Kind: stock.DocumentAdjust, Reason: "r", Lines: signed, DeadlineMillis: w.clock,
		})
		if err != nil {
			r.Fatal(err)
		}
		op := doc.Operation()
		for _, m := range signed {
			op.Refused = op.Refused || trial.Stock[m.SKU].Available+m.Asked < 0
		}
		return op
	case stock.Configure:
		return stock.Operation{Kind: kind, ID: fmt.Sprint("~~t", n), Lines: stock.Lines{{SKU: w.skus[0]}}, Change: stock.Change{
			Opens: int64(rapid.IntRange(stock.Keep, 2).Draw(r, "opens")), Closed: stock.Switch(rapid.IntRange(-1, 1).Draw(r, "closed")),
			Limit: int64(rapid.IntRange(stock.Keep, 2).Draw(r, "limit")),
		}}
	default:
		return move(kind, id, attempt)
	}
}

// drawDocument writes a document of an order, or a count, of what is persisted, which the log may be ahead of. What the
// ledger wrote must be carried out by any shard that is ahead of it; what it refuses is another operation.
func drawDocument(r *rapid.T, w *teller, trial *event.Book, id string, n int) stock.Operation {
	d := NewDocument{
		ID: fmt.Sprintf("%d-%d", w.shard, n), Reason: "r", DeadlineMillis: w.clock, Order: DocumentOrder{ID: id, Shard: w.shard},
		Kind: rapid.SampledFrom([]string{stock.DocumentFulfil, stock.DocumentFulfil, stock.DocumentCancel, stock.DocumentReturn, stock.DocumentCount}).Draw(r, "document"),
	}
	if d.Kind == stock.DocumentCount {
		d.Order = DocumentOrder{}
		d.Lines = stock.Lines{{SKU: w.skus[0], Asked: int64(rapid.IntRange(0, 200).Draw(r, "counted"))}}
	} else if rapid.Bool().Draw(r, "a part") {
		d.Lines = stock.Lines{{SKU: rapid.SampledFrom(w.skus).Draw(r, "of"), Asked: int64(rapid.IntRange(1, 4).Draw(r, "units"))}}
	}
	d.Scrap = d.Kind == stock.DocumentReturn && rapid.Bool().Draw(r, "scrap")
	doc, _, err := w.l.WriteDocument(context.Background(), d)
	var state *OrderStateError
	var quantity *QuantityError
	var count *CountError
	switch {
	case errors.As(err, &state), errors.As(err, &quantity), errors.As(err, &count), errors.Is(err, ErrUnknownOrder):
		return reserve(id+"-else", 1, lines(w.skus[0], 1))
	case err != nil:
		r.Fatal(err)
	}
	op := doc.Operation()
	for _, m := range op.Lines {
		op.Refused = op.Refused || d.Kind == stock.DocumentCount && trial.Stock[m.SKU].Available+m.Asked < 0
	}
	return op
}

// applyShuffled gives the entries in random batches, out of order, with old ones among them, until they stand.
func applyShuffled(r *rapid.T, w *teller, pending []event.Raw) {
	if len(pending) == 0 {
		return
	}
	if len(w.log) > 0 {
		pending = append(slices.Clone(pending), rapid.SampledFrom(w.log).Draw(r, "old"))
	}
	pending = rapid.Permutation(pending).Draw(r, "order of arrival")
	size := rapid.IntRange(1, len(pending)).Draw(r, "batch")
	for tries := 0; ; tries++ {
		var at stock.Position
		for batch := range slices.Chunk(pending, size) {
			done, err := w.l.Apply(context.Background(), w.shard, batch)
			var gap *GapError
			if err != nil && !errors.As(err, &gap) {
				r.Fatal(err)
			}
			at = done.Position
		}
		if at == w.at {
			return
		}
		if tries > len(pending) {
			r.Fatalf("at %v, want %v", at, w.at)
		}
	}
}
