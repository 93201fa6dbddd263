package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrUnknownDocument means that no document was ever written under that id.
var ErrUnknownDocument = errors.New("unknown document: it was never written")

// A DocumentState says how far a document got. Only Apply moves it on, in the transaction of its entry.
type DocumentState string

// A document is written, then applied or refused, once and for ever.
const (
	DocumentWritten DocumentState = "written"
	DocumentApplied DocumentState = "applied"
	DocumentRefused DocumentState = "refused"
)

// A Document is a change of stock that comes from outside the sale: written here first, under an id that is
// unique for ever, then moved in Redis (protocol F).
type Document struct {
	ID     string
	Shard  int
	Kind   string      // one of the stock.Document… words
	Reason string      // code for reports
	Note   string      // free text; never leaves Postgres
	Lines  stock.Lines // Asked and Now are the signed movement
	// Units are what was counted, or brought back and scrapped, where that is not what moves; else nil.
	Units          stock.Lines
	Order          stock.OrderRef // that it is about; empty for others
	Buyer          string         // of a cancellation: who gets room under a limit back
	Whole          bool           // it was asked for the whole order
	AsOf           stock.Position // of a count: the position that it is as of
	Named          string         // of a count: that moment as it was named (AsOf.String); empty when none was
	SKU            string         // of an opening: the SKU's text
	State          DocumentState
	DeadlineMillis int64         // Redis time after which its movement is refused as late
	Receipt        stock.Receipt // of its entry; zero while it is only written
	Written        time.Time
	Settled        time.Time // zero while it is only written
	Rebuilt        bool      // its row was lost and written again from its entry, without the note
}

// Operation is what moves the document in Redis: send it until the document is settled.
func (d Document) Operation() stock.Operation {
	op := stock.Operation{
		Kind: stock.Movement, ID: stock.DocumentID(d.ID), Lines: slices.Clone(d.Lines),
		Deadline: d.DeadlineMillis, Document: d.Kind, Reason: d.Reason, Order: d.Order, Buyer: d.Buyer,
	}
	if d.Kind == stock.DocumentOpening {
		op.Kind, op.SKU, op.Document, op.Reason = stock.NewSKU, d.SKU, "", ""
	}
	return op
}

// A ConflictError means that an id stands already with other content. Nothing was written. Use another id for
// another document.
type ConflictError struct {
	ID     string // of the document, or the SKU's text
	Field  string // the first that differs
	Stored string
	Asked  string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%q stands already with %s %s, not %s: nothing was written", e.ID, e.Field, e.Stored, e.Asked)
}

// maxDocumentAge bounds how long a document's movement may be on its way. Half of a shorter retention bounds
// it, too: the record that recognises a repeat must outlive the last moment at which the movement can arrive.
const maxDocumentAge = time.Hour

// Deadline is the deadline of a document that is written or renewed now: half the retention from now, at most
// an hour. Both are Redis time in milliseconds since 1970.
func (l *Ledger) Deadline(nowMillis int64) int64 {
	return nowMillis + min(l.retention/2, maxDocumentAge).Milliseconds()
}

func checkDeadline(millis int64) error {
	if millis < 1 || millis > stock.MaxStockQuantity {
		return stock.BadField("deadline", fmt.Sprint(millis), "use a Redis time in milliseconds since 1970")
	}
	return nil
}

const (
	documentColumns = `
		select d.id, d.shard, d.kind, d.reason, d.note, d.lines, d.state, d.deadline_ms,
		       coalesce(d.epoch, 0), coalesce(d.seq, 0), coalesce(d.idx, 0), d.written, d.settled, d.rebuilt, coalesce(s.sku, ''),
		       d.units, coalesce(d.order_id, ''), coalesce(d.order_key, 0), coalesce(d.order_asked, 0), d.buyer, d.whole,
		       d.as_asked, coalesce(d.as_of_epoch, 0), coalesce(d.as_of_seq, 0)
		from `
	documentSKU = `
		d left join sku s on d.kind = 'opening' and s.number = (d.lines -> 0 ->> 'sku')::bigint `

	selectDocument = documentColumns + `stock_document` + documentSKU + `where d.id = $1`

	// The inner query is a fence: asked for a page by id, a planner without statistics would walk all
	// documents there ever were in the order of their ids, to find the few that are pending.
	pendingDocuments = documentColumns + `(
			select * from stock_document
			where shard = $1 and state = 'written' and written not between now() - $2::interval and now() offset 0)` + documentSKU + `
		where d.id > $3 order by d.id limit $4`
)

