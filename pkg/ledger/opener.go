package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var _ takeover.Ledger = (*Opener)(nil)

// An Opener is the ledger as a takeover sees it.
type Opener struct {
	ledger *Ledger
}

// NewOpener binds a ledger.
func NewOpener(l *Ledger) *Opener { return &Opener{ledger: l} }

// ID is the ledger's own id.
func (o *Opener) ID() string { return o.ledger.id }

// Shard reads one row and Postgres' clock.
func (o *Opener) Shard(ctx context.Context, number int) (takeover.Shard, error) {
	s, err := o.ledger.Shard(ctx, number)
	if err != nil {
		return takeover.Shard{}, err
	}
	out := s.forTakeover()
	// Asked after the row, so that an age is never told too small because of a slow answer.
	if err := o.ledger.pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&out.Now); err != nil {
		return out, fmt.Errorf("read the clock of Postgres: %w", err)
	}
	return out, nil
}

func (s Shard) forTakeover() takeover.Shard {
	return takeover.Shard{
		Number: s.Number, Writer: s.Writer, Epoch: s.Epoch, Applied: s.Applied, Claim: s.Claim, State: s.State,
		Reason: s.Reason, Library: s.Library, Changed: s.Changed, Opened: s.Opened,
	}
}

// Claim is step 0.
func (o *Opener) Claim(ctx context.Context, shard int, redisEpoch int64, operator bool) (takeover.Seal, error) {
	var c Claim
	err := o.unheld(ctx, shard, func(ctx context.Context) (err error) {
		c, err = o.ledger.Claim(ctx, shard, redisEpoch, operator)
		return err
	})
	if err != nil {
		return takeover.Seal{}, forTakeover(err)
	}
	return takeover.Seal{Shard: shard, Ledger: o.ledger.id, Epoch: c.Epoch, Nonce: c.Nonce, Operator: operator}, nil
}

// stepLimit bounds the statements of one step, a wait for the shard's row included; never a commit.
const stepLimit = 30 * time.Second

// unheld runs a step that waits for the shard's row, and once more where somebody kept it for too long who could
// be ended: without this, the only consumer, stopped with the row in its hands, would keep the shard closed for as
// long as it is stopped. A wait that ended without the row has changed nothing, so the step is not sent twice.
func (o *Opener) unheld(ctx context.Context, shard int, step func(context.Context) error) error {
	limited := func() error {
		ctx, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		return step(ctx)
	}
	err := limited()
	var held *HeldError
	if !errors.As(err, &held) && !isSQLState(err, lockNotAvailable) {
		return err
	}
	if ended, failed := o.ledger.EndStalledHolder(ctx, shard); failed != nil || !ended {
		return errors.Join(err, failed)
	}
	return limited()
}

func claimOf(s takeover.Seal) Claim {
	return Claim{Shard: s.Shard, Epoch: s.Epoch, Nonce: s.Nonce, Library: s.Library}
}

// forTakeover gives the ledger's refusals the names that a takeover knows.
func forTakeover(err error) error {
	var halted *HaltedError
	switch {
	case errors.Is(err, ErrStaleClaim):
		return fmt.Errorf("%w (%w)", takeover.ErrSuperseded, err)
	case errors.As(err, &halted):
		return fmt.Errorf("%w (%w)", takeover.ErrHalted, err)
	}
	return err
}

// Drain is step 3 for one batch of the log.
func (o *Opener) Drain(ctx context.Context, s takeover.Seal, batch []event.Raw) (takeover.Drained, error) {
	var out takeover.Drained
	for resumed := false; ; {
		err := o.unheld(ctx, s.Shard, func(ctx context.Context) error {
			did, err := o.ledger.Apply(ctx, s.Shard, batch)
			out.Entries += did.Entries
			out.Position = did.Position
			return err
		})
		var gap *GapError
		var ahead *AheadError
		var halted *HaltedError
		switch {
		case err == nil:
			return out, nil
		case errors.As(err, &gap):
			return out, nil
		case errors.As(err, &halted) && halted.Claim.Epoch == 0 && s.Operator && !resumed:
			// A retry: what halted the shard is tried again, and halts it again if nothing has changed.
			resumed = true
			if err := o.ledger.Resume(ctx, claimOf(s)); err != nil {
				return out, forTakeover(err)
			}
		case errors.As(err, &ahead):
			at, followed, err := o.follow(ctx, s, batch, ahead)
			if err != nil || !followed {
				out.Position = at
				return out, forTakeover(err)
			}
			out.Followed++
		default:
			return out, forTakeover(err)
		}
	}
}

