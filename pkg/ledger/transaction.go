package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const rollbackTimeout = 5 * time.Second

// one is what a single transaction did.
type one struct {
	Applied
	more bool  // entries are left that the next transaction may take
	stop error // *GapError or *AheadError
}

// errShort means that an update found fewer rows than the fold had read: looked at once more on a new
// snapshot before it counts as poison.
var errShort = errors.New("an update found fewer rows than it should")

// applyOnce is one transaction of Apply. In the usual case it is: one round trip that locks the shard and
// reads what the fold needs, one for each COPY, one for all updates, and the commit.
func (l *Ledger) applyOnce(ctx context.Context, b *batch) (one, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return one{}, err
	}
	defer conn.Release() // destroys a connection that is still inside a transaction
	t := &transaction{ledger: l, conn: conn, batch: b}
	done, err := t.run(ctx)
	if err != nil {
		t.rollback(ctx)
		return one{}, err
	}
	return done, nil
}

// A transaction applies one prefix of a batch.
type transaction struct {
	ledger *Ledger
	conn   *pgxpool.Conn
	batch  *batch

	have   stock.Position // when the shard was locked
	now    int64          // Postgres' clock, microseconds since 1970
	fold   *fold
	orders []string // asked for in begin, ascending
	fresh  []int    // indexes of the items to fold, contiguous after have
	known  []int    // indexes of the items at or before the ledger's position, to compare
	stop   error    // why nothing after fresh can be taken
	more   bool     // or that it can, in another transaction
}

func (t *transaction) run(ctx context.Context) (one, error) {
	if err := t.begin(ctx); err != nil {
		return one{}, err
	}
	if err := t.sort(); err != nil {
		return one{}, err
	}
	done := one{more: t.more || t.batch.retreat < len(t.batch.items), stop: t.stop}
	orphans, err := t.compare(ctx)
	if err != nil {
		return one{}, err
	}
	done.Position, done.Orphans = t.have, orphans
	if len(t.fresh) > 0 {
		if err := t.foldFresh(ctx); err != nil {
			return one{}, err
		}
		done.Entries, done.Ops, done.Mismatches = len(t.fresh), t.fold.ops, t.fold.mismatches
		done.Position.Seq += int64(len(t.fresh))
		if err := t.write(ctx, done.Position); err != nil {
			return one{}, t.blame(err)
		}
	}
	failpoint.Hit(failpoint.LedgerInside)
	return done, t.commit(ctx)
}

// lockShard needs no FOR UPDATE: this lock keeps other appliers out just as well, and lets the foreign keys
// of new SKUs through.
const lockShard = `select epoch, applied, state, reason, (extract(epoch from clock_timestamp()) * 1000000)::bigint
from shard where number = $1 for no key update`

const selectStock = `select sku, available, held, committed, opens_ms, frozen, closed, buyer_limit, doubt
from stock where shard = $1 and sku = any($2::bigint[])`

// selectNewest reads the newest attempt of orders, one row a line. Each order is found by its index, whatever
// the statistics say.
const selectNewest = newestOf + `x.moved > clock_timestamp() - $3 * interval '1 ms'` + andLines

const (
	newestOf = `select v.id, x.attempt, x.asked, x.state, x.buyer, x.expires_ms, x.epoch, x.seq, x.idx, `
	andLines = `, l.sku, l.asked, l.now, l.fulfilled
from unnest($2::text[]) v(id),
    lateral (select * from reservation r where r.shard = $1 and r.order_id = v.id order by r.attempt desc limit 1) x,
    lateral (select * from reservation_line l where l.shard = $1 and l.order_id = v.id and l.attempt = x.attempt order by l.sku offset 0) l`
)

// begin locks the shard and reads whatever the batch touches, in one round trip.
func (t *transaction) begin(ctx context.Context) error {
	b := t.batch
	var state, reason string
	found := false
	t.orders = b.moving
	if b.whole {
		t.orders = compacted(append(slices.Clone(b.makes()), b.moving...))
	}
	t.fold = newFold(b.shard, b.ops)
	var queue pgx.Batch
	queue.Queue("begin")
	t.ledger.queueBounds(&queue)
	queue.Queue(lockShard, b.shard).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&t.have.Epoch, &t.have.Seq, &state, &reason, &t.now)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("shard %d: %w", b.shard, ErrUnknownShard)
		}
		return err
	})
	if len(b.skus) > 0 {
		queue.Queue(selectStock, b.shard, b.skus).Query(t.fold.loadStock)
	}
	if len(t.orders) > 0 {
		queue.Queue(selectNewest, b.shard, t.orders, t.ledger.retention.Milliseconds()).Query(t.fold.loadOrders)
	}
	if len(b.papers) > 0 {
		queue.Queue(selectPapers, b.papers).Query(t.fold.loadPapers)
	}
	if err := t.conn.SendBatch(ctx, &queue).Close(); err != nil {
		return err
	}
	if found && state == StateHalted {
		return &HaltedError{Shard: b.shard, Reason: reason}
	}
	t.fold.at(t.now)
	return nil
}

