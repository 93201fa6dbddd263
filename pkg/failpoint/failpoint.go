// Package failpoint names the moments in which a process may die and nobody
// may notice: after a read and before its transaction, inside it, between a
// commit and its acknowledgement. The fault suite builds the programs with the
// tag failpoint and then kills or stops them exactly there. In every other
// build Hit is empty, and the compiler leaves nothing of it.
package failpoint

// A Point is a named moment.
type Point string

// The points, in the order in which an operation meets them.
const (
	OrderRead     Point = "order.read"     // a request was checked; nothing was asked of any store
	OrderDecided  Point = "order.decided"  // Redis decided; nobody was told
	OrderAnswered Point = "order.answered" // the level asked for is reached; the answer is not written

	DocumentWritten  Point = "document.written"  // it stands in Postgres; its movement was not sent
	DocumentDecided  Point = "document.decided"  // Redis decided its movement; Postgres has not heard of it
	DocumentAnswered Point = "document.answered" // its outcome is in Postgres; the answer is not written

	ConsumerRead      Point = "consumer.read"      // entries were read; no transaction has begun
	LedgerInside      Point = "ledger.inside"      // all rows of a batch are written; nothing is committed
	ConsumerCommitted Point = "consumer.committed" // the batch is committed; nothing is acknowledged
	ConsumerAcked     Point = "consumer.acked"     // it is acknowledged
	ConsumerTrimming  Point = "consumer.trimming"  // the log is about to be trimmed
	ConsumerHalted    Point = "consumer.halted"    // an entry halted the shard; Redis is not fenced and still sells

	ExpiryRead       Point = "expiry.read"       // holds were found due; nothing was sent
	ExpiryDecided    Point = "expiry.decided"    // Redis ended them
	FinishingRead    Point = "finishing.read"    // a document was found pending; nothing was sent
	FinishingRenewed Point = "finishing.renewed" // its deadline had passed and it has a new one; nothing was sent with that
	FinishingDecided Point = "finishing.decided" // Redis decided its movement; nothing was noted of it
)

// Takeover is the point before a step of a takeover.
func Takeover(step string) Point { return Point("takeover." + step) }
