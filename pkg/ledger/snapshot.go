package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// Bounds of what a snapshot holds in hand.
const (
	pageSize  = takeover.SnapshotPage // records of a page
	pageBytes = 1 << 20               // of their text: an order may have 1,500 lines
	fetchRows = 1000                  // lines of orders, or whatever else is read, of one fetch
)

// readerPatience is how long Postgres lets a reading transaction idle, in milliseconds: its owner talks to
// Redis between two questions. It holds no lock that anybody waits for.
const readerPatience = 60_000

// beginReading starts a REPEATABLE READ read-only transaction: all its questions see one moment.
func (l *Ledger) beginReading(ctx context.Context) (*pgxpool.Tx, error) {
	options := l.bounded(pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	begin := cmp.Or(options.BeginQuery, "begin isolation level repeatable read read only")
	options.BeginQuery = begin + fmt.Sprintf("; set local idle_in_transaction_session_timeout = %d", readerPatience)
	tx, err := l.pool.BeginTx(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("begin a reading transaction: %w", err)
	}
	return tx.(*pgxpool.Tx), nil
}

func endReading(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return ignoreClosed(tx.Rollback(ctx))
}

// A Snapshot is what takeover must put into Redis (step 5), all of one moment at which the shard stands at the
// beginning of the claimed epoch. Not safe for concurrent use; Close it.
type Snapshot struct {
	tx    *pgxpool.Tx
	shard int
	fence time.Time // what last moved at or before it is forgotten
}

// Snapshot begins one. ErrStaleClaim unless the claim is the newest and the shard is rebuilding in its epoch
// with nothing applied.
func (l *Ledger) Snapshot(ctx context.Context, c Claim) (*Snapshot, error) {
	tx, err := l.beginReading(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{tx: tx, shard: c.Shard}
	if err := s.begin(ctx, c); err != nil {
		return nil, errors.Join(fmt.Errorf("begin a snapshot of shard %d: %w", c.Shard, err), endReading(ctx, tx))
	}
	return s, nil
}

func (s *Snapshot) begin(ctx context.Context, c Claim) error {
	for _, setting := range []string{sortInMemory, wholeCursors} {
		if _, err := s.tx.Exec(ctx, setting); err != nil {
			return err
		}
	}
	err := s.tx.QueryRow(ctx, `select f.fence from shard s join forgetting f on f.shard = s.number where number = $1 and claim = $2 and claim_nonce = $3
    and epoch = $2 and applied = 0 and state = 'rebuilding'`, c.Shard, c.Epoch, c.Nonce).Scan(&s.fence)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrStaleClaim
	}
	return err
}

// sortInMemory: the shard is closed while all its records are read, joined and sorted, once; the 4 MB that a session
// has by default would send them through files.
const sortInMemory = `set local work_mem = '128MB'`

// wholeCursors: what is read through a cursor is read to its end, so it is planned as a plain question would be.
const wholeCursors = `set local cursor_tuple_fraction = 1`

// Close ends the snapshot's transaction; once is enough.
func (s *Snapshot) Close() error { return endReading(context.Background(), s.tx) }

// A cursor is the rows of one question, fetched a page at a time. Between two of them the transaction idles: who reads
// may do something else meanwhile, and if he takes longer than readerPatience or stands still for good, Postgres ends
// the transaction and no snapshot stays behind. (A question whose rows are left unread is nothing that Postgres ends.)
type cursor struct {
	pgx.Rows // the page in hand

	ctx   context.Context
	tx    pgx.Tx
	fetch string
	got   int // rows of the page in hand
}

// open asks a question through a cursor of the given name. The rows are for one reader, to the end.
func (s *Snapshot) open(ctx context.Context, name, question string, args ...any) (pgx.Rows, error) {
	if _, err := s.tx.Exec(ctx, `declare `+name+` no scroll cursor for `+question, args...); err != nil {
		return nil, err
	}
	c := &cursor{ctx: ctx, tx: s.tx, fetch: fmt.Sprintf(`fetch %d from %s`, fetchRows, name)}
	return c, c.turn()
}

func (c *cursor) turn() (err error) {
	c.got = 0
	c.Rows, err = c.tx.Query(c.ctx, c.fetch)
	return err
}

func (c *cursor) Next() bool {
	for !c.Rows.Next() {
		if c.Rows.Err() != nil || c.got == 0 {
			return false // broken, or a page without rows: the end
		}
		if c.turn() != nil {
			return false // the rows of a question that failed say why
		}
	}
	c.got++
	return true
}

const selectFields = `select sku, available, held, committed, opens_ms, frozen, closed, buyer_limit from stock where shard = $1`

func eachField(ctx context.Context, db querier, shard int, each func(sku int64, f event.Field) error) error {
	rows, err := db.Query(ctx, selectFields, shard)
	if err != nil {
		return err
	}
	return scanFields(rows, each)
}

func scanFields(rows pgx.Rows, each func(sku int64, f event.Field) error) error {
	var sku int64
	var f event.Field
	_, err := pgx.ForEachRow(rows, []any{&sku, &f.Available, &f.Held, &f.Committed, &f.OpensMillis, &f.Frozen, &f.Closed, &f.Limit}, func() error {
		return each(sku, f)
	})
	return err
}

// Stock gives the fields of all SKUs, in pages of at most 1,000. An error of page ends it and comes back.
func (s *Snapshot) Stock(ctx context.Context, page func(map[int64]event.Field) error) error {
	fields := map[int64]event.Field{}
	err := eachField(ctx, s.tx, s.shard, func(sku int64, f event.Field) error {
		fields[sku] = f
		if len(fields) < pageSize {
			return nil
		}
		full := fields
		fields = map[int64]event.Field{}
		return page(full)
	})
	if err == nil && len(fields) > 0 {
		err = page(fields)
	}
	if err != nil {
		return fmt.Errorf("read the stock of shard %d: %w", s.shard, err)
	}
	return nil
}

// insideRetention picks what Redis still knows: what is held, and what moved within the retention ($2, in
// milliseconds); of each order its newest attempt only.
const insideRetention = `r.shard = $1 and (r.state = 'held' or r.moved > now() - $2 * interval '1 ms')
    and not exists (select 1 from reservation n where n.shard = $1 and n.order_id = r.order_id and n.attempt > r.attempt)`

// selectKnown goes by the fence ($2): what last moved at or before it may have been dropped, and a document of such an
// order says that no record is of it. A record that a document waits for is kept.
const selectKnown = `select r.order_id, r.attempt, r.asked, r.state, r.buyer, r.expires_ms, r.epoch, r.seq, r.idx, true, l.sku, l.asked, l.now, l.fulfilled
from (
    select * from reservation where shard = $1 and (state = 'held' or moved > $2)
    union all
    select x.* from (select distinct order_id, order_key from stock_document where shard = $1 and state = 'written' and order_asked > 0) w,
        lateral (select * from reservation where shard = $1 and order_id = w.order_id and attempt = w.order_key
            and state <> 'held' and moved <= $2 offset 0) x) r
    join reservation_line l on l.shard = r.shard and l.order_id = r.order_id and l.attempt = r.attempt
where not exists (select 1 from reservation n where n.shard = $1 and n.order_id = r.order_id and n.attempt > r.attempt)
order by r.order_id, l.sku`

// selectSettled are the documents whose records Redis keeps. Never those still written: their record must be
// absent, or the movement that is on its way would be taken for a repeat. [model]
const selectSettled = `select id, state, epoch, seq, idx, lines from stock_document
where shard = $1 and state <> 'written' and settled > $2 order by id`

// Records gives the records of orders inside the retention and then of documents, by their id in Redis and in the order
// of it, in pages of at most 1,000. An error of page ends it and comes back. A page is only good until page returns.
func (s *Snapshot) Records(ctx context.Context, page func([]takeover.Record) error) error {
	p := recordPages{page: page}
	rows, err := s.open(ctx, "records", selectKnown, s.shard, s.fence)
	if err == nil {
		err = eachOrder(rows, s.shard, func(r *stock.Reservation) error { return p.add(r.ID, event.FormatRecord(r)) })
	}
	if err == nil {
		err = s.documents(ctx, &p)
	}
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		return fmt.Errorf("read the records of shard %d: %w", s.shard, err)
	}
	return nil
}

