package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// OpeningID is the document id of a SKU's opening stock. No client can write it: it begins with a tilde.
func OpeningID(number int64) string { return "~open:" + strconv.FormatInt(number, 10) }

// WriteOpening writes a new SKU and its opening document in one transaction. When the SKU lives already with
// the same opening, its document is returned and created is false, whatever became of the shard asked for;
// with another opening it is a *ConflictError. Bad input is a *stock.FieldError. Safe to repeat after any error.
func (l *Ledger) WriteOpening(ctx context.Context, text string, units int64, shard int, deadlineMillis int64) (doc Document, created bool, err error) {
	if err := checkOpening(text, units, deadlineMillis); err != nil {
		return Document{}, false, err
	}
	if doc, found, err := l.opening(ctx, text, units); found || err != nil {
		return doc, false, err
	}
	// A number that somebody has already is passed over: nothing was written, and the next one is another.
	for tries := 1; ; tries++ {
		created, err = l.writeOpening(ctx, text, units, shard, deadlineMillis)
		if tries == maxNumberTries || !isSQLState(err, uniqueViolation) {
			break
		}
	}
	if err != nil {
		return Document{}, false, fmt.Errorf("write SKU %q with its opening stock: %w", text, err)
	}
	doc, found, err := l.opening(ctx, text, units)
	if err == nil && !found {
		err = fmt.Errorf("write SKU %q with its opening stock: it was deleted meanwhile, ask again", text)
	}
	return doc, created && err == nil, err
}

// writeOpening writes the two rows; created is false when the SKU lives already.
func (l *Ledger) writeOpening(ctx context.Context, text string, units int64, shard int, deadlineMillis int64) (created bool, err error) {
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, raiseNumbers); err != nil {
			return err
		}
		var number int64
		err := tx.QueryRow(ctx, `
			insert into sku (shard, sku, opening) values ($1, $2, $3)
			on conflict (sku) where deleted is null do nothing
			returning number`, shard, text, units).Scan(&number)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // somebody else was faster
		}
		if err != nil {
			return err
		}
		created = true
		lines := stock.Lines{{SKU: number, Asked: units, Now: units}}
		_, err = tx.Exec(ctx, `
			insert into stock_document (id, shard, kind, lines, deadline_ms) values ($1, $2, $3, $4, $5)`,
			OpeningID(number), shard, stock.DocumentOpening, movementJSON(lines), deadlineMillis)
		return err
	})
	return created && err == nil, err
}

func checkOpening(text string, units, deadlineMillis int64) error {
	if err := stock.CheckSKU("sku", text); err != nil {
		return err
	}
	if units < 0 || units > stock.MaxMovementQuantity {
		return stock.BadField("opening", fmt.Sprint(units), "use a whole number from 0 to 999999999")
	}
	return checkDeadline(deadlineMillis)
}

// opening reads the opening document of a living SKU and compares it.
func (l *Ledger) opening(ctx context.Context, text string, units int64) (doc Document, found bool, err error) {
	sku, err := l.SKU(ctx, text)
	if errors.Is(err, ErrUnknownSKU) {
		return doc, false, nil
	}
	if err != nil {
		return doc, false, err
	}
	if sku.Opening != units {
		return doc, true, &ConflictError{ID: text, Field: "opening stock", Stored: fmt.Sprint(sku.Opening), Asked: fmt.Sprint(units)}
	}
	doc, err = l.Document(ctx, OpeningID(sku.Number))
	return doc, true, err
}
