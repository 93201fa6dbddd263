package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// entriesPerBatch is what one transaction of either side takes: about 20 entries of up to 128 orders.
const entriesPerBatch = 20

// benchConsumer: the ledger applies a log of one-line reserves; raw COPY writes the same rows into the same
// tables with the same indexes, batch by batch, on one connection with synchronous_commit on.
func benchConsumer(ctx context.Context, stack *sandbox.Stack, o options) error {
	server, err := stack.StartRedis(ctx, sandbox.RedisOptions{MaxMemory: "6gb", NoAOF: true})
	if err != nil {
		return err
	}
	postgres, err := stack.StartPostgres(ctx, sandbox.PostgresOptions{SharedBuffers: "512MB", Settings: map[string]string{"max_wal_size": "8GB", "checkpoint_timeout": "30min"}})
	if err != nil {
		return err
	}
	defer func() { _ = postgres.Close(); _ = server.Close() }()
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL(), Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()

	fmt.Printf("consumer, one-line reserves, %d orders, %d entries a transaction, %d rounds; reference: raw COPY of the same rows\n", o.orders, entriesPerBatch, o.rounds)
	var rate, reference figure
	for round := range o.rounds {
		if err := rdb.FlushAll(ctx).Err(); err != nil {
			return err
		}
		name := "consumer" + strconv.Itoa(round)
		s, err := openShop(ctx, postgres, rdb, name, 1)
		if err != nil {
			return err
		}
		r, c, err := consumerRound(ctx, postgres, s, name, o.orders)
		s.close()
		if err != nil {
			return err
		}
		rate, reference = append(rate, r), append(reference, c)
	}
	fmt.Printf("%12s  %12s  %s\n%12.0f  %12.0f  %s\n", "orders/s", "COPY/s", "ratio", rate.median(), reference.median(), rate.over(reference))
	return nil
}

func consumerRound(ctx context.Context, postgres *sandbox.Postgres, s *shop, name string, orders int) (rate, reference float64, err error) {
	row, err := s.ledger.Shard(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	if err := reserveAll(ctx, s.desk, 256, orders); err != nil {
		return 0, 0, err
	}
	raws, err := s.readLog(ctx, row.Position())
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	for at := 0; at < len(raws); at += entriesPerBatch {
		if _, err := s.ledger.Apply(ctx, 0, raws[at:min(at+entriesPerBatch, len(raws))]); err != nil {
			return 0, 0, err
		}
	}
	rate = float64(orders) / since(began)
	if err := s.check(ctx, int64(orders)); err != nil {
		return 0, 0, err
	}
	took, err := copyRows(ctx, postgres, name, raws, orders)
	return rate, float64(orders) / took, err
}

// copyRows reads back what the ledger wrote and writes it with COPY into a database of its own.
func copyRows(ctx context.Context, postgres *sandbox.Postgres, name string, raws []event.Raw, orders int) (seconds float64, err error) {
	from, err := pgx.Connect(ctx, postgres.URL(name))
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close(ctx) }()
	batches, err := readBatches(ctx, from, raws)
	if err != nil {
		return 0, err
	}
	url, err := postgres.CreateDatabase(ctx, name+"copy")
	if err != nil {
		return 0, err
	}
	if err := migrations.Up(ctx, url); err != nil {
		return 0, err
	}
	to, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = to.Close(ctx) }()
	began := time.Now()
	for _, b := range batches {
		if err := b.copy(ctx, to); err != nil {
			return 0, err
		}
	}
	seconds = since(began)
	var n int
	if err := to.QueryRow(ctx, "select count(*) from reservation").Scan(&n); err != nil || n != orders {
		return 0, fmt.Errorf("COPY wrote %d of %d orders: %w", n, orders, err)
	}
	return seconds, nil
}

// tables are what a batch of reserves writes: the columns, and which rows of a range of entries.
var tables = []struct{ name, columns, where string }{
	{"event", "shard, epoch, seq, idx, id, buyer, body, at_ms, after_image", "from event where epoch = %d and seq between %d and %d order by seq, idx"},
	{"reservation", "shard, order_id, attempt, asked, state, buyer, expires_ms, due, epoch, seq, idx, moved", "from reservation where epoch = %d and seq between %d and %d order by seq, idx"},
	{"reservation_line", "shard, order_id, attempt, sku, asked, now", `from (select l.*, r.seq, r.idx from reservation r join reservation_line l using (shard, order_id, attempt)
		where r.epoch = %d and r.seq between %d and %d) x order by seq, idx`},
}

// A batch is the rows of one transaction in COPY's binary form, by table: what is timed encodes nothing.
type batch [][]byte

func (b batch) copy(ctx context.Context, to *pgx.Conn) error {
	tx, err := to.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for i, table := range tables {
		command := fmt.Sprintf("copy %s (%s) from stdin (format binary)", table.name, table.columns)
		if _, err := to.PgConn().CopyFrom(ctx, bytes.NewReader(b[i]), command); err != nil {
			return fmt.Errorf("copy %s: %w", table.name, err)
		}
	}
	return tx.Commit(ctx)
}

func readBatches(ctx context.Context, from *pgx.Conn, raws []event.Raw) ([]batch, error) {
	if _, err := from.Exec(ctx, "create index on reservation (epoch, seq)"); err != nil {
		return nil, err
	}
	var batches []batch
	for at := 0; at < len(raws); at += entriesPerBatch {
		first, err := stock.ParsePosition(raws[at].ID)
		if err != nil {
			return nil, err
		}
		last := first.Seq + int64(min(entriesPerBatch, len(raws)-at)) - 1
		b := make(batch, len(tables))
		for i, table := range tables {
			var rows bytes.Buffer
			query := fmt.Sprintf("copy (select %s %s) to stdout (format binary)", table.columns, fmt.Sprintf(table.where, first.Epoch, first.Seq, last))
			if _, err := from.PgConn().CopyTo(ctx, &rows, query); err != nil {
				return nil, fmt.Errorf("read %s: %w", table.name, err)
			}
			b[i] = rows.Bytes()
		}
		batches = append(batches, b)
	}
	return batches, nil
}
