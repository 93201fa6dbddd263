package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// tables are what a batch writes: the columns, and which rows belong to a span of entries. COPY cannot change a row,
// so the reference of a mixed load writes an order once, as it stands in the end, in the batch that made it; each
// operation has its event in its own batch, as with us.
var tables = []struct{ name, columns, rows string }{
	{"event", "shard, epoch, seq, idx, id, buyer, body, at_ms, after_image",
		`select shard, epoch, seq, idx, id, buyer, body, at_ms, after_image
		from event where shard = 0 and epoch = %d and seq between %d and %d order by seq, idx`},
	{"reservation", "shard, order_id, attempt, asked, state, buyer, expires_ms, due, epoch, seq, idx, moved",
		`select r.shard, r.order_id, r.attempt, r.asked, r.state, r.buyer, r.expires_ms, r.due, r.epoch, r.seq, r.idx, r.moved
		from event e join reservation r on r.shard = e.shard and r.order_id = e.id
		where e.shard = 0 and e.epoch = %d and e.seq between %d and %d and starts_with(e.body, 'R') order by e.seq, e.idx`},
	{"reservation_line", "shard, order_id, attempt, sku, asked, now",
		`select l.shard, l.order_id, l.attempt, l.sku, l.asked, l.now
		from event e join reservation_line l on l.shard = e.shard and l.order_id = e.id
		where e.shard = 0 and e.epoch = %d and e.seq between %d and %d and starts_with(e.body, 'R') order by e.seq, e.idx`},
}

// A batch is the rows of one transaction in COPY's binary form, by table: what is timed encodes nothing.
type batch [][]byte

// copyRows reads back what the ledger wrote and writes it with COPY into a database of its own. What the ledger had
// before the log is written first and not timed. orders is how many there are in the end.
func (s *shop) copyRows(ctx context.Context, before stock.Position, raws []event.Raw, orders int) (seconds float64, err error) {
	parts, err := spans(raws)
	if err != nil {
		return 0, err
	}
	name := s.name + "_copy"
	url, err := s.bench.postgres.CloneDatabase(ctx, template, name)
	if err != nil {
		return 0, err
	}
	defer s.bench.drop(name)
	from, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close(context.WithoutCancel(ctx)) }()
	// Without statistics the joins of a span would read whole tables.
	if _, err := from.Exec(ctx, "analyze event, reservation, reservation_line"); err != nil {
		return 0, err
	}
	to, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = to.Close(context.WithoutCancel(ctx)) }()

	earlier, err := readBatch(ctx, from, span{before.Epoch, 0, before.Seq})
	if err != nil {
		return 0, err
	}
	var batches []batch
	for _, part := range parts {
		read, err := readBatch(ctx, from, part)
		if err != nil {
			return 0, err
		}
		batches = append(batches, read)
	}
	if err := earlier.copy(ctx, to); err != nil {
		return 0, err
	}
	seconds, err = timed(func() error { return copyAll(ctx, to, batches) })
	if err != nil {
		return 0, err
	}
	return seconds, sameCounts(ctx, from, to, orders)
}

func copyAll(ctx context.Context, to *pgx.Conn, batches []batch) error {
	for _, b := range batches {
		if err := b.copy(ctx, to); err != nil {
			return err
		}
	}
	return nil
}

func readBatch(ctx context.Context, from *pgx.Conn, part span) (batch, error) {
	b := make(batch, len(tables))
	for i, table := range tables {
		var rows bytes.Buffer
		query := "copy (" + fmt.Sprintf(table.rows, part.epoch, part.first, part.last) + ") to stdout (format binary)"
		if _, err := from.PgConn().CopyTo(ctx, &rows, query); err != nil {
			return nil, fmt.Errorf("read %s: %w", table.name, err)
		}
		b[i] = rows.Bytes()
	}
	return b, nil
}

// copy writes one batch as one transaction.
func (b batch) copy(ctx context.Context, to *pgx.Conn) error {
	tx, err := to.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for i, table := range tables {
		command := fmt.Sprintf("copy %s (%s) from stdin (format binary)", table.name, table.columns)
		if _, err := to.PgConn().CopyFrom(ctx, bytes.NewReader(b[i]), command); err != nil {
			return fmt.Errorf("copy %s: %w", table.name, err)
		}
	}
	return tx.Commit(ctx)
}

// sameCounts makes sure that the reference wrote as many rows as the ledger: else its time says nothing.
func sameCounts(ctx context.Context, from, to *pgx.Conn, orders int) error {
	for _, table := range tables {
		var have, want int
		count := "select count(*) from " + table.name
		if err := from.QueryRow(ctx, count).Scan(&want); err != nil {
			return err
		}
		if err := to.QueryRow(ctx, count).Scan(&have); err != nil {
			return err
		}
		if table.name == "reservation" && want != orders || have != want {
			return wrong("the ledger wrote %d rows of %s for %d orders, raw COPY %d", want, table.name, orders, have)
		}
	}
	return nil
}
