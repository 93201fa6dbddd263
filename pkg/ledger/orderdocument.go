package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrUnknownOrder means that Postgres has no such attempt of the order in that shard, or not yet.
var ErrUnknownOrder = errors.New("unknown order: it is not persisted in this shard")

// An OrderStateError means that an order does not stand where a document of it can be written: units are shipped and
// cancelled of what is persisted as confirmed, and brought back of what was shipped.
type OrderStateError struct {
	Kind  string            // of the document
	Order stock.Reservation // as it is persisted
}

func (e *OrderStateError) Error() string {
	return fmt.Sprintf("order %s is persisted as %s under attempt %d: %s needs what is confirmed or shipped", e.Order.ID, e.Order.State, e.Order.Attempt, e.Kind)
}

// A QuantityError means that a document asks for more of an order than it can have, with what is written and not yet
// applied counted in.
type QuantityError struct {
	Kind  string
	Order string
	Lines []OpenLine // every line of the document; of a whole order's all its lines
}

// An OpenLine is what a document asks for of one SKU of an order, and how much it could have.
type OpenLine struct {
	SKU   int64
	Asked int64
	Open  int64 // units that can be shipped or cancelled, or were shipped and can come back
}

func (e *QuantityError) Error() string {
	const most = 5 // lines told
	var b strings.Builder
	for i, l := range e.Lines {
		if i == most {
			fmt.Fprintf(&b, ", and %d more lines", len(e.Lines)-most)
			break
		}
		fmt.Fprintf(&b, ", %d of SKU number %d where %d can be had", l.Asked, l.SKU, l.Open)
	}
	return fmt.Sprintf("order %s has not that much to %s%s", e.Order, e.Kind, b.String())
}

// An orderRule writes down what a document of an order is about, and keeps it within what is left of the order.
type orderRule struct {
	*draft
	order   stock.Reservation
	key     int64
	newest  bool
	present bool // Redis has the record, and keeps it until the document is settled
	open    []OpenLine
}

const (
	// fenceOf is read under a lock: whoever lets Redis forget moves the fence first, and then sees this document waiting.
	fenceOf = `select fence from forgetting where shard = $1 for share`

	lockOrder = `select attempt, asked, state, buyer, epoch, seq, idx, moved > $4
from reservation where shard = $1 and order_id = $2 and ($3::bigint = 0 or asked = $3)
order by attempt desc limit 1 for update`

	// openLines are the lines of a locked order, with what documents of each kind have in flight. Documents are found by
	// their order, and not among all that wait: these are told by what they lack, not by their state.
	openLines = `select l.sku, l.now, l.fulfilled, l.returned, coalesce(w.leaving, 0), coalesce(w.returning, 0)
from reservation_line l left join (
    select (m ->> 'sku')::bigint as sku,
        coalesce(sum(abs((m ->> 'units')::bigint)) filter (where d.kind <> 'return'), 0)::bigint as leaving,
        coalesce(sum((m ->> 'units')::bigint) filter (where d.kind = 'return'), 0)::bigint as returning
    from (select kind, coalesce(units, lines) as lines from stock_document
        where shard = $1 and order_id = $2 and order_key = $3 and settled is null offset 0) d, jsonb_array_elements(d.lines) m
    group by 1) w on w.sku = l.sku
where l.shard = $1 and l.order_id = $2 and l.attempt = $3 order by l.sku`

	waitingWithRecord = `select
    not exists (select from reservation where shard = $1 and order_id = $2 and attempt > $3),
    exists (select from stock_document where shard = $1 and order_id = $2 and order_key = $3 and order_asked > 0 and settled is null)`
)

