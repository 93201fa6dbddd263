package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var (
	_ audit.Ledger = (*Auditor)(nil)
	_ audit.View   = (*auditView)(nil)
)

// DefaultGrace is how long a hold may stay beyond its time before an audit calls it overdue.
const DefaultGrace = 30 * time.Second

// An Auditor is the ledger as an audit sees it. It only reads.
type Auditor struct {
	ledger *Ledger
	opener *Opener
	grace  time.Duration
}

// NewAuditor binds a ledger; a grace of 0 is DefaultGrace.
func NewAuditor(l *Ledger, grace time.Duration) *Auditor {
	if grace <= 0 {
		grace = DefaultGrace
	}
	return &Auditor{ledger: l, opener: NewOpener(l), grace: grace}
}

// ID is the ledger's own id.
func (a *Auditor) ID() string { return a.ledger.id }

// Shard reads one row on the primary.
func (a *Auditor) Shard(ctx context.Context, number int) (takeover.Shard, error) {
	return a.opener.Shard(ctx, number)
}

// View opens a snapshot with a page of orders and documents after an id. What it needs for sure it asks at once: a sweep
// opens one for every thousand orders, and beside a shop that sells each question waits for its turn.
func (a *Auditor) View(ctx context.Context, number int, after string, limit int) (audit.View, error) {
	tx, err := a.ledger.beginReading(ctx)
	if err != nil {
		return nil, err
	}
	v := &auditView{View: &View{tx: tx, shard: Shard{Number: number}, retention: a.ledger.retention.Milliseconds()}, grace: a.grace}
	if err := v.fill(ctx, after, limit); err != nil {
		return nil, errors.Join(fmt.Errorf("read shard %d for an audit: %w", number, err), endReading(ctx, tx))
	}
	return v, nil
}

// An auditView adds to a View what only audits ask.
type auditView struct {
	*View
	grace    time.Duration
	snapshot audit.Snapshot
}

func (v *auditView) Snapshot() audit.Snapshot { return v.snapshot }

const (
	selectDoubts = `select sku, doubt from stock where shard = $1 and doubt <> ''`

	// selectLast is the entry at the ledger's position, operation by operation.
	selectLast = `select e.id, e.buyer, e.body, e.at_ms, e.after_image from shard s,
    lateral (select * from event where shard = $1 and epoch = s.epoch and seq = s.applied offset 0) e
where s.number = $1 order by e.idx`
)

func (v *auditView) fill(ctx context.Context, after string, limit int) error {
	s := &v.snapshot
	s.Stock, s.Doubt, s.Orders = map[int64]event.Field{}, map[int64]string{}, map[string]audit.Order{}
	s.Retention = time.Duration(v.retention) * time.Millisecond
	number := v.shard.Number
	var now time.Time
	var queue pgx.Batch
	queue.Queue(selectShard+`where number = $1`, number).Query(func(rows pgx.Rows) (err error) {
		v.shard, err = oneShard(rows)
		return err
	})
	queue.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	queue.Queue(selectFields, number).Query(func(rows pgx.Rows) error {
		return scanFields(rows, func(sku int64, f event.Field) error {
			s.Stock[sku] = f
			return nil
		})
	})
	queue.Queue(selectDoubts, number).Query(func(rows pgx.Rows) error {
		var sku int64
		var doubt string
		_, err := pgx.ForEachRow(rows, []any{&sku, &doubt}, func() error {
			s.Doubt[sku] = doubt
			return nil
		})
		return err
	})
	queue.Queue(selectLast, number).Query(func(rows pgx.Rows) (err error) {
		s.Last, err = v.last(rows)
		return err
	})
	ofOrders := !strings.HasPrefix(after, "~") // documents come after them: "~" sorts behind every character of an order's id
	if ofOrders {
		v.queuePage(&queue, after, limit, func(r *stock.Reservation, moved time.Time) {
			s.Orders[r.ID] = audit.Order{Reservation: *r, Moved: moved}
			s.Next = r.ID
		})
	}
	if err := v.tx.SendBatch(ctx, &queue).Close(); err != nil {
		return err
	}
	s.Shard = v.shard.forTakeover()
	s.Shard.Now = now
	if len(s.Orders) == limit {
		return nil
	}
	return v.rest(ctx, after, limit-len(s.Orders))
}

