package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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

// View opens a snapshot with a page of orders and documents after an id.
func (a *Auditor) View(ctx context.Context, number int, after string, limit int) (audit.View, error) {
	view, err := a.ledger.View(ctx, number)
	if err != nil {
		return nil, err
	}
	v := &auditView{View: view, grace: a.grace}
	if err := v.fill(ctx, after, limit); err != nil {
		return nil, errors.Join(fmt.Errorf("read shard %d for an audit: %w", number, err), view.Close())
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

func (v *auditView) fill(ctx context.Context, after string, limit int) (err error) {
	s := &v.snapshot
	s.Shard = v.shard.forTakeover()
	s.Retention = time.Duration(v.retention) * time.Millisecond
	if err := v.tx.QueryRow(ctx, `select now()`).Scan(&s.Shard.Now); err != nil {
		return err
	}
	if s.Stock, err = v.Stock(ctx); err != nil {
		return err
	}
	if s.Doubt, err = v.doubts(ctx); err != nil {
		return err
	}
	if s.Last, err = v.last(ctx); err != nil {
		return err
	}
	return v.page(ctx, after, limit)
}

func (v *auditView) doubts(ctx context.Context) (map[int64]string, error) {
	doubts := map[int64]string{}
	rows, err := v.tx.Query(ctx, `select sku, doubt from stock where shard = $1 and doubt <> ''`, v.shard.Number)
	if err != nil {
		return nil, err
	}
	var sku int64
	var doubt string
	_, err = pgx.ForEachRow(rows, []any{&sku, &doubt}, func() error {
		doubts[sku] = doubt
		return nil
	})
	return doubts, err
}

// last puts together the entry at the ledger's position from its event rows.
func (v *auditView) last(ctx context.Context) (event.Raw, error) {
	if v.shard.Applied == 0 {
		return event.Raw{}, nil
	}
	rows, err := v.tx.Query(ctx, `select id, buyer, body, at_ms, after_image from event
where shard = $1 and epoch = $2 and seq = $3 order by idx`, v.shard.Number, v.shard.Epoch, v.shard.Applied)
	if err != nil {
		return event.Raw{}, err
	}
	var id, buyer, body, image, after string
	var at int64
	var ops []stock.Operation
	_, err = pgx.ForEachRow(rows, []any{&id, &buyer, &body, &at, &image}, func() error {
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

// page reads orders first and documents after them: "~" sorts behind every character of an order's id.
func (v *auditView) page(ctx context.Context, after string, limit int) error {
	s := &v.snapshot
	s.Orders = map[string]audit.Order{}
	last := ""
	if !strings.HasPrefix(after, "~") {
		orders, err := v.Page(ctx, after, limit)
		if err != nil {
			return err
		}
		ids := make([]string, len(orders))
		for i, r := range orders {
			ids[i] = r.ID
		}
		moved, err := v.moved(ctx, ids)
		if err != nil {
			return err
		}
		for _, r := range orders {
			s.Orders[r.ID] = audit.Order{Reservation: r, Moved: moved[r.ID]}
			last = r.ID
		}
		if len(orders) == limit {
			s.Next = last
			return nil
		}
	}
	rest := limit - len(s.Orders)
	documents, err := v.documents(ctx, `d.settled > now() - $2 * interval '1 ms' and '~' || d.id > $3 collate "C"
order by d.id limit $4`, v.retention, after, rest)
	if err != nil {
		return err
	}
	for id, d := range documents {
		s.Orders[id] = d
		last = max(last, id)
	}
	if len(documents) == rest {
		s.Next = last
	}
	return nil
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
		o := audit.Order{Moved: settled, Reservation: stock.Reservation{ID: stock.DocumentID(id), State: stock.Done, Receipt: at}}
		if state == documentRefused {
			o.State = stock.Refused
		}
		slices.SortFunc(moved, func(a, b movedLine) int { return cmp.Compare(a.SKU, b.SKU) })
		for _, m := range moved {
			o.Lines = append(o.Lines, stock.Line{SKU: m.SKU, Asked: m.Units, Now: m.Units})
		}
		moved = nil
		found[o.ID] = o
		return nil
	})
	return found, err
}

// moved tells when the newest attempts of orders last moved.
func (v *auditView) moved(ctx context.Context, ids []string) (map[string]time.Time, error) {
	moved := make(map[string]time.Time, len(ids))
	if len(ids) == 0 {
		return moved, nil
	}
	rows, err := v.tx.Query(ctx, `select w.id, r.moved from unnest($2::text[]) w(id),
lateral (select moved from reservation where shard = $1 and order_id = w.id order by attempt desc limit 1) r`, v.shard.Number, ids)
	if err != nil {
		return nil, err
	}
	var id string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		moved[id] = at
		return nil
	})
	return moved, err
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
	found, err := v.documents(ctx, `d.id = any($2)`, papers)
	if err != nil {
		return nil, fmt.Errorf("read %d documents: %w", len(papers), err)
	}
	if len(orders) == 0 {
		return found, nil
	}
	reservations, err := v.View.Orders(ctx, orders)
	if err != nil {
		return nil, err
	}
	moved, err := v.moved(ctx, orders)
	if err != nil {
		return nil, fmt.Errorf("read when %d orders moved: %w", len(orders), err)
	}
	for id, r := range reservations {
		found[id] = audit.Order{Reservation: r, Moved: moved[id]}
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
