package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrUnknownRepair means that no repair of that id is under way.
var ErrUnknownRepair = errors.New("no such repair is under way")

// A Repair is one act of mending, with its evidence before and after.
type Repair struct {
	ID     int64
	Shard  int
	Class  string          // what was wrong, one word
	Verb   string          // what is done about it
	By     string          // who
	Before json.RawMessage // an object; empty means {}
	After  json.RawMessage
	Began  time.Time
	Ended  time.Time // zero while it is under way, or was left
}

// BeginRepair writes down what was found and what will be done, before it is done. It returns the id for
// FinishRepair.
func (l *Ledger) BeginRepair(ctx context.Context, r Repair) (id int64, err error) {
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			insert into repair (shard, class, verb, by, before) values ($1, $2, $3, $4, $5::jsonb) returning id`,
			r.Shard, r.Class, r.Verb, r.By, jsonObject(r.Before)).Scan(&id)
	})
	if err != nil {
		return 0, fmt.Errorf("write down the repair of %s in shard %d: %w", r.Class, r.Shard, err)
	}
	return id, nil
}

// FinishRepair adds the evidence after a repair. One that ended already keeps its first ending and is no
// error, so that the call can be repeated; ErrUnknownRepair, wrapped, means that there is none.
func (l *Ledger) FinishRepair(ctx context.Context, id int64, after json.RawMessage) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update repair set
				after = case when ended is null then $2::jsonb else after end,
				ended = coalesce(ended, now())
			where id = $1`, id, jsonObject(after))
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrUnknownRepair
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("finish repair %d: %w", id, err)
	}
	return nil
}

// Repairs lists repairs of a shard (-1: of all), the newest first, at most limit.
func (l *Ledger) Repairs(ctx context.Context, shard, limit int) ([]Repair, error) {
	rows, err := l.pool.Query(ctx, `
		select id, shard, class, verb, by, before, after, began, ended from repair
		where $1::bigint < 0 or shard = $1 order by id desc limit $2`, shard, limit)
	if err != nil {
		return nil, fmt.Errorf("list the repairs: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanRepair)
	if err != nil {
		return nil, fmt.Errorf("list the repairs: %w", err)
	}
	return found, nil
}

func scanRepair(row pgx.CollectableRow) (Repair, error) {
	var r Repair
	var ended *time.Time
	err := row.Scan(&r.ID, &r.Shard, &r.Class, &r.Verb, &r.By, &r.Before, &r.After, &r.Began, &ended)
	if ended != nil {
		r.Ended = *ended
	}
	return r, err
}
