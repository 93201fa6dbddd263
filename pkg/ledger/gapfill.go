package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// LastClosed is where the newest closed epoch of a shard before the given one ended: what the first entry of that
// epoch has to name. 0-0 when there is none.
func (l *Ledger) LastClosed(ctx context.Context, shard int, before int64) (stock.Position, error) {
	return lastClosed(ctx, l.pool, shard, before)
}

// WaitingDocuments are those of the named documents of a shard that are written and not settled, by id; others are
// absent. At most MaxLookup ids.
func (l *Ledger) WaitingDocuments(ctx context.Context, shard int, ids []string) (map[string]Document, error) {
	if err := checkLookup(len(ids)); err != nil {
		return nil, err
	}
	found := make(map[string]Document, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	rows, err := l.pool.Query(ctx, documentColumns+`stock_document`+documentSKU+`
where d.id = any($2::text[]) and d.shard = $1 and d.state = 'written'`, shard, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d documents of shard %d: %w", len(ids), shard, err)
	}
	documents, err := pgx.CollectRows(rows, scanDocument)
	if err != nil {
		return nil, fmt.Errorf("read %d documents of shard %d: %w", len(ids), shard, err)
	}
	for _, d := range documents {
		found[d.ID] = d
	}
	return found, nil
}
