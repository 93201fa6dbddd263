package verdict

import (
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/pkg/ledger"
)

// mostEvidence is how much of a repair's evidence is shown, in characters.
const mostEvidence = 300

// Health is what the stack says of itself at the end.
type Health struct {
	Lag     int64 // entries; -1: could not be told
	Audit   pipeline.Audit
	Repairs []ledger.Repair // about stores that contradicted each other, while the demo ran
}

// promises are the same for every demo. A SKU that was frozen, or mended, meanwhile is a broken promise, even if
// nothing differs now.
func (h *Health) promises(figures map[string]pipeline.Figure) Verdict {
	return Verdict{h.caughtUp(), h.audited(), h.undoubted(figures)}
}

func (h *Health) caughtUp() Promise {
	var b breaches
	if h.Lag != 0 {
		b.add("Postgres is behind Redis")
	}
	return b.promise("Postgres has everything that Redis has", "lag %s entries", Count(h.Lag))
}

func (h *Health) audited() Promise {
	var b breaches
	for _, finding := range h.Audit.Findings {
		b.add("%s", finding)
	}
	if b.count == 0 && h.Audit.Exit != 0 {
		b.add("the reconciler ended with exit code %d", h.Audit.Exit)
	}
	if b.count == 0 && !h.Audit.Compared {
		b.add("not every shard was compared")
	}
	return b.promise("the audit finds no difference", "%s SKUs and %s orders compared, %s findings, exit code %d",
		Count(h.Audit.SKUs), Count(h.Audit.Orders), Count(len(h.Audit.Findings)), h.Audit.Exit)
}

func (h *Health) undoubted(figures map[string]pipeline.Figure) Promise {
	var b breaches
	frozen := 0
	for _, sku := range slices.Sorted(maps.Keys(figures)) {
		f := figures[sku]
		if f.Doubt != "" || f.Redis != nil && f.Redis.Frozen || f.Postgres != nil && f.Postgres.Frozen {
			frozen++
			b.add("%s (number %d) was frozen: %s", sku, f.Number, orUntold(f.Doubt))
		}
	}
	for _, r := range h.Repairs {
		b.add("shard %d: %s: %s, %.*s", r.Shard, r.Class, r.Verb, mostEvidence, r.Before)
	}
	return b.promise("no store was doubted while it ran", "%s SKUs frozen, %s differences acted on", Count(frozen), Count(len(h.Repairs)))
}

func orUntold(doubt string) string {
	if doubt == "" {
		return "by the reconciler"
	}
	return doubt
}
