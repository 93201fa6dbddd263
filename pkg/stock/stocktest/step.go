package stocktest

import (
	"context"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Verb is the first word of a line of a table.
type Verb string

// The verbs, with what stands behind them.
const (
	Stock   Verb = "stock"   // SKU units: a new SKU with its opening stock
	Receive Verb = "receive" // document SKU units: goods in
	Adjust  Verb = "adjust"  // document SKU units: signed
	Count   Verb = "count"   // document SKU units: what a stocktake finds now, whatever is held and sold of it

	// Documents of an order that is confirmed; without lines they are about all that is left of it.
	Fulfil Verb = "fulfil" // document order [SKU units …]: a parcel leaves
	Cancel Verb = "cancel" // document order [SKU units …]: the sale is taken back
	Return Verb = "return" // document [order] [SKU units …] [scrap]: shipped units come back; scrap: not for sale

	Reserve Verb = "reserve" // order SKU units [SKU units …] [ttl 2m] [by buyer] [partial]
	Sale    Verb = "sale"    // order SKU units [SKU units …] [by buyer] [partial]
	Confirm Verb = "confirm" // order [SKU units …]: of the lines so much, and nothing of others; after expiry as the next attempt
	Release Verb = "release" // order [SKU units …]: what shall be left of these lines
	Extend  Verb = "extend"  // order duration: the hold lasts that long from now
	Replace Verb = "replace" // order SKU units [SKU units …]: what it holds instead
	Expire  Verb = "expire"  // order: what the reconciler sends; the strategy has the last word on the time
	Late    Verb = "late"    // order [SKU units …]: the confirm after expiry as an operation of its own

	Freeze Verb = "freeze" // SKU: in doubt, nothing is taken
	Close  Verb = "close"  // SKU: closed for sale
	Opens  Verb = "opens"  // SKU duration: not for sale before that
	Lift   Verb = "lift"   // SKU: freeze, close and opens are over
	Limit  Verb = "limit"  // SKU units: so much for each buyer, counted from the next takeover on; 0 = no limit

	Tick     Verb = "tick"     // duration: time passes
	Apply    Verb = "apply"    // the ledger catches up
	Forget   Verb = "forget"   // order: its record is dropped, as when the retention is over
	Takeover Verb = "takeover" // the shards are opened anew, what was decided is kept
	Lose     Verb = "lose"     // what the ledger does not have yet is gone, then a takeover

	Look     Verb = "look"     // SKU: its quantities
	Standing Verb = "standing" // order: how it stands
)

// A Line is units of a SKU by its text, as a table names it.
type Line struct {
	SKU   string
	Units int64
}

// A Step is one line of a table.
type Step struct {
	Verb    Verb
	ID      string // of an order or document
	Order   string // of fulfil, cancel and return: the order that the document is about
	Attempt int64  // of an order, from 1: written A#2, 1 when nothing is written
	Lines   []Line
	Buyer   string
	Partial bool          // of reserve and sale
	Scrap   bool          // of return
	TTL     time.Duration // of reserve, 15 min unless written
	Span    time.Duration // of tick, opens and extend
}

// A Word is what became of a step.
type Word string

// The words. Up to done they mean that it was done now.
const (
	Held      Word = "held"
	Confirmed Word = "confirmed"
	Released  Word = "released"
	Expired   Word = "expired"
	Cancelled Word = "cancelled" // of an order as it stands
	Fulfilled Word = "fulfilled" // of an order as it stands
	Done      Word = "done"      // documents, settings, and steps of the world

	Replayed  Word = "replayed"  // it stands already, nothing was moved
	Conflict  Word = "conflict"  // it stands in a way that does not allow this
	Ended     Word = "ended"     // the state of the order ends the matter: confirm of a released one, release of a sold one, a parcel of a hold
	Unknown   Word = "unknown"   // no such order
	NotDue    Word = "not due"   // expire: not yet
	Retake    Word = "retake"    // confirm of an expired order, where the caller must say late himself
	SoldOut   Word = "sold out"  // nothing was taken of any line
	Shortfall Word = "shortfall" // a confirm after expiry that found the units gone
	Refused   Word = "refused"   // a document for which there are too few units
	Overdue   Word = "overdue"   // a document after its deadline
	Lacking   Word = "lacking"   // a document that wants more of an order than it has, or counts less than is promised
	Beyond    Word = "too long"  // a hold that would last longer than is allowed
	NoBuyer   Word = "no buyer"  // a SKU with a limit, and an order that names no buyer
	Uncounted Word = "uncounted" // a SKU with a limit, and nobody has counted yet what buyers have
	OverLimit Word = "limit"     // the buyer would have more than the limit
	Frozen    Word = "frozen"
	Closed    Word = "closed"
	Unopened  Word = "not open"
	Missing   Word = "missing" // a SKU that is not there
)

// words are all of them, the longest first where one begins another.
var words = []Word{
	Held, Confirmed, Released, Expired, Cancelled, Fulfilled, Done, Replayed, Conflict, Ended, Unknown, NotDue, Retake, SoldOut, Shortfall,
	Refused, Overdue, Lacking, Beyond, NoBuyer, Uncounted, OverLimit, Frozen, Closed, Unopened, Missing,
}

// An Answer is what a shop says to a step. Only what the step is about is filled.
type Answer struct {
	Word    Word
	State   stock.State // of the order or document as it stands afterwards
	Attempt int64
	Units   int64            // of all lines of the order: held or committed now
	Shipped int64            // of all lines of the order
	Left    map[string]Short // per SKU, beside sold out, shortfall, lacking and refused
	Has     Short            // beside limit: what the buyer has, as Available, of Asked that are allowed
}

// A Short is what was asked of a SKU and what is there.
type Short struct{ Asked, Available int64 }

// A Shop is whatever serves orders: a strategy with all that it needs around it. It begins empty.
type Shop interface {
	// Do carries out a step. It is safe for concurrent use with steps that name orders. An error means that no
	// answer can be given, which fails the table.
	Do(ctx context.Context, s Step) (Answer, error)
	// Look tells the quantities by which the shop decides now.
	Look(ctx context.Context, sku string) (stock.Quantities, error)
}

// done is the word of a step that simply worked.
func (v Verb) done() Word {
	switch v {
	case Reserve, Extend, Replace:
		return Held
	case Sale, Confirm, Late:
		return Confirmed
	case Release:
		return Released
	case Expire:
		return Expired
	}
	return Done
}

// Told says an outcome of a desk in the words of the tables; name turns SKU numbers into texts.
func Told(verb Verb, out stock.Outcome, name func(int64) string) Answer {
	a := Stands(codes[out.Code], out.Reservation)
	a.Has = Short{Asked: out.Limit, Available: out.Bought}
	if out.Code == stock.Accepted {
		if a.Word = verb.done(); verb == Release && a.State == stock.Held {
			a.Word = Held // a part was released
		}
	}
	for _, s := range out.Short {
		if a.Left == nil {
			a.Left = map[string]Short{}
		}
		a.Left[name(s.SKU)] = Short{Asked: s.Asked, Available: s.Available}
	}
	return a
}

// Stands is an answer with an order as it stands.
func Stands(word Word, r stock.Reservation) Answer {
	a := Answer{Word: word, State: r.State, Attempt: r.Attempt, Units: r.Lines.Units()}
	for _, l := range r.Lines {
		a.Shipped += l.Fulfilled
	}
	return a
}

var codes = map[stock.Code]Word{
	stock.Replayed: Replayed, stock.Conflict: Conflict, stock.NoRecord: Unknown, stock.NotDue: NotDue,
	stock.Retake: Retake, stock.Overdue: Overdue, stock.MissingSKU: Missing, stock.FrozenSKU: Frozen,
	stock.ClosedSKU: Closed, stock.UnopenedSKU: Unopened, stock.SoldOut: SoldOut, stock.NotAllowed: Refused,
	stock.OutOfBounds: Beyond, stock.BuyerMissing: NoBuyer, stock.Uncounted: Uncounted, stock.LimitReached: OverLimit,
}
