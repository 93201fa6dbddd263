package audit

import (
	"slices"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Cursor is where the rolling pages go on. The zero value begins.
type Cursor struct {
	Ledger string // id after which the ledger's next page of orders begins
	Redis  uint64 // of the scan through Redis' records

	Bought event.BuyerKey // after which the ledger's next page of what buyers have begins
	Counts uint64         // of the scan through Redis' counts of it
}

// A Report is one audit.
type Report struct {
	Shard  int
	Drifts []Drift // nothing = the equation held
	More   int     // drifts beyond MaxDrifts, counted only
	// Unlisted are those of More by class: what was not named of one class says nothing about another.
	Unlisted map[Class]int

	// Compared is false when the shard was not fit to be compared (not opened, halted and fenced, foreign, …):
	// then Drifts says so, and the counts are 0.
	Compared bool
	SKUs     int // compared: quantities and settings
	Orders   int // records compared, of both pages, each once
	Ended    int // of Orders, those of orders that hold and promise nothing any more
	Buyers   int // counts of what a buyer has of a SKU compared, of both pages, each once
	Aged     int // records left out because their retention is about to end, or has just ended
	Dropped  int // orders whose record is rightly gone: their retention ended a while ago
	Entries  int // folded between the two positions
	Restarts int // times that the ground moved and the audit began again

	Ledger stock.Position // p: of the snapshot
	Redis  stock.Position // q: of the sample

	Cursor      Cursor // give it to the next audit
	LedgerSwept bool   // the ledger's last page of orders is through
	RedisSwept  bool   // Redis' last page of records is through
	BoughtSwept bool   // the ledger's last page of what buyers have is through
	CountsSwept bool   // Redis' last page of counts is through
}

// swept reports whether everything of both sides was compared.
func (r *Report) swept() bool { return r.LedgerSwept && r.RedisSwept && r.BoughtSwept && r.CountsSwept }

// Clean reports whether a comparison was completed and nothing differs.
func (r *Report) Clean() bool { return r.Compared && len(r.Drifts) == 0 }

// keyLedger is the Key of what Postgres shows by itself.
const keyLedger = "ledger"

// list names a drift while there is room, and counts it otherwise. What differs between the stores takes the place of
// what Postgres shows by itself: a thousand late holds must not hide the one SKU that somebody edited.
func (r *Report) list(d Drift) {
	if len(r.Drifts) < MaxDrifts {
		r.Drifts = append(r.Drifts, d)
		return
	}
	if d.Key != keyLedger {
		for i, other := range slices.Backward(r.Drifts) {
			if other.Key == keyLedger {
				r.Drifts = append(slices.Delete(r.Drifts, i, i+1), d)
				d = other
				break
			}
		}
	}
	r.leaveOut(d.Class, 1)
}

// leaveOut counts drifts that are not named.
func (r *Report) leaveOut(class Class, n int) {
	if r.Unlisted == nil {
		r.Unlisted = map[Class]int{}
	}
	r.More += n
	r.Unlisted[class] += n
}
