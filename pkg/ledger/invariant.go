package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rules that must hold within the ledger, whatever Redis says.
const (
	RuleHeld      = "held"      // held = what the lines of held orders sum up to
	RuleCommitted = "committed" // committed = confirmed and neither cancelled nor fulfilled
	RuleEvents    = "events"    // the events of an epoch are contiguous, up to its end
	RuleDocuments = "documents" // a document was settled by exactly one entry
	RuleOverdue   = "overdue"   // no hold stays long beyond its time
)

// A Violation is a rule that does not hold: what the ledger says, and what it should be by the rows it rests on.
type Violation struct {
	Rule     string
	SKU      int64  // of held and committed
	ID       string // of an order, a document, or an epoch
	Ledger   int64
	Computed int64
}

func (v Violation) String() string {
	switch v.Rule {
	case RuleHeld, RuleCommitted:
		return fmt.Sprintf("SKU number %d: the ledger says %d %s, its orders sum up to %d", v.SKU, v.Ledger, v.Rule, v.Computed)
	case RuleEvents:
		return fmt.Sprintf("epoch %s: the ledger reached %d, its events are %d", v.ID, v.Ledger, v.Computed)
	case RuleDocuments:
		return fmt.Sprintf("document %s: settled %d times, by %d entries", v.ID, v.Ledger, v.Computed)
	default:
		return fmt.Sprintf("order %s: still held %d ms after it was due, at most %d", v.ID, v.Ledger, v.Computed)
	}
}

// maxViolations bounds what one rule reports: after that many the rest is the same trouble.
const maxViolations = 1000

const sumOfLines = `select l.sku, sum(l.now)::bigint as units
    from reservation r join reservation_line l on l.shard = r.shard and l.order_id = r.order_id and l.attempt = r.attempt
    where r.shard = $1 and r.state = `

var invariants = []struct{ rule, sql string }{
	{RuleHeld, `select s.sku, '', s.held, coalesce(o.units, 0) from stock s left join (` + sumOfLines + `'held' group by l.sku) o using (sku)
where s.shard = $1 and s.held <> coalesce(o.units, 0) and $2::bigint is not null order by 1 limit $3`},
	{RuleCommitted, `select s.sku, '', s.committed, coalesce(o.units, 0) from stock s left join (` + sumOfLines + `'confirmed' group by l.sku) o using (sku)
where s.shard = $1 and s.committed <> coalesce(o.units, 0) and $2::bigint is not null order by 1 limit $3`},
	{RuleEvents, `select 0::bigint, x.epoch::text, x.last, coalesce(e.entries, 0)
from (select epoch, last_seq as last from epoch_end where shard = $1 union all select epoch, applied from shard where number = $1) x
    left join (select epoch, case when max(seq) = count(*) then count(*) else -count(*) end as entries from event where shard = $1 and idx = 0 group by epoch) e using (epoch)
where x.last <> coalesce(e.entries, 0) and $2::bigint is not null order by x.epoch limit $3`},
	{RuleDocuments, `select 0::bigint, coalesce(d.id, e.id), (d.state is not null and d.state <> 'written')::int::bigint, coalesce(e.entries, 0)
from (select substr(id, 2) as id, count(*) as entries, min(epoch) as epoch, min(seq) as seq, min(idx) as idx
        from event where shard = $1 and starts_with(id, '~') and left(body, 1) in ('M', 'm', 'N') group by id) e
    full join (select * from stock_document where shard = $1) d on d.id = e.id
where (coalesce(e.entries, 0) <> (d.state is not null and d.state <> 'written')::int
        or e.entries = 1 and (d.epoch, d.seq, d.idx) is distinct from (e.epoch, e.seq, e.idx))
    and $2::bigint is not null order by 2 limit $3`},
	// A hold that was made while one of the clocks was wrong ends when both of its times have come.
	{RuleOverdue, `select 0::bigint, order_id, (extract(epoch from now() - greatest(due, to_timestamp(expires_ms / 1000.0))) * 1000)::bigint, $2::bigint
from reservation where shard = $1 and state = 'held' and due < now() - $2 * interval '1 ms'
    and expires_ms < extract(epoch from now()) * 1000 - $2 order by due limit $3`},
}

// Invariants checks the rules on the view's moment; grace is how long a hold may stay beyond its time. At most
// 1,000 violations of each rule are told.
func (v *View) Invariants(ctx context.Context, grace time.Duration) ([]Violation, error) {
	var found []Violation
	for _, i := range invariants {
		rows, err := v.tx.Query(ctx, i.sql, v.shard.Number, grace.Milliseconds(), maxViolations)
		if err != nil {
			return nil, fmt.Errorf("check the rule %s of shard %d: %w", i.rule, v.shard.Number, err)
		}
		one := Violation{Rule: i.rule}
		if _, err := pgx.ForEachRow(rows, []any{&one.SKU, &one.ID, &one.Ledger, &one.Computed}, func() error {
			found = append(found, one)
			return nil
		}); err != nil {
			return nil, fmt.Errorf("check the rule %s of shard %d: %w", i.rule, v.shard.Number, err)
		}
	}
	return found, nil
}
