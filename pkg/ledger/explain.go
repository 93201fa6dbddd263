package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// MaxStory bounds how much of each kind one story tells.
const MaxStory = 10_000

// A Told is one event as it is stored, for a story.
type Told struct {
	Receipt  stock.Receipt
	ID       string
	Buyer    string
	Body     string
	AtMillis int64  // Redis time
	After    string // after-image of its entry; stands with the first operation only
}

// An Attempt is one row of an order, whatever its age.
type Attempt struct {
	Found
	Standing stock.Standing // of its last transition
}

// An Orphan is an entry of a closed epoch beyond its end: never stock.
type Orphan struct {
	Position stock.Position
	Raw      json.RawMessage
	Recorded time.Time
}

// CountOrphans counts the entries of a shard that are recorded as lost.
func (l *Ledger) CountOrphans(ctx context.Context, shard int) (n int, err error) {
	if err := l.pool.QueryRow(ctx, `select count(*) from orphan where shard = $1`, shard).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the orphans of shard %d: %w", shard, err)
	}
	return n, nil
}

// Attempts are all attempts of an order in one shard, the oldest first, at most limit.
func (l *Ledger) Attempts(ctx context.Context, shard int, order string, limit int) ([]Attempt, error) {
	found, err := l.find(ctx, order, attemptsOf, shard, order, limit)
	if err != nil {
		return nil, fmt.Errorf("read the attempts of order %s: %w", order, err)
	}
	attempts := make([]Attempt, len(found))
	for i := range found {
		attempts[i].Found = found[i]
		if attempts[i].Standing, err = l.Standing(ctx, found[i].Reservation.Receipt); err != nil {
			return nil, err
		}
	}
	return attempts, nil
}

const toldColumns = `select e.epoch, e.seq, e.idx, e.id, e.buyer, e.body, e.at_ms, e.after_image from event e where e.shard = $1 and `

// EventsOf are the events under an id (an order's, or a document's with its tilde), the newest first, at most limit.
// It reads the shard's events through where there is no index for it: for a person's question, not for a program.
func (l *Ledger) EventsOf(ctx context.Context, shard int, id string, limit int) ([]Told, error) {
	return l.events(ctx, shard, `e.id = $2 order by e.epoch desc, e.seq desc, e.idx desc limit $3`, id, limit)
}

// EventsOfSKU are the first operations of the entries that moved a SKU, the newest first, at most limit: their
// after-images have its figures.
func (l *Ledger) EventsOfSKU(ctx context.Context, shard int, sku int64, limit int) ([]Told, error) {
	return l.events(ctx, shard, `e.idx = 0 and ' ' || e.after_image like $2
order by e.epoch desc, e.seq desc limit $3`, fmt.Sprintf("%% %d=%%", sku), limit)
}

// EntryOf are all operations of one entry.
func (l *Ledger) EntryOf(ctx context.Context, shard int, at stock.Position) ([]Told, error) {
	return l.events(ctx, shard, `e.epoch = $2 and e.seq = $3 order by e.idx`, at.Epoch, at.Seq)
}

