package sale

import "github.com/stockpipe/stockpipe/pkg/api"

// Told is the last final answer that a buyer got about an order.
type Told string

// What buyers are told.
const (
	Refused   Told = "refused"    // sold out, or there is nothing to confirm any more
	Held      Told = "held"       // and the buyer never came back
	Confirmed Told = "confirmed"  // by an answer that says persisted
	Released  Told = "released"   // given back by the buyer
	Vanished  Told = "vanished"   // accepted, and later unknown to the shop: its receipt must say lost
	Closed    Told = "closed"     // the shop did not sell, and said so: nothing was taken
	Unknown   Told = "unanswered" // no final answer came
)

// An Order is one line of the callers' own list.
type Order struct {
	ID    string
	Lines []api.Line
	Told  Told

	Accepted bool   // a reservation was answered by 201 or 200, whatever came later
	Receipt  string // of the last acceptance
	Repeats  int    // requests that were sent again
	Twice    string // how two acceptances contradict each other; empty when they do not
}
