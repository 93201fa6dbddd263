package takeover

import (
	"context"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Redis is one shard of one Redis server, as a takeover sees it.
type Redis interface {
	Process
	Builder
	Reader
}

// A Process is the Redis server itself. All three are harmless to repeat.
type Process interface {
	// Status asks the process. A missing library is not an error (see Status.Loaded).
	Status(ctx context.Context) (Status, error)
	// Check compares the server's settings with what the product needs: a master, nothing evicted, a limit of
	// memory, an append-only file, a known version. The error names the setting, its value and the remedy.
	Check(ctx context.Context) error
	// Load puts a version of the function library beside others, never in place of one: replacing closes every shard
	// that was opened under it.
	Load(ctx context.Context, library int) error
}

// A Builder changes a shard that is closed. Every call is sent once: no retry in the driver or in a pool, for
// a second copy that arrives late is exactly what the fence has to fend off. A *RefusedError means that nothing
// was written; after any other error the outcome is unknown and the attempt is over.
type Builder interface {
	// Fence closes the shard under the seal's epoch and remembers the seal in the process. It is refused by a
	// Redis that has this epoch or a later one, and, unless adopt is set, by one that another ledger wrote.
	Fence(ctx context.Context, s Seal, adopt bool) error
	// Put writes or deletes fields and answers the next seq. It is refused unless the process was fenced by
	// this seal and seq is the one that the last call answered (0 after Fence).
	Put(ctx context.Context, s Seal, seq int64, p Put) (int64, error)
	// Open lets the shard sell: it appends the first entry of the epoch, which names the position continued.
	Open(ctx context.Context, s Seal, seq int64, continues stock.Position) error
}

// Targets and verbs of a Put. A deletion gives room back, so it goes through in a Redis that is at its limit of memory,
// too; a set is a *RefusedError of ClassMemory there.
const (
	TargetState  = "state"
	TargetOrders = "orders"
	TargetBuyers = "buyers"
	TargetLog    = "log"

	VerbSet    = "set"    // Args: field, value, field, value, …
	VerbDelete = "del"    // Args: field, field, …
	VerbRename = "rename" // of the log, out of the way, as evidence; no Args
)

// A Put is one change of a closed shard.
type Put struct {
	Target string
	Verb   string
	Args   []string
}

// A Reader reads a shard's keys as they stand, whoever wrote them.
type Reader interface {
	// State is every field of the state hash, those of the protocol (e q m n v) included.
	State(ctx context.Context) (map[string]string, error)
	// Count is how many fields orders or buyers have, without the sentinel "~".
	Count(ctx context.Context, target string) (int, error)
	// Texts are the values of named fields of orders or buyers, in the order of the names; "" for one that is missing
	// (no record and no count is empty).
	Texts(ctx context.Context, target string, fields []string) ([]string, error)
	// Orders is a page of the records, without the sentinel "~". It begins with cursor 0 and ends when next is
	// 0; what is there during the whole scan is returned at least once, about count at a time.
	Orders(ctx context.Context, cursor uint64, count int) (records map[string]string, next uint64, err error)
	// Buyers is a page of the buyers hash, in the same manner.
	Buyers(ctx context.Context, cursor uint64, count int) (units map[string]string, next uint64, err error)
	// Range is up to count entries of the log after a position, in order and across epochs. No log is no
	// entries; a key of another type is ErrNotLog. A message with foreign fields comes back with what it has,
	// so that whoever parses it refuses it instead of nobody seeing it.
	Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error)
}

// Ledger is the system of record as a takeover sees it. The conditional steps answer ErrSuperseded when the
// attempt is no longer the newest and ErrHalted when an automatic attempt meets a halted shard; after any other
// error the outcome is unknown and the attempt is over.
type Ledger interface {
	// ID is the ledger's own random id.
	ID() string
	// Shard reads one row on the primary.
	Shard(ctx context.Context, number int) (Shard, error)
	Claimer
	Closer
	Registrar
	Source
}

