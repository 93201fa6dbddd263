package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// HistoryPage is how many events one page of history has, at most.
const HistoryPage = 2000

// A ClosedEpoch is an epoch that has ended, with the digest of its events where somebody computed it.
type ClosedEpoch struct {
	Epoch    int64
	LastSeq  int64
	Closed   time.Time
	Digest   string // SHA-256 in hex; empty before it was first computed
	Events   int64  // that the digest covers
	Computed time.Time
}

// ClosedEpochs are all closed epochs of a shard, the oldest first.
func (l *Ledger) ClosedEpochs(ctx context.Context, shard int) ([]ClosedEpoch, error) {
	rows, err := l.pool.Query(ctx, `select e.epoch, e.last_seq, e.closed, coalesce(d.digest, ''), coalesce(d.events, 0), coalesce(d.computed, 'epoch')
from epoch_end e left join epoch_digest d using (shard, epoch) where e.shard = $1 order by e.epoch`, shard)
	if err != nil {
		return nil, fmt.Errorf("list the closed epochs of shard %d: %w", shard, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ClosedEpoch])
	if err != nil {
		return nil, fmt.Errorf("list the closed epochs of shard %d: %w", shard, err)
	}
	return found, nil
}

// StoreDigest keeps the digest of a closed epoch, if none is kept yet, and returns the one that is: the first one
// computed stands for ever.
func (l *Ledger) StoreDigest(ctx context.Context, shard int, e ClosedEpoch) (ClosedEpoch, error) {
	kept := e
	err := l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into epoch_digest (shard, epoch, last_seq, events, digest) values ($1, $2, $3, $4, $5) on conflict do nothing`,
			shard, e.Epoch, e.LastSeq, e.Events, e.Digest)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select last_seq, events, digest, computed from epoch_digest where shard = $1 and epoch = $2`, shard, e.Epoch).
			Scan(&kept.LastSeq, &kept.Events, &kept.Digest, &kept.Computed)
	})
	if err != nil {
		return e, fmt.Errorf("keep the digest of epoch %d of shard %d: %w", e.Epoch, shard, err)
	}
	return kept, nil
}

// History is a page of the events of one epoch behind a receipt, in order, up to and with the seq upto.
func (l *Ledger) History(ctx context.Context, after stock.Receipt, upto int64) ([]Told, error) {
	return l.events(ctx, after.Shard, `e.epoch = $2 and (e.seq, e.idx) > ($3, $4) and e.seq <= $5 order by e.seq, e.idx limit $6`,
		after.Epoch, after.Seq, after.Index, upto, HistoryPage)
}

// A Digest is the digest of events in the making.
type Digest struct {
	hash   hash.Hash
	buffer []byte
	events int64
}

// NewDigest has no events yet.
func NewDigest() *Digest { return &Digest{hash: sha256.New()} }

// Add takes the next event. Each field is written with its length before it, so that no two histories write the same.
func (d *Digest) Add(t *Told) {
	d.events++
	d.buffer = d.buffer[:0]
	for _, n := range []int64{t.Receipt.Epoch, t.Receipt.Seq, int64(t.Receipt.Index), t.AtMillis} {
		d.buffer = append(strconv.AppendInt(d.buffer, n, 10), ',')
	}
	for _, text := range []string{t.ID, t.Buyer, t.Body, t.After} {
		d.buffer = append(strconv.AppendInt(d.buffer, int64(len(text)), 10), ':')
		d.buffer = append(append(d.buffer, text...), ',')
	}
	d.hash.Write(d.buffer)
}

// Sum is the digest so far, in hex, and how many events it covers.
func (d *Digest) Sum() (digest string, events int64) {
	return hex.EncodeToString(d.hash.Sum(nil)), d.events
}

// KeepDigest computes the digest of the oldest closed epoch of a shard that has none, and keeps it; found is false when
// all have one. Between two pages it calls rest, whose error ends it: it is work that can wait.
func (l *Ledger) KeepDigest(ctx context.Context, shard int, rest func(context.Context) error) (found bool, err error) {
	var e ClosedEpoch
	asking, cancel := context.WithTimeout(ctx, digestStatement)
	defer cancel()
	err = l.pool.QueryRow(asking, `select e.epoch, e.last_seq from epoch_end e
where e.shard = $1 and not exists (select from epoch_digest d where d.shard = e.shard and d.epoch = e.epoch) order by e.epoch limit 1`, shard).
		Scan(&e.Epoch, &e.LastSeq)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for an epoch of shard %d without a digest: %w", shard, err)
	}
	digest := NewDigest()
	for after := (stock.Receipt{Shard: shard, Position: stock.Position{Epoch: e.Epoch}}); ; {
		page, err := l.pageWithin(ctx, after, e.LastSeq)
		if err != nil {
			return false, err
		}
		for i := range page {
			digest.Add(&page[i])
			after = page[i].Receipt
		}
		if len(page) < HistoryPage {
			break
		}
		if err := rest(ctx); err != nil {
			return false, err
		}
	}
	e.Digest, e.Events = digest.Sum()
	keeping, cancelKeeping := context.WithTimeout(ctx, digestStatement)
	defer cancelKeeping()
	_, err = l.StoreDigest(keeping, shard, e)
	return err == nil, err
}

// digestStatement bounds one statement of a digest: however long the history is, each of its pages is small.
const digestStatement = 15 * time.Second

func (l *Ledger) pageWithin(ctx context.Context, after stock.Receipt, upto int64) ([]Told, error) {
	ctx, cancel := context.WithTimeout(ctx, digestStatement)
	defer cancel()
	return l.History(ctx, after, upto)
}

// ExpiredAttempts are the attempts of orders that a late confirm followed, by order id, attempts being numbered as
// asked: ids and attempts are read as pairs, at most MaxLookup.
func (l *Ledger) ExpiredAttempts(ctx context.Context, shard int, ids []string, attempts []int64) (map[string]stock.Reservation, error) {
	if err := checkLookup(len(ids)); err != nil {
		return nil, err
	}
	found := map[string]stock.Reservation{}
	if len(ids) == 0 {
		return found, nil
	}
	rows, err := l.pool.Query(ctx, `select v.id, x.attempt, x.asked, x.state, x.buyer, x.expires_ms, x.epoch, x.seq, x.idx, true, l.sku, l.asked, l.now, l.fulfilled
from unnest($2::text[], $3::bigint[]) v(id, asked),
    lateral (select * from reservation r where r.shard = $1 and r.order_id = v.id and r.asked = v.asked and r.state = 'expired' order by r.attempt desc limit 1) x,
    lateral (select * from reservation_line l where l.shard = $1 and l.order_id = v.id and l.attempt = x.attempt order by l.sku offset 0) l`, shard, ids, attempts)
	if err == nil {
		err = eachOrder(rows, shard, func(r *stock.Reservation) error {
			found[r.ID] = *r
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read %d expired attempts of shard %d: %w", len(ids), shard, err)
	}
	return found, nil
}
