package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The states of a shard. new → rebuilding → open, and from any of them halted; a claimed takeover leads back.
const (
	StateNew        = "new"        // never opened
	StateRebuilding = "rebuilding" // an epoch was closed, the next is not open yet
	StateOpen       = "open"
	StateHalted     = "halted" // an entry cannot be applied: an operator decides
)

// ErrUnknownShard means that the ledger has no such shard.
var ErrUnknownShard = errors.New("unknown shard: run `stockpipe-reconciler init`")

// A Shard is its row: how far the ledger is, and who may move it on.
type Shard struct {
	Number  int
	Writer  string // redis or postgres: where its stock is decided
	Epoch   int64
	Applied int64 // seq reached within Epoch
	Claim   int64 // newest epoch given to a takeover
	State   string
	Reason  string    // why halted
	Library int       // version of the function library in force
	Changed time.Time // of State
	Opened  time.Time // last time it said open; zero = never
}

// Position is the place that the ledger has reached.
func (s Shard) Position() stock.Position { return stock.Position{Epoch: s.Epoch, Seq: s.Applied} }

const selectShard = `select number, writer, epoch, applied, claim, state, reason, library, changed, opened from shard `

func scanShard(row pgx.CollectableRow) (Shard, error) {
	var s Shard
	var opened *time.Time
	err := row.Scan(&s.Number, &s.Writer, &s.Epoch, &s.Applied, &s.Claim, &s.State, &s.Reason, &s.Library, &s.Changed, &opened)
	if opened != nil {
		s.Opened = *opened
	}
	return s, err
}

// Init writes the rows of shards 0 to shards-1, once. Repeated with the same number it changes nothing; with
// another it fails, because a SKU never changes its shard by itself.
func (l *Ledger) Init(ctx context.Context, shards int) error {
	if shards < 1 || shards > stock.MaxShards {
		return stock.BadField("shards", fmt.Sprint(shards), fmt.Sprintf("use 1 to %d", stock.MaxShards))
	}
	return l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		// Two that start at once would each see no rows.
		if _, err := tx.Exec(ctx, `lock table shard in share row exclusive mode`); err != nil {
			return fmt.Errorf("lock the table of shards: %w", err)
		}
		var have int
		if err := tx.QueryRow(ctx, `select count(*) from shard`).Scan(&have); err != nil {
			return fmt.Errorf("count the shards: %w", err)
		}
		if have == shards {
			return nil
		}
		if have != 0 {
			return stock.BadField("shards", fmt.Sprint(shards), fmt.Sprintf("this ledger was made with %d", have))
		}
		for _, table := range []string{"shard (number)", "forgetting (shard)"} {
			if _, err := tx.Exec(ctx, `insert into `+table+` select generate_series(0, $1::bigint - 1)`, shards); err != nil {
				return fmt.Errorf("write %d shards: %w", shards, err)
			}
		}
		return nil
	})
}

// Shards are all rows, by number.
func (l *Ledger) Shards(ctx context.Context) ([]Shard, error) {
	rows, err := l.pool.Query(ctx, selectShard+`order by number`)
	if err != nil {
		return nil, fmt.Errorf("read the shards: %w", err)
	}
	shards, err := pgx.CollectRows(rows, scanShard)
	if err != nil {
		return nil, fmt.Errorf("read the shards: %w", err)
	}
	return shards, nil
}

// Shard is one row, or ErrUnknownShard.
func (l *Ledger) Shard(ctx context.Context, number int) (Shard, error) {
	return readShard(ctx, l.pool, number)
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readShard(ctx context.Context, db querier, number int) (Shard, error) {
	rows, err := db.Query(ctx, selectShard+`where number = $1`, number)
	if err != nil {
		return Shard{}, fmt.Errorf("read shard %d: %w", number, err)
	}
	s, err := oneShard(rows)
	switch {
	case errors.Is(err, ErrUnknownShard):
		return Shard{}, fmt.Errorf("shard %d: %w", number, err)
	case err != nil:
		return Shard{}, fmt.Errorf("read shard %d: %w", number, err)
	}
	return s, nil
}

func oneShard(rows pgx.Rows) (Shard, error) {
	s, err := pgx.CollectExactlyOneRow(rows, scanShard)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrUnknownShard
	}
	return s, err
}
