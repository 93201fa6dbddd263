package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An epochView is what the ledger says of one epoch of one shard: the shard's row and that epoch's end, read
// in one statement, for between two statements the epoch may be closed.
type epochView struct {
	epoch   int64 // asked for
	current int64 // the ledger's own
	applied int64 // reached within current
	last    int64 // where epoch ended; 0 without a row
}

// Standing says what became of a receipt (protocol J): persisted, lost, accepted (Redis may have it, the ledger
// has not reached it) or unknown (no such shard, no such position, or an epoch newer than the ledger's).
// Persisted and lost are final.
func (l *Ledger) Standing(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	v, err := l.viewEpoch(ctx, r.Shard, r.Epoch)
	if errors.Is(err, ErrUnknownShard) {
		return stock.StandingUnknown, nil
	}
	if err != nil {
		return stock.StandingUnknown, fmt.Errorf("ask for the standing of receipt %s: %w", r, err)
	}
	return v.standing(r.Seq), nil
}

func (l *Ledger) viewEpoch(ctx context.Context, shard int, epoch int64) (epochView, error) {
	v := epochView{epoch: epoch}
	err := l.pool.QueryRow(ctx, `
		select s.epoch, s.applied, coalesce(e.last_seq, 0)
		from shard s left join epoch_end e on e.shard = s.number and e.epoch = $2
		where s.number = $1`, shard, epoch).Scan(&v.current, &v.applied, &v.last)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, ErrUnknownShard
	}
	return v, err
}

// standing never compares positions as pairs: sequence numbers begin anew in each epoch, so within an older
// epoch only that epoch's own end counts, and an epoch that no takeover of this ledger closed ended at 0.
func (v epochView) standing(seq int64) stock.Standing {
	switch {
	case v.epoch < 1 || seq < 1 || v.epoch > v.current:
		return stock.StandingUnknown
	case v.epoch == v.current && seq <= v.applied:
		return stock.StandingPersisted
	case v.epoch == v.current:
		return stock.StandingAccepted
	case seq <= v.last:
		return stock.StandingPersisted
	}
	return stock.StandingLost
}