func scanDocument(row pgx.CollectableRow) (Document, error) {
	var d Document
	var lines, units []byte
	var epoch, seq int64
	var index int
	var settled *time.Time
	err := row.Scan(&d.ID, &d.Shard, &d.Kind, &d.Reason, &d.Note, &lines, &d.State, &d.DeadlineMillis,
		&epoch, &seq, &index, &d.Written, &settled, &d.Rebuilt, &d.SKU,
		&units, &d.Order.ID, &d.Order.Key, &d.Order.Asked, &d.Buyer, &d.Whole, &d.Named, &d.AsOf.Epoch, &d.AsOf.Seq)
	if err != nil {
		return d, err
	}
	if settled != nil {
		d.Settled = *settled
		d.Receipt = stock.Receipt{Shard: d.Shard, Position: stock.Position{Epoch: epoch, Seq: seq}, Index: index}
	}
	if d.Lines, err = parseMovementJSON(lines); err == nil && units != nil {
		d.Units, err = parseMovementJSON(units)
	}
	return d, err
}

// Document reads one document by the id that its client gave it. The error is ErrUnknownDocument, wrapped,
// where there is none.
func (l *Ledger) Document(ctx context.Context, id string) (Document, error) {
	if !storable(id) {
		return Document{}, fmt.Errorf("%w: %+q", ErrUnknownDocument, id)
	}
	rows, err := l.pool.Query(ctx, selectDocument, id)
	if err != nil {
		return Document{}, fmt.Errorf("read document %s: %w", id, err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, scanDocument)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, fmt.Errorf("%w: %+q", ErrUnknownDocument, id)
	}
	if err != nil {
		return d, fmt.Errorf("read document %s: %w", id, err)
	}
	return d, nil
}

// PendingDocuments lists documents of a shard that were written longer than olderThan ago and are not settled,
// by id, at most limit, those behind the id after ("" for the first page): one that cannot be finished does
// not hide the next.
func (l *Ledger) PendingDocuments(ctx context.Context, shard int, olderThan time.Duration, after string, limit int) ([]Document, error) {
	rows, err := l.pool.Query(ctx, pendingDocuments, shard, olderThan, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list the pending documents of shard %d: %w", shard, err)
	}
	found, err := pgx.CollectRows(rows, scanDocument)
	if err != nil {
		return nil, fmt.Errorf("list the pending documents of shard %d: %w", shard, err)
	}
	return found, nil
}

// DocumentsOfOrder are the documents of an order in one shard, whatever attempt they are about, the newest first, at
// most limit.
func (l *Ledger) DocumentsOfOrder(ctx context.Context, shard int, order string, limit int) ([]Document, error) {
	if stock.CheckOrderID("order_id", order) != nil {
		return nil, nil // no such id was ever stored
	}
	rows, err := l.pool.Query(ctx, documentColumns+`(select * from stock_document where shard = $1 and order_id = $2 offset 0)`+documentSKU+`
		order by d.written desc, d.id limit $3`, shard, order, limit)
	if err != nil {
		return nil, fmt.Errorf("list the documents of order %s: %w", order, err)
	}
	found, err := pgx.CollectRows(rows, scanDocument)
	if err != nil {
		return nil, fmt.Errorf("list the documents of order %s: %w", order, err)
	}
	return found, nil
}

// RenewDocument gives a document that is still only written a new deadline, if its deadline is still the old
// one: of several who try, one wins. Only who has read table and log after the old deadline may call it, or the
// document could move twice. It reports whether this call did it.
func (l *Ledger) RenewDocument(ctx context.Context, id string, oldMillis, newMillis int64) (renewed bool, err error) {
	if err := checkDeadline(newMillis); err != nil {
		return false, err
	}
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockShardOf+`(select shard from stock_document where id = $1) for no key update`, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update stock_document set deadline_ms = $3
			where id = $1 and deadline_ms = $2 and state = 'written'`, id, oldMillis, newMillis)
		renewed = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("renew document %s: %w", id, err)
	}
	return renewed, nil
}