// A Claimer says whose turn it is. Both are synchronous commits, sent once.
type Claimer interface {
	// Claim gives out an epoch above everything that the ledger or this Redis ever had, and a random nonce.
	// Only an operator's claim is given while the shard is halted (else ErrHalted, in the same statement).
	Claim(ctx context.Context, shard int, redisEpoch int64, operator bool) (Seal, error)
	// SayOpen makes the ledger say open: only while the claim is this one and the shard's epoch is the seal's.
	SayOpen(ctx context.Context, s Seal) error
}

// A Closer ends the epoch before.
type Closer interface {
	// Drain applies entries that continue the ledger's position, as a consumer would, and follows an entry of
	// kind O that names exactly the ledger's newest entry, if the claim is this one. It drops what is applied
	// already and stops at a gap without an error. Poison halts the shard and answers ErrHalted. Harmless to repeat.
	Drain(ctx context.Context, s Seal, batch []event.Raw) (Drained, error)
	// CloseEpoch writes in one transaction where the epoch ended, takes the shard to (seal's epoch, 0) and
	// records as orphans what of beyond lies past that end. It requires the claim to be this one and the
	// shard's epoch to be lower. A synchronous commit, sent once.
	CloseEpoch(ctx context.Context, s Seal, beyond []event.Raw) (Closed, error)
}

// A Registrar keeps what was accepted and never became stock. Both are harmless to repeat.
type Registrar interface {
	// Accounted says of closed epochs up to which seq all is accounted for: their end, or, further, their orphans
	// as far as they are recorded without a hole. An epoch that is absent ended at 0.
	Accounted(ctx context.Context, shard int) (map[int64]int64, error)
	// RecordOrphans keeps what closed epochs have beyond their ends, passes over anything else, and counts what
	// was new.
	RecordOrphans(ctx context.Context, shard int, beyond []event.Raw) (recorded int, err error)
}

// A Source is what Redis is rebuilt from.
type Source interface {
	// Snapshot begins one in which the shard is (seal's epoch, 0), else ErrSuperseded. Whoever gets it closes it.
	Snapshot(ctx context.Context, s Seal) (Snapshot, error)
}

// A Snapshot is what Redis has to contain, all of one moment. SKUs are few and come at once; records and what buyers
// have grow with the trade and come in pages of at most SnapshotPage, so that nobody holds all of them. Each is read
// once; calls to Redis lie between two pages, and a reader that takes too long over one finds the snapshot gone, which
// is an error of the next. An error of page ends the reading and comes back. A page is the reader's until page returns.
// Not safe for concurrent use.
type Snapshot interface {
	Stock(ctx context.Context) (map[int64]event.Field, error)
	// Records are in the order of their ids, those of orders before those of documents.
	Records(ctx context.Context, page func([]Record) error) error
	// Bought is what each buyer has, held, confirmed and fulfilled, of the SKUs that have a limit, in the order of SKU
	// and buyer. Of other SKUs it may say something or nothing: nobody counts them.
	Bought(ctx context.Context, page func([]Bought) error) error
	// Close ends it. It may be called in the middle of a reading that panicked, and more than once.
	Close() error
}

// SnapshotPage bounds a page of a snapshot, in records.
const SnapshotPage = 1000

// A Record is a field of orders: the newest attempt of an order that is held or moved inside the retention, under the
// attempt that the client asked with [model]; or, under "~<id>", a document that was applied or refused inside the
// retention, never one that is still pending. [model]
type Record struct {
	ID   string
	Text string // in the form of event.FormatRecord
}

// A Bought is what one buyer has of one SKU.
type Bought struct {
	event.BuyerKey
	Units int64
}

// Drained is what one call of Drain did.
type Drained struct {
	Position stock.Position // the ledger's afterwards
	Entries  int            // applied by this call
	Followed int            // of them, entries of kind O that led into another epoch
}

// Closed is what step 4 wrote.
type Closed struct {
	Ended     stock.Position // of the epoch before
	Continues stock.Position // of the newest entry: the same, or an earlier epoch's where that one has none
	Orphans   int            // entries recorded as lost
}
