package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxProducers bounds a listing of producers.
const maxProducers = 10_000

// A Producer is a process that admits orders, as its Watch last wrote it.
type Producer struct {
	ID        string
	Libraries []int64 // versions of the function library that it carries
	Seen      time.Time
}

// Carries reports whether the producer can call a version of the function library.
func (p Producer) Carries(library int) bool { return slices.Contains(p.Libraries, int64(library)) }

// Producers lists those seen within the given time, by id. More than 10,000 are an error: who asks whether all
// of them carry a library must not be told of some.
func (l *Ledger) Producers(ctx context.Context, within time.Duration) ([]Producer, error) {
	rows, err := l.pool.Query(ctx, `
		select id, libraries, seen from producer where seen > now() - $1::interval
		order by id limit $2`, within, maxProducers+1)
	if err != nil {
		return nil, fmt.Errorf("list the producers: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Producer])
	if err != nil {
		return nil, fmt.Errorf("list the producers: %w", err)
	}
	if len(found) > maxProducers {
		return nil, fmt.Errorf("list the producers: there are more than %d: drop those that are gone", maxProducers)
	}
	return found, nil
}

// DropProducers forgets producers that were silent for longer, and says how many. A producer that lives after
// all writes its row anew.
func (l *Ledger) DropProducers(ctx context.Context, silentFor time.Duration) (int64, error) {
	tag, err := l.pool.Exec(ctx, `delete from producer where seen <= now() - $1::interval`, silentFor)
	if err != nil {
		return 0, fmt.Errorf("forget silent producers: %w", err)
	}
	return tag.RowsAffected(), nil
}
