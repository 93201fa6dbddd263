package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// waiting is how many sessions of the ledger's database wait for a lock.
const waiting = `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`

// Apply updates rows by their place in a snapshot: who changes one beside it has to queue for the shard first.
func TestWhoChangesARowBesideApplyQueuesForTheShard(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(ctx context.Context, w *teller, sku int64) error{
		"freeze": func(ctx context.Context, w *teller, sku int64) error { return w.l.Freeze(ctx, sku, "a doubt") },
		"renew": func(ctx context.Context, w *teller, _ int64) error {
			renewed, err := w.l.RenewDocument(ctx, "d1", w.clock, w.clock+1)
			if err == nil && !renewed {
				err = errors.New("not renewed")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			w := newTeller(t, open(t, 1), 0)
			a := w.sku(10)
			_, _, err := w.l.WriteDocument(ctx, NewDocument{ID: "d1", Kind: stock.DocumentReceive, Reason: "po",
				Lines: stock.Lines{{SKU: a, Asked: 1}}, DeadlineMillis: w.clock})
			check(t, err)
			tx, err := w.l.pool.BeginTx(ctx, pgx.TxOptions{})
			check(t, err)
			defer func() { _ = tx.Rollback(ctx) }() // or the pool could not be closed
			_, err = tx.Exec(ctx, lockShard, 0)
			check(t, err)
			changed := make(chan error, 1)
			go func() { changed <- change(ctx, w, a) }()
			sandboxtest.Eventually(t, 4*time.Second, func() error {
				select {
				case err := <-changed:
					t.Fatalf("it went ahead of who holds the shard: %v", err)
				default:
				}
				if count(t, w.l, waiting) != 1 {
					return errors.New("nobody waits")
				}
				return nil
			})
			check(t, tx.Commit(ctx))
			check(t, <-changed)
		})
	}
}

func TestAFrozenSKUThatTheLedgerDoesNotHaveIsUnknown(t *testing.T) {
	t.Parallel()
	if err := open(t, 1).Freeze(context.Background(), 99, "a doubt"); !errors.Is(err, ErrUnknownSKU) {
		t.Error(err)
	}
}