// last puts together the entry at the ledger's position from its event rows.
func (v *auditView) last(rows pgx.Rows) (event.Raw, error) {
	var id, buyer, body, image, after string
	var at int64
	var ops []stock.Operation
	_, err := pgx.ForEachRow(rows, []any{&id, &buyer, &body, &at, &image}, func() error {
		op, err := event.ParseBody(body)
		op.ID, op.Buyer = id, buyer
		ops = append(ops, op)
		after += image // stands with the first operation only
		return err
	})
	if err != nil || len(ops) == 0 {
		return event.Raw{}, err
	}
	return event.Raw{
		ID: v.shard.Position().String(), Version: event.Version, At: fmt.Sprint(at),
		Ops: string(event.AppendOperations(nil, ops)), After: after,
	}, nil
}

// rest fills the page with documents.
func (v *auditView) rest(ctx context.Context, after string, rest int) error {
	documents, err := v.documents(ctx, `d.settled > now() - $2 * interval '1 ms' and '~' || d.id > $3 collate "C"
order by d.id limit $4`, v.retention, after, rest)
	if err != nil {
		return err
	}
	s := &v.snapshot
	s.Next = ""
	for id, d := range documents {
		s.Orders[id] = d
		s.Next = max(s.Next, id)
	}
	if len(documents) < rest {
		s.Next = ""
	}
	return nil
}

// Bought is asked of the ledger only where something has a limit.
func (v *auditView) Bought(ctx context.Context, after event.BuyerKey, limit int) (map[event.BuyerKey]int64, event.BuyerKey, error) {
	for _, field := range v.snapshot.Stock {
		if field.Limit > 0 {
			return v.View.Bought(ctx, after, limit)
		}
	}
	return map[event.BuyerKey]int64{}, event.BuyerKey{}, nil
}

// documents are settled ones, under the id that they have in Redis; the condition continues a where clause.
func (v *auditView) documents(ctx context.Context, condition string, args ...any) (map[string]audit.Order, error) {
	rows, err := v.tx.Query(ctx, `select d.id, d.state, d.epoch, d.seq, d.idx, d.lines, d.settled from stock_document d
where d.shard = $1 and d.state <> 'written' and `+condition, append([]any{v.shard.Number}, args...)...)
	if err != nil {
		return nil, err
	}
	found := map[string]audit.Order{}
	var id, state string
	var at stock.Receipt
	var moved []movedLine
	var settled time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &at.Epoch, &at.Seq, &at.Index, &moved, &settled}, func() error {
		at.Shard = v.shard.Number
		r := settledRecord(id, state, at, moved)
		moved = nil
		found[r.ID] = audit.Order{Reservation: r, Moved: settled}
		return nil
	})
	return found, err
}

// Orders are the newest attempts of orders and settled documents, whatever their age.
func (v *auditView) Orders(ctx context.Context, ids []string) (map[string]audit.Order, error) {
	var orders, papers []string
	for _, id := range ids {
		if paper, is := strings.CutPrefix(id, "~"); is {
			papers = append(papers, paper)
		} else {
			orders = append(orders, id)
		}
	}
	found := make(map[string]audit.Order, len(ids))
	if len(papers) > 0 {
		documents, err := v.documents(ctx, `d.id = any($2)`, papers)
		if err != nil {
			return nil, fmt.Errorf("read %d documents: %w", len(papers), err)
		}
		maps.Copy(found, documents)
	}
	if len(orders) > 0 {
		err := v.dated(ctx, orders, func(r *stock.Reservation, moved time.Time) { found[r.ID] = audit.Order{Reservation: *r, Moved: moved} })
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Invariants are the rules that do not hold within the ledger.
func (v *auditView) Invariants(ctx context.Context) ([]audit.Broken, error) {
	violations, err := v.View.Invariants(ctx, v.grace)
	if err != nil {
		return nil, err
	}
	classes := map[string]audit.Class{RuleOverdue: audit.Overdue, RuleDocuments: audit.Document}
	broken := make([]audit.Broken, len(violations))
	for i, x := range violations {
		broken[i] = audit.Broken{Class: cmp.Or(classes[x.Rule], audit.Invariant), Rule: x.Rule, SKU: x.SKU, Text: x.String()}
		if x.Rule != RuleEvents && x.Rule != RuleBought {
			broken[i].Order = x.ID
		}
	}
	return broken, nil
}
