package stock

// A State is where a reservation or a document stands.
type State string

// held → confirmed → fulfilled; held → released; held → expired; confirmed → cancelled. A refused order
// leaves no record; a document is done or refused once and for ever.
const (
	Held      State = "held"
	Confirmed State = "confirmed"
	Released  State = "released"
	Expired   State = "expired"
	Cancelled State = "cancelled"
	Fulfilled State = "fulfilled"
	Done      State = "done"
	Refused   State = "refused"
)

// Ended reports whether the order gave its units back, so that its next attempt may take stock.
func (s State) Ended() bool { return s == Released || s == Expired || s == Cancelled }

// A Reservation is one attempt of one order as a store knows it.
type Reservation struct {
	ID            string  // order id, or "~" and a document's id
	State         State   // where it stands
	Receipt       Receipt // of its last transition
	Attempt       int64   // the attempt as asked for, from 1; 0 for a document
	ExpiresMillis int64   // Redis time at which a hold is due, milliseconds since 1970; 0 = never
	Buyer         string  // may be empty
	Lines         Lines   // canonical
}

// An Ending is where an order or document came to rest: its record may be forgotten while it still stands there.
type Ending struct {
	ID      string  // order id, or "~" and a document's id
	Receipt Receipt // of its last transition
}
