package stock

// A Kind is the letter of an operation. It stands in every log entry, so a letter is never given a second
// meaning; the ones without a Go user yet are reserved by the grammar (decision 0001).
type Kind byte

// The kinds, with who sends them and what they do to available / held / committed of each line.
const (
	Reserve     Kind = 'R' // producer: none or ended → held        −q / +q /
	Sale        Kind = 'S' // producer: none or ended → confirmed   −q /    / +q
	Confirm     Kind = 'C' // producer: held → confirmed, whole or with results  +rest / −q / +result
	LateConfirm Kind = 'L' // producer: expired → confirmed as the next attempt  −q / / +q
	Release     Kind = 'X' // producer: held → released, or held with less  +q / −q /
	Expire      Kind = 'E' // reconciler: held and due → expired    +q / −q /
	Extend      Kind = 'U' // producer: held → held until later; no quantities
	Replace     Kind = 'P' // producer: held → held with other lines, all of them or none; its own units count as available
	Movement    Kind = 'M' // document: what it moves depends on its kind; never below 0
	NewSKU      Kind = 'N' // document: absent → present            +q /    /
	Configure   Kind = 'T' // settings of a SKU; no quantities
	Transfer    Kind = 'V' // reserved
	Opened      Kind = 'O' // takeover: first entry of an epoch, names the position that it continues
	Settle      Kind = 'K' // reserved
)

// Takes reports whether the kind may take units, and so belongs into apply, which a full Redis refuses;
// everything else goes through settle (protocol C.6).
func (k Kind) Takes() bool {
	switch k {
	case Reserve, Sale, LateConfirm, Movement, NewSKU, Replace, Transfer:
		return true
	}
	return false
}

// An Operation is one change asked of a shard. ID is an order id, or "~" and a document's id, or "~~" and a
// name of ours (which no client can write). Which other fields count depends on Kind.
type Operation struct {
	Kind    Kind
	ID      string
	Attempt int64  // R S C L X E U P: the attempt that is meant
	Buyer   string // R S; M of a cancellation: whose limit gets the units back
	TTL     int64  // R: milliseconds
	// Lines are what R, S and P ask for (a partial R or S has in Now what was taken, in a log entry only); the
	// resulting quantities, in Now, of the lines that C, L and X name (none: the whole order); the signed movements
	// of M, in Asked; the one SKU of N with its opening units, and of T.
	Lines   Lines
	Partial bool  // R S: take what is there of each line
	Known   bool  // R S: the caller found the order's earlier attempt in Postgres (protocol D)
	Until   int64 // U: the new end of the hold, Redis time in milliseconds since 1970

	Deadline  int64    // M N: Redis time in milliseconds after which it is refused as late
	Document  string   // M: the kind of document, one of the Document… words
	Reason    string   // M: reason code
	Order     OrderRef // M: the confirmed order that it is about; empty for the others
	Refused   bool     // M, in a log entry only: it was refused, and moved nothing
	SKU       string   // N: the SKU's text
	Change    Change   // T: of the settings of Lines[0].SKU
	Continues Position // O
}

// An OrderRef names an order for a document. Key is its attempt as the ledger numbers it; Asked is the attempt in
// Redis' record of it, 0 when that record can only be of a later life of the order.
type OrderRef struct {
	ID    string
	Key   int64
	Asked int64
}

// A Change of settings says what of them becomes what; the rest stays, so that two who change different things do
// not undo each other.
type Change struct {
	Opens  int64  // Redis time in milliseconds since 1970, 0 = at once; Keep
	Frozen Switch // in doubt, or stopped by an operator
	Closed Switch // by the shop
	Limit  int64  // units per buyer, 0 = none; Keep
}

// Keep is the value of a number in a Change that stays as it is.
const Keep = -1

// Kept is the Change that changes nothing.
var Kept = Change{Opens: Keep, Limit: Keep}

// A Switch changes a setting that is on or off.
type Switch int8

// The zero value keeps the setting.
const (
	KeepIt Switch = 0
	On     Switch = 1
	Off    Switch = -1
)

// Of gives the setting after the switch.
func (s Switch) Of(was bool) bool { return s == On || s == KeepIt && was }

// Apply gives the settings after the change.
func (c Change) Apply(to Settings) Settings {
	if c.Opens != Keep {
		to.OpensMillis = c.Opens
	}
	if c.Limit != Keep {
		to.Limit = c.Limit
	}
	to.Frozen, to.Closed = c.Frozen.Of(to.Frozen), c.Closed.Of(to.Closed)
	return to
}

// Words for the kinds of documents, with what their signed movements do to available / held / committed. They stand
// in log entries, so a word never gets another meaning.
const (
	DocumentOpening = "opening"
	DocumentReceive = "receive" // +q / /    goods in
	DocumentAdjust  = "adjust"  // ±q / /    with a reason
	DocumentCount   = "count"   // ±q / /    what a stocktake found beside what the books had then
	DocumentReturn  = "return"  // +q / /    fulfilled units back to stock; +0 when they are scrapped
	DocumentFulfil  = "fulfil"  // / / −q    shipped: they leave on_hand
	DocumentCancel  = "cancel"  // +q / / −q a confirmed order, or a part of it
)

// OfOrder reports whether documents of this kind always name a confirmed order and change how it stands.
func OfOrder(document string) bool { return document == DocumentFulfil || document == DocumentCancel }

// DocumentID is the id under which a client's document stands in Redis and in the log.
func DocumentID(id string) string { return "~" + id }
