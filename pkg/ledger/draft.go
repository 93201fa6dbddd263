package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A NewDocument is what a client asks for. Lines name a SKU's number and, in Asked, its units:
//
//	receive          units that came in, above 0
//	adjust           the signed movement, not 0
//	fulfil, cancel   units of the order, above 0; no lines mean all that is left of it
//	return           units that came back, above 0; no lines mean all that was shipped of the order and is not back
//	count            units that were counted, from 0
//
// Lines of one SKU are summed, at most stock.MaxOrderLines, all of one shard.
type NewDocument struct {
	ID             string // the client's own
	Kind           string // one of the stock.Document… words, an opening excepted
	Reason         string // code of 1 to 32 characters
	Note           string // at most MaxNoteBytes
	Lines          []stock.Line
	Order          DocumentOrder // fulfil and cancel always, return if it is known
	Scrap          bool          // return: the units came back and are not for sale
	AsOf           AsOf          // count
	DeadlineMillis int64         // from Ledger.Deadline
}

// A DocumentOrder is one attempt of an order in one shard.
type DocumentOrder struct {
	ID      string
	Shard   int
	Attempt int64 // as its client numbers it; 0 is the newest
}

// An AsOf is the moment of a count, as a position or as a time; neither is the ledger's position when it is written.
type AsOf struct {
	Position stock.Position
	Millis   int64 // Redis time in milliseconds since 1970
}

// String is the moment as the document keeps it, to know a repeat by.
func (a AsOf) String() string {
	switch {
	case a.Position != stock.Position{}:
		return a.Position.String()
	case a.Millis != 0:
		return strconv.FormatInt(a.Millis, 10)
	}
	return ""
}

// MaxNoteBytes bounds a document's note, in bytes.
const MaxNoteBytes = 1024

// WriteDocument writes a document with what it is about locked, its SKUs or its order, and its rule checked against
// everything that is persisted or written and not yet applied. When the id stands already with the same content, the
// stored document is returned with whatever became of it, for ever, and created is false; other content is a
// *ConflictError. The deadline is no content, and what "all of the order" was is none either. Safe to repeat after
// any error.
//
// Bad input is a *stock.FieldError, an unknown SKU ErrUnknownSKU, wrapped. A document of an order is refused with
// ErrUnknownOrder, wrapped, an *OrderStateError or a *QuantityError, a count with a *CountError. Then nothing was
// written, and the id is free.
func (l *Ledger) WriteDocument(ctx context.Context, n NewDocument) (doc Document, created bool, err error) {
	d, err := n.check()
	if err != nil {
		return Document{}, false, err
	}
	// A repeat locks nothing.
	if doc, err = l.Document(ctx, n.ID); !errors.Is(err, ErrUnknownDocument) {
		if err == nil {
			err = doc.differs(d)
		}
		return doc, false, err
	}
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) (err error) {
		created, err = d.write(ctx, tx)
		return err
	})
	if err != nil {
		return Document{}, false, fmt.Errorf("write document %s: %w", n.ID, err)
	}
	if doc, err = l.Document(ctx, n.ID); err == nil {
		err = doc.differs(d)
	}
	return doc, created && err == nil, err
}

// A draft is a document that is about to be written.
type draft struct {
	*NewDocument
	lines stock.Lines // the signed movement; of the whole order, and of a count, it is found under the lock
	units stock.Lines // what was counted or scrapped, as Document.Units
	shard int64
	whole bool
	order stock.OrderRef
	buyer string
	asOf  stock.Position
}

// write locks what the document is about and inserts it. Whoever waited for the lock behind the same id finds it
// written, and its units no longer free: so the id is looked for once more before the rule.
func (d *draft) write(ctx context.Context, tx pgx.Tx) (created bool, err error) {
	rule := func(context.Context, pgx.Tx) error { return nil }
	switch {
	case d.Order.ID != "":
		o := &orderRule{draft: d}
		if err := o.lock(ctx, tx); err != nil {
			return false, err
		}
		rule = o.check
	default:
		if d.shard, err = lockSKUs(ctx, tx, d.named()); err != nil {
			return false, err
		}
		if d.Kind == stock.DocumentCount {
			rule = (&countRule{draft: d}).check
		}
	}
	var there bool
	if err := tx.QueryRow(ctx, `select exists (select from stock_document where id = $1)`, d.ID).Scan(&there); err != nil || there {
		return false, err
	}
	if err := rule(ctx, tx); err != nil {
		return false, err
	}
	return d.insert(ctx, tx)
}

