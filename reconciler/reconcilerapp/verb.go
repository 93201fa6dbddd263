package reconcilerapp

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// passesAtOnce bounds the shards that one command works on side by side.
const passesAtOnce = 4

// A verb works on one shard and says what it did, or would do.
type verb func(ctx context.Context, w *repair.Warden, shard int) (repair.Report, error)

// An order is a command that works shard by shard.
type order struct {
	shard int  // negative: all
	do    verb // what is done
	plan  verb // what --plan does; nil: the command only looks
}

// orderOf is what a command orders; false for the commands that are no verbs.
func orderOf(command string, c Config) (order, bool) {
	switch command {
	case "audit":
		return order{c.Audit.Shard, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.Audit(ctx, n, c.Audit.EveryOrder)
		}, nil}, true
	case "repair":
		return order{c.Repair.Shard, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.Repair(ctx, n)
		}, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.PlanRepair(ctx, n)
		}}, true
	case "takeover":
		return order{c.Takeover.Shard, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			if c.Takeover.Library != 0 {
				return w.TakeOverTo(ctx, n, c.Takeover.Library, c.Takeover.Adopt)
			}
			return w.TakeOver(ctx, n, c.Takeover.Adopt, true)
		}, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			if c.Takeover.Library != 0 {
				if err := w.MayTakeTo(ctx, c.Takeover.Library); err != nil {
					return repair.Report{}, err
				}
			}
			return w.PlanTakeOver(ctx, n, c.Takeover.Adopt, true)
		}}, true
	case "retry":
		return order{c.Retry.Shard, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.TakeOver(ctx, n, false, false)
		}, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.PlanTakeOver(ctx, n, false, false)
		}}, true
	case "gapfill":
		return order{c.Gapfill.Shard, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.GapFill(ctx, n, c.Gapfill.AcceptLoss)
		}, func(ctx context.Context, w *repair.Warden, n int) (repair.Report, error) {
			return w.PlanGapFill(ctx, n, c.Gapfill.AcceptLoss)
		}}, true
	}
	return order{}, false
}

// pass is once and plan: all shards.
func pass(ctx context.Context, c Config, out io.Writer) (int, error) {
	if c.Plan {
		return onShards(ctx, c, out, "plan", -1, func(ctx context.Context, w *repair.Warden, shard int) (repair.Report, error) {
			return w.Plan(ctx, shard), nil
		}, repair.Exit)
	}
	return onShards(ctx, c, out, "once", -1, func(ctx context.Context, w *repair.Warden, shard int) (repair.Report, error) {
		return w.Once(ctx, shard), nil
	}, repair.Exit)
}

// byVerb runs an operator's command, or its plan.
func byVerb(ctx context.Context, command string, o order, c Config, out io.Writer) (int, error) {
	if command == "repair" {
		c.OnTampered = string(repair.LedgerWins) // that is what the operator decides by typing it
	}
	if c.Plan {
		return onShards(ctx, c, out, "plan of "+command, o.shard, o.plan, repair.Exit)
	}
	return onShards(ctx, c, out, command, o.shard, o.do, exitAsked)
}

// exitAsked is the exit code of a verb: what was asked for and done is clean.
func exitAsked(shards []repair.Report) int {
	if code := repair.Exit(shards); code != repair.ExitRepaired {
		return code
	}
	return repair.ExitClean
}

// onShards runs a verb on one shard, or on all of them, and writes what came of it. A shard that failed says so in its
// report, beside the others.
func onShards(ctx context.Context, c Config, out io.Writer, mode string, shard int, do verb, exit func([]repair.Report) int) (int, error) {
	a, numbers, done, err := opened(ctx, c, shard)
	if err != nil {
		return unchecked(c, out, mode, err)
	}
	defer done()
	if mode == "once" { // it forgets; the others only look, or do what an operator says
		if err := a.ledger.AgreeRetention(ctx); err != nil {
			return unchecked(c, out, mode, err)
		}
	}
	doc := Document{Mode: mode, Shards: make([]repair.Report, len(numbers))}
	var group errgroup.Group
	group.SetLimit(passesAtOnce)
	for i, n := range numbers {
		group.Go(func() error {
			report, err := do(ctx, a.warden, n)
			if report.Shard = n; err != nil {
				report.Fail(err)
			}
			doc.Shards[i] = report
			return nil
		})
	}
	_ = group.Wait() // what failed stands in the reports
	doc.Exit = exit(doc.Shards)
	return doc.Exit, doc.write(c, out)
}

// opened connects, and names the shards that a command is about: one, or all when it is negative.
func opened(ctx context.Context, c Config, shard int) (a *app, numbers []int, done func(), err error) {
	logger := c.Log.Logger("reconciler")
	if a, err = open(ctx, c, logger); err != nil {
		_ = logger.Sync()
		return nil, nil, nil, err
	}
	done = func() {
		a.close()
		_ = logger.Sync() // stderr cannot always be synced, and nobody is left to tell
	}
	if shard >= a.warden.Shards() {
		done()
		return nil, nil, nil, fmt.Errorf("shard %d: the ledger has shards 0 to %d", shard, a.warden.Shards()-1)
	}
	for n := range a.warden.Shards() {
		if shard < 0 || n == shard {
			numbers = append(numbers, n)
		}
	}
	return a, numbers, done, nil
}

// verify reads histories through, one shard after the other: each keeps its figures in memory.
func verify(ctx context.Context, c Config, out io.Writer) (int, error) {
	var at stock.Position
	if c.Verify.At != "" {
		at, _ = stock.ParsePosition(c.Verify.At) // was read by Validate
	}
	a, numbers, done, err := opened(ctx, c, c.Verify.Shard)
	if err != nil {
		return unchecked(c, out, "verify", err)
	}
	defer done()
	doc := Document{Mode: "verify", Shards: []repair.Report{}}
	var failed error
	for _, n := range numbers {
		v, err := a.warden.Verify(ctx, n, at)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("shard %d: %w", n, err))
		}
		doc.Verifications = append(doc.Verifications, v)
		doc.Exit = repair.Worse(doc.Exit, v.Exit())
	}
	return doc.Exit, errors.Join(failed, doc.write(c, out))
}

// prune deletes old orders from Postgres, one shard after the other: nobody waits for it.
func prune(ctx context.Context, c Config, out io.Writer) (int, error) {
	mode := "prune"
	if c.Plan {
		mode = "plan of prune"
	}
	a, numbers, done, err := opened(ctx, c, c.Prune.Shard)
	if err != nil {
		return unchecked(c, out, mode, err)
	}
	defer done()
	doc := Document{Mode: mode, Shards: []repair.Report{}}
	var failed error
	for _, n := range numbers {
		p, err := a.warden.Prune(ctx, n, c.Prune.OlderThan, c.Plan)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("shard %d: %w", n, err))
			doc.Exit = repair.ExitUnchecked
		}
		doc.Prunings = append(doc.Prunings, p)
	}
	return doc.Exit, errors.Join(failed, doc.write(c, out))
}

// explain tells a story.
func explain(ctx context.Context, c Config, out io.Writer) (int, error) {
	a, _, done, err := opened(ctx, c, c.Explain.Shard)
	if err != nil {
		return unchecked(c, out, "explain", err)
	}
	defer done()
	story, err := a.warden.Explain(ctx, c.Explain.Text, c.Explain.Shard, c.Explain.Limit)
	if err != nil {
		return unchecked(c, out, "explain", err)
	}
	doc := Document{Mode: "explain", Shards: []repair.Report{}, Story: &story}
	return doc.Exit, doc.write(c, out)
}
