package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Why a count is refused.
const (
	CountInFlight      = "in_flight"      // another count of the SKU is written and not settled: try again once it is
	CountOlder         = "older"          // one that is as of a later position was posted
	CountBelowPromised = "below_promised" // more units are held and sold than there would be
)

// A CountError is a count that cannot be written. Nothing was.
type CountError struct {
	Why      string // one of the words above
	SKU      int64
	Document string         // in flight: its id
	AsOf     stock.Position // of the count
	Last     stock.Position // older: what the newest posted one is as of
	Counted  int64
	OnHand   int64 // below promised: what would be there now, with what moved since the count
	Held     int64
	Sold     int64     // and not shipped
	Promises []Promise // below promised: whose the units are, at most MaxPromises
}

func (e *CountError) Error() string {
	switch e.Why {
	case CountInFlight:
		return fmt.Sprintf("count %s of SKU number %d is not settled yet: one at a time", e.Document, e.SKU)
	case CountOlder:
		return fmt.Sprintf("a count of SKU number %d as of %s is posted: this one, as of %s, is older", e.SKU, e.Last, e.AsOf)
	}
	return fmt.Sprintf("with %d units counted, SKU number %d would have %d on hand now, and %d are held and %d sold", e.Counted, e.SKU, e.OnHand, e.Held, e.Sold)
}

// A countRule finds the moment of a count, and by how much the books were wrong then.
type countRule struct{ *draft }

const (
	waitingCount = `select d.id, (m ->> 'sku')::bigint
from (select id, lines from stock_document where shard = $1 and state = 'written' and kind = 'count' offset 0) d, jsonb_array_elements(d.lines) m
where (m ->> 'sku')::bigint = any($2::bigint[]) order by 2, 1 limit 1`

	// countedStock is one statement, so that the stock and what moved it are of one moment. Corrections of earlier counts
	// are no movement: on_hand as of any position is what is known of it today.
	countedStock = `with since as (
    select (m ->> 'sku')::bigint as sku, sum((m ->> 'units')::bigint)::bigint as units
    from (select lines from stock_document
        where shard = $1 and state = 'applied' and (epoch, seq) > ($3, $4) and kind not in ('count', 'cancel') offset 0) d,
        jsonb_array_elements(d.lines) m
    group by 1)
select s.sku, s.available, s.held, s.committed, s.counted_epoch, s.counted_seq, coalesce(since.units, 0)
from stock s left join since using (sku) where s.shard = $1 and s.sku = any($2::bigint[]) order by s.sku`
)

func (c *countRule) check(ctx context.Context, tx pgx.Tx) error {
	numbers := numbersOf(c.units)
	waiting := &CountError{Why: CountInFlight}
	err := tx.QueryRow(ctx, waitingCount, c.shard, numbers).Scan(&waiting.Document, &waiting.SKU)
	if err == nil {
		return waiting
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("look for counts in flight: %w", err)
	}
	if c.asOf, err = positionOf(ctx, tx, c.shard, c.AsOf); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, countedStock, c.shard, numbers, c.asOf.Epoch, c.asOf.Seq)
	if err != nil {
		return fmt.Errorf("read what is on hand: %w", err)
	}
	var refused *CountError
	var q stock.Quantities
	var last stock.Position
	var sku, since int64
	c.lines = nil
	_, err = pgx.ForEachRow(rows, []any{&sku, &q.Available, &q.Held, &q.Committed, &last.Epoch, &last.Seq, &since}, func() error {
		counted := c.units[len(c.lines)]
		if counted.SKU != sku {
			return nil // reported below
		}
		units := counted.Asked - (q.OnHand() - since)
		if units < -stock.MaxMovementQuantity || units > stock.MaxMovementQuantity {
			return stock.BadField("lines", fmt.Sprint(counted.Asked), "the difference is beyond 999999999 units: adjust the stock in parts")
		}
		c.lines = append(c.lines, stock.Line{SKU: sku, Asked: units, Now: units})
		e := &CountError{SKU: sku, AsOf: c.asOf, Last: last, Counted: counted.Asked, OnHand: q.OnHand() + units, Held: q.Held, Sold: q.Committed}
		switch {
		case refused != nil:
		case later(last, c.asOf):
			e.Why, refused = CountOlder, e
		case q.Available+units < 0:
			e.Why, refused = CountBelowPromised, e
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("read what is on hand: %w", err)
	case len(c.lines) < len(c.units):
		return fmt.Errorf("%w: the opening of number %d is not persisted", ErrUnknownSKU, c.units[len(c.lines)].SKU)
	case refused == nil:
		return nil
	case refused.Why == CountBelowPromised:
		if refused.Promises, err = promises(ctx, tx, c.shard, refused.SKU); err != nil {
			return err
		}
	}
	return refused
}

// later compares two positions that are both persisted: these, and no others, are in the order of their epochs.
func later(a, b stock.Position) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq > b.Seq
}