// lock takes the order's row, so that of two documents of one order the second sees the first.
func (o *orderRule) lock(ctx context.Context, tx pgx.Tx) error {
	o.shard = int64(o.Order.Shard)
	var fence time.Time
	err := tx.QueryRow(ctx, fenceOf, o.shard).Scan(&fence)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("shard %d: %w", o.shard, ErrUnknownShard)
	}
	if err != nil {
		return fmt.Errorf("read what Redis has forgotten: %w", err)
	}
	r := &o.order
	r.ID, r.Receipt.Shard = o.Order.ID, o.Order.Shard
	err = tx.QueryRow(ctx, lockOrder, o.shard, r.ID, o.Order.Attempt, fence).
		Scan(&o.key, &r.Attempt, &r.State, &r.Buyer, &r.Receipt.Epoch, &r.Receipt.Seq, &r.Receipt.Index, &o.present)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: attempt %d of %s", ErrUnknownOrder, o.Order.Attempt, r.ID)
	}
	if err != nil {
		return fmt.Errorf("lock order %s: %w", r.ID, err)
	}
	return nil
}

// check is the rule. Read behind the lock, in statements of their own: what the one before waited for is in.
func (o *orderRule) check(ctx context.Context, tx pgx.Tx) error {
	var kept bool
	if err := tx.QueryRow(ctx, waitingWithRecord, o.shard, o.order.ID, o.key).Scan(&o.newest, &kept); err != nil {
		return fmt.Errorf("read the documents of order %s: %w", o.order.ID, err)
	}
	o.present = o.newest && (o.present || kept)
	rows, err := tx.Query(ctx, openLines, o.shard, o.order.ID, o.key)
	if err != nil {
		return fmt.Errorf("read the lines of order %s: %w", o.order.ID, err)
	}
	var sku, now, fulfilled, returned, leaving, returning int64
	shipped := false
	_, err = pgx.ForEachRow(rows, []any{&sku, &now, &fulfilled, &returned, &leaving, &returning}, func() error {
		l := OpenLine{SKU: sku, Open: now - leaving}
		if o.Kind == stock.DocumentReturn {
			l.Open = fulfilled - returned - returning
		}
		shipped = shipped || fulfilled > 0
		o.open = append(o.open, l)
		o.order.Lines = append(o.order.Lines, stock.Line{SKU: sku, Now: now, Fulfilled: fulfilled})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the lines of order %s: %w", o.order.ID, err)
	}
	if o.order.State != stock.Confirmed && (o.Kind != stock.DocumentReturn || !shipped) {
		return &OrderStateError{Kind: o.Kind, Order: o.order}
	}
	if err := o.fill(); err != nil {
		return err
	}
	o.draft.order = stock.OrderRef{ID: o.order.ID, Key: o.key}
	// A return leaves the order's record as it is.
	if o.present && o.Kind != stock.DocumentReturn {
		o.draft.order.Asked = o.order.Attempt
	}
	if o.Kind == stock.DocumentCancel {
		o.buyer = o.order.Buyer
	}
	return nil
}

// fill finds the lines of a whole order, or compares those that are named with what is open.
func (o *orderRule) fill() error {
	told := times(1, o.units)
	if o.units == nil && !o.whole {
		told = times(1, o.lines)
		if o.Kind == stock.DocumentFulfil {
			told = times(-1, o.lines)
		}
	}
	refused := &QuantityError{Kind: o.Kind, Order: o.order.ID}
	if o.whole {
		for _, l := range o.open {
			if l.Open > 0 {
				told = append(told, stock.Line{SKU: l.SKU, Asked: l.Open, Now: l.Open})
			}
		}
		if len(told) == 0 {
			refused.Lines = o.open
			return refused
		}
		o.lines, o.units = o.moves(told)
		return nil
	}
	short := false
	for _, t := range told {
		l := OpenLine{SKU: t.SKU, Asked: t.Asked}
		if i := slices.IndexFunc(o.open, func(l OpenLine) bool { return l.SKU == t.SKU }); i >= 0 {
			l.Open = max(o.open[i].Open, 0)
		}
		short = short || l.Asked > l.Open
		refused.Lines = append(refused.Lines, l)
	}
	if short {
		return refused
	}
	return nil
}
