package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// haltOn keeps the entry that cannot be applied and halts the shard, with a claim, in one statement: only
// while the ledger stands where the entry was judged, because another applier may have gone on. With the claim
// the caller fences Redis, so that nothing is accepted behind. done is false when the shard had moved.
func (l *Ledger) haltOn(ctx context.Context, shard int, poison *poisonError) (claim Claim, done bool, err error) {
	nonce := newNonce()
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := synchronous(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `with halted as (
    update shard set state = 'halted', reason = $4, changed = clock_timestamp(), claim_nonce = $5, claim = `+nextClaim("$6")+`
    where number = $1 and epoch = $2 and applied = $3 and state <> 'halted'
    returning number, claim
), kept as (
    insert into dead_event (shard, epoch, seq, raw, reason)
    select number, $7, $8, $9::jsonb, $4 from halted
)
select claim, pg_notify('`+channelShard+`', number::text)::text from halted`,
			shard, poison.have.Epoch, poison.have.Seq, printable(poison.why), nonce, int64(0),
			poison.position().Epoch, poison.position().Seq, rawJSON(poison.raw))
		if err != nil {
			return err
		}
		var notified string
		_, err = pgx.ForEachRow(rows, []any{&claim.Epoch, &notified}, func() error { return nil })
		return err
	})
	if errors.Is(err, errCommit) {
		// Halted or not: looking again tells.
		return Claim{}, false, nil
	}
	if err != nil {
		return Claim{}, false, fmt.Errorf("halt shard %d on entry %s (%s): %w", shard, poison.raw.ID, poison.why, err)
	}
	if claim.Epoch == 0 {
		return Claim{}, false, nil
	}
	return Claim{Shard: shard, Epoch: claim.Epoch, Nonce: nonce}, true, nil
}

// ErrMoved means that a shard is no longer where it was judged. Nothing was changed: look again.
var ErrMoved = errors.New("the shard moved on since it was judged: look again")

// A Verdict is that a shard has to stop, and where it stood when that was judged: who judges and is held up must not
// stop an epoch that somebody else has opened meanwhile. [model]
type Verdict struct {
	Shard    int
	Position stock.Position // that the ledger had reached
	Claim    int64          // newest one, or that of the takeover that judged
	Reason   string         // an operator will read it
}

// Halt carries out a verdict and gives the claim to fence the shard with. A shard that is halted already keeps its
// first reason. ErrMoved when the shard has another position or a newer claim.
func (l *Ledger) Halt(ctx context.Context, v Verdict) (Claim, error) {
	claim := Claim{Shard: v.Shard, Nonce: newNonce()}
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := synchronous(ctx, tx); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `update shard set reason = case when state = 'halted' then reason else $2 end,
    changed = case when state = 'halted' then changed else clock_timestamp() end,
    state = 'halted', claim_nonce = $3, claim = `+nextClaim("$4")+`
where number = $1 and epoch = $5 and applied = $6 and claim = $7 returning claim`,
			v.Shard, printable(v.Reason), claim.Nonce, int64(0), v.Position.Epoch, v.Position.Seq, v.Claim).Scan(&claim.Epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			if _, err := readShard(ctx, tx, v.Shard); err != nil {
				return err
			}
			return ErrMoved
		}
		if err != nil {
			return err
		}
		return notifyShard(ctx, tx, v.Shard)
	})
	if err != nil {
		return Claim{}, fmt.Errorf("halt shard %d at %s: %w", v.Shard, v.Position, err)
	}
	return claim, nil
}

func notifyShard(ctx context.Context, tx pgx.Tx, shard int) error {
	if _, err := tx.Exec(ctx, `select pg_notify($1, $2)`, channelShard, fmt.Sprint(shard)); err != nil {
		return fmt.Errorf("tell of shard %d: %w", shard, err)
	}
	return nil
}

// printable writes what Postgres' text cannot hold as \xNN.
func printable(text string) string {
	if utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 || r == 0 {
			fmt.Fprintf(&b, `\x%02x`, text[0])
		} else {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}
