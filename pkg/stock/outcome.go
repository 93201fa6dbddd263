package stock

// A Code says what became of one operation. Codes are values that the library returns, never read out of
// error texts.
type Code string

// The codes, in order of precedence: the first that fits is the answer. What keeps a SKU from being taken is
// looked for line by line, in the order of SKU numbers.
const (
	Accepted     Code = "accepted"       // done now; Receipt names it
	Replayed     Code = "replayed"       // the order is already known: Reservation tells how it stands
	Conflict     Code = "conflict"       // the id stands with other content, or its attempt does not allow this
	NoRecord     Code = "none"           // Redis has no record of it: ask Postgres
	NotDue       Code = "not_due"        // expire: the hold's time has not come by Redis' clock
	Retake       Code = "retake"         // confirm of an expired hold: send it as LateConfirm
	Overdue      Code = "overdue"        // document: its deadline has passed, nothing was moved
	Damaged      Code = "damaged"        // the order's record cannot be read: it is in doubt
	MissingSKU   Code = "missing"        // a SKU that Redis does not have: refuse, it is not "sold out"
	FrozenSKU    Code = "frozen"         // a SKU in doubt
	ClosedSKU    Code = "closed"         // a SKU closed for sale
	UnopenedSKU  Code = "not_open_yet"   // its opening time has not come
	BuyerMissing Code = "buyer_required" // the SKU has a limit per buyer, and the order names none
	Uncounted    Code = "uncounted"      // a limit was switched on, and what buyers have is not counted yet
	LimitReached Code = "limit_reached"  // the buyer would have more than the SKU's limit: Bought and Limit
	SoldOut      Code = "sold_out"       // Short has available per line
	OutOfBounds  Code = "out_of_bounds"  // the hold would last, or the order have more lines, than is allowed
	NotAllowed   Code = "refused"        // document refused for lack of units, by an entry of the log
	Inconsistent Code = "inconsistent"   // Redis' numbers would go below zero: the SKU is in doubt
	Again        Code = "again"          // the call was full; nothing was written: send it again
)

// A Short is one line of a refused order: what was asked, and what is there.
type Short struct {
	SKU       int64
	Asked     int64
	Available int64
}

// An Outcome is the answer to one operation.
type Outcome struct {
	Code Code
	// Receipt of the entry when Code is Accepted or NotAllowed.
	Receipt Receipt
	// Reservation as it stands after the operation: filled for Accepted orders, Replayed, Conflict, NotDue, Retake.
	Reservation Reservation
	// Short lists every line of the order when Code is SoldOut.
	Short []Short
	// SKU is the number that MissingSKU, FrozenSKU, ClosedSKU, UnopenedSKU, Inconsistent, BuyerMissing, Uncounted and
	// LimitReached are about.
	SKU int64
	// Bought is how much of that SKU the buyer has, over all orders, and Limit the most of it: of LimitReached.
	Bought, Limit int64
}
