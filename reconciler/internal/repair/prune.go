package repair

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
)

// A step of pruning holds the shard's row, for which consumers wait: it is small, and they have their turn between two.
const (
	pruneStep = 1000
	pruneRest = 20 * time.Millisecond
)

// A Pruning is what was deleted from Postgres of one shard, or would be.
type Pruning struct {
	Shard     int    `json:"shard"`
	OlderThan string `json:"older_than"`
	Planned   bool   `json:"planned,omitempty"` // nothing was deleted
	Attempts  int64  `json:"attempts"`          // of orders
	Lines     int64  `json:"lines"`             // of them
	TookMsec  int64  `json:"took_ms"`
	Error     string `json:"error,omitempty"` // why it ended early; what was deleted until then is
}

func (p *Pruning) String() string {
	verb := "deleted"
	if p.Planned {
		verb = "to delete"
	}
	text := fmt.Sprintf("shard %d: %s: %d attempts of orders with %d lines that last moved longer than %s ago; documents, outcomes and events stay",
		p.Shard, verb, p.Attempts, p.Lines, p.OlderThan)
	if p.Error != "" {
		text += "; NOT FINISHED: " + p.Error
	}
	return text
}

// Prune deletes what of orders that ended long ago nobody needs: Ledger.Prune says what that is. It may be broken off and
// repeated, and needs no turn, for a step more or less changes nothing that anybody counts. With plan it only counts.
func (w *Warden) Prune(ctx context.Context, shard int, olderThan time.Duration, plan bool) (Pruning, error) {
	out := Pruning{Shard: shard, OlderThan: olderThan.String(), Planned: plan}
	if _, err := w.ward(shard); err != nil {
		return out, err
	}
	began := time.Now()
	err := w.prune(ctx, &out, olderThan)
	out.TookMsec = time.Since(began).Milliseconds()
	if err != nil {
		out.Error = err.Error()
	}
	return out, err
}

func (w *Warden) prune(ctx context.Context, out *Pruning, olderThan time.Duration) (err error) {
	if out.Planned {
		asking, cancel := context.WithTimeout(ctx, wholeTime)
		defer cancel()
		out.Attempts, out.Lines, err = w.Ledger.PrunePlan(asking, out.Shard, olderThan)
		return err
	}
	var at ledger.PruneCursor
	for {
		did, err := within(ctx, statementTime, func(ctx context.Context) (ledger.Pruned, error) {
			return w.Ledger.Prune(ctx, out.Shard, olderThan, at, pruneStep)
		})
		if err != nil {
			return err
		}
		out.Attempts += did.Attempts
		out.Lines += did.Lines
		if at = did.Next; did.Looked < pruneStep {
			return nil
		}
		if !pause(ctx, pruneRest) {
			return ctx.Err()
		}
	}
}
