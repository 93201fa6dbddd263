package takeover

import (
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Step is one of the steps of an attempt, in order.
type Step string

// The steps. StepDone is only seen by Options.At: everything has happened.
const (
	StepClaim    Step = "claim"
	StepCheck    Step = "check"
	StepFence    Step = "fence"
	StepDrain    Step = "drain"
	StepClose    Step = "close the epoch before"
	StepSnapshot Step = "snapshot"
	StepPut      Step = "put"
	StepVerify   Step = "read back"
	StepOpen     Step = "open"
	StepSay      Step = "say open"
	StepDone     Step = "done"
)

// Steps lists all steps in order.
var Steps = []Step{StepClaim, StepCheck, StepFence, StepDrain, StepClose, StepSnapshot, StepPut, StepVerify, StepOpen, StepSay, StepDone}

// A Timing is how long one step took.
type Timing struct {
	Step Step
	Took time.Duration
}

// A Report is what an attempt did; it is filled as far as the attempt came, also when Run fails.
type Report struct {
	Shard  int
	Before Status // of Redis when the attempt began
	Row    Shard  // of the ledger when the attempt began
	Epoch  int64  // of the attempt

	Drained   int            // entries applied from this Redis' log
	Followed  int            // of them, openings that the ledger had lost
	Continues stock.Position // where the epoch before ended
	// What lies beyond that is given up: it is never stock, and its receipts are answered "lost".
	GivenUp   int            // entries
	FirstLost stock.Position // of them
	LastLost  stock.Position // of them
	Orphans   int            // of them, recorded in the ledger; the rest only in the log

	Strays int // entries beyond the ends of epochs closed earlier, recorded now

	Put        int  // fields written because they differed or were missing
	Deleted    int  // fields deleted because the ledger does not know them
	Same       int  // fields left as they were
	RenamedLog bool // the log could not be continued and was kept as evidence

	Steps  []Timing
	Closed time.Duration // from the fence until the ledger said open
}
