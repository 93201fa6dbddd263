package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Flaw is something in the history that cannot be.
type Flaw struct {
	Epoch    int64  `json:"epoch"`
	Position string `json:"position,omitempty"`
	SKU      int64  `json:"sku_number,omitempty"`
	Order    string `json:"order,omitempty"`
	Text     string `json:"text"`
}

func (f Flaw) String() string {
	where := fmt.Sprintf("epoch %d", f.Epoch)
	if f.Position != "" {
		where += " at " + f.Position
	}
	if f.SKU != 0 {
		where += fmt.Sprintf(", SKU number %d", f.SKU)
	}
	if f.Order != "" {
		where += ", order " + f.Order
	}
	return where + ": " + f.Text
}

// maxFlaws bounds the flaws that are named; more are counted.
const maxFlaws = 100

// history folds the events of a shard from the very first one, page by page. In memory are the figures of all SKUs, the
// orders that are held, and one page: an order that ended or was confirmed is dropped, and read again in the one case
// that needs it. What documents do to confirmed orders is therefore seen in the figures of their SKUs alone.
type history struct {
	ledger *ledger.Ledger
	shard  int

	book    *event.Book
	moved   map[int64]int64 // units that documents brought, took and shipped, by SKU
	at      stock.Receipt   // newest event taken
	entries int
	events  int
	broken  bool // the fold ended at a flaw; contiguity and digests go on

	newest stock.Position // of all entries of the epochs before, which an opening names
	digest *ledger.Digest
	images int    // after-images that disagree
	image  string // the first of them

	flaws []Flaw
	more  int
}

func newHistory(l *ledger.Ledger, shard int) *history {
	return &history{ledger: l, shard: shard, book: event.NewBook(shard), moved: map[int64]int64{}, digest: ledger.NewDigest(), at: stock.Receipt{Shard: shard}}
}

func (h *history) flaw(f Flaw) {
	if len(h.flaws) >= maxFlaws {
		h.more++
		return
	}
	h.flaws = append(h.flaws, f)
}

// enter begins an epoch.
func (h *history) enter(epoch int64) {
	h.at = stock.Receipt{Shard: h.shard, Position: stock.Position{Epoch: epoch}}
	h.digest = ledger.NewDigest()
}

// leave ends an epoch, at the position that epoch_end names.
func (h *history) leave(last int64) {
	if h.at.Seq != last {
		h.flaw(Flaw{Epoch: h.at.Epoch, Text: fmt.Sprintf("it ended at %d and its events end at %d", last, h.at.Seq)})
	}
	// An opening names the newest entry, so an epoch that ended without one is passed over.
	if last > 0 {
		h.newest = stock.Position{Epoch: h.at.Epoch, Seq: last}
	}
}

// advance folds the epoch that was entered up to a seq.
func (h *history) advance(ctx context.Context, upto int64) error {
	var open []ledger.Told // rows of the entry that the last page cut through
	after := h.at
	after.Index = maxIndex
	if after.Seq == 0 {
		after.Index = -1
	}
	for {
		page, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.Told, error) { return h.ledger.History(ctx, after, upto) })
		if err != nil {
			return err
		}
		for i := range page {
			h.digest.Add(&page[i])
		}
		rows := append(open, page...)
		whole := len(rows)
		if len(page) == ledger.HistoryPage {
			after = page[len(page)-1].Receipt
			for whole > 0 && rows[whole-1].Receipt.Seq == after.Seq {
				whole--
			}
		}
		if err := h.take(ctx, rows[:whole]); err != nil {
			return err
		}
		open = slices.Clone(rows[whole:])
		if len(page) < ledger.HistoryPage {
			return nil
		}
	}
}

// maxIndex is behind every operation of an entry.
const maxIndex = 1 << 20

// take folds rows that are whole entries.
func (h *history) take(ctx context.Context, rows []ledger.Told) error {
	h.events += len(rows)
	var entries []event.Entry
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Receipt.Seq == rows[0].Receipt.Seq {
			n++
		}
		if entry, ok := h.entry(rows[:n]); ok {
			entries = append(entries, entry)
		}
		rows = rows[n:]
	}
	for i := range entries {
		if err := h.fold(ctx, &entries[i]); err != nil {
			return err
		}
	}
	return nil
}

