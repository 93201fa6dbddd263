// Package bus is the contract through which a consumer reads the log of a shard, whatever carries it. The bus
// only brings entries near: the position from which to read comes from the ledger, which also refuses what is
// doubled, late or out of order. So no implementation needs to promise more than is written at Source.
package bus

import (
	"context"
	"errors"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ErrMissing means that the log does not exist. It is never made by a reader: a takeover makes it, so the reader
// reports it and asks again later.
var ErrMissing = errors.New("the log does not exist: a takeover begins a new one")

// ErrInterrupted means that Next lost its place (the log or the reader's group went away under it): go on
// with From and the ledger's position.
var ErrInterrupted = errors.New("the place in the log was lost: read on from the ledger's position")

// ErrTorn means that something else stands where the log should be. A takeover mends it.
var ErrTorn = errors.New("what stands in the log's place is not a log: a takeover begins a new one")

// A Source brings the entries of one shard, in the order of their ids. It is made for one goroutine at a time; two
// Sources of one shard, in one process or in two, only cost each other repetitions and gaps, which the
// ledger sees.
//
// The use is: From with the ledger's position until it brings nothing, then Next with the ledger's position again and
// again; after any error, after a gap, and when the shard was given to this reader, From again.
//
// An entry with fields that the log's writer does not write comes back as a Raw that does not parse, with what
// was found in it, so that the ledger halts on it; a Source never skips an entry.
type Source interface {
	// From brings the entries right after a position, a bounded number; nothing means that the end is reached, or that
	// there is no log (Next tells). It changes nothing and may be repeated. ErrTorn: it
	// is no log. Any other error is about the way there and may pass.
	From(ctx context.Context, after stock.Position) ([]event.Raw, error)

	// Next says that the ledger has reached a position, so that the bus can forget what lies at or below it, and
	// brings what follows, waiting a bounded time for it; nothing is not an error. The first call, and the first after
	// From or an error, begins right after that position. Later ones bring what no Next brought yet, whatever became of
	// it. ErrMissing: there is no log. ErrTorn as above. ErrInterrupted and any other error: go on with From.
	Next(ctx context.Context, applied stock.Position) ([]event.Raw, error)
}
