package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of Apply.
const (
	maxTries     = 24     // tries without progress: enough to halve the largest batch down to one entry
	maxConflicts = 5      // of them, serialization failures and deadlocks
	maxApplyOps  = 20_000 // operations of one transaction; a larger batch becomes several
)

// Applied is what one call of Apply committed. It counts also beside an error: the prefix stands.
type Applied struct {
	Position   stock.Position // reached by the ledger, also when nothing was new; zero when an error hid it
	Entries    int
	Ops        int
	Orphans    int              // entries of closed epochs beyond their end, now recorded
	Mismatches []event.Mismatch // their SKUs are frozen
}

// Apply persists entries of one shard, in any order and however often they come: what the ledger has is
// compared and dropped, what follows its position is taken in order, and each transaction moves stock, orders,
// documents and the position together (protocol G). Safe for concurrent use; the shard's row serves one at a
// time.
//
// It stops early with a *GapError (an entry is missing), an *AheadError (an entry of an epoch that the ledger
// has not opened) or a *HaltedError (an entry that cannot be applied halted the shard: in this call if Claim
// is set). A *HeldError means that another holder sits on the shard. After any other error, apply again.
func (l *Ledger) Apply(ctx context.Context, shard int, raws []event.Raw) (Applied, error) {
	b := newBatch(shard, raws)
	var total Applied
	for tries, conflicts, commits := 0, 0, 0; tries < maxTries; tries++ {
		done, err := l.applyOnce(ctx, b)
		if err == nil {
			if done.Entries > 0 {
				tries = 0
			}
			total.add(done.Applied)
			b.retreat, b.whole, b.short = len(b.items), false, false
			if !done.more {
				return total, done.stop
			}
			continue
		}
		var poison *poisonError
		var halted *HaltedError
		switch {
		case errors.As(err, &halted):
			return total, halted
		case errors.As(err, &poison):
			// What stands before it is committed first; then it is the next entry, and the shard halts on it.
			if poison.at > poison.first {
				b.retreat = poison.at
				continue
			}
			claim, done, err := l.haltOn(ctx, shard, poison)
			if err != nil {
				return total, err
			}
			if done {
				total.Position = poison.have
				return total, &HaltedError{Shard: shard, Reason: poison.why, Claim: claim}
			}
			// The shard moved on meanwhile: look again.
		case isSQLState(err, uniqueViolation) && !b.whole:
			// An order's key is taken: read what stands there, and give the next one if that is right.
			b.whole = true
		case errors.Is(err, errShort):
			b.short = true
		case isSQLState(err, serializationFailure, deadlockDetected) && conflicts < maxConflicts:
			conflicts++
		case isSQLState(err, lockNotAvailable):
			return total, &HeldError{Shard: shard}
		case errors.Is(err, errCommit) && commits < maxConflicts && ctx.Err() == nil:
			// Unknown outcome: the next try reads the position again and drops what stands.
			commits++
		default:
			return total, fmt.Errorf("apply to shard %d: %w", shard, err)
		}
	}
	return total, fmt.Errorf("apply to shard %d: no progress after %d tries, apply again", shard, maxTries)
}

func (a *Applied) add(b Applied) {
	a.Position = b.Position
	a.Entries += b.Entries
	a.Ops += b.Ops
	a.Orphans += b.Orphans
	a.Mismatches = append(a.Mismatches, b.Mismatches...)
}

// A batch is what one call of Apply has to work with, in the order of its positions.
type batch struct {
	shard   int
	items   []item
	entries []event.Entry // of the readable items, in order
	skus    []int64       // touched, ascending
	moving  []string      // orders that are moved without having been made here
	making  []string      // orders that the batch makes, filled when whole
	papers  []string      // document ids, without their first ~
	ops     int

	retreat int  // items that the next try may take, less than all after a failure
	whole   bool // load the orders that the batch makes too: a key was taken
	short   bool // an update found fewer rows than it should, once
}

type item struct {
	raw      event.Raw
	position stock.Position
	entry    *event.Entry // nil when unreadable
	err      error        // why unreadable
}

// nowhere is the place of an entry whose id cannot be read: behind everything else.
var nowhere = stock.Position{Epoch: math.MaxInt64, Seq: math.MaxInt64}

func newBatch(shard int, raws []event.Raw) *batch {
	b := &batch{shard: shard, items: make([]item, len(raws)), retreat: len(raws)}
	parsed := make([]event.Entry, len(raws))
	for i, raw := range raws {
		it := &b.items[i]
		it.raw = raw
		if parsed[i], it.err = raw.Parse(); it.err == nil {
			it.entry, it.position = &parsed[i], parsed[i].Position
			continue
		}
		var err error
		if it.position, err = stock.ParsePosition(raw.ID); err != nil {
			it.position = nowhere
		}
	}
	slices.SortStableFunc(b.items, func(x, y item) int {
		return cmp.Or(cmp.Compare(x.position.Epoch, y.position.Epoch), cmp.Compare(x.position.Seq, y.position.Seq))
	})
	b.entries = make([]event.Entry, 0, len(raws)) // never grows: pointers into it stay
	for i := range b.items {
		if it := &b.items[i]; it.entry != nil {
			b.entries = append(b.entries, *it.entry)
			it.entry = &b.entries[len(b.entries)-1]
		}
	}
	b.need()
	return b
}