// named are lines with the document's SKUs.
func (d *draft) named() stock.Lines {
	if d.Kind == stock.DocumentCount {
		return d.units
	}
	return d.lines
}

func (d *draft) insert(ctx context.Context, tx pgx.Tx) (created bool, err error) {
	var units []byte
	if d.units != nil {
		units = movementJSON(d.units)
	}
	var order *string
	var key, asked, epoch, seq *int64
	if d.order.ID != "" {
		order, key, asked = &d.order.ID, &d.order.Key, &d.order.Asked
	}
	if d.Kind == stock.DocumentCount {
		epoch, seq = &d.asOf.Epoch, &d.asOf.Seq
	}
	tag, err := tx.Exec(ctx, `
		insert into stock_document (id, shard, kind, reason, note, lines, deadline_ms, units, order_id, order_key, order_asked,
		    buyer, whole, as_asked, as_of_epoch, as_of_seq)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) on conflict (id) do nothing`,
		d.ID, d.shard, d.Kind, d.Reason, d.Note, movementJSON(d.lines), d.DeadlineMillis, units, order, key, asked,
		d.buyer, d.whole, d.AsOf.String(), epoch, seq)
	return tag.RowsAffected() == 1, err
}

// check bounds every field before anything is asked of Postgres.
func (n *NewDocument) check() (*draft, error) {
	if err := stock.CheckOrderID("id", n.ID); err != nil {
		return nil, err
	}
	if err := stock.CheckReason("reason", n.Reason); err != nil {
		return nil, err
	}
	if len(n.Note) > MaxNoteBytes || !storable(n.Note) {
		return nil, stock.BadField("note", n.Note, fmt.Sprintf("use at most %d bytes of UTF-8 without NUL", MaxNoteBytes))
	}
	if err := checkDeadline(n.DeadlineMillis); err != nil {
		return nil, err
	}
	if err := n.checkAbout(); err != nil {
		return nil, err
	}
	d := &draft{NewDocument: n}
	return d, d.sum()
}

// checkAbout refuses what a document of the kind cannot be about.
func (n *NewDocument) checkAbout() error {
	ordered := n.Order != DocumentOrder{}
	switch n.Kind {
	case stock.DocumentReceive, stock.DocumentAdjust, stock.DocumentCount, stock.DocumentReturn, stock.DocumentFulfil, stock.DocumentCancel:
	default:
		return stock.BadField("kind", n.Kind, "use receive, adjust, count, fulfil, cancel or return")
	}
	switch {
	case ordered && !stock.OfOrder(n.Kind) && n.Kind != stock.DocumentReturn:
		return stock.BadField("order", n.Order.ID, "name an order in a fulfil, cancel or return only")
	case n.Scrap && n.Kind != stock.DocumentReturn:
		return stock.BadField("scrap", "true", "only what came back can be scrapped; use adjust for the rest")
	case n.AsOf != AsOf{} && n.Kind != stock.DocumentCount:
		return stock.BadField("as_of", n.AsOf.String(), "name a moment in a count only")
	case n.AsOf.Position != stock.Position{} && n.AsOf.Millis != 0:
		return stock.BadField("as_of", n.AsOf.String(), "name a position or a time, not both")
	case n.AsOf.Millis < 0 || n.AsOf.Millis > stock.MaxStockQuantity:
		return stock.BadField("as_of", fmt.Sprint(n.AsOf.Millis), "use a Redis time in milliseconds since 1970")
	case !ordered && !stock.OfOrder(n.Kind):
		return nil
	case n.Order.Shard < 0 || n.Order.Shard >= stock.MaxShards:
		return stock.BadField("order.shard", fmt.Sprint(n.Order.Shard), "name the shard that has the order")
	case n.Order.Attempt < 0 || n.Order.Attempt > stock.MaxAttempt:
		return stock.BadField("order.attempt", fmt.Sprint(n.Order.Attempt), "use a whole number from 1 to 999999999, or 0 for the newest")
	}
	return stock.CheckOrderID("order", n.Order.ID)
}

