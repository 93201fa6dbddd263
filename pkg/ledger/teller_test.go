package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A teller plays the Redis of one shard: it decides with a Book and writes the entries of the log, whose book
// is also what Postgres must end up with.
type teller struct {
	t     testing.TB
	l     *Ledger
	shard int
	claim Claim
	book  *event.Book
	at    stock.Position // of the last entry
	clock int64
	log   []event.Raw
	skus  []int64
}

func newTeller(t testing.TB, l *Ledger, shard int) *teller {
	t.Helper()
	w := &teller{t: t, l: l, shard: shard, book: event.NewBook(shard), clock: 1_700_000_000_000}
	w.takeover()
	return w
}

// takeover closes the epoch and opens the next one.
func (w *teller) takeover() {
	w.t.Helper()
	w.reopen(w.closeEpoch())
}

func (w *teller) closeEpoch() (closed stock.Position) {
	w.t.Helper()
	ctx := context.Background()
	claim, err := w.l.Claim(ctx, w.shard, 0, true)
	check(w.t, err)
	closed, err = w.l.CloseEpoch(ctx, claim)
	check(w.t, err)
	w.claim, w.at = claim, stock.Position{Epoch: claim.Epoch}
	return closed
}

func (w *teller) reopen(closed stock.Position) {
	w.t.Helper()
	w.apply(w.entry(stock.Operation{Kind: stock.Opened, ID: "~~open", Continues: closed}))
	check(w.t, w.l.SayOpen(context.Background(), w.claim))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entry folds operations into the book and writes them at the next position.
func (w *teller) entry(ops ...stock.Operation) event.Raw {
	w.t.Helper()
	e := event.Entry{Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}, AtMillis: w.clock, Ops: ops}
	touched := map[int64]bool{}
	_, err := w.book.Apply(&e, func(c event.Change) {
		for _, r := range []*stock.Reservation{c.Before, c.After} {
			if r != nil {
				for _, l := range r.Lines {
					touched[l.SKU] = true
				}
			}
		}
	})
	check(w.t, err)
	for sku := range touched {
		e.After = append(e.After, event.After{SKU: sku, Quantities: w.book.Stock[sku]})
	}
	slices.SortFunc(e.After, func(a, b event.After) int { return cmp.Compare(a.SKU, b.SKU) })
	w.at = e.Position
	w.log = append(w.log, e.Raw())
	return e.Raw()
}

// sku writes a new SKU with its opening document, and applies its entry.
func (w *teller) sku(units int64) int64 {
	w.t.Helper()
	text := fmt.Sprintf("sku-%d-%d", w.shard, len(w.skus))
	doc, _, err := w.l.WriteOpening(context.Background(), text, units, w.shard, w.clock)
	check(w.t, err)
	w.apply(w.entry(doc.Operation()))
	w.skus = append(w.skus, doc.Lines[0].SKU)
	return doc.Lines[0].SKU
}

func (w *teller) apply(raws ...event.Raw) Applied {
	w.t.Helper()
	done, err := w.l.Apply(context.Background(), w.shard, raws)
	check(w.t, err)
	return done
}

func lines(pairs ...int64) stock.Lines {
	var out stock.Lines
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, stock.Line{SKU: pairs[i], Asked: pairs[i+1], Now: pairs[i+1]})
	}
	return out
}

func reserve(id string, attempt int64, of stock.Lines) stock.Operation {
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: attempt, Buyer: "b", TTL: 60_000, Lines: of}
}

func move(kind stock.Kind, id string, attempt int64) stock.Operation {
	return stock.Operation{Kind: kind, ID: id, Attempt: attempt}
}

// same compares Postgres with the book, order by order and SKU by SKU, and looks at the invariants.
func (w *teller) same() {
	w.t.Helper()
	ctx := context.Background()
	v, err := w.l.View(ctx, w.shard)
	check(w.t, err)
	defer v.Close()
	if got := v.Shard().Position(); got != w.at {
		w.t.Errorf("the ledger is at %v, the log at %v", got, w.at)
	}
	fields, err := v.Stock(ctx)
	check(w.t, err)
	want := map[int64]event.Field{}
	for sku, q := range w.book.Stock {
		want[sku] = event.Field{Quantities: q, Settings: w.book.Settings[sku]}
	}
	if diff := gocmp.Diff(want, fields); diff != "" {
		w.t.Errorf("stock (-log +ledger):\n%s", diff)
	}
	orders := map[string]stock.Reservation{}
	var ids []string
	for id, r := range w.book.Orders {
		if !strings.HasPrefix(id, "~") {
			orders[id] = *r
			ids = append(ids, id)
		}
	}
	got, err := v.Orders(ctx, ids)
	check(w.t, err)
	if diff := gocmp.Diff(orders, got); diff != "" {
		w.t.Errorf("orders (-log +ledger):\n%s", diff)
	}
	broken, err := v.Invariants(ctx, time.Hour)
	check(w.t, err)
	if len(broken) > 0 {
		w.t.Errorf("broken: %v", broken)
	}
}

func count(t testing.TB, l *Ledger, sql string, args ...any) (n int64) {
	t.Helper()
	check(t, l.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}
