package takeover

import (
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrSuperseded means that a newer attempt exists, so this one has no business any more. Nobody needs to act.
var ErrSuperseded = errors.New("a newer takeover of this shard exists")

// ErrHalted means that the shard is halted: an entry could not be applied, and only an operator may go on.
var ErrHalted = errors.New("the shard is halted: look at its dead event, then retry or take over by hand")

// ErrNotLog means that the log's key holds something that is not a stream.
var ErrNotLog = errors.New("the key of the log is not a stream")

// ErrDisagrees means that Redis, read back, is not what was put: somebody else writes into it.
var ErrDisagrees = errors.New("Redis does not hold what was put: find out who else writes to it")

// ClassMemory is the class of a call that Redis refused because it is at its limit of memory.
const ClassMemory = "MEMORY"

// A RefusedError is a call that a function of the library refused, or Redis in its place; nothing was written.
type RefusedError struct {
	Function string // fence, put, drop, open
	Class    string // EPOCH, FOREIGN, FENCED, TORN, CLOSED, LATE, MISSING, BAD, ClassMemory
	Token    string // the token that Redis has, where it says so
}

func (e *RefusedError) Error() string {
	if e.Class == ClassMemory {
		return fmt.Sprintf("%s was refused: Redis is at its limit of memory, raise maxmemory (CONFIG SET)", e.Function)
	}
	if e.Token != "" {
		return fmt.Sprintf("%s was refused: %s (Redis has %s)", e.Function, e.Class, e.Token)
	}
	return fmt.Sprintf("%s was refused: %s", e.Function, e.Class)
}

// Is makes a refusal for a later epoch an ErrSuperseded.
func (e *RefusedError) Is(target error) bool { return target == ErrSuperseded && e.Class == "EPOCH" }

// A ForeignError is a Redis that another ledger wrote.
type ForeignError struct {
	Token string // what Redis has
	Ours  string // this ledger's id
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("this Redis belongs to another ledger (%s, ours is %s): point at the right one, or adopt it, which gives up what it holds", e.Token, e.Ours)
}

// A GapError is a log that goes on beyond entries that are gone. Going on would give up what lies beyond, which
// is an operator's decision.
type GapError struct {
	Have stock.Position // the ledger's
	Next string         // id of the oldest entry beyond the gap
}

func (e *GapError) Error() string {
	return fmt.Sprintf("the log goes from %s to %s, what was between is gone: halt the shard; an operator decides whether to give up what lies beyond", e.Have, e.Next)
}

// A StepError names the step at which an attempt ended. Unless the cause is one of this package's errors, the
// outcome of that step is unknown; the remedy is a new attempt, which has a higher epoch.
type StepError struct {
	Shard int
	Epoch int64 // 0 before the claim
	Step  Step
	Err   error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("take over shard %d (epoch %d), %s: %v", e.Shard, e.Epoch, e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }
