package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrStaleClaim means that a step of a takeover came too late: a newer claim exists, or the shard is not where
// the step needs it. Nothing was changed; begin a new attempt.
var ErrStaleClaim = errors.New("the claim is not the newest, or the shard moved on: begin a new takeover")

// A Claim is the right to one attempt at a takeover. No two attempts share an epoch.
type Claim struct {
	Shard int
	Epoch int64  // E', above everything that the ledger and Redis have seen
	Nonce string // random, of this attempt

	Library int // version of the function library that the next epoch begins with; 0: as it is
}

// nextClaim computes a claim above the parameter (an epoch seen in Redis). The timeline of Postgres' log and
// the random step keep a ledger that lost its last claims in a failover from giving them out again, also where
// two standbys were promoted apart and have the same timeline. [model]
func nextClaim(seen string) string {
	return `greatest(claim, epoch, ` + seen + `::bigint, ` + timeline + ` << 24) + 1 + floor(random() * 256)::bigint`
}

// timeline counts the promotions that led to this Postgres, from 1.
const timeline = `('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint`

func newNonce() string { return rand.Text() }

// Claim begins a takeover: it gives out the next epoch, above redisEpoch too. An automatic claim is refused on
// a halted shard (*HaltedError); an operator's is not.
func (l *Ledger) Claim(ctx context.Context, shard int, redisEpoch int64, operator bool) (Claim, error) {
	claim := Claim{Shard: shard, Nonce: newNonce()}
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := synchronous(ctx, tx); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `update shard set claim_nonce = $2, claim = `+nextClaim("$3")+`
where number = $1 and (state <> 'halted' or $4) returning claim`, shard, claim.Nonce, redisEpoch, operator).Scan(&claim.Epoch)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		now, err := readShard(ctx, tx, shard)
		if err != nil {
			return err
		}
		return &HaltedError{Shard: shard, Reason: now.Reason}
	})
	if err != nil {
		return Claim{}, fmt.Errorf("claim shard %d: %w", shard, err)
	}
	return claim, nil
}

// synchronous makes the commit wait for the standbys that the server is told to wait for, whatever the
// session's default: a claim that a failover forgets could be given out twice.
func synchronous(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `set local synchronous_commit = on`); err != nil {
		return fmt.Errorf("ask for a synchronous commit: %w", err)
	}
	return nil
}

// step runs one conditional step of a takeover in a synchronous transaction. It is sent once: after an unknown
// outcome begin a new attempt.
func (l *Ledger) step(ctx context.Context, c Claim, what string, work func(pgx.Tx) error) error {
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := synchronous(ctx, tx); err != nil {
			return err
		}
		if err := work(tx); err != nil {
			return err
		}
		return notifyShard(ctx, tx, c.Shard)
	})
	if err != nil {
		return fmt.Errorf("%s of shard %d for epoch %d: %w", what, c.Shard, c.Epoch, err)
	}
	return nil
}

// claimed locks the shard's row while the claim is still the newest.
const claimed = `select epoch, applied from shard where number = $1 and claim = $2 and claim_nonce = $3 for no key update`

func lockClaimed(ctx context.Context, tx pgx.Tx, c Claim) (stock.Position, error) {
	var at stock.Position
	err := tx.QueryRow(ctx, claimed, c.Shard, c.Epoch, c.Nonce).Scan(&at.Epoch, &at.Seq)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, ErrStaleClaim
	}
	return at, err
}

// end closes the epoch at the given position and begins another.
func end(ctx context.Context, tx pgx.Tx, shard int, at stock.Position, next int64) error {
	if _, err := tx.Exec(ctx, `insert into epoch_end (shard, epoch, last_seq) values ($1, $2, $3)`, shard, at.Epoch, at.Seq); err != nil {
		return fmt.Errorf("close epoch %d: %w", at.Epoch, err)
	}
	_, err := tx.Exec(ctx, `update shard set epoch = $2, applied = 0, state = 'rebuilding', reason = '', changed = clock_timestamp() where number = $1`, shard, next)
	return err
}

// CloseEpoch is step 4 of a takeover: the ledger's epoch ends at the position that it has reached, which is
// answered, and the claimed one begins at 0, rebuilding. ErrStaleClaim unless the claim is the newest and the
// ledger's epoch is below it.
func (l *Ledger) CloseEpoch(ctx context.Context, c Claim) (closed stock.Position, err error) {
	err = l.step(ctx, c, "close the epoch", func(tx pgx.Tx) error {
		if closed, err = lockClaimed(ctx, tx, c); err != nil {
			return err
		}
		if closed.Epoch >= c.Epoch {
			return ErrStaleClaim
		}
		if err := end(ctx, tx, c.Shard, closed, c.Epoch); err != nil {
			return err
		}
		// Redis is rebuilt without what is older than the retention: from here on nobody counts on those records.
		if err := moveFence(ctx, tx, c.Shard, l.retention); err != nil || c.Library == 0 {
			return err
		}
		_, err := tx.Exec(ctx, `update shard set library = $2 where number = $1`, c.Shard, c.Library)
		return err
	})
	if err != nil {
		return stock.Position{}, err
	}
	return closed, nil
}