// entry puts an entry together, and checks that it follows the one before.
func (h *history) entry(rows []ledger.Told) (event.Entry, bool) {
	first := rows[0]
	at := first.Receipt.Position
	if at.Seq != h.at.Seq+1 {
		h.flaw(Flaw{Epoch: at.Epoch, Position: at.String(), Text: fmt.Sprintf("the entry before it is %d: what was between is gone", h.at.Seq)})
		h.broken = true
	}
	h.at = rows[len(rows)-1].Receipt
	h.entries++
	var call event.Call
	for i := range rows {
		if rows[i].Receipt.Index != i {
			h.flaw(Flaw{Epoch: at.Epoch, Position: at.String(), Order: rows[i].ID, Text: fmt.Sprintf("operation %d stands where %d should", rows[i].Receipt.Index, i)})
			h.broken = true
		}
		op, err := event.ParseBody(rows[i].Body)
		if err != nil {
			h.flaw(Flaw{Epoch: at.Epoch, Position: at.String(), Order: rows[i].ID, Text: err.Error()})
			h.broken = true
			return event.Entry{}, false
		}
		op.ID, op.Buyer = rows[i].ID, rows[i].Buyer
		call.Add(&op)
	}
	entry, err := event.Raw{ID: at.String(), Version: event.Version, At: fmt.Sprint(first.AtMillis), Ops: string(call.Bytes()), After: first.After}.Parse()
	if err != nil {
		h.flaw(Flaw{Epoch: at.Epoch, Position: at.String(), Text: err.Error()})
		h.broken = true
		return entry, false
	}
	return entry, true
}

// again reads the ended attempts that late confirms of an entry follow: they were dropped when they ended.
func (h *history) again(ctx context.Context, e *event.Entry) error {
	var ids []string
	var attempts []int64
	made := map[string]bool{}
	for i := range e.Ops {
		op := &e.Ops[i]
		if op.Kind == stock.LateConfirm && h.book.Orders[op.ID] == nil && !made[op.ID] {
			ids, attempts = append(ids, op.ID), append(attempts, op.Attempt)
		}
		made[op.ID] = true
	}
	if len(ids) == 0 {
		return nil
	}
	found, err := within(ctx, statementTime, func(ctx context.Context) (map[string]stock.Reservation, error) {
		return h.ledger.ExpiredAttempts(ctx, h.shard, ids, attempts)
	})
	for id, r := range found {
		h.book.Orders[id] = &r
	}
	return err
}

func (h *history) fold(ctx context.Context, e *event.Entry) error {
	if h.broken {
		return nil
	}
	if e.Seq == 1 && (len(e.Ops) != 1 || e.Ops[0].Kind != stock.Opened || e.Ops[0].Continues != h.newest) {
		h.flaw(Flaw{Epoch: e.Epoch, Position: e.Position.String(), Text: fmt.Sprintf("it does not open the epoch by continuing %s", h.newest)})
	}
	if err := h.again(ctx, e); err != nil {
		return err
	}
	off, err := h.book.Apply(e, func(c event.Change) {
		// A cancellation only makes free again what was sold.
		if c.Op.Kind == stock.NewSKU || c.Op.Kind == stock.Movement && !c.Op.Refused && c.Op.Document != stock.DocumentCancel {
			for _, l := range c.Op.Lines {
				h.moved[l.SKU] += l.Asked
			}
		}
	})
	var poison *event.PoisonError
	if errors.As(err, &poison) {
		h.flaw(Flaw{Epoch: e.Epoch, Position: e.Position.String(), Order: poison.Op.ID, Text: "it contradicts all that came before: " + poison.Why})
		h.broken = true
		return nil
	}
	for _, m := range off {
		if h.images++; h.image == "" {
			h.image = m.String()
		}
	}
	for i := range e.Ops {
		id := e.Ops[i].ID
		if order := h.book.Orders[id]; order != nil && order.State != stock.Held {
			delete(h.book.Orders, id)
		}
	}
	return nil
}
