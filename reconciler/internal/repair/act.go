package repair

import (
	"fmt"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A State is how far an Act came.
type State string

// The states of an act.
const (
	Done     State = "done"     // repaired
	Proposed State = "proposed" // a plan: nothing was changed
	Operator State = "operator" // done what may be done without a person, who has to decide the rest
	Failed   State = "failed"   // a store did not answer, or the attempt ended: it is tried again
	Left     State = "left"     // another reconciler has the turn and will see to it
)

// An Act is one thing found, and what was done, or would be done, about it.
type Act struct {
	Shard int    `json:"shard"`
	Class string `json:"class"` // what is wrong, one word
	Verb  string `json:"verb"`  // what is done about it, one word
	State State  `json:"state"`

	Key      string `json:"key,omitempty"`        // Redis key and field, or "ledger"
	SKU      int64  `json:"sku_number,omitempty"` // 0 = not about one
	Name     string `json:"sku,omitempty"`        // its text
	Order    string `json:"order,omitempty"`      // id of an order or document
	Position string `json:"position,omitempty"`   // at which both sides were compared
	Redis    string `json:"redis,omitempty"`      // what Redis has
	Postgres string `json:"postgres,omitempty"`   // what Postgres and the log say

	Text    string `json:"text"`
	GivesUp string `json:"gives_up,omitempty"` // what is lost by the verb
	Remedy  string `json:"remedy,omitempty"`   // what a person can do
	Repair  int64  `json:"repair,omitempty"`   // number of the row in the table repair

	Takeover *Takeover `json:"takeover,omitempty"`
	Gap      *Gap      `json:"gap,omitempty"`
}

// A Takeover is what one attempt did.
type Takeover struct {
	Epoch        int64  `json:"epoch"`
	Continues    string `json:"continues,omitempty"`
	ClosedMillis int64  `json:"closed_ms"`
	Drained      int    `json:"drained"`
	Put          int    `json:"put"`
	Deleted      int    `json:"deleted"`
	Same         int    `json:"same"`
	GivenUp      int    `json:"given_up"`
	Orphans      int    `json:"orphans"`  // of them, recorded; the rest stays in the old log only
	Strays       int    `json:"strays"`   // entries behind the ends of earlier epochs, recorded now
	Followed     int    `json:"followed"` // openings that Postgres had lost
	RenamedLog   bool   `json:"renamed_log,omitempty"`
}

func (a *Act) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "shard %d: %s: %s (%s)", a.Shard, a.Class, a.Verb, a.State)
	switch {
	case a.Name != "":
		fmt.Fprintf(&b, ": SKU %q (number %d)", a.Name, a.SKU)
	case a.SKU != 0:
		fmt.Fprintf(&b, ": SKU number %d", a.SKU)
	}
	if a.Order != "" {
		fmt.Fprintf(&b, ": order %s", a.Order)
	}
	fmt.Fprintf(&b, ": %s", a.Text)
	if a.Redis != "" || a.Postgres != "" {
		fmt.Fprintf(&b, "; %s has %s, Postgres and the log say %s", a.Key, orNothing(a.Redis), orNothing(a.Postgres))
	}
	if a.GivesUp != "" {
		fmt.Fprintf(&b, "; gives up: %s", a.GivesUp)
	}
	if t := a.Takeover; t != nil {
		fmt.Fprintf(&b, "; epoch %d continues %s, closed for %d ms, %d entries applied, %d fields put, %d deleted, %d entries given up",
			t.Epoch, t.Continues, t.ClosedMillis, t.Drained, t.Put, t.Deleted, t.GivenUp)
	}
	if a.Repair != 0 {
		fmt.Fprintf(&b, "; repair %d", a.Repair)
	}
	if a.Remedy != "" {
		fmt.Fprintf(&b, "; next: %s", a.Remedy)
	}
	return b.String()
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

