package audit

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A Class names a kind of drift. What a Redis process and the ledger's row show by themselves keeps the class
// that package takeover gives it; the rest are of the equation.
type Class = takeover.Class

// Classes that only a comparison finds.
const (
	GapLog    Class = "gap-log"   // the ledger stands still although the log has its next entry
	GapLost   Class = "gap-lost"  // the ledger's next entry is gone from the log, and Redis went on
	Tampered  Class = "tampered"  // the equation is broken at one position, or an after-image disagrees
	Fork      Class = "fork"      // Redis has another entry at a position that the ledger has persisted
	Stuck     Class = "stuck"     // an entry that this build cannot read, or a halted shard
	Invariant Class = "invariant" // the ledger contradicts itself
	Overdue   Class = "overdue"   // a hold stays past its time
	Document  Class = "document"  // a document that was settled twice, or by no entry
)

// A Verb is what is proposed against a drift.
type Verb string

// The verbs. The reconciler decides; only takeover and apply are ever done without a person.
const (
	VerbTakeover Verb = "takeover" // automatic
	VerbApply    Verb = "apply"    // automatic: apply from the log
	VerbFence    Verb = "fence"    // automatic: close what sells although it is halted
	VerbFreeze   Verb = "freeze"   // automatic for the SKU; then an operator, or the policy ledger-wins
	VerbHalt     Verb = "halt"     // automatic; then an operator
	VerbExpire   Verb = "expire"   // automatic
	VerbOperator Verb = "operator"
)

// verbs proposes one for each class.
var verbs = map[Class]Verb{
	takeover.Missing: VerbTakeover, takeover.Ahead: VerbTakeover, takeover.Rewound: VerbTakeover,
	takeover.Stalled: VerbTakeover, takeover.Unopened: VerbTakeover, takeover.Torn: VerbTakeover,
	takeover.Uncounted: VerbTakeover,
	takeover.Foreign:   VerbOperator, takeover.Halted: VerbOperator, takeover.Unfenced: VerbFence,
	GapLog: VerbApply, GapLost: VerbHalt, Tampered: VerbFreeze, Fork: VerbHalt, Stuck: VerbOperator, Invariant: VerbOperator,
	Overdue: VerbExpire, Document: VerbOperator,
}

// A Drift is one difference, with what both sides say.
type Drift struct {
	Class    Class
	Shard    int
	Key      string // state, orders, buyers, log, or ledger: where in Redis, or that it is within Postgres
	SKU      int64  // 0 when it is not about a SKU
	Buyer    string // empty when it is not about what a buyer has of the SKU
	Order    string // id of an order or document; empty when it is not about one
	Position string // at which both were compared
	Redis    string // what Redis has; empty = nothing
	Postgres string // what the ledger and the log say; empty = nothing
	Text     string // one sentence
	Verb     Verb
}

func (d Drift) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: shard %d", d.Class, d.Shard)
	if d.SKU != 0 {
		fmt.Fprintf(&b, ", SKU number %d", d.SKU)
	}
	if d.Buyer != "" {
		fmt.Fprintf(&b, ", buyer %s", d.Buyer)
	}
	if d.Order != "" {
		fmt.Fprintf(&b, ", order %s", d.Order)
	}
	if d.Position != "" {
		fmt.Fprintf(&b, ", at %s", d.Position)
	}
	fmt.Fprintf(&b, ": %s", d.Text)
	if d.Redis != "" || d.Postgres != "" {
		fmt.Fprintf(&b, " (Redis: %s; Postgres and log: %s)", orNothing(d.Redis), orNothing(d.Postgres))
	}
	return b.String()
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}