// follow goes into the epoch that the entry after the ledger's position opens, if it names the ledger's newest entry.
func (o *Opener) follow(ctx context.Context, s takeover.Seal, batch []event.Raw, ahead *AheadError) (at stock.Position, followed bool, err error) {
	row, err := o.ledger.Shard(ctx, s.Shard)
	if err != nil {
		return at, false, err
	}
	at = row.Position()
	newest, err := newestEntry(ctx, o.ledger.pool, s.Shard, at)
	if err != nil {
		return at, false, err
	}
	for _, raw := range batch {
		if raw.ID != ahead.Next {
			continue
		}
		entry, err := raw.Parse()
		if err != nil || len(entry.Ops) != 1 || entry.Ops[0].Kind != stock.Opened || entry.Seq != 1 || entry.Epoch >= s.Epoch {
			return at, false, nil
		}
		if named := entry.Ops[0].Continues; named != newest && named != at {
			return at, false, nil // it continues something else: it is given up, or an operator looks at it
		}
		err = o.ledger.FollowOpened(ctx, claimOf(s), raw)
		return at, err == nil, err
	}
	return at, false, nil
}

// CloseEpoch is step 4. The orphans are recorded after it: only then is it certain which they are, and their
// receipts are answered from the epoch's end alone.
func (o *Opener) CloseEpoch(ctx context.Context, s takeover.Seal, beyond []event.Raw) (takeover.Closed, error) {
	var at stock.Position
	err := o.unheld(ctx, s.Shard, func(ctx context.Context) (err error) {
		at, err = o.ledger.CloseEpoch(ctx, claimOf(s))
		return err
	})
	if err != nil {
		return takeover.Closed{}, forTakeover(err)
	}
	closed := takeover.Closed{Ended: at}
	if closed.Continues, err = newestEntry(ctx, o.ledger.pool, s.Shard, at); err != nil {
		return closed, err
	}
	if len(beyond) == 0 {
		return closed, nil
	}
	closed.Orphans, err = o.ledger.RecordOrphans(ctx, s.Shard, beyond)
	return closed, err
}

// Accounted says of closed epochs up to which seq all is accounted for.
func (o *Opener) Accounted(ctx context.Context, shard int) (map[int64]int64, error) {
	return o.ledger.Accounted(ctx, shard)
}

// RecordOrphans keeps what closed epochs have beyond their ends.
func (o *Opener) RecordOrphans(ctx context.Context, shard int, beyond []event.Raw) (int, error) {
	return o.ledger.RecordOrphans(ctx, shard, beyond)
}

// Snapshot is what Redis has to contain.
func (o *Opener) Snapshot(ctx context.Context, s takeover.Seal) (takeover.Snapshot, error) {
	snapshot, err := o.ledger.Snapshot(ctx, claimOf(s))
	if err != nil {
		return nil, forTakeover(err)
	}
	return paged{snapshot}, nil
}

// paged is a snapshot as a takeover reads it.
type paged struct{ *Snapshot }

func (p paged) Stock(ctx context.Context) (map[int64]event.Field, error) {
	all := map[int64]event.Field{}
	return all, p.Snapshot.Stock(ctx, func(page map[int64]event.Field) error {
		maps.Copy(all, page)
		return nil
	})
}

func (p paged) Bought(ctx context.Context, page func([]takeover.Bought) error) error {
	var next []takeover.Bought
	err := p.Snapshot.Bought(ctx, func(key event.BuyerKey, units int64) (err error) {
		if next = append(next, takeover.Bought{BuyerKey: key, Units: units}); len(next) == pageSize {
			err = page(next)
			next = next[:0]
		}
		return err
	})
	if err != nil || len(next) == 0 {
		return err
	}
	return page(next)
}

// SayOpen is step 8.
func (o *Opener) SayOpen(ctx context.Context, s takeover.Seal) error {
	return forTakeover(o.unheld(ctx, s.Shard, func(ctx context.Context) error { return o.ledger.SayOpen(ctx, claimOf(s)) }))
}
