package stock

// A Kind is the letter of an operation. It stands in every log entry, so a letter is never given a second
// meaning; the ones without a Go user yet are reserved by the grammar (decision 0001).
type Kind byte

// The kinds, with who sends them and what they do to available / held / committed of each line.
const (
	Reserve     Kind = 'R' // producer: none or ended → held        −q / +q /
	Sale        Kind = 'S' // producer: none or ended → confirmed   −q /    / +q
	Confirm     Kind = 'C' // producer: held → confirmed               / −q / +q
	LateConfirm Kind = 'L' // producer: expired → confirmed as the next attempt  −q / / +q
	Release     Kind = 'X' // producer: held → released             +q / −q /
	Expire      Kind = 'E' // reconciler: held and due → expired    +q / −q /
	Extend      Kind = 'U' // reserved
	Replace     Kind = 'P' // reserved
	Movement    Kind = 'M' // document: signed, never below 0       ±q /    /
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
	Attempt int64  // R S C L X E: the attempt that is meant
	Buyer   string // R S
	TTL     int64  // R: milliseconds
	Lines   Lines  // R S: asked; M: signed movements in Asked; N: one line, its number and the opening units
	Known   bool   // R S: the caller found the order's earlier attempt in Postgres (protocol D)

	Deadline  int64    // M N: Redis time in milliseconds after which it is refused as late
	Document  string   // M: the kind of document, one of the Document… words
	Reason    string   // M: reason code
	Refused   bool     // M, in a log entry only: it was refused, and moved nothing
	SKU       string   // N: the SKU's text
	Settings  Settings // T: of Lines[0].SKU
	Continues Position // O
}

// Words for the kinds of documents.
const (
	DocumentOpening = "opening"
	DocumentReceive = "receive"
	DocumentAdjust  = "adjust"
)

// DocumentID is the id under which a client's document stands in Redis and in the log.
func DocumentID(id string) string { return "~" + id }
