package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Verification is a shard's history read through from its first event, from Postgres alone.
type Verification struct {
	Shard   int    `json:"shard"`
	At      string `json:"at"`    // position that was folded to
	Whole   bool   `json:"whole"` // that is Postgres' own position, and stock rows and open orders were compared with it
	Epochs  int    `json:"epochs"`
	Entries int    `json:"entries"`
	Events  int    `json:"events"`
	SKUs    int    `json:"skus"`
	Open    int    `json:"open_orders"` // that hold units at the position

	Available int64 `json:"available"` // of all SKUs together
	Held      int64 `json:"held"`
	Committed int64 `json:"committed"`
	Moved     int64 `json:"moved"` // openings, goods in, adjustments, counts and returns, less what was shipped; the three above sum up to it

	Digests  int    `json:"digests"` // closed epochs whose digest is as it was first computed, those first computed now included
	New      int    `json:"new_digests"`
	Images   int    `json:"images"` // after-images that Redis wrote and the fold disagrees with: somebody had changed Redis
	Image    string `json:"first_image,omitempty"`
	Flaws    []Flaw `json:"flaws"`
	More     int    `json:"more_flaws"`
	TookMsec int64  `json:"took_ms"`
	Error    string `json:"error,omitempty"` // why it could not be read to the end
}

// Exit is the code of a verification: clean, a person, or not checked.
func (v *Verification) Exit() int {
	switch {
	case len(v.Flaws) > 0:
		return ExitOperator
	case v.Error != "":
		return ExitUnchecked
	}
	return ExitClean
}

func (v *Verification) String() string {
	text := fmt.Sprintf("shard %d: verified to %s: %d epochs, %d entries, %d events; %d SKUs with %d available + %d held + %d committed = %d that documents brought; %d open orders; %d digests as they were, %d new",
		v.Shard, v.At, v.Epochs, v.Entries, v.Events, v.SKUs, v.Available, v.Held, v.Committed, v.Moved, v.Open, v.Digests-v.New, v.New)
	if v.Whole {
		text += "; stock and open orders are what the history folds to"
	} else {
		text += "; not Postgres' own position, so stock and open orders were not compared"
	}
	if v.Images > 0 {
		text += fmt.Sprintf("; %d after-images disagree, first %s (Redis had been changed by hand; the ledger kept its own figures)", v.Images, v.Image)
	}
	if v.Error != "" {
		text += "; NOT FINISHED: " + v.Error
	}
	return text
}

// Verify reads a shard's history through and proves that nothing was made or lost on the way: positions are contiguous
// across epochs, no figure was ever below zero, what is there is what documents brought, each closed epoch is what it
// was when it was first read. At Postgres' own position (at is zero) stock rows and open orders are what the history
// folds to. It changes nothing but to keep digests of epochs that have none.
func (w *Warden) Verify(ctx context.Context, shard int, at stock.Position) (Verification, error) {
	if _, err := w.ward(shard); err != nil {
		return Verification{}, err
	}
	began := time.Now()
	v := verifier{history: newHistory(w.Ledger, shard), out: Verification{Shard: shard, Flaws: []Flaw{}}, done: -1, in: -1}
	err := v.run(ctx, at)
	v.report()
	v.out.TookMsec = time.Since(began).Milliseconds()
	if err != nil {
		v.out.Error = err.Error()
	}
	return v.out, err
}

// verifier is one reading.
type verifier struct {
	*history
	out  Verification
	done int64 // newest epoch that was left; -1 = none, for the first one is 0
	in   int64 // epoch that was entered; -1 = none
}

// ErrNoPosition means that a history has no such position.
var ErrNoPosition = errors.New("the history has no such position: name one of Postgres' epochs, at most what it has applied")

func (v *verifier) run(ctx context.Context, at stock.Position) error {
	row, err := within(ctx, statementTime, func(ctx context.Context) (ledger.Shard, error) { return v.ledger.Shard(ctx, v.shard) })
	if err != nil {
		return err
	}
	whole := at == stock.Position{}
	if whole {
		at = row.Position()
	} else if err := v.exists(ctx, at, row); err != nil {
		return err
	}
	if err := v.to(ctx, at); err != nil {
		return err
	}
	if whole {
		return v.compare(ctx)
	}
	return nil
}

func (v *verifier) exists(ctx context.Context, at stock.Position, row ledger.Shard) error {
	standing, err := within(ctx, statementTime, func(ctx context.Context) (stock.Standing, error) {
		return v.ledger.Standing(ctx, stock.Receipt{Shard: v.shard, Position: at})
	})
	if err == nil && standing != stock.StandingPersisted {
		err = fmt.Errorf("%s is %s, Postgres is at %s: %w", at, standing, row.Position(), ErrNoPosition)
	}
	return err
}

// to folds on to a position, through the epochs before it.
func (v *verifier) to(ctx context.Context, at stock.Position) error {
	closed, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.ClosedEpoch, error) { return v.ledger.ClosedEpochs(ctx, v.shard) })
	if err != nil {
		return err
	}
	for i := range closed {
		e := &closed[i]
		if e.Epoch <= v.done || e.Epoch >= at.Epoch {
			continue
		}
		if err := v.epoch(ctx, e); err != nil {
			return err
		}
	}
	if v.in != at.Epoch {
		v.enter(at.Epoch)
		v.in = at.Epoch
		v.out.Epochs++
	}
	if err := v.advance(ctx, at.Seq); err != nil {
		return err
	}
	if v.history.at.Seq != at.Seq {
		v.flaw(Flaw{Epoch: at.Epoch, Text: fmt.Sprintf("the events end at %d, before %s", v.history.at.Seq, at)})
	}
	v.out.At = at.String()
	return nil
}