// A Report is one pass over one shard, or the plan of one.
type Report struct {
	Shard    int    `json:"shard"`
	Class    string `json:"class"`
	Evidence string `json:"evidence"`
	Epoch    int64  `json:"epoch"`
	Applied  int64  `json:"applied"`
	Skew     int64  `json:"skew_ms"` // Redis' clock minus Postgres'

	Expired   int     `json:"expired"` // holds ended by this pass; in a plan: holds that are due
	NotDue    int     `json:"not_due"` // due by Postgres' clock, not yet by Redis'
	Documents int     `json:"documents"`
	Forgotten int     `json:"forgotten"` // records that Redis dropped because their retention is over
	Orphans   int     `json:"orphans"`   // entries of closed epochs that are recorded as lost, since ever
	Audit     Audited `json:"audit"`
	Acts      []Act   `json:"acts"`
}

// Audited counts what the audit of a pass compared.
type Audited struct {
	Compared bool `json:"compared"`
	SKUs     int  `json:"skus"`
	Orders   int  `json:"orders"`
	Ended    int  `json:"ended"`   // of these, orders that hold and promise nothing any more
	Dropped  int  `json:"dropped"` // orders whose record is rightly gone: their retention is over
	Buyers   int  `json:"buyers"`  // counts of what a buyer has of a SKU
	Entries  int  `json:"entries"`
	Restarts int  `json:"restarts"`
	More     int  `json:"more"` // differences beyond those that are listed
}

// take fills in what a probe found, and keeps what was done.
func (r *Report) take(f takeover.Finding) {
	acts, expired, documents, forgotten := r.Acts, r.Expired, r.Documents, r.Forgotten
	*r = reportOf(f)
	r.Acts = append(r.Acts, acts...)
	r.Expired, r.Documents, r.Forgotten = expired, documents, forgotten
}

func auditedOf(r audit.Report) Audited {
	return Audited{Compared: r.Compared, SKUs: r.SKUs, Orders: r.Orders, Ended: r.Ended, Dropped: r.Dropped, Buyers: r.Buyers, Entries: r.Entries, Restarts: r.Restarts, More: r.More}
}

// Exit codes of a pass and of a plan.
const (
	ExitClean     = 0 // nothing was wrong; holds that ended and documents that were finished are no wrong
	ExitRepaired  = 1 // something was repaired, the first opening of a shard included; a plan: would be
	ExitOperator  = 2 // something needs a person
	ExitUnchecked = 3 // a store did not answer, or another reconciler has the turn and has not finished
)

// Exit is the code of a report.
func (r *Report) Exit() int {
	exit := ExitClean
	for _, a := range r.Acts {
		switch a.State {
		case Operator:
			return ExitOperator
		case Failed, Left:
			exit = ExitUnchecked
		case Done, Proposed:
			exit = Worse(exit, ExitRepaired)
		}
	}
	return exit
}

// severity orders the codes: a person comes first, then what nobody looked at.
var severity = map[int]int{ExitClean: 0, ExitRepaired: 1, ExitUnchecked: 2, ExitOperator: 3}

// Worse is the one that asks for more.
func Worse(a, b int) int {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

// Exit is the code of all reports together: 2 before 3 before 1 before 0.
func Exit(reports []Report) int {
	exit := ExitClean
	for i := range reports {
		exit = Worse(exit, reports[i].Exit())
	}
	return exit
}

func (r *Report) String() string {
	line := fmt.Sprintf("shard %d: %s, epoch %d at %d; %d holds expired, %d documents finished, %d records forgotten",
		r.Shard, r.Class, r.Epoch, r.Applied, r.Expired, r.Documents, r.Forgotten)
	if r.NotDue > 0 {
		line += fmt.Sprintf(", %d holds wait for Redis' clock", r.NotDue)
	}
	if !r.Audit.Compared {
		return line + "; not audited"
	}
	if r.Orphans > 0 {
		line += fmt.Sprintf("; %d entries of closed epochs are recorded as lost", r.Orphans)
	}
	line += fmt.Sprintf("; audited %d SKUs, %d orders (%d of them ended) and %d counts of buyers, %d entries ahead of Postgres, %d restarts",
		r.Audit.SKUs, r.Audit.Orders, r.Audit.Ended, r.Audit.Buyers, r.Audit.Entries, r.Audit.Restarts)
	if r.Audit.More > 0 {
		line += fmt.Sprintf(", %d more differences", r.Audit.More)
	}
	return line
}
