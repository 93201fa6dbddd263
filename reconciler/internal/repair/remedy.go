package repair

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// Classes that are no difference between the stores: what a takeover finds about the past.
const (
	classOrphan = "orphan-entry"  // entries of a closed epoch beyond its end
	classBehind = "ledger-behind" // Postgres had lost a tail that the log still had
)

// remedy is what a person types against a class. The first command in it is the one that mends.
func (w *ward) remedy(class audit.Class, order string) string {
	switch {
	case class == audit.Tampered:
		return fmt.Sprintf("find out who wrote to Redis; then `stockpipe-reconciler repair --shard %d`: Postgres and the log win", w.number)
	case class == audit.GapLost:
		return fmt.Sprintf("`stockpipe-reconciler gapfill --shard %d` puts back what Redis' records tell (with --plan it only says what)", w.number)
	case class == audit.Fork:
		return fmt.Sprintf("keep both as evidence, then `stockpipe-reconciler takeover --shard %d`", w.number)
	case class == audit.Stuck:
		return fmt.Sprintf("upgrade consumers and reconcilers if producers are newer, then `stockpipe-reconciler retry --shard %[1]d`; or give up what lies behind: `stockpipe-reconciler takeover --shard %[1]d`", w.number)
	case class == audit.Invariant:
		return fmt.Sprintf("`stockpipe-reconciler verify --shard %d` says since when; somebody edited Postgres, restore what was changed", w.number)
	case class == audit.Document:
		return fmt.Sprintf("`stockpipe-reconciler explain %s` shows its entries; write an adjustment for what it moved twice", order)
	case class == audit.GapLog:
		return "start the consumers; `stockpipe-reconciler once` applies the log meanwhile, and so does a running serve"
	case class == audit.Overdue:
		return "`stockpipe-reconciler once` ends what is due, and so does a running serve"
	case class == takeover.Foreign:
		return fmt.Sprintf("point both at the right servers; only if you mean it: `stockpipe-reconciler takeover --shard %d --adopt`", w.number)
	case class == takeover.Unfenced:
		return "`stockpipe-reconciler once` closes it, and so does a running serve; then look at why it is halted"
	case class.NeedsTakeover():
		return "`stockpipe-reconciler once` takes the shard over, and so does a running serve"
	}
	return ""
}

// told is an act with what it found about the past as acts of their own, so that each has its class.
func told(act *Act) []Act {
	acts := []Act{*act}
	if act.Takeover == nil {
		return acts
	}
	if n := act.Takeover.Followed; n > 0 {
		acts = append(acts, Act{Shard: act.Shard, Class: classBehind, Verb: string(audit.VerbApply), State: Done, Repair: act.Repair,
			Text: fmt.Sprintf("Postgres had lost %d openings of the shard and what came behind them, a failover of its own; the log had it all: %d entries were applied", n, act.Takeover.Drained)})
	}
	if n := act.Takeover.Orphans + act.Takeover.Strays; n > 0 {
		acts = append(acts, Act{Shard: act.Shard, Class: classOrphan, Verb: "record", State: Done, Repair: act.Repair,
			Text: fmt.Sprintf("%d entries of closed epochs are recorded in the table orphan; their receipts are answered lost, and who sends an order again reserves anew", n)})
	}
	return acts
}

// reader says who should have applied the log.
func (w *ward) reader(ctx context.Context) string {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all, err := w.Ledger.Assignments(asking)
	if err != nil {
		return "who reads the shard is not known: " + err.Error()
	}
	for _, one := range all {
		if one.Shard == w.number && time.Now().Before(one.Until) {
			return fmt.Sprintf("consumer %s has the shard and does not move it", one.Consumer)
		}
		if one.Shard == w.number {
			return fmt.Sprintf("consumer %s had the shard until %s and nobody took it since", one.Consumer, one.Until.UTC().Format(time.RFC3339))
		}
	}
	return "no consumer has the shard"
}

// orphans counts the entries that are recorded as lost.
func (w *ward) orphans(ctx context.Context) (int, error) {
	asking, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return w.Ledger.CountOrphans(asking, w.number)
}