func (l *Ledger) events(ctx context.Context, shard int, condition string, args ...any) ([]Told, error) {
	rows, err := l.pool.Query(ctx, toldColumns+condition, append([]any{shard}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("read events of shard %d: %w", shard, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Told, error) {
		t := Told{Receipt: stock.Receipt{Shard: shard}}
		err := row.Scan(&t.Receipt.Epoch, &t.Receipt.Seq, &t.Receipt.Index, &t.ID, &t.Buyer, &t.Body, &t.AtMillis, &t.After)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read events of shard %d: %w", shard, err)
	}
	return found, nil
}

// OpenHolds are the orders of a shard that hold units of a SKU, the soonest due first, at most limit.
func (l *Ledger) OpenHolds(ctx context.Context, shard int, sku int64, limit int) ([]DueHold, error) {
	rows, err := l.pool.Query(ctx, `select r.order_id, r.asked, r.expires_ms, coalesce(r.due, 'epoch'), r.attempt
from reservation r join reservation_line l on l.shard = r.shard and l.order_id = r.order_id and l.attempt = r.attempt
where r.shard = $1 and r.state = 'held' and l.sku = $2 and l.now > 0 order by r.due nulls last, r.order_id limit $3`, shard, sku, limit)
	if err != nil {
		return nil, fmt.Errorf("list the holds of SKU number %d: %w", sku, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DueHold])
	if err != nil {
		return nil, fmt.Errorf("list the holds of SKU number %d: %w", sku, err)
	}
	return found, nil
}

// DocumentsOfSKU are the documents that name a SKU, the newest first, at most limit.
func (l *Ledger) DocumentsOfSKU(ctx context.Context, shard int, sku int64, limit int) ([]Document, error) {
	rows, err := l.pool.Query(ctx, documentColumns+`stock_document`+documentSKU+`
where d.shard = $1 and d.lines @> $2::jsonb order by d.written desc, d.id limit $3`, shard, movementOf(sku), limit)
	if err != nil {
		return nil, fmt.Errorf("list the documents of SKU number %d: %w", sku, err)
	}
	found, err := pgx.CollectRows(rows, scanDocument)
	if err != nil {
		return nil, fmt.Errorf("list the documents of SKU number %d: %w", sku, err)
	}
	return found, nil
}

// OrphansOf are recorded orphans of a shard that name an id, the newest first, at most limit.
func (l *Ledger) OrphansOf(ctx context.Context, shard int, id string, limit int) ([]Orphan, error) {
	rows, err := l.pool.Query(ctx, `select epoch, seq, raw, recorded from orphan
where shard = $1 and strpos(raw ->> 'o', ' ' || $2) > 0 order by epoch desc, seq desc limit $3`, shard, id, limit)
	if err != nil {
		return nil, fmt.Errorf("list the orphans of %s: %w", id, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Orphan, error) {
		var o Orphan
		err := row.Scan(&o.Position.Epoch, &o.Position.Seq, &o.Raw, &o.Recorded)
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the orphans of %s: %w", id, err)
	}
	return found, nil
}

// RepairsNaming are the repairs of a shard whose evidence names any of the texts as a whole JSON value, or as a
// number, the newest first, at most limit. It reads all repairs of the shard.
func (l *Ledger) RepairsNaming(ctx context.Context, shard int, texts []string, sku int64, limit int) ([]Repair, error) {
	rows, err := l.pool.Query(ctx, `select id, shard, class, verb, by, before, after, began, ended from repair r
where shard = $1 and exists (
    select from jsonb_path_query(jsonb_build_array(r.before, r.after), 'strict $.**') v
    where jsonb_typeof(v) = 'string' and (v #>> '{}') = any($2::text[])
        or jsonb_typeof(v) = 'object' and $3 > 0 and (v ->> 'SKU' = $3::text or v ->> 'sku' = $3::text or v ->> 'sku_number' = $3::text))
order by id desc limit $4`, shard, texts, sku, limit)
	if err != nil {
		return nil, fmt.Errorf("list the repairs of shard %d: %w", shard, err)
	}
	found, err := pgx.CollectRows(rows, scanRepair)
	if err != nil {
		return nil, fmt.Errorf("list the repairs of shard %d: %w", shard, err)
	}
	return found, nil
}

// SKUEver finds a SKU by its text or, when the text is a number, by that, deleted ones included, the newest first.
func (l *Ledger) SKUEver(ctx context.Context, text string) ([]SKU, error) {
	if stock.CheckSKU("sku", text) != nil {
		return nil, nil
	}
	rows, err := l.pool.Query(ctx, `select number, shard, sku, opening, created from sku where sku = $1 order by number desc limit 100`, text)
	if err != nil {
		return nil, fmt.Errorf("look up SKU %q: %w", text, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SKU])
	if err != nil {
		return nil, fmt.Errorf("look up SKU %q: %w", text, err)
	}
	return found, nil
}

// PaperOf reads a document under the id that it has in Redis, with its tilde; found is false when there is none.
func (l *Ledger) PaperOf(ctx context.Context, id string) (d Document, found bool, err error) {
	d, err = l.Document(ctx, paperID(id))
	if errors.Is(err, ErrUnknownDocument) {
		return d, false, nil
	}
	return d, err == nil, err
}
