package takeover

import (
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Words that Status.Fence takes.
const (
	FenceAbsent  = "absent"  // no takeover fenced this server process
	FenceSame    = "same"    // one did, and what it wrote is still in place
	FenceDiffers = "differs" // one did, and somebody changed what it wrote
)

// Words that Status.Mode takes.
const (
	ModeOpen   = "open"
	ModeClosed = "closed"
)

// A Status is what a Redis process says of itself and one shard.
type Status struct {
	// Loaded is false when the function library is not there: no takeover opened this process. The other
	// fields are then what the keys say, and Fence is FenceAbsent.
	Loaded   bool
	Token    string // "<ledger>.<epoch>"; empty when the shard's state is not there or not readable
	Ledger   string // first half of Token
	Epoch    int64  // second half of Token
	Seq      int64  // newest entry's; while Mode is closed, a count of the takeover's puts
	Mode     string // ModeOpen, ModeClosed
	Nonce    string // of the last fence
	Version  string // of the library in force
	Fence    string // FenceAbsent, FenceSame or FenceDiffers
	AtMillis int64  // Redis TIME, milliseconds since 1970
	First    string // oldest id of the log, empty when there is none
	Last     string // newest id of the log, empty when there is none
}

// Open reports whether this process would sell: opened by a takeover and untouched since.
func (s Status) Open() bool { return s.Mode == ModeOpen && s.Fence == FenceSame }

// States of a shard in the ledger.
const (
	StateNew        = "new"        // never opened
	StateRebuilding = "rebuilding" // an attempt closed the epoch before and has not said open yet
	StateOpen       = "open"
	StateHalted     = "halted" // an entry could not be applied; only an operator goes on
)

// A Shard is the ledger's row of one shard.
type Shard struct {
	Number  int
	Writer  string // redis or postgres: who decides
	Epoch   int64
	Applied int64  // seq that the ledger has reached within Epoch
	Claim   int64  // newest epoch that was given to an attempt
	State   string // StateNew, StateRebuilding, StateOpen, StateHalted
	Reason  string // why halted
	Library int    // version of the function library in force
	Changed time.Time
	Opened  time.Time // last time it said open; zero when never
	Now     time.Time // Postgres' clock in the statement that read the row
}

// Position is how far the ledger is.
func (s Shard) Position() stock.Position { return stock.Position{Epoch: s.Epoch, Seq: s.Applied} }

// A Seal identifies one attempt in every call that it makes. No two attempts share an epoch. [model]
type Seal struct {
	Shard    int
	Ledger   string
	Epoch    int64
	Nonce    string
	Operator bool // a person asked: the attempt may go on with a halted shard
	Library  int  // version of the function library that will be in force; 0: the one that is
}

// Token is what Redis compares: "<ledger>.<epoch>".
func (s Seal) Token() string { return fmt.Sprintf("%s.%d", s.Ledger, s.Epoch) }