// epoch reads a closed epoch to its end and compares its digest.
func (v *verifier) epoch(ctx context.Context, e *ledger.ClosedEpoch) error {
	if v.in != e.Epoch {
		v.enter(e.Epoch)
		v.in = e.Epoch
		v.out.Epochs++
	}
	if err := v.advance(ctx, e.LastSeq); err != nil {
		return err
	}
	v.leave(e.LastSeq)
	v.done = e.Epoch
	behind, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.Told, error) {
		return v.ledger.History(ctx, stock.Receipt{Shard: v.shard, Position: stock.Position{Epoch: e.Epoch, Seq: e.LastSeq}, Index: maxIndex}, math.MaxInt64)
	})
	if err != nil {
		return err
	}
	if len(behind) > 0 {
		v.flaw(Flaw{Epoch: e.Epoch, Position: behind[0].Receipt.Position.String(), Text: fmt.Sprintf("there are events behind its end at %d", e.LastSeq)})
	}
	digest, events := v.digest.Sum()
	if e.Digest == "" {
		kept, err := within(ctx, statementTime, func(ctx context.Context) (ledger.ClosedEpoch, error) {
			return v.ledger.StoreDigest(ctx, v.shard, ledger.ClosedEpoch{Epoch: e.Epoch, LastSeq: e.LastSeq, Events: events, Digest: digest})
		})
		if err != nil {
			return err
		}
		if *e = kept; e.Digest == digest {
			v.out.New++
		}
	}
	if e.Digest != digest || e.Events != events {
		v.flaw(Flaw{Epoch: e.Epoch, Text: fmt.Sprintf("its %d events have the digest %.16s…, the %d of %s had %.16s…: history was edited since",
			events, digest, e.Events, e.Computed.UTC().Format(time.RFC3339), e.Digest)})
		return nil
	}
	v.out.Digests++
	return nil
}

// compare folds on to where a snapshot stands, and compares with its rows.
func (v *verifier) compare(ctx context.Context) (err error) {
	view, err := within(ctx, statementTime, func(ctx context.Context) (*ledger.View, error) { return v.ledger.View(ctx, v.shard) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	if err := v.to(ctx, view.Shard().Position()); err != nil {
		return err
	}
	v.out.Whole = true
	if v.broken {
		return nil // every row would differ
	}
	if err := v.compareStock(ctx, view); err != nil {
		return err
	}
	return v.compareOrders(ctx, view)
}

func (v *verifier) compareStock(ctx context.Context, view *ledger.View) error {
	rows, err := within(ctx, viewTime, view.Stock)
	if err != nil {
		return err
	}
	for _, sku := range slices.Sorted(maps.Keys(rows)) {
		if have, folded := rows[sku].Quantities, v.book.Stock[sku]; have != folded {
			v.flaw(Flaw{Epoch: v.in, SKU: sku, Text: fmt.Sprintf("the row in the table stock says %s, its history folds to %s", have, folded)})
		}
	}
	for _, sku := range slices.Sorted(maps.Keys(v.book.Stock)) {
		if _, there := rows[sku]; !there {
			v.flaw(Flaw{Epoch: v.in, SKU: sku, Text: fmt.Sprintf("it has no row in the table stock, its history folds to %s", v.book.Stock[sku])})
		}
	}
	return nil
}

// compareOrders compares the open orders, page by page.
func (v *verifier) compareOrders(ctx context.Context, view *ledger.View) error {
	seen := map[string]bool{}
	for after := ""; ; {
		page, err := within(ctx, statementTime, func(ctx context.Context) ([]stock.Reservation, error) {
			return view.Page(ctx, after, audit.DefaultPage)
		})
		if err != nil {
			return err
		}
		for i := range page {
			r := &page[i]
			after = r.ID
			folded := v.book.Orders[r.ID]
			switch {
			case r.State != stock.Held && folded == nil:
				continue
			case folded == nil:
				v.flaw(Flaw{Epoch: v.in, Order: r.ID, Text: fmt.Sprintf("the table reservation has %s, its history holds nothing", event.FormatRecord(r))})
			case event.FormatRecord(r) != event.FormatRecord(folded):
				v.flaw(Flaw{Epoch: v.in, Order: r.ID, Text: fmt.Sprintf("the table reservation has %s, its history folds to %s", event.FormatRecord(r), event.FormatRecord(folded))})
			}
			seen[r.ID] = true
		}
		if len(page) < audit.DefaultPage {
			break
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.book.Orders)) {
		if !seen[id] {
			v.flaw(Flaw{Epoch: v.in, Order: id, Text: fmt.Sprintf("the table reservation has no such open order, its history folds to %s", event.FormatRecord(v.book.Orders[id]))})
		}
	}
	return nil
}

func (v *verifier) report() {
	o := &v.out
	o.Entries, o.Events, o.SKUs = v.entries, v.events, len(v.book.Stock)
	o.Images, o.Image = v.images, v.image
	for _, order := range v.book.Orders {
		if order.State == stock.Held {
			o.Open++
		}
	}
	for sku, q := range v.book.Stock {
		o.Available += q.Available
		o.Held += q.Held
		o.Committed += q.Committed
		o.Moved += v.moved[sku]
		if q.OnHand() != v.moved[sku] {
			v.flaw(Flaw{Epoch: v.in, SKU: sku, Text: fmt.Sprintf("%s are %d units, documents brought %d", q, q.OnHand(), v.moved[sku])})
		}
	}
	o.Flaws = append(o.Flaws, v.flaws...)
	o.More = v.more
}
