package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A StandingSKUError is a SKU that cannot be deleted yet, and what keeps it. Nothing was changed.
type StandingSKUError struct {
	SKU      int64
	Open     bool      // it is not closed for sale, or its closing is not persisted
	Held     int64     // units of orders that may still be confirmed
	Sold     int64     // and not shipped: these alone keep nothing
	Document string    // one that is written and not settled
	Promises []Promise // whose the units are, at most MaxPromises
}

func (e *StandingSKUError) Error() string {
	switch {
	case e.Open:
		return fmt.Sprintf("SKU number %d is open for sale: close it first", e.SKU)
	case e.Held > 0:
		return fmt.Sprintf("%d units of SKU number %d are held: wait until they are confirmed, released or expired", e.Held, e.SKU)
	}
	return fmt.Sprintf("document %s of SKU number %d is not settled: wait until it is", e.Document, e.SKU)
}

const (
	lockSKU = `select k.shard, k.deleted is not null from sku k where k.number = $1 for update`

	waitingDocument = `select d.id from (select id, lines from stock_document where shard = $1 and state = 'written' offset 0) d
where d.lines @> $2::jsonb order by d.id limit 1`
)

// MarkDeleted ends a SKU: its text is free, and created again it is another SKU with another number. It must be closed
// for sale, with nothing held and no document in flight, as persisted: what Redis takes behind that is refused as closed.
// Orders that are sold are shipped and returned as before, for they know the number, and a limit goes on being counted. Deleted already is no error. Errors:
// ErrUnknownSKU, wrapped, and *StandingSKUError.
func (l *Ledger) MarkDeleted(ctx context.Context, number int64) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error { return markDeleted(ctx, tx, number) })
	if err != nil {
		return fmt.Errorf("delete SKU number %d: %w", number, err)
	}
	return nil
}

func markDeleted(ctx context.Context, tx pgx.Tx, number int64) error {
	// The SKU's row keeps new documents out. The shard goes on being applied: once the closing is, no entry behind it can
	// take units of the SKU.
	var shard int64
	var deleted bool
	err := tx.QueryRow(ctx, lockSKU, number).Scan(&shard, &deleted)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrUnknownSKU
	}
	if err != nil || deleted {
		return err
	}
	e := &StandingSKUError{SKU: number}
	var closed bool
	err = tx.QueryRow(ctx, `select closed, held, committed from stock where sku = $1`, number).Scan(&closed, &e.Held, &e.Sold)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	e.Open = !closed
	err = tx.QueryRow(ctx, waitingDocument, shard, movementOf(number)).Scan(&e.Document)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if !e.Open && e.Held == 0 && e.Document == "" {
		_, err := tx.Exec(ctx, `update sku set deleted = now() where number = $1`, number)
		return err
	}
	if e.Held > 0 {
		if e.Promises, err = promises(ctx, tx, shard, number); err != nil {
			return err
		}
	}
	return e
}

// movementOf is contained in the lines of a document that names the SKU.
func movementOf(sku int64) string { return fmt.Sprintf(`[{"sku": %d}]`, sku) }

// WasDeleted reports whether a text belonged to a SKU that was deleted, whatever it belongs to now.
func (l *Ledger) WasDeleted(ctx context.Context, text string) (was bool, err error) {
	if stock.CheckSKU("sku", text) != nil {
		return false, nil
	}
	if err := l.pool.QueryRow(ctx, `select exists (select from sku where sku = $1 and deleted is not null)`, text).Scan(&was); err != nil {
		return false, fmt.Errorf("look for a deleted SKU %q: %w", text, err)
	}
	return was, nil
}
