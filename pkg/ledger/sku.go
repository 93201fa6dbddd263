package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// MaxLookup bounds the SKUs of one look-up: texts or numbers of one call.
const MaxLookup = 10_000

// ErrUnknownSKU means that the ledger has no living SKU of that text or number. Create it with its opening
// stock first.
var ErrUnknownSKU = errors.New("unknown SKU: create it with its opening stock first")

// A SKU ties a shop's text to the number that Redis knows. A number is never given again: a SKU that was
// deleted and created anew has another one.
type SKU struct {
	Number  int64
	Shard   int
	Text    string
	Opening int64 // units it was created with
	Created time.Time
}

// SKU finds a living SKU by its text. The error is ErrUnknownSKU, wrapped, where there is none.
func (l *Ledger) SKU(ctx context.Context, text string) (SKU, error) {
	found, err := l.SKUsByText(ctx, []string{text})
	if err != nil {
		return SKU{}, err
	}
	sku, ok := found[text]
	if !ok {
		return SKU{}, fmt.Errorf("%w: %q", ErrUnknownSKU, text)
	}
	return sku, nil
}

// SKUsByText finds living SKUs by their texts in one query. A text that is no SKU is absent from the answer.
// More than MaxLookup texts are refused with a *stock.FieldError.
func (l *Ledger) SKUsByText(ctx context.Context, texts []string) (map[string]SKU, error) {
	if err := checkLookup(len(texts)); err != nil {
		return nil, err
	}
	// What can be no SKU is left out: Postgres would refuse the whole query for one NUL or broken UTF-8.
	sound := make([]string, 0, len(texts))
	for _, text := range texts {
		if stock.CheckSKU("sku", text) == nil {
			sound = append(sound, text)
		}
	}
	found := make(map[string]SKU, len(sound))
	if len(sound) == 0 {
		return found, nil
	}
	rows, err := l.pool.Query(ctx, `
		select number, shard, sku, opening, created
		from sku where sku = any($1::text[]) and deleted is null`, sound)
	if err != nil {
		return nil, fmt.Errorf("look up %d SKUs: %w", len(sound), err)
	}
	var s SKU
	_, err = pgx.ForEachRow(rows, []any{&s.Number, &s.Shard, &s.Text, &s.Opening, &s.Created}, func() error {
		found[s.Text] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up %d SKUs: %w", len(sound), err)
	}
	return found, nil
}

// SKUNames finds the texts of SKU numbers, deleted SKUs included: old orders still name them. A number that
// the ledger never gave is absent from the answer.
func (l *Ledger) SKUNames(ctx context.Context, numbers []int64) (map[int64]string, error) {
	if err := checkLookup(len(numbers)); err != nil {
		return nil, err
	}
	names := make(map[int64]string, len(numbers))
	if len(numbers) == 0 {
		return names, nil
	}
	rows, err := l.pool.Query(ctx, `select number, sku from sku where number = any($1::bigint[])`, numbers)
	if err != nil {
		return nil, fmt.Errorf("look up the texts of %d SKU numbers: %w", len(numbers), err)
	}
	var number int64
	var text string
	_, err = pgx.ForEachRow(rows, []any{&number, &text}, func() error {
		names[number] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up the texts of %d SKU numbers: %w", len(numbers), err)
	}
	return names, nil
}

// Stock is what the ledger has of a SKU: an exact past of what Redis has.
type Stock struct {
	SKU SKU
	stock.Quantities
	stock.Settings
	Doubt  string // why the ledger froze it, with both figures; empty when there is no doubt
	Exists bool   // the entry of its opening document is persisted; before, all else is zero
}

const stockOfSKU = `
	select s.number, s.shard, s.sku, s.opening, s.created, t.sku is not null,
	       coalesce(t.available, 0), coalesce(t.held, 0), coalesce(t.committed, 0),
	       coalesce(t.opens_ms, 0), coalesce(t.frozen, false), coalesce(t.closed, false),
	       coalesce(t.buyer_limit, 0), coalesce(t.doubt, '')
	from sku s left join stock t on t.sku = s.number `

func (s *Stock) columns() []any {
	return []any{
		&s.SKU.Number, &s.SKU.Shard, &s.SKU.Text, &s.SKU.Opening, &s.SKU.Created, &s.Exists,
		&s.Available, &s.Held, &s.Committed, &s.OpensMillis, &s.Frozen, &s.Closed, &s.Limit, &s.Doubt,
	}
}

// Stock reads the persisted stock of a living SKU. The error is ErrUnknownSKU, wrapped, where there is none.
func (l *Ledger) Stock(ctx context.Context, text string) (Stock, error) {
	var s Stock
	if stock.CheckSKU("sku", text) != nil {
		return s, fmt.Errorf("%w: %q", ErrUnknownSKU, text)
	}
	err := l.pool.QueryRow(ctx, stockOfSKU+`where s.sku = $1 and s.deleted is null`, text).Scan(s.columns()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("%w: %q", ErrUnknownSKU, text)
	}
	if err != nil {
		return s, fmt.Errorf("read the stock of SKU %q: %w", text, err)
	}
	return s, nil
}

// Stocks reads the persisted stock of SKU numbers in one query, deleted SKUs included. A number that the
// ledger never gave is absent from the answer.
func (l *Ledger) Stocks(ctx context.Context, numbers []int64) (map[int64]Stock, error) {
	if err := checkLookup(len(numbers)); err != nil {
		return nil, err
	}
	found := make(map[int64]Stock, len(numbers))
	rows, err := l.pool.Query(ctx, stockOfSKU+`where s.number = any($1::bigint[])`, numbers)
	if err != nil {
		return nil, fmt.Errorf("read the stock of %d SKUs: %w", len(numbers), err)
	}
	var s Stock
	_, err = pgx.ForEachRow(rows, s.columns(), func() error {
		found[s.SKU.Number] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the stock of %d SKUs: %w", len(numbers), err)
	}
	return found, nil
}

func checkLookup(n int) error {
	if n > MaxLookup {
		return stock.BadField("lines", fmt.Sprint(n), fmt.Sprintf("name at most %d SKUs in one request", MaxLookup))
	}
	return nil
}

// maxNumberTries bounds how often a new SKU asks for a number that nobody has.
const maxNumberTries = 8

// raiseNumbers moves the sequence of SKU numbers beyond every number in use, and, on a Postgres that was promoted,
// into the region of its timeline. A failover may lose the last numbers that were given, while Redis, its log and
// the catalogs of producers still know them: given again, a number would sell one SKU's units as another's. So each
// timeline has 2^28 numbers of its own, the first of them the plain ones from 1; the random step keeps apart two
// standbys that were promoted under the same timeline. Two who raise at once do no harm: whoever gets a number that
// is taken asks for the next.
const raiseNumbers = `
	select setval('sku_number_seq', greatest(used.number, case when q.last_value < region.first
	    then region.first + floor(random() * (1 << 20))::bigint else 0 end))
	from sku_number_seq q, (select coalesce(max(number), 0) as number from sku) used,
	    (select (` + timeline + ` - 1) << 28 as first) region
	where q.last_value < greatest(used.number, region.first)`
