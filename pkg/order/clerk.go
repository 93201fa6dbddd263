package order

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of a Clerk.
const (
	DefaultPatience = 2 * time.Second // how long an answer waits for its level

	mostLost   = 3                      // how often an operation is sent that takeovers keep losing
	retrySoon  = 500 * time.Millisecond // after a closed shard or a busy ledger
	retryDoubt = time.Second            // after a SKU in doubt
)

// Parts are what a Clerk works with. All must be safe for concurrent use.
type Parts struct {
	Desk      stock.Desk
	Epochs    stock.Epochs
	Catalog   Catalog
	Receipts  Receipts
	Orders    Orders
	Records   Records
	Documents Documents
	Papers    OrderPapers
	Counts    Counts
	Shelves   Shelves
	Figures   Figures

	Shards   int           // how many the ledger has, at least 1
	MaxLines int           // lines of one order; 0 = stock.DefaultMaxLines
	Patience time.Duration // how long an answer waits for its level; 0 = DefaultPatience
}

// A Clerk serves orders. Safe for concurrent use; every call may be repeated with the same id and attempt.
type Clerk struct{ parts Parts }

// NewClerk checks the bounds and makes a Clerk. The errors are *stock.FieldError.
func NewClerk(p Parts) (*Clerk, error) {
	if p.MaxLines == 0 {
		p.MaxLines = stock.DefaultMaxLines
	}
	if p.Patience == 0 {
		p.Patience = DefaultPatience
	}
	if p.Shards < 1 || p.Shards > stock.MaxShards {
		return nil, stock.BadField("shards", fmt.Sprint(p.Shards), fmt.Sprintf("use 1 to %d: initialise the ledger first", stock.MaxShards))
	}
	if p.MaxLines < 1 || p.MaxLines > stock.MaxOrderLines {
		return nil, stock.BadField("max-lines", fmt.Sprint(p.MaxLines), fmt.Sprintf("use 1 to %d", stock.MaxOrderLines))
	}
	return &Clerk{parts: p}, nil
}

// decide sends an operation and judges what came back: an acceptance counts only under an epoch that still
// stands when the reply arrives (protocol N), and a refusal only if no newer epoch was learnt meanwhile, because
// an isolated old master refuses for reasons that are not true any more.
func (c *Clerk) decide(ctx context.Context, shard int, op stock.Operation) (stock.Outcome, error) {
	for range mostLost {
		before := c.parts.Epochs.Epoch(shard).Epoch
		out, err := c.parts.Desk.Do(ctx, shard, op)
		if err != nil {
			return out, err
		}
		receipt, standing := out.Receipt, stock.StandingAccepted
		switch out.Code {
		case stock.Replayed:
			receipt = out.Reservation.Receipt
			fallthrough
		case stock.Accepted, stock.NotAllowed:
			if standing, err = c.parts.Receipts.Resolve(ctx, receipt); err != nil {
				return out, fmt.Errorf("%w (receipt %s: %w)", stock.ErrUnknown, receipt, err)
			}
		default:
			if c.parts.Epochs.Epoch(shard).Epoch != before {
				standing = stock.StandingLost
			}
		}
		switch standing {
		case stock.StandingPersisted, stock.StandingAccepted:
			return out, nil
		case stock.StandingLost: // by a master that is none: ask the present one
		default:
			return out, fmt.Errorf("receipt %s stands as %s: %w", receipt, standing, stock.ErrUnknown)
		}
	}
	return stock.Outcome{}, &stock.ClosedError{Shard: shard, Reason: "stale", RetryAfter: retrySoon}
}

// settled runs once, and waits until its acceptance has the level that was asked for. What was lost is run again;
// what is not reached in time is answered with the level that it has.
func (c *Clerk) settled(ctx context.Context, want Level, shard int, once func() (Answer, error)) (Answer, error) {
	for range mostLost {
		failpoint.Hit(failpoint.OrderRead)
		a, err := once()
		failpoint.Hit(failpoint.OrderDecided)
		if err != nil || want != Persisted || a.Level == Persisted {
			return a, err
		}
		switch c.await(ctx, a.Receipt) {
		case stock.StandingPersisted:
			a.Level = Persisted
			failpoint.Hit(failpoint.OrderAnswered)
			return a, nil
		case stock.StandingLost:
			continue
		}
		return a, nil
	}
	return Answer{}, &stock.ClosedError{Shard: shard, Reason: "rebuilding", RetryAfter: retrySoon}
}

// await waits for a receipt within the Clerk's patience. Not to know is no error here: the answer then names the
// lower level and carries the receipt.
func (c *Clerk) await(ctx context.Context, r stock.Receipt) stock.Standing {
	ctx, cancel := context.WithTimeout(ctx, c.parts.Patience)
	defer cancel()
	standing, err := c.parts.Receipts.Wait(ctx, r)
	if err != nil {
		return stock.StandingAccepted
	}
	return standing
}

func checkAttempt(attempt int64) error {
	if attempt < 1 || attempt > stock.MaxAttempt {
		return stock.BadField("attempt", fmt.Sprint(attempt), fmt.Sprintf("use a whole number from 1 to %d", stock.MaxAttempt))
	}
	return nil
}

func checkLevel(level Level) error {
	if level != Memory && level != Persisted {
		return stock.BadField("ack", string(level), "use memory or persisted")
	}
	return nil
}