type recordPages struct {
	page func([]takeover.Record) error
	next []takeover.Record
	size int // bytes
}

func (p *recordPages) add(id, text string) error {
	p.next, p.size = append(p.next, takeover.Record{ID: id, Text: text}), p.size+len(id)+len(text)
	if len(p.next) < pageSize && p.size < pageBytes {
		return nil
	}
	return p.flush()
}

func (p *recordPages) flush() error {
	if len(p.next) == 0 {
		return nil
	}
	err := p.page(p.next)
	p.next, p.size = p.next[:0], 0
	return err
}

// eachOrder gathers rows of the form of selectNewest into orders. The order given to each is its own to keep.
func eachOrder(rows pgx.Rows, shard int, each func(*stock.Reservation) error) error {
	var recent bool
	return gather(rows, &recent, shard, func() {}, each)
}

// gather makes one order of the rows that are neighbours with one id. begins is called at the first row of each, while
// told, where its tenth column goes, is that of this order; each has it complete.
func gather(rows pgx.Rows, told any, shard int, begins func(), each func(*stock.Reservation) error) error {
	var r *stock.Reservation
	err := eachLine(rows, told, func(id string, _ int64, row *stock.Reservation, line stock.Line) error {
		if r == nil || r.ID != id {
			if r != nil {
				if err := each(r); err != nil {
					return err
				}
			}
			made := *row
			made.Receipt.Shard = shard
			r = &made
			begins()
		}
		r.Lines = append(r.Lines, line)
		return nil
	})
	if err != nil || r == nil {
		return err
	}
	return each(r)
}

// A movedLine is a line of a document as stock_document keeps it.
type movedLine struct {
	SKU   int64 `json:"sku"`
	Units int64 `json:"units"`
}

// settledRecord is what Redis keeps of a document, under the id that it has there.
func settledRecord(id, state string, at stock.Receipt, moved []movedLine) stock.Reservation {
	r := stock.Reservation{ID: stock.DocumentID(id), State: stock.Done, Receipt: at}
	if state == documentRefused {
		r.State = stock.Refused
	}
	slices.SortFunc(moved, func(a, b movedLine) int { return cmp.Compare(a.SKU, b.SKU) })
	for _, m := range moved {
		r.Lines = append(r.Lines, stock.Line{SKU: m.SKU, Asked: m.Units, Now: m.Units})
	}
	return r
}

func (s *Snapshot) documents(ctx context.Context, p *recordPages) error {
	rows, err := s.open(ctx, "settled", selectSettled, s.shard, s.fence)
	if err != nil {
		return err
	}
	var id, state string
	var at stock.Receipt
	var moved []movedLine
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &at.Epoch, &at.Seq, &at.Index, &moved}, func() error {
		r := settledRecord(id, state, at, moved)
		moved = nil
		return p.add(r.ID, event.FormatRecord(&r))
	})
	return err
}
