package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// compare looks at the entries at or before the ledger's position. What stands is dropped if it has the same
// content, else the log has forked and the shard halts. What an older epoch has beyond its end never became
// stock: it is recorded as an orphan, and never halts anybody.
func (t *transaction) compare(ctx context.Context) (orphans int, err error) {
	if len(t.known) == 0 {
		return 0, nil
	}
	ends, err := epochEnds(ctx, t.conn, t.batch.shard, t.have.Epoch)
	if err != nil {
		return 0, err
	}
	var stray []event.Raw
	var standing []int
	for _, i := range t.known {
		it := &t.batch.items[i]
		if it.position.Epoch < t.have.Epoch && it.position.Seq > ends[it.position.Epoch] {
			stray = append(stray, it.raw)
		} else {
			standing = append(standing, i)
		}
	}
	if at, why, err := t.differing(ctx, standing); err != nil {
		return 0, err
	} else if why != "" {
		// Nothing before it has to be committed first: it stands already.
		return 0, &poisonError{at: at, first: at, have: t.have, raw: t.batch.items[at].raw, why: why}
	}
	if len(stray) == 0 {
		return 0, nil
	}
	return insertOrphans(ctx, t.conn, t.batch.shard, stray)
}

func epochEnds(ctx context.Context, db querier, shard int, before int64) (map[int64]int64, error) {
	rows, err := db.Query(ctx, `select epoch, last_seq from epoch_end where shard = $1 and epoch < $2`, shard, before)
	if err != nil {
		return nil, fmt.Errorf("read where epochs ended: %w", err)
	}
	ends := map[int64]int64{}
	var epoch, last int64
	if _, err := pgx.ForEachRow(rows, []any{&epoch, &last}, func() error {
		ends[epoch] = last
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read where epochs ended: %w", err)
	}
	return ends, nil
}

const selectEvents = `select v.epoch, v.seq, e.idx, e.id, e.buyer, e.body, e.at_ms, e.after_image
from unnest($2::bigint[], $3::bigint[]) v(epoch, seq),
    lateral (select * from event where shard = $1 and epoch = v.epoch and seq = v.seq order by idx offset 0) e`

// differing finds the first of the items whose content is not what the ledger has at its position. Positions
// whose events were archived cannot be compared and pass.
func (t *transaction) differing(ctx context.Context, items []int) (at int, why string, err error) {
	if len(items) == 0 {
		return 0, "", nil
	}
	epochs, seqs := make([]int64, len(items)), make([]int64, len(items))
	for k, i := range items {
		epochs[k], seqs[k] = t.batch.items[i].position.Epoch, t.batch.items[i].position.Seq
	}
	rows, err := t.conn.Query(ctx, selectEvents, t.batch.shard, epochs, seqs)
	if err != nil {
		return 0, "", fmt.Errorf("read events to compare: %w", err)
	}
	stored := map[stock.Position]*storedEntry{}
	var p stock.Position
	var op storedOp
	var atMillis int64
	var after string
	if _, err := pgx.ForEachRow(rows, []any{&p.Epoch, &p.Seq, &op.index, &op.id, &op.buyer, &op.body, &atMillis, &after}, func() error {
		s := stored[p]
		if s == nil {
			s = &storedEntry{at: atMillis, after: after}
			stored[p] = s
		}
		// The same position may have been asked for twice.
		if len(s.ops) == op.index {
			s.ops = append(s.ops, op)
		}
		return nil
	}); err != nil {
		return 0, "", fmt.Errorf("read events to compare: %w", err)
	}
	for _, i := range items {
		it := &t.batch.items[i]
		if s := stored[it.position]; s != nil && !s.same(it) {
			return i, fmt.Sprintf("the log has forked: %v stands in the ledger with other content", it.position), nil
		}
	}
	return 0, "", nil
}

type storedEntry struct {
	at    int64
	after string
	ops   []storedOp
}

type storedOp struct {
	index           int
	id, buyer, body string
}

func (s *storedEntry) same(it *item) bool {
	if it.entry == nil || s.at != it.entry.AtMillis || s.after != it.raw.After || len(s.ops) != len(it.entry.Ops) {
		return false
	}
	var body []byte
	for i := range s.ops {
		op := &it.entry.Ops[i]
		body = event.AppendBody(body[:0], op)
		if s.ops[i].id != op.ID || s.ops[i].buyer != op.Buyer || s.ops[i].body != string(body) {
			return false
		}
	}
	return true
}

// RecordOrphans keeps what closed epochs have beyond their end, and counts what was new. Entries that are not
// beyond the end of a closed epoch are passed over. Idempotent.
func (l *Ledger) RecordOrphans(ctx context.Context, shard int, raws []event.Raw) (recorded int, err error) {
	err = l.inTx(ctx, pgx.TxOptions{}, func(tx pgx.Tx) error {
		now, err := readShard(ctx, tx, shard)
		if err != nil {
			return err
		}
		ends, err := epochEnds(ctx, tx, shard, now.Epoch)
		if err != nil {
			return err
		}
		var stray []event.Raw
		for _, raw := range raws {
			p, err := stock.ParsePosition(raw.ID)
			if err == nil && p.Epoch < now.Epoch && p.Seq > ends[p.Epoch] {
				stray = append(stray, raw)
			}
		}
		recorded, err = insertOrphans(ctx, tx, shard, stray)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("record orphans of shard %d: %w", shard, err)
	}
	return recorded, nil
}

// Accounted says of the closed epochs of a shard up to which seq all is accounted for: where the epoch ended, or,
// further, its orphans as far as they are recorded without a hole. An epoch that is absent ended at 0.
func (l *Ledger) Accounted(ctx context.Context, shard int) (map[int64]int64, error) {
	rows, err := l.pool.Query(ctx, `
		select epoch, case when count(o.seq) = max(o.seq) - coalesce(e.last_seq, 0) then max(o.seq) else coalesce(e.last_seq, 0) end
		from (select epoch, last_seq from epoch_end where shard = $1) e
		    full join (select epoch, seq from orphan where shard = $1) o using (epoch)
		where o.seq is null or o.seq > coalesce(e.last_seq, 0)
		group by epoch, e.last_seq`, shard)
	if err != nil {
		return nil, fmt.Errorf("read what is accounted for of shard %d: %w", shard, err)
	}
	accounted := map[int64]int64{}
	var epoch, upto int64
	if _, err := pgx.ForEachRow(rows, []any{&epoch, &upto}, func() error {
		accounted[epoch] = upto
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read what is accounted for of shard %d: %w", shard, err)
	}
	return accounted, nil
}

func insertOrphans(ctx context.Context, db querier, shard int, raws []event.Raw) (int, error) {
	n := len(raws)
	epochs, seqs, texts := make([]int64, n), make([]int64, n), make([]string, n)
	for i, raw := range raws {
		p, err := stock.ParsePosition(raw.ID)
		if err != nil {
			return 0, err
		}
		epochs[i], seqs[i], texts[i] = p.Epoch, p.Seq, rawJSON(raw)
	}
	rows, err := db.Query(ctx, `insert into orphan (shard, epoch, seq, raw)
select $1, v.epoch, v.seq, v.raw::jsonb from unnest($2::bigint[], $3::bigint[], $4::text[]) v(epoch, seq, raw)
on conflict do nothing returning 1`, shard, epochs, seqs, texts)
	if err != nil {
		return 0, fmt.Errorf("record orphans: %w", err)
	}
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("record orphans: %w", err)
	}
	return len(recorded), nil
}

// rawJSON is an entry as orphan and dead_event keep it. jsonb takes neither invalid UTF-8 nor NUL, and an
// unreadable entry may hold anything: such bytes are written as \xNN inside the text.
func rawJSON(raw event.Raw) string {
	text, err := json.Marshal(map[string]string{
		"id": printable(raw.ID), "v": printable(raw.Version), "t": printable(raw.At), "o": printable(raw.Ops), "a": printable(raw.After),
	})
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}
