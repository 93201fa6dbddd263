package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Codes of outcomes.
const (
	OutcomeLost      = "lost"      // Redis had accepted it, a takeover ended the epoch before it
	OutcomeShortfall = "shortfall" // a late confirm found too few units: money is to be given back
	OutcomeRejected  = "rejected"  // an order that came from a feed could not be taken
)

// An Outcome must be told to somebody but leaves no entry in a log.
type Outcome struct {
	ID       int64
	Shard    int // -1: of none
	OrderID  string
	Attempt  int64
	Code     string
	Detail   json.RawMessage // an object; empty means {}
	Recorded time.Time
}

// RecordOutcome writes an outcome and returns once it is committed: answer the client after that. The same
// outcome told again (shard, order, attempt and code) adds no row, and the first detail stands.
func (l *Ledger) RecordOutcome(ctx context.Context, o Outcome) error {
	if err := o.check(); err != nil {
		return err
	}
	var shard *int
	if o.Shard >= 0 {
		shard = &o.Shard
	}
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			insert into outcome (shard, order_id, attempt, code, detail)
			values ($1, $2, $3, $4, $5::jsonb) on conflict do nothing`,
			shard, o.OrderID, o.Attempt, o.Code, jsonObject(o.Detail))
		return err
	})
	if err != nil {
		return fmt.Errorf("record outcome %s of order %s: %w", o.Code, o.OrderID, err)
	}
	return nil
}

func (o *Outcome) check() error {
	if err := stock.CheckOrderID("order_id", o.OrderID); err != nil {
		return err
	}
	if o.Attempt < 1 || o.Attempt > stock.MaxAttempt {
		return stock.BadField("attempt", fmt.Sprint(o.Attempt), "use a whole number from 1 to 999999999")
	}
	return stock.CheckReason("code", o.Code)
}

// Outcomes lists what was told of an order, the newest first, at most limit.
func (l *Ledger) Outcomes(ctx context.Context, order string, limit int) ([]Outcome, error) {
	if stock.CheckOrderID("order_id", order) != nil {
		return nil, nil // no such id was ever stored
	}
	rows, err := l.pool.Query(ctx, outcomesOfOrder, order, limit)
	if err != nil {
		return nil, fmt.Errorf("list the outcomes of order %s: %w", order, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Outcome])
	if err != nil {
		return nil, fmt.Errorf("list the outcomes of order %s: %w", order, err)
	}
	return found, nil
}

// The inner query is a fence: asked for the newest few, a planner without statistics would walk all outcomes
// backwards until it has found enough of this order.
const outcomesOfOrder = `
	select id, coalesce(shard, -1), order_id, attempt, code, detail, recorded from (
		select id, shard, order_id, attempt, code, detail, recorded from outcome where order_id = $1 offset 0) o
	order by id desc limit $2`

// jsonObject is what goes into a column that holds an object.
func jsonObject(text json.RawMessage) string {
	if len(text) == 0 {
		return "{}"
	}
	return string(text)
}
