package stock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Desk decides operations on the stock of one shard after the other, whatever the strategy.
//
// Do is safe for concurrent use and idempotent by (ID, Attempt): sent again it answers Replayed. An error is
// a *ClosedError (nothing was written), ErrUnknown (it may have been: send the same operation again), or the
// context's error wrapped in ErrUnknown when the answer was not awaited.
type Desk interface {
	Do(ctx context.Context, shard int, op Operation) (Outcome, error)
}

// An Epoch is what a caller must know of a shard to be let in.
type Epoch struct {
	Shard   int
	Ledger  string // id of the ledger, a part of the token
	Epoch   int64
	Applied int64  // seq that the ledger has reached in this epoch
	Library int    // version of the function library in force
	Open    bool   // the ledger says open
	Reason  string // when not open: why, in one word (rebuilding, halted, stale, …)
}

// Token is what Redis compares: "<ledger>.<epoch>".
func (e Epoch) Token() string { return fmt.Sprintf("%s.%d", e.Ledger, e.Epoch) }

// Epochs tells the newest epoch of a shard, from Postgres only. Epoch returns at once from memory; when the
// knowledge is too old to be trusted the epoch comes back not open with a Reason. Doubt asks for a fresh look
// because a call was refused (by what), and returns at once too.
type Epochs interface {
	Epoch(shard int) Epoch
	Doubt(shard int, what string)
}

// ErrUnknown means that the operation may or may not have happened. The remedy is always the same: send the
// same id and attempt again, or ask for the order.
var ErrUnknown = errors.New("outcome unknown: send the same order id and attempt again, or look the order up")

// A ClosedError means that a shard refuses: nothing was written.
type ClosedError struct {
	Shard      int
	Reason     string        // one word: fenced, torn, missing, rewound, rebuilding, halted, stale, memory, …
	RetryAfter time.Duration // when it is worth asking again
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("shard %d is closed (%s): nothing was written, try again in %v", e.Shard, e.Reason, e.RetryAfter)
}

// Standing is what the ledger says of a receipt.
type Standing string

// Accepted stands between: Redis took it, Postgres has not reached it yet.
const (
	StandingPersisted Standing = "persisted"
	StandingAccepted  Standing = "accepted"
	StandingLost      Standing = "lost"
	StandingUnknown   Standing = "unknown"
)
