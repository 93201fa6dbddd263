package takeover

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// A Class names what is wrong with a shard, as its Redis process and the ledger's row show it.
type Class string

// The classes of a diagnosis in order of precedence: the first that fits is the answer. What an operator has to
// decide comes before what a takeover would heal, for a takeover would destroy the evidence.
const (
	Healthy    Class = "healthy"    // sells, or the ledger itself decides this shard
	Changing   Class = "changing"   // the row moved while it was looked at: look again (Probe only)
	Foreign    Class = "foreign"    // another ledger's id in Redis
	Unfenced   Class = "unfenced"   // halted, but Redis still sells: fence it (FenceHalted)
	Halted     Class = "halted"     // halted and closed: an operator decides
	Missing    Class = "missing"    // keys gone, flushed, empty server, or never opened
	Ahead      Class = "ahead"      // Redis' epoch is above the ledger's: a failover of Postgres, or a stopped attempt
	Rewound    Class = "rewound"    // Redis is behind the ledger
	Rebuilding Class = "rebuilding" // an attempt is at it
	Stalled    Class = "stalled"    // an attempt did not say open within StallAfter
	Unopened   Class = "unopened"   // restart, promotion, reload: this process was never opened
	Torn       Class = "torn"       // opened, but somebody changed what the takeover wrote
	// Uncounted is a limit per buyer that was switched on without anybody having counted what buyers have: orders of
	// the SKU are refused until a takeover has. The shard is healthy otherwise, and only an audit looks so closely.
	Uncounted Class = "uncounted"
)

// StallAfter is how long a shard may be rebuilding before a new attempt is due.
const StallAfter = 5 * time.Second

// NeedsTakeover reports whether an automatic takeover is the remedy.
func (c Class) NeedsTakeover() bool {
	switch c {
	case Missing, Ahead, Rewound, Stalled, Unopened, Torn, Uncounted:
		return true
	}
	return false
}

// Diagnose says what is wrong with a shard, given what its Redis answered and a row that was read before that
// and had not changed after it (Probe does so). Otherwise a takeover that happens in between looks like a
// fault. It decides nothing by the local clock: ages are told by Postgres' alone.
//
// Redis' seq is compared with the row's applied, which was read earlier: Redis is always at or beyond it,
// unless it lost something.
func Diagnose(ledger string, s Status, row Shard) Class {
	switch {
	case row.Writer == "postgres":
		return Healthy
	case s.Token != "" && s.Ledger != ledger:
		return Foreign
	case row.State == StateHalted && s.Mode == ModeOpen && s.Fence == FenceSame:
		return Unfenced
	case row.State == StateHalted:
		return Halted
	case s.Token == "":
		return Missing
	case s.Epoch > row.Epoch:
		return Ahead
	case s.Epoch < row.Epoch:
		return Rewound
	case row.State == StateRebuilding:
		// A change that lies ahead was before Postgres' clock was set back: nobody knows how long ago.
		if row.Now.Sub(row.Changed).Abs() > StallAfter {
			return Stalled
		}
		return Rebuilding
	case s.Mode == ModeOpen && s.Seq < row.Applied:
		return Rewound
	case s.Mode == ModeOpen && s.Last == "":
		return Missing // the log: trimming always leaves the entry that the ledger has reached
	case !s.Loaded || s.Fence == FenceAbsent:
		return Unopened
	case s.Mode != ModeOpen || s.Fence != FenceSame || s.Version != strconv.Itoa(row.Library):
		return Torn // by another version than the one in force every call is refused, and nobody else would mend it
	}
	return Healthy
}

// A Finding is what a probe saw, the evidence of a repair.
type Finding struct {
	Class  Class
	Status Status
	Row    Shard
}

func (f Finding) String() string {
	return fmt.Sprintf("shard %d is %s: Redis has %q at %d (%s, fence %s, log to %q), the ledger has epoch %d at %d (%s)",
		f.Row.Number, f.Class, f.Status.Token, f.Status.Seq, f.Status.Mode, f.Status.Fence, f.Status.Last, f.Row.Epoch, f.Row.Applied, f.Row.State)
}

// A StatusReader asks a Redis process how one shard stands.
type StatusReader interface {
	Status(ctx context.Context) (Status, error)
}

// A RowReader reads the ledger's rows.
type RowReader interface {
	ID() string
	Shard(ctx context.Context, number int) (Shard, error)
}

// Probe reads the row, asks Redis, and reads the row again, so that nothing that happens in between is taken
// for a fault. It changes nothing. An error means that one of the two did not answer.
func Probe(ctx context.Context, r StatusReader, l RowReader, number int) (Finding, error) {
	before, err := l.Shard(ctx, number)
	if err != nil {
		return Finding{}, fmt.Errorf("probe shard %d: read its row: %w", number, err)
	}
	status, err := r.Status(ctx)
	if err != nil {
		return Finding{}, fmt.Errorf("probe shard %d: ask Redis: %w", number, err)
	}
	after, err := l.Shard(ctx, number)
	if err != nil {
		return Finding{}, fmt.Errorf("probe shard %d: read its row: %w", number, err)
	}
	f := Finding{Class: Changing, Status: status, Row: before}
	if before.Epoch == after.Epoch && before.Claim == after.Claim && before.State == after.State {
		f.Class = Diagnose(l.ID(), status, before)
	}
	return f, nil
}

// FenceHalted closes a halted shard that still sells (class Unfenced): whoever halted it died before the fence.
// It takes a claim of its own, so that no two callers share an epoch [model], and changes nothing else. It does
// nothing when the shard is not halted (any more).
func FenceHalted(ctx context.Context, r Redis, l Ledger, number int) error {
	row, err := l.Shard(ctx, number)
	if err != nil {
		return fmt.Errorf("fence halted shard %d: read its row: %w", number, err)
	}
	if row.State != StateHalted {
		return nil
	}
	status, err := r.Status(ctx)
	if err != nil {
		return fmt.Errorf("fence halted shard %d: ask Redis: %w", number, err)
	}
	seal, err := l.Claim(ctx, number, status.Epoch, true)
	if err != nil {
		return fmt.Errorf("fence halted shard %d: claim an epoch: %w", number, err)
	}
	seal.Library = row.Library
	if err := r.Fence(ctx, seal, false); err != nil {
		return fmt.Errorf("fence halted shard %d: %w", number, err)
	}
	return nil
}