// positionOf is the position that a moment means; one that is not persisted is a *stock.FieldError.
func positionOf(ctx context.Context, tx pgx.Tx, shard int64, moment AsOf) (at stock.Position, err error) {
	var now stock.Position
	if err := tx.QueryRow(ctx, `select epoch, applied from shard where number = $1`, shard).Scan(&now.Epoch, &now.Seq); err != nil {
		return at, fmt.Errorf("read the position of shard %d: %w", shard, err)
	}
	switch {
	case moment.Millis != 0:
		return lastBefore(ctx, tx, shard, now, moment.Millis)
	case moment.Position == stock.Position{}:
		return now, nil
	}
	at = moment.Position
	v := epochView{epoch: at.Epoch, current: now.Epoch, applied: now.Seq}
	err = tx.QueryRow(ctx, `select last_seq from epoch_end where shard = $1 and epoch = $2`, shard, at.Epoch).Scan(&v.last)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return at, fmt.Errorf("read where epoch %d ended: %w", at.Epoch, err)
	}
	// Between a takeover and its first entry a look at the shard answers the beginning of an epoch: the moment at which
	// the one before had ended.
	began := at.Seq == 0 && at.Epoch > 0 && (err == nil || at.Epoch == now.Epoch)
	if !began && v.standing(at.Seq) != stock.StandingPersisted {
		return at, stock.BadField("as_of", at.String(), fmt.Sprintf("name a position that is persisted, up to %s", now))
	}
	return at, nil
}

const (
	// firstEntries are the epochs of a shard that have entries, the newest first, up to one that began by the moment.
	firstEntry = `select x.epoch, x.last
from (select epoch, last_seq as last from epoch_end where shard = $1 and last_seq > 0
    union all select $2::bigint, $3::bigint where $3 > 0) x
where (select at_ms from event where shard = $1 and epoch = x.epoch and seq = 1 and idx = 0) <= $4
order by x.epoch desc limit 1`

	entryTime = `select at_ms from event where shard = $1 and epoch = $2 and seq = $3 and idx = 0`
)

// lastBefore finds the last entry that Redis wrote by a moment: the epoch by its first entry, and within it by halves,
// for nothing finds events by their time.
func lastBefore(ctx context.Context, tx pgx.Tx, shard int64, now stock.Position, millis int64) (at stock.Position, err error) {
	var last int64
	err = tx.QueryRow(ctx, firstEntry, shard, now.Epoch, now.Seq, millis).Scan(&at.Epoch, &last)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, stock.BadField("as_of", fmt.Sprint(millis), "name a time after the shard's first entry, in milliseconds of Redis time")
	}
	if err != nil {
		return at, fmt.Errorf("find the epoch of the time %d: %w", millis, err)
	}
	at.Seq = 1
	for high := last; at.Seq < high; {
		middle := at.Seq + (high-at.Seq+1)/2
		var written int64
		if err := tx.QueryRow(ctx, entryTime, shard, at.Epoch, middle).Scan(&written); err != nil {
			return at, fmt.Errorf("read the time of entry %d-%d: %w", at.Epoch, middle, err)
		}
		if written <= millis {
			at.Seq = middle
		} else {
			high = middle - 1
		}
	}
	return at, nil
}
