package audit

import (
	"context"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// Redis is one shard of one Redis server, as an audit sees it. Nothing is written.
type Redis interface {
	// Sample reads in one MULTI: all of the state hash, the records and fields that are asked for, a page of what
	// Redis itself has of both, the ends of the log, and the process' status. A key of another type or a missing
	// library is no error: the part is left empty, and the status tells.
	Sample(ctx context.Context, q Question) (Sample, error)
	// Entry reads in one MULTI the process' status and the log's entry at a position; there is false when the log
	// has none. Range may be answered by another process than the one that answered the sample, while an address
	// moves; here the status tells whose log it is.
	Entry(ctx context.Context, at stock.Position) (status takeover.Status, there bool, err error)
	// Range is up to count entries of the log after a position, as in package takeover.
	Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error)
}

// A Question is what one sample is asked.
type Question struct {
	Records []string // ids whose records are wanted
	Buyers  []string // fields of the buyers hash that are wanted
	// The pages of what Redis itself has: where they begin, and about how many of each.
	Orders uint64
	Counts uint64
	Page   int
}

// A Sample is what one MULTI read.
type Sample struct {
	Status  takeover.Status
	State   map[string]string // every field of the state hash, those of the protocol included
	Records map[string]string // of the ids that were asked for; an id without a record is absent
	Page    map[string]string // Redis' own records, the sentinel included
	Next    uint64            // cursor of the next page; 0 when this was the last one

	Buyers     map[string]string // of the fields that were asked for; one that is not there is absent
	BuyersPage map[string]string // Redis' own fields of the buyers hash
	BuyersNext uint64            // cursor of the next page; 0 when this was the last one
}

// Ledger is the system of record as an audit sees it.
type Ledger interface {
	// ID is the ledger's own random id.
	ID() string
	// Shard reads one row on the primary, outside any snapshot.
	Shard(ctx context.Context, number int) (takeover.Shard, error)
	// View opens a read-only snapshot with a page of up to limit orders after an id (keyset order; "" begins).
	// It holds a transaction: close it soon.
	View(ctx context.Context, number int, after string, limit int) (View, error)
}

// A View is one snapshot of one shard. Not safe for concurrent use.
type View interface {
	Snapshot() Snapshot
	// Orders are the newest attempts of orders, and settled documents under "~<id>", whatever their age, as of
	// the snapshot. Unknown ids are absent.
	Orders(ctx context.Context, ids []string) (map[string]Order, error)
	// Bought is a page of what buyers have of SKUs that have a limit in this snapshot: held, confirmed and fulfilled
	// units over all orders, whatever their age. It begins after a key, the zero one first, in the order of SKU
	// number and buyer. The next key is the zero one when this was the last page.
	Bought(ctx context.Context, after event.BuyerKey, limit int) (page map[event.BuyerKey]int64, next event.BuyerKey, err error)
	// BoughtOf is the same of keys that are named; one of which there is nothing is absent.
	BoughtOf(ctx context.Context, keys []event.BuyerKey) (map[event.BuyerKey]int64, error)
	// Invariants checks on the snapshot what must hold within Postgres alone and names what does not.
	Invariants(ctx context.Context) ([]Broken, error)
	Close() error
}

// A Snapshot is what the ledger says at one position.
type Snapshot struct {
	Shard takeover.Shard
	Stock map[int64]event.Field
	Doubt map[int64]string // SKUs that the ledger froze, and why
	// Last is the entry at the ledger's position, put together from the event rows; its ID is empty when
	// applied is 0.
	Last event.Raw
	// Orders is the page: orders that are held, and orders and documents ("~<id>") that ended inside the
	// retention. Next is the id to continue after; "" when this was the last page.
	Orders    map[string]Order
	Next      string
	Retention time.Duration
}

// An Order is an order's newest attempt, or a settled document.
type Order struct {
	stock.Reservation
	// Moved is Postgres' time of the last transition that Redis' record has. A document (fulfil, cancel) that came when
	// no record of the order could be there any more changed its row and neither this nor the row's position.
	Moved time.Time
}

// A Broken is an invariant that does not hold within Postgres.
type Broken struct {
	Class Class  // Invariant, Overdue or Document
	Rule  string // its name
	SKU   int64  // 0 when it is not about a SKU
	Order string // empty when it is not about an order or document
	Text  string // what was expected, and what is there
}
