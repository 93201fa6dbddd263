package bus

import (
	"context"
	"errors"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrUnplaced means that the log does not have the position up to which it should be trimmed, and that nothing was:
// another log stands there, or somebody deleted entries.
var ErrUnplaced = errors.New("the log does not have that position: nothing was trimmed")

// A Trimmer shortens the log of one shard from its old end. It knows the log alone: that the ledger has what goes
// is the caller's promise. Safe beside readers and other Trimmers; what one of them removed may still be pending
// for a reader, which reads on from the ledger's position and never misses it.
type Trimmer interface {
	// Size measures the log. It changes nothing. No log is a Size of 0 entries. ErrTorn: it is no log.
	Size(ctx context.Context) (Size, error)

	// Trim removes entries before a position, never the entry at it nor one after it, and says how many. It works in
	// bounded steps until ctx ends or a round's worth is done, so that some may stay for the next call. Repeated it
	// removes nothing more; neither does a position that was trimmed away already. ErrUnplaced as above; after any
	// other error some of the entries before the position may be gone.
	Trim(ctx context.Context, before stock.Position) (removed int64, err error)
}

// A Size is how much a log takes, and of what.
type Size struct {
	Entries int64
	Bytes   int64     // of memory, an estimate
	Last    string    // id of the newest entry, empty when there is none
	Used    int64     // bytes in use where the log is kept
	Limit   int64     // bytes that may be used there; 0: no limit is known
	Now     time.Time // the clock that entries have their times from
}