// newestEntry is the newest position of a ledger at the given one that an entry has: what the next opening names. An
// attempt that closed an epoch and died before it opened the next leaves one that ended at 0. An opening that named
// that would mean nothing to a ledger that lost the attempt in a failover, for no entry tells of it. [model]
func newestEntry(ctx context.Context, db querier, shard int, at stock.Position) (stock.Position, error) {
	if at.Seq > 0 {
		return at, nil
	}
	return lastClosed(ctx, db, shard, at.Epoch)
}

// lastClosed is where the newest epoch before the given one that has any entry ended, 0-0 when there is none.
func lastClosed(ctx context.Context, db querier, shard int, before int64) (stock.Position, error) {
	rows, err := db.Query(ctx, `select epoch, last_seq from epoch_end where shard = $1 and epoch < $2 and last_seq > 0 order by epoch desc limit 1`, shard, before)
	if err != nil {
		return stock.Position{}, fmt.Errorf("read where the last epoch ended: %w", err)
	}
	closed, err := pgx.CollectOneRow(rows, pgx.RowToStructByPos[stock.Position])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return stock.Position{}, fmt.Errorf("read where the last epoch ended: %w", err)
	}
	return closed, nil
}

// closedEmpty reports whether a position is the end, without any entry, of the newest epoch before the given one:
// openings that the first version wrote name such an end.
func closedEmpty(ctx context.Context, db querier, shard int, at stock.Position, before int64) (bool, error) {
	if at.Seq != 0 {
		return false, nil
	}
	rows, err := db.Query(ctx, `select epoch = $3 and last_seq = 0 from epoch_end where shard = $1 and epoch < $2 order by epoch desc limit 1`, shard, before, at.Epoch)
	if err != nil {
		return false, fmt.Errorf("read how the last epoch ended: %w", err)
	}
	empty, err := pgx.CollectOneRow(rows, pgx.RowTo[bool])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("read how the last epoch ended: %w", err)
	}
	return empty, nil
}

// Resume lets a halted shard take entries again in its present epoch, closed as it is: an operator's retry is a
// claim, a fence, this, and then step 3. ErrStaleClaim when the claim is not the newest. On a shard that is not
// halted it changes nothing.
func (l *Ledger) Resume(ctx context.Context, c Claim) error {
	return l.step(ctx, c, "resume", func(tx pgx.Tx) error {
		if _, err := lockClaimed(ctx, tx, c); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update shard set state = 'rebuilding', reason = '', changed = clock_timestamp() where number = $1 and state = 'halted'`, c.Shard)
		return err
	})
}

// FollowOpened is the part of step 3 that only a takeover may do: an epoch that a lost ledger had opened is
// followed, if its first entry names exactly the newest entry that this ledger has. Apply takes the entry
// afterwards. ErrStaleClaim when the claim is not the newest or the entry continues another position.
func (l *Ledger) FollowOpened(ctx context.Context, c Claim, raw event.Raw) error {
	entry, err := raw.Parse()
	if err != nil {
		return fmt.Errorf("follow an opened epoch: %w", err)
	}
	if entry.Seq != 1 || len(entry.Ops) != 1 || entry.Ops[0].Kind != stock.Opened {
		return fmt.Errorf("follow an opened epoch: entry %s does not open one", raw.ID)
	}
	return l.step(ctx, c, "follow the opened epoch", func(tx pgx.Tx) error {
		at, err := lockClaimed(ctx, tx, c)
		if err != nil {
			return err
		}
		newest, err := newestEntry(ctx, tx, c.Shard, at)
		if err != nil {
			return err
		}
		if named := entry.Ops[0].Continues; named != newest && named != at || entry.Epoch <= at.Epoch || entry.Epoch >= c.Epoch {
			return ErrStaleClaim
		}
		return end(ctx, tx, c.Shard, at, entry.Epoch)
	})
}

// SayOpen is step 8, the last of a takeover: from here producers let orders in. ErrStaleClaim unless the claim
// is the newest and the shard is rebuilding in its epoch.
func (l *Ledger) SayOpen(ctx context.Context, c Claim) error {
	return l.step(ctx, c, "open", func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `update shard set state = 'open', reason = '', changed = clock_timestamp(), opened = clock_timestamp()
where number = $1 and claim = $2 and claim_nonce = $3 and epoch = $2 and state = 'rebuilding'`, c.Shard, c.Epoch, c.Nonce)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrStaleClaim
		}
		return nil
	})
}