// need collects what must be read before the batch can be folded, if all of it is new. More than needed does
// no harm.
func (b *batch) need() {
	b.moving = event.Needs(b.entries)
	full := 4096
	for i := range b.entries {
		b.ops += len(b.entries[i].Ops)
		for j := range b.entries[i].Ops {
			op := &b.entries[i].Ops[j]
			switch op.Kind {
			case stock.Reserve, stock.Sale:
				// A later attempt is rare, and its key depends on those before.
				if op.Attempt > 1 {
					b.moving = append(b.moving, op.ID)
				}
			case stock.Movement, stock.NewSKU:
				b.papers = append(b.papers, paperID(op.ID))
			}
			for k := range op.Lines {
				b.skus = append(b.skus, op.Lines[k].SKU)
			}
		}
		for _, a := range b.entries[i].After {
			b.skus = append(b.skus, a.SKU)
		}
		// Few SKUs in many lines must not become a list of all lines.
		if len(b.skus) > full {
			b.skus = compacted(b.skus)
			full = 2*len(b.skus) + 4096
		}
	}
	b.skus, b.moving = compacted(b.skus), compacted(b.moving)
}

// compacted sorts a list and drops what is twice in it, in place.
func compacted[T cmp.Ordered](list []T) []T {
	slices.Sort(list)
	return slices.Compact(list)
}

// makes names the orders that the batch takes units for.
func (b *batch) makes() []string {
	if b.making == nil {
		b.making = []string{}
		for i := range b.entries {
			for j := range b.entries[i].Ops {
				if op := &b.entries[i].Ops[j]; op.Kind == stock.Reserve || op.Kind == stock.Sale {
					b.making = append(b.making, op.ID)
				}
			}
		}
		b.making = compacted(b.making)
	}
	return b.making
}

// paperID is the document's id in the ledger: without the ~ that keeps it apart from order ids.
func paperID(id string) string {
	if len(id) > 0 && id[0] == '~' {
		return id[1:]
	}
	return id
}

// A GapError means that the entry after Have is missing from what was given, while Next was there: read the
// log again from Have.
type GapError struct {
	Shard int
	Have  stock.Position
	Next  string
}

func (e *GapError) Error() string {
	return fmt.Sprintf("shard %d: a gap after %v, the next entry at hand is %s: read the log again from there", e.Shard, e.Have, e.Next)
}

// An AheadError means that an entry belongs to an epoch that the ledger has not opened: only a takeover
// follows it.
type AheadError struct {
	Shard int
	Have  stock.Position
	Next  string
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("shard %d: the ledger is at %v, entry %s is of a newer epoch: a takeover has to follow it", e.Shard, e.Have, e.Next)
}

// A HaltedError means that the shard takes nothing until an operator decides.
type HaltedError struct {
	Shard  int
	Reason string
	Claim  Claim // set when this very call halted it: fence Redis with it, so that nothing is accepted behind
}

func (e *HaltedError) Error() string {
	return fmt.Sprintf("shard %d is halted: %s: look at dead_event, then retry or take over", e.Shard, e.Reason)
}

// A HeldError means that somebody kept the shard's row locked for longer than 6 s.
type HeldError struct{ Shard int }

func (e *HeldError) Error() string {
	return fmt.Sprintf("shard %d: another session holds its row for too long: end it if it is stalled, then apply again", e.Shard)
}

// A poisonError is an entry that cannot be applied.
type poisonError struct {
	at    int // index among the batch's items
	first int // index of the first item that the transaction would have taken
	have  stock.Position
	raw   event.Raw
	why   string
}

// position is where dead_event files it: its own, or the next after the ledger's when that cannot be read.
func (e *poisonError) position() stock.Position {
	if p, err := stock.ParsePosition(e.raw.ID); err == nil {
		return p
	}
	return stock.Position{Epoch: e.have.Epoch, Seq: e.have.Seq + 1}
}

func (e *poisonError) Error() string { return "cannot apply " + e.raw.ID + ": " + e.why }

// SQL states that Apply reacts to.
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
)

func isSQLState(err error, states ...string) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && slices.Contains(states, answer.Code)
}

// isDataError is true for what no repetition mends: a constraint, or a value that Postgres refuses.
func isDataError(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || len(answer.Code) < 2 {
		return false
	}
	return answer.Code[:2] == "23" || answer.Code[:2] == "22"
}