// sum works out the movement, as far as the client's lines tell it.
func (d *draft) sum() (err error) {
	const most = stock.MaxMovementQuantity
	if d.whole = d.Order.ID != "" && len(d.Lines) == 0; d.whole {
		return nil
	}
	var told stock.Lines
	switch d.Kind {
	case stock.DocumentAdjust:
		d.lines, err = summed(d.Lines, -most, most, "move 1 to 999999999 units of a SKU, in either direction")
	case stock.DocumentReceive:
		d.lines, err = summed(d.Lines, 1, most, "receive 1 to 999999999 units of a SKU; use adjust to take units away")
	case stock.DocumentCount:
		d.units, err = summed(d.Lines, 0, most, "count 0 to 999999999 units of a SKU")
	default:
		if told, err = summed(d.Lines, 1, most, "name 1 to 999999999 units of a SKU"); err == nil {
			d.lines, d.units = d.moves(told)
		}
	}
	return err
}

// moves gives the movement of so many units shipped, cancelled or brought back, and the units where it does not tell.
func (d *draft) moves(told stock.Lines) (lines, units stock.Lines) {
	switch {
	case d.Kind == stock.DocumentFulfil:
		return times(-1, told), nil
	case d.Scrap:
		return times(0, told), told
	}
	return told, nil
}

// differs compares what is stored with what is asked for. Of a document that was rebuilt only what its entry tells can
// be compared: not its note, nor that it was of the whole order, nor what was counted or scrapped, nor as of when.
func (d *Document) differs(n *draft) error {
	content := [][3]string{{"kind", d.Kind, n.Kind}, {"reason", d.Reason, n.Reason}, {"order", d.Order.ID, n.Order.ID}}
	if n.Order.ID != "" {
		content = append(content, [3]string{"order.shard", fmt.Sprint(d.Shard), fmt.Sprint(n.Order.Shard)})
		if n.Order.Attempt != 0 && d.Order.Asked != 0 {
			content = append(content, [3]string{"order.attempt", fmt.Sprint(d.Order.Asked), fmt.Sprint(n.Order.Attempt)})
		}
	}
	lines := [3]string{"lines", wholeOr(d.Whole, d.Lines), wholeOr(n.whole, n.lines)}
	counted := n.Kind == stock.DocumentCount
	switch {
	case d.Rebuilt && (n.whole || counted):
	case d.Rebuilt:
		content = append(content, lines)
	default:
		scrapped := d.Kind == stock.DocumentReturn && d.Units != nil
		content = append(content, [3]string{"note", d.Note, n.Note},
			[3]string{"scrap", fmt.Sprint(scrapped), fmt.Sprint(n.Scrap)}, [3]string{"as_of", d.Named, n.AsOf.String()})
		if !counted {
			content = append(content, lines)
		}
		if !n.whole {
			content = append(content, [3]string{"lines", string(movementJSON(d.Units)), string(movementJSON(n.units))})
		}
	}
	for _, f := range content {
		if f[1] != f[2] {
			return &ConflictError{ID: d.ID, Field: f[0], Stored: shorten(f[1]), Asked: shorten(f[2])}
		}
	}
	return nil
}

// wholeOr is the content of lines.
func wholeOr(whole bool, lines stock.Lines) string {
	if whole {
		return "the whole order"
	}
	return string(movementJSON(lines))
}

// shorten quotes a text for an error, at most about 200 bytes of it.
func shorten(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%+q", text)
}

// lockSKUs locks the living SKUs' rows in order and returns their one shard. The lock is FOR NO KEY UPDATE:
// it keeps other documents out, but not the foreign key of the stock row that Apply may be inserting.
func lockSKUs(ctx context.Context, tx pgx.Tx, lines stock.Lines) (shard int64, err error) {
	numbers := numbersOf(lines)
	rows, err := tx.Query(ctx, `
		select number, shard from sku where number = any($1::bigint[]) and deleted is null
		order by number for no key update`, numbers)
	if err != nil {
		return 0, err
	}
	seen := map[int64]bool{}
	var number, at int64
	spans := false
	_, err = pgx.ForEachRow(rows, []any{&number, &at}, func() error {
		spans = spans || len(seen) > 0 && at != shard
		shard = at
		seen[number] = true
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, number := range numbers {
		if !seen[number] {
			return 0, fmt.Errorf("%w: number %d", ErrUnknownSKU, number)
		}
	}
	if spans {
		return 0, stock.BadField("lines", fmt.Sprint(numbers), "name SKUs of one shard in one document: one document a shard")
	}
	return shard, nil
}
