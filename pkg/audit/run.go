package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// Bounds and defaults of one audit.
const (
	DefaultPage     = 1000 // orders of each side, and entries of one read of the log
	DefaultRestarts = 10
	MaxDrifts       = 100 // drifts that a report names; more are counted

	firstPause   = 20 * time.Millisecond // before the first restart; doubles
	longestPause = time.Second
)

// ErrUnsettled means that the shard moved under every attempt to look at it: it is being rebuilt, or the log is
// trimmed faster than it is read. It says nothing about the numbers: audit again later.
var ErrUnsettled = errors.New("the audit found no moment to compare: audit again later")

// Options shape one audit. The zero value is a first audit of shard 0.
type Options struct {
	Shard    int
	Cursor   Cursor // of the report before
	Page     int    // orders of each side; 0 = DefaultPage
	Restarts int    // at most; 0 = DefaultRestarts
	// StuckAfter is how old, by Redis' clock, the ledger's next entry may be while the ledger stands still. 0
	// never asks: a stopped consumer is not a difference between the stores.
	StuckAfter time.Duration
	// SkipInvariants leaves out what is checked within Postgres alone; it reads whole tables.
	SkipInvariants bool
}

// movedError says why an audit has to begin again.
type movedError struct{ why string }

func (e *movedError) Error() string { return e.why }

// Run makes one audit. The report counts what was compared and lists what differs. An error means that nothing
// can be said: a store did not answer, or ErrUnsettled. It is safe to repeat and to run beside others.
func Run(ctx context.Context, l Ledger, r Redis, o Options) (Report, error) {
	if o.Page <= 0 {
		o.Page = DefaultPage
	}
	if o.Restarts <= 0 {
		o.Restarts = DefaultRestarts
	}
	pause := firstPause
	for restarts := 0; ; restarts++ {
		c := &comparison{ledger: l, redis: r, options: o, report: Report{Shard: o.Shard, Cursor: o.Cursor, Restarts: restarts}}
		err := c.run(ctx)
		var moved *movedError
		if !errors.As(err, &moved) {
			if err != nil {
				err = fmt.Errorf("audit shard %d: %w", o.Shard, err)
			}
			return c.report, err
		}
		if restarts >= o.Restarts {
			return Report{Shard: o.Shard, Cursor: o.Cursor, Restarts: restarts},
				fmt.Errorf("audit shard %d: %d restarts, last because %s: %w", o.Shard, restarts, moved.why, ErrUnsettled)
		}
		if err := wait(ctx, pause); err != nil {
			return c.report, fmt.Errorf("audit shard %d: %w", o.Shard, err)
		}
		pause = min(2*pause, longestPause)
	}
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sweep audits until every order and every buyer's count of both sides was compared once. The counts of the report are sums, so an
// order that both sides have counts twice; each drift is listed once. It ends at the first audit that cannot
// compare. Invariants are checked once.
func Sweep(ctx context.Context, l Ledger, r Redis, o Options) (Report, error) {
	var all Report
	seen := map[Drift]bool{}
	for first := true; ; first = false {
		one, err := Run(ctx, l, r, o)
		all.add(&one, seen)
		if err != nil || !one.Compared {
			all.Compared = false
			return all, err
		}
		if first {
			all.Compared = true
		}
		if all.swept() {
			return all, nil
		}
		o.Cursor, o.SkipInvariants = one.Cursor, true
	}
}

// add sums another report of the same shard into this one.
func (r *Report) add(one *Report, seen map[Drift]bool) {
	r.Shard, r.SKUs, r.Ledger, r.Redis, r.Cursor = one.Shard, one.SKUs, one.Ledger, one.Redis, one.Cursor
	r.Orders += one.Orders
	r.Ended += one.Ended
	r.Buyers += one.Buyers
	r.Aged += one.Aged
	r.Dropped += one.Dropped
	r.Entries += one.Entries
	r.Restarts += one.Restarts
	for class, n := range one.Unlisted {
		r.leaveOut(class, n)
	}
	r.LedgerSwept = r.LedgerSwept || one.LedgerSwept
	r.RedisSwept = r.RedisSwept || one.RedisSwept
	r.BoughtSwept = r.BoughtSwept || one.BoughtSwept
	r.CountsSwept = r.CountsSwept || one.CountsSwept
	// What an earlier page named is not named again. Its figures do not tell it apart: while orders come they move,
	// and a SKU would be listed once a page until nothing else finds room.
	var named []Drift
	for _, d := range one.Drifts {
		what := Drift{Class: d.Class, Shard: d.Shard, Key: d.Key, SKU: d.SKU, Buyer: d.Buyer, Order: d.Order}
		if d.SKU == 0 && d.Order == "" {
			what.Redis, what.Postgres = d.Redis, d.Postgres
		}
		if seen[what] {
			continue
		}
		named = append(named, what)
		r.list(d)
	}
	for _, what := range named {
		seen[what] = true
	}
}

// fit reports whether the sample is of a shard that can be compared with the snapshot. What is wrong with the
// process or the row becomes a drift, but only if the row has not moved since the snapshot.
func (c *comparison) fit(ctx context.Context) (bool, error) {
	class := takeover.Diagnose(c.ledger.ID(), c.sample.Status, c.snap.Shard)
	switch class {
	case takeover.Healthy:
		return true, nil
	case takeover.Rebuilding:
		// Between the opening and the ledger's saying so, everything stands already.
		if s := c.sample.Status; s.Mode == takeover.ModeOpen && s.Fence == takeover.FenceSame {
			return true, nil
		}
		return false, &movedError{"the shard is being rebuilt"}
	case takeover.Ahead:
		// Fenced by the newest claim, and the ledger has not closed the epoch yet: a takeover is in the middle
		// of its work. Should it have died there, the prober sees the same and starts another.
		if c.sample.Status.Epoch == c.snap.Shard.Claim {
			return false, &movedError{"a takeover is at work"}
		}
	}
	row, err := c.settled(ctx)
	if err != nil {
		return false, err
	}
	f := takeover.Finding{Class: class, Status: c.sample.Status, Row: row}
	c.raise(Drift{Class: class, Key: "state", Text: f.String()})
	return false, nil
}

// settled reads the row again, outside the snapshot, and fails with a movedError when a takeover or a halt has
// come in between.
func (c *comparison) settled(ctx context.Context) (takeover.Shard, error) {
	row, err := c.ledger.Shard(ctx, c.options.Shard)
	if err != nil {
		return row, fmt.Errorf("read the shard's row again: %w", err)
	}
	was := c.snap.Shard
	if row.Epoch != was.Epoch || row.Claim != was.Claim || row.State != was.State {
		return row, &movedError{fmt.Sprintf("the shard went from epoch %d (%s) to %d (%s)", was.Epoch, was.State, row.Epoch, row.State)}
	}
	return row, nil
}
