package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
	ID             string
	Shard          int
	Kind           string      // one of the stock.Document… words
	Reason         string      // code for reports
	Note           string      // free text; never leaves Postgres
	Lines          stock.Lines // Asked and Now are the signed movement
	SKU            string      // of an opening: the SKU's text
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
		Deadline: d.DeadlineMillis, Document: d.Kind, Reason: d.Reason,
	}
	if d.Kind == stock.DocumentOpening {
		op.Kind, op.SKU, op.Document, op.Reason = stock.NewSKU, d.SKU, "", ""
	}
	return op
}

// A NewDocument is what a client asks for.
type NewDocument struct {
	ID             string       // the client's own
	Kind           string       // stock.DocumentReceive or stock.DocumentAdjust
	Reason         string       // code of 1 to 32 characters
	Note           string       // at most MaxNoteBytes
	Lines          []stock.Line // SKU and Asked, the signed movement; at most stock.MaxCallLines, all of one shard
	DeadlineMillis int64        // from Ledger.Deadline
}

// MaxNoteBytes bounds a document's note, in bytes.
const MaxNoteBytes = 1024

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

func checkDeadline(millis int64) error {
	if millis < 1 || millis > stock.MaxStockQuantity {
		return stock.BadField("deadline", fmt.Sprint(millis), "use a Redis time in milliseconds since 1970")
	}
	return nil
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

// WriteDocument writes a document, its SKUs' rows locked in order. When the id stands already with the same
// content, the stored document is returned with whatever became of it, for ever, and created is false; other
// content is a *ConflictError. Bad input is a *stock.FieldError, an unknown SKU ErrUnknownSKU, wrapped. The
// deadline is no content. Safe to repeat after any error.
func (l *Ledger) WriteDocument(ctx context.Context, n NewDocument) (doc Document, created bool, err error) {
	lines, err := n.check()
	if err != nil {
		return Document{}, false, err
	}
	// A repeat locks nothing.
	if doc, err = l.Document(ctx, n.ID); !errors.Is(err, ErrUnknownDocument) {
		if err == nil {
			err = doc.differs(&n, lines)
		}
		return doc, false, err
	}
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		shard, err := lockSKUs(ctx, tx, lines)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			insert into stock_document (id, shard, kind, reason, note, lines, deadline_ms)
			values ($1, $2, $3, $4, $5, $6, $7) on conflict (id) do nothing`,
			n.ID, shard, n.Kind, n.Reason, n.Note, movementJSON(lines), n.DeadlineMillis)
		created = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return Document{}, false, fmt.Errorf("write document %s: %w", n.ID, err)
	}
	if doc, err = l.Document(ctx, n.ID); err == nil {
		err = doc.differs(&n, lines)
	}
	return doc, created && err == nil, err
}

func (n *NewDocument) check() (stock.Lines, error) {
	if err := stock.CheckOrderID("id", n.ID); err != nil {
		return nil, err
	}
	if n.Kind != stock.DocumentReceive && n.Kind != stock.DocumentAdjust {
		return nil, stock.BadField("kind", n.Kind, "use receive or adjust")
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
	return movements(n.Kind, n.Lines)
}

// movements sums lines of one SKU and orders them, so that two writings of one document compare as equal.
func movements(kind string, lines []stock.Line) (stock.Lines, error) {
	if len(lines) == 0 || len(lines) > stock.MaxCallLines {
		return nil, stock.BadField("lines", fmt.Sprint(len(lines)), fmt.Sprintf("use 1 to %d lines", stock.MaxCallLines))
	}
	sums := make(map[int64]int64, len(lines))
	for i, line := range lines {
		if line.Asked < -stock.MaxMovementQuantity || line.Asked > stock.MaxMovementQuantity {
			return nil, badMovement(fmt.Sprintf("lines[%d]", i), line.Asked)
		}
		sums[line.SKU] += line.Asked
	}
	out := make(stock.Lines, 0, len(sums))
	for sku, units := range sums {
		switch {
		case units == 0, units < -stock.MaxMovementQuantity, units > stock.MaxMovementQuantity:
			return nil, badMovement("lines", units)
		case kind == stock.DocumentReceive && units < 0:
			return nil, stock.BadField("lines", fmt.Sprint(units), "receive at least one unit; use adjust to take units away")
		}
		out = append(out, stock.Line{SKU: sku, Asked: units, Now: units})
	}
	slices.SortFunc(out, func(a, b stock.Line) int { return cmp.Compare(a.SKU, b.SKU) })
	return out, nil
}

func badMovement(field string, units int64) error {
	return stock.BadField(field, fmt.Sprint(units), "move 1 to 999999999 units of a SKU, in either direction")
}

// lockSKUs locks the living SKUs' rows in order and returns their one shard. The lock is FOR NO KEY UPDATE:
// it keeps other documents out, but not the foreign key of the stock row that Apply may be inserting.
func lockSKUs(ctx context.Context, tx pgx.Tx, lines stock.Lines) (shard int64, err error) {
	numbers := make([]int64, len(lines))
	for i, line := range lines {
		numbers[i] = line.SKU
	}
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

// differs compares what is stored with what is asked for. A document that was rebuilt has no note to compare.
func (d *Document) differs(n *NewDocument, lines stock.Lines) error {
	note := n.Note
	if d.Rebuilt {
		note = d.Note
	}
	for _, f := range []struct{ name, stored, asked string }{
		{"kind", d.Kind, n.Kind}, {"reason", d.Reason, n.Reason}, {"note", d.Note, note},
		{"lines", string(movementJSON(d.Lines)), string(movementJSON(lines))},
	} {
		if f.stored != f.asked {
			return &ConflictError{ID: d.ID, Field: f.name, Stored: shorten(f.stored), Asked: shorten(f.asked)}
		}
	}
	return nil
}

// shorten quotes a text for an error, at most about 200 bytes of it.
func shorten(text string) string {
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%+q", text)
}

const (
	documentColumns = `
		select d.id, d.shard, d.kind, d.reason, d.note, d.lines, d.state, d.deadline_ms,
		       coalesce(d.epoch, 0), coalesce(d.seq, 0), coalesce(d.idx, 0), d.written, d.settled, d.rebuilt, coalesce(s.sku, '')
		from `
	documentSKU = `
		d left join sku s on d.kind = 'opening' and s.number = (d.lines -> 0 ->> 'sku')::bigint `

	selectDocument = documentColumns + `stock_document` + documentSKU + `where d.id = $1`

	// The inner query is a fence: asked for a page by id, a planner without statistics would walk all
	// documents there ever were in the order of their ids, to find the few that are pending.
	pendingDocuments = documentColumns + `(
			select id, shard, kind, reason, note, lines, state, deadline_ms, epoch, seq, idx, written, settled, rebuilt
			from stock_document
			where shard = $1 and state = 'written' and written not between now() - $2::interval and now() offset 0)` + documentSKU + `
		where d.id > $3 order by d.id limit $4`
)

func scanDocument(row pgx.CollectableRow) (Document, error) {
	var d Document
	var lines []byte
	var epoch, seq int64
	var index int
	var settled *time.Time
	err := row.Scan(&d.ID, &d.Shard, &d.Kind, &d.Reason, &d.Note, &lines, &d.State, &d.DeadlineMillis,
		&epoch, &seq, &index, &d.Written, &settled, &d.Rebuilt, &d.SKU)
	if err != nil {
		return d, err
	}
	if settled != nil {
		d.Settled = *settled
		d.Receipt = stock.Receipt{Shard: d.Shard, Position: stock.Position{Epoch: epoch, Seq: seq}, Index: index}
	}
	d.Lines, err = parseMovementJSON(lines)
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

// movement is one line as the column lines keeps it.
type movement struct {
	SKU   int64 `json:"sku"`
	Units int64 `json:"units"`
}

func movementJSON(lines stock.Lines) []byte {
	out := make([]movement, len(lines))
	for i, line := range lines {
		out[i] = movement{SKU: line.SKU, Units: line.Asked}
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // two integers always marshal
	}
	return text
}

func parseMovementJSON(text []byte) (stock.Lines, error) {
	var in []movement
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("lines of a document: %w", err)
	}
	lines := make(stock.Lines, len(in))
	for i, m := range in {
		lines[i] = stock.Line{SKU: m.SKU, Asked: m.Units, Now: m.Units}
	}
	return lines, nil
}

// storable reports whether Postgres takes the text: valid UTF-8 without NUL.
func storable(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}
