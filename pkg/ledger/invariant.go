package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The rules that must hold within the ledger, whatever Redis says.
const (
	RuleHeld      = "held"      // held = what the lines of held orders sum up to
	RuleCommitted = "committed" // committed = confirmed and neither cancelled nor fulfilled
	RuleEvents    = "events"    // the events of an epoch are contiguous, up to its end
	RuleDocuments = "documents" // a document was settled by exactly one entry
	RuleOverdue   = "overdue"   // no hold stays long beyond its time
	RuleEnded     = "ended"     // units stand of confirmed orders, and none of fulfilled and cancelled ones
	RuleShipped   = "shipped"   // what was shipped of a line is what documents say
	RuleReturned  = "returned"  // what came back of a line is what documents say, and at most what was shipped
	RuleBought    = "bought"    // what a buyer has of a SKU with a limit = what the lines of his orders sum up to
)

// A Violation is a rule that does not hold: what the ledger says, and what it should be by the rows it rests on.
type Violation struct {
	Rule     string
	SKU      int64  // of held, committed and bought
	ID       string // of an order, a document, an epoch, or a buyer
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
	case RuleEnded:
		return fmt.Sprintf("order %s: %d units of it stand, which is not how it stands", v.ID, v.Ledger)
	case RuleBought:
		return fmt.Sprintf("SKU number %d: the ledger says that buyer %s has %d, his orders sum up to %d", v.SKU, v.ID, v.Ledger, v.Computed)
	case RuleShipped, RuleReturned:
		return fmt.Sprintf("order %s: the ledger says that %d of SKU number %d were %s, its documents %d", v.ID, v.Ledger, v.SKU, v.Rule, v.Computed)
	default:
		return fmt.Sprintf("order %s: still held %d ms after it was due, at most %d", v.ID, v.Ledger, v.Computed)
	}
}

// maxViolations bounds what one rule reports: after that many the rest is the same trouble.
const maxViolations = 1000

const sumOfLines = `select l.sku, sum(l.now)::bigint as units
    from reservation r join reservation_line l on l.shard = r.shard and l.order_id = r.order_id and l.attempt = r.attempt
    where r.shard = $1 and r.state = `

// linesByDocuments compares a figure of every line with what the applied documents of a kind say of it. Orders that were
// pruned have no lines to compare.
func linesByDocuments(figure, kind, and string) string {
	return `select coalesce(l.sku, d.sku), coalesce(l.order_id, d.order_id), coalesce(l.units, 0), coalesce(d.units, 0)
from (select order_id, attempt, sku, ` + figure + ` as units, fulfilled from reservation_line where shard = $1 and ` + figure + ` > 0) l
    full join (select p.order_id, p.order_key as attempt, (m ->> 'sku')::bigint as sku, sum(abs((m ->> 'units')::bigint))::bigint as units
        from stock_document p, jsonb_array_elements(coalesce(p.units, p.lines)) m
        where p.shard = $1 and p.order_id is not null and p.state = 'applied' and p.kind = '` + kind + `' and not p.pruned
        group by 1, 2, 3 having sum(abs((m ->> 'units')::bigint)) > 0) d on (d.order_id, d.attempt, d.sku) = (l.order_id, l.attempt, l.sku)
where (coalesce(l.units, 0) <> coalesce(d.units, 0)` + and + `) and $2::bigint is not null order by 2, 1 limit $3`
}

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
	{RuleEnded, `select 0::bigint, r.order_id, sum(l.now)::bigint, 0::bigint
from reservation r join reservation_line l on l.shard = r.shard and l.order_id = r.order_id and l.attempt = r.attempt
where r.shard = $1 and r.state in ('confirmed', 'fulfilled', 'cancelled') and $2::bigint is not null
group by r.order_id, r.attempt, r.state having (r.state = 'confirmed') <> (sum(l.now) > 0) order by 2 limit $3`},
	{RuleShipped, linesByDocuments("fulfilled", stock.DocumentFulfil, "")},
	{RuleReturned, linesByDocuments("returned", stock.DocumentReturn, " or l.units > l.fulfilled")},
	{RuleBought, `select coalesce(b.sku, o.sku), coalesce(b.buyer, o.buyer), coalesce(b.units, 0), coalesce(o.units, 0)
from (select sku, buyer, units from bought where shard = $1) b
    full join (` + boughtByOrders(`select sku from stock where shard = $1 and buyer_limit > 0`) + `) o on (o.sku, o.buyer) = (b.sku, b.buyer)
where coalesce(b.units, 0) <> coalesce(o.units, 0) and $2::bigint is not null order by 1, 2 limit $3`},
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
