package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// replay folds the log from p to q into the book. It reports false when the log cannot be followed to q: then a
// drift says why, and stock and orders are not compared, for they would all differ.
func (c *comparison) replay(ctx context.Context) (bool, error) {
	p, q := c.report.Ledger, c.report.Redis
	next := p.Seq + 1
	// The entry at p itself is read, too: the ledger has its content, and nobody may have another. It may be
	// trimmed.
	for after := (stock.Position{Epoch: p.Epoch, Seq: max(p.Seq-1, 0)}); ; {
		batch, err := c.redis.Range(ctx, after, c.options.Page)
		if err != nil {
			return false, fmt.Errorf("read the log after %s: %w", after, err)
		}
		entries, ok, err := c.contiguous(ctx, batch, &next)
		if err != nil || !ok {
			return false, err
		}
		if whole, err := c.fold(ctx, entries); err != nil || !whole {
			return false, err
		}
		if next > q.Seq {
			return true, nil
		}
		if len(batch) == 0 {
			return false, c.hole(ctx, next, "")
		}
		after = stock.Position{Epoch: p.Epoch, Seq: next - 1}
	}
}

// contiguous parses the entries of a batch that lie in (p .. q] and moves next behind them. ok is false when a
// drift was raised.
func (c *comparison) contiguous(ctx context.Context, batch []event.Raw, next *int64) (entries []event.Entry, ok bool, err error) {
	p, q := c.report.Ledger, c.report.Redis
	for _, raw := range batch {
		at, err := stock.ParsePosition(raw.ID)
		if err != nil {
			c.unreadable(raw, err)
			return nil, false, nil
		}
		if at == p {
			if c.forked(raw) {
				return nil, false, nil
			}
			continue
		}
		if *next > q.Seq {
			break // what lies behind q came after the sample
		}
		if at != (stock.Position{Epoch: p.Epoch, Seq: *next}) {
			return nil, false, c.hole(ctx, *next, raw.ID)
		}
		entry, err := raw.Parse()
		if err != nil {
			c.unreadable(raw, err)
			return nil, false, nil
		}
		entries = append(entries, entry)
		*next++
	}
	return entries, true, nil
}

// forked compares the entry that Redis has at p with the one that the ledger persisted there.
func (c *comparison) forked(raw event.Raw) bool {
	ours := c.snap.Last
	if ours.ID != raw.ID || ours == raw {
		return false
	}
	c.raise(Drift{Class: Fork, Key: "log", Position: raw.ID, Redis: text(raw), Postgres: text(ours),
		Text: "Redis and the ledger have different entries at the same position"})
	return true
}

func text(raw event.Raw) string {
	const most = 300
	s := fmt.Sprintf("t %s, o %s, a %s", raw.At, raw.Ops, raw.After)
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

func (c *comparison) unreadable(raw event.Raw, err error) {
	c.raise(Drift{Class: Stuck, Key: "log", Position: raw.ID, Redis: text(raw),
		Text: fmt.Sprintf("an entry of the log cannot be read, consumers halt on it (upgrade them and the reconciler first, if producers are newer): %v", err)})
}

// hole judges an entry that was not where the log goes on. Two things are no loss. The log may have been read from
// another process than the sample, while an address moves from a master to its replica, which has less: so the entry
// is looked for again, together with the status of whoever answers. And trimming takes away what the ledger has
// applied: so the ledger is asked last, after the entry was found missing. found is the id of the entry found in its
// place, if any.
func (c *comparison) hole(ctx context.Context, missing int64, found string) error {
	at := stock.Position{Epoch: c.report.Ledger.Epoch, Seq: missing}
	status, there, err := c.redis.Entry(ctx, at)
	if err != nil {
		return fmt.Errorf("look for entry %s again: %w", at, err)
	}
	was := c.sample.Status
	if !status.Open() || status.Token != was.Token || status.Nonce != was.Nonce || status.Seq < missing {
		return &movedError{fmt.Sprintf("entry %s is asked of a Redis that is not the one of the sample: %q at %d, fence %s", at, status.Token, status.Seq, status.Fence)}
	}
	if there {
		return &movedError{fmt.Sprintf("entry %s was not in the log at first and is there now: two processes answered", at)}
	}
	row, err := c.settled(ctx)
	if err != nil {
		return err
	}
	if row.Applied >= missing {
		return &movedError{fmt.Sprintf("the log was trimmed beyond %s", at)}
	}
	drift := Drift{Class: GapLost, Key: "log", Position: at.String(),
		Text: fmt.Sprintf("entry %s is gone from the log before the ledger (at %s) had it", at, row.Position())}
	if found != "" {
		drift.Text += ", the next one is " + found
	} else {
		drift.Text += fmt.Sprintf(", and nothing follows, although Redis is at %s", c.report.Redis)
	}
	c.raise(drift)
	return nil
}

// fold applies entries to the book, after loading the orders that they move.
func (c *comparison) fold(ctx context.Context, entries []event.Entry) (bool, error) {
	if len(entries) == 0 {
		return true, nil
	}
	if entries[0].Seq == c.report.Ledger.Seq+1 {
		if err := c.late(ctx, entries[0]); err != nil {
			return false, err
		}
	}
	var needs []string
	for _, id := range event.Needs(entries) {
		if !c.moved[id] {
			needs = append(needs, id)
		}
	}
	if err := c.load(ctx, needs); err != nil {
		return false, err
	}
	for i := range entries {
		e := &entries[i]
		c.forget(e)
		off, err := c.book.Apply(e, func(change event.Change) {
			if change.After != nil {
				c.moved[change.Op.ID] = true
			}
			if change.OrderAfter != nil {
				c.moved[change.OrderAfter.ID] = true // who wrote the document saw to it that the record stays until then
			}
		})
		var poison *event.PoisonError
		if errors.As(err, &poison) {
			c.raise(Drift{Class: Tampered, Key: "log", Order: poison.Op.ID, Position: e.Position.String(), Verb: VerbHalt,
				Text: "the log contradicts the ledger, consumers halt on it: " + poison.Error()})
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("fold entry %s: %w", e.Position, err)
		}
		for _, m := range off {
			if _, first := c.images[m.SKU]; !first {
				c.images[m.SKU] = m
			}
		}
		c.report.Entries++
	}
	return true, nil
}

// forget leaves out of the book what Redis has dropped: an order whose retention passed begins like a new one.
func (c *comparison) forget(e *event.Entry) {
	for i := range e.Ops {
		op := &e.Ops[i]
		if (op.Kind == stock.Reserve || op.Kind == stock.Sale) && c.age(op.ID) != young {
			delete(c.book.Orders, op.ID)
		}
	}
}