// sort tells the entries apart: known, to be folded, and what has to wait.
func (t *transaction) sort() error {
	next := t.have.Seq + 1
	ops := 0
	for i := range t.batch.items[:t.batch.retreat] {
		it := &t.batch.items[i]
		p := it.position
		switch {
		case p != nowhere && (t.have.Epoch == 0 || p.Epoch > t.have.Epoch):
			t.stop = &AheadError{Shard: t.batch.shard, Have: t.reached(), Next: it.raw.ID}
			return nil
		case p.Epoch < t.have.Epoch || p.Epoch == t.have.Epoch && p.Seq <= t.have.Seq:
			t.known = append(t.known, i)
		case p == nowhere, p.Seq == next && it.err != nil:
			return t.poison(i, it.err.Error())
		case p.Seq == next:
			if ops += len(it.entry.Ops); ops > maxApplyOps && len(t.fresh) > 0 {
				t.more = true
				return nil
			}
			t.fresh = append(t.fresh, i)
			next++
		case p.Seq < next:
			if it.raw != t.batch.items[i-1].raw {
				return t.poison(i, "the same position came with other content")
			}
		default:
			t.stop = &GapError{Shard: t.batch.shard, Have: t.reached(), Next: it.raw.ID}
			return nil
		}
	}
	return nil
}

func (t *transaction) reached() stock.Position {
	return stock.Position{Epoch: t.have.Epoch, Seq: t.have.Seq + int64(len(t.fresh))}
}

func (t *transaction) poison(at int, why string) *poisonError {
	first := at
	if len(t.fresh) > 0 {
		first = t.fresh[0]
	}
	return &poisonError{at: at, first: first, have: t.have, raw: t.batch.items[at].raw, why: why}
}

// blame turns an error that repeating does not mend into poison. Postgres does not say which entry it was, so
// all but one are tried in halves: the prefix before the bad one gets in.
func (t *transaction) blame(err error) error {
	keyTaken := isSQLState(err, uniqueViolation) && !t.batch.whole
	short := errors.Is(err, errShort) && t.batch.short
	if keyTaken || !short && !isDataError(err) {
		return err
	}
	return t.poison(t.fresh[len(t.fresh)/2], err.Error())
}

// foldFresh computes what the new entries do.
func (t *transaction) foldFresh(ctx context.Context) error {
	if t.have.Seq == 0 {
		if err := t.checkOpening(ctx); err != nil {
			return err
		}
	}
	if err := t.rebuildPapers(ctx); err != nil {
		return err
	}
	if err := t.loadMissingOrders(ctx); err != nil {
		return err
	}
	if err := t.loadOlder(ctx); err != nil {
		return err
	}
	if err := t.loadMissingStock(ctx); err != nil {
		return err
	}
	for _, i := range t.fresh {
		it := &t.batch.items[i]
		err := t.fold.add(it.entry, it.raw.After)
		var poison *event.PoisonError
		if errors.As(err, &poison) {
			return t.poison(i, poison.Error())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkOpening wants an epoch to begin with the operation that names the position which the ledger closed.
func (t *transaction) checkOpening(ctx context.Context) error {
	first := t.batch.items[t.fresh[0]].entry
	if len(first.Ops) != 1 || first.Ops[0].Kind != stock.Opened {
		return t.poison(t.fresh[0], "an epoch has to begin with the operation that opens it")
	}
	closed, err := lastClosed(ctx, t.conn, t.batch.shard, t.have.Epoch)
	if err != nil {
		return err
	}
	named := first.Ops[0].Continues
	if named == closed {
		return nil
	}
	if empty, err := closedEmpty(ctx, t.conn, t.batch.shard, named, t.have.Epoch); err != nil || empty {
		return err
	}
	return t.poison(t.fresh[0], fmt.Sprintf("it continues %v, the ledger ended at %v", named, closed))
}

// loadMissingOrders reads the orders that would have been made in the batch, if the entries that make them had
// not been applied before.
func (t *transaction) loadMissingOrders(ctx context.Context) error {
	if len(t.known) == 0 {
		return nil
	}
	fresh := make([]event.Entry, len(t.fresh))
	for k, i := range t.fresh {
		fresh[k] = *t.batch.items[i].entry
	}
	missing := slices.DeleteFunc(event.Needs(fresh), func(id string) bool {
		_, asked := slices.BinarySearch(t.orders, id)
		return asked
	})
	if len(missing) == 0 {
		return nil
	}
	rows, err := t.conn.Query(ctx, selectNewest, t.batch.shard, missing, t.ledger.retention.Milliseconds())
	if err != nil {
		return err
	}
	return t.fold.loadOrders(rows)
}

// loadMissingStock reads what the lines of loaded orders touch beyond the after-images. These list every SKU
// touched, so this finds something only where somebody tampered with the log.
func (t *transaction) loadMissingStock(ctx context.Context) error {
	missing := t.fold.missingStock(t.batch.skus)
	if len(missing) == 0 {
		return nil
	}
	rows, err := t.conn.Query(ctx, selectStock, t.batch.shard, missing)
	if err != nil {
		return err
	}
	return t.fold.loadStock(rows)
}

// commit ends the transaction. It has no deadline: a cancelled wait for a synchronous standby would make it
// visible before it is safe.
func (t *transaction) commit(ctx context.Context) error {
	tag, err := t.conn.Exec(context.WithoutCancel(ctx), "commit")
	if err != nil {
		return commitError(err)
	}
	if tag.String() != "COMMIT" {
		return fmt.Errorf("commit: Postgres answered %s", tag)
	}
	return nil
}

// commitError marks every error as of unknown outcome but those by which Postgres says that it rolled back.
func commitError(err error) error {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback) {
		return err
	}
	return fmt.Errorf("%w: %w", errCommit, err)
}

// rollback ends a transaction that failed; where even that fails, releasing the connection destroys it.
func (t *transaction) rollback(ctx context.Context) {
	if t.conn.Conn().IsClosed() || t.conn.Conn().PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "rollback")
}
