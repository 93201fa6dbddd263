package reconcilerapp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// passesAtOnce bounds the shards that one pass works on side by side.
const passesAtOnce = 4

// Document is what --json writes.
type Document struct {
	Mode   string          `json:"mode"`   // once, plan, takeover, retry
	Exit   int             `json:"exit"`   // the exit code
	Result string          `json:"result"` // the exit code in a word: clean, repaired, operator, unchecked
	Error  string          `json:"error,omitempty"`
	Shards []repair.Report `json:"shards"`
}

var results = map[int]string{
	repair.ExitClean: "clean", repair.ExitRepaired: "repaired", repair.ExitOperator: "operator", repair.ExitUnchecked: "unchecked",
}

// pass is once and plan.
func pass(ctx context.Context, c Config, out io.Writer) (int, error) {
	mode := "once"
	if c.Plan {
		mode = "plan"
	}
	logger := c.Log.Logger("reconciler")
	defer logger.Sync() //nolint:errcheck // stderr cannot always be synced, and nobody is left to tell
	a, err := open(ctx, c, logger)
	if err != nil {
		return unchecked(c, out, mode, err)
	}
	defer a.close()
	reports := make([]repair.Report, a.warden.Shards())
	var group errgroup.Group
	group.SetLimit(passesAtOnce)
	for n := range reports {
		group.Go(func() error {
			if c.Plan {
				reports[n] = a.warden.Plan(ctx, n)
			} else {
				reports[n] = a.warden.Once(ctx, n)
			}
			return nil
		})
	}
	_ = group.Wait() // what failed stands in the reports
	doc := Document{Mode: mode, Exit: repair.Exit(reports), Shards: reports}
	return doc.Exit, doc.write(c, out)
}

// unchecked is the answer when nothing could be looked at. A server that needs a setting needs an operator, but what
// the shards are like is not known, and that is what the code says.
func unchecked(c Config, out io.Writer, mode string, err error) (int, error) {
	if !c.JSON {
		return repair.ExitUnchecked, err
	}
	doc := Document{Mode: mode, Exit: repair.ExitUnchecked, Error: err.Error(), Shards: []repair.Report{}}
	return doc.Exit, errors.Join(err, doc.write(c, out))
}

func (d *Document) write(c Config, out io.Writer) error {
	d.Result = results[d.Exit]
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(d)
	}
	for i := range d.Shards {
		r := &d.Shards[i]
		for j := range r.Acts {
			if _, err := fmt.Fprintln(out, r.Acts[j].String()); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, r.String()); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s: %s (exit %d)\n", d.Mode, d.Result, d.Exit)
	return err
}

// takeOver is an operator's verb.
func takeOver(ctx context.Context, c Config, out io.Writer, shard int, adopt, giveUp bool) (int, error) {
	mode := "takeover"
	if !giveUp {
		mode = "retry"
	}
	logger := c.Log.Logger("reconciler")
	defer logger.Sync() //nolint:errcheck // stderr cannot always be synced, and nobody is left to tell
	a, err := open(ctx, c, logger)
	if err != nil {
		return unchecked(c, out, mode, err)
	}
	defer a.close()
	report, err := a.warden.TakeOver(ctx, shard, adopt, giveUp)
	if err != nil {
		return unchecked(c, out, mode, err)
	}
	doc := Document{Mode: mode, Exit: report.Exit(), Shards: []repair.Report{report}}
	if doc.Exit == repair.ExitRepaired {
		doc.Exit = repair.ExitClean // what was asked for was done
	}
	return doc.Exit, doc.write(c, out)
}

// shardStatus is one line of status.
type shardStatus struct {
	Shard   int    `json:"shard"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Epoch   int64  `json:"epoch"`
	Applied int64  `json:"applied"`
	Redis   string `json:"redis"`            // mode and fence, or why it does not answer
	Token   string `json:"token,omitempty"`  // that Redis has
	Log     string `json:"log_end"`          // newest id of the log
	Lag     int64  `json:"lag"`              // entries beyond applied; -1 = in another epoch
	Reader  string `json:"reader,omitempty"` // consumer that follows the shard
}

// status shows what both sides say of themselves, also while they disagree; it checks nothing.
func status(ctx context.Context, c Config, out io.Writer) error {
	l, err := openLedger(ctx, c, Name, pulseConns)
	if err != nil {
		return err
	}
	defer l.Close()
	url, err := c.Redis.Connection()
	if err != nil {
		return err
	}
	rdb, err := redisstock.Connect(redisstock.Options{URL: url, Name: Name, Timeout: redisTimeout})
	if err != nil {
		return err
	}
	defer rdb.Close()
	rows, err := l.Shards(ctx)
	if err != nil {
		return err
	}
	readers := map[int]string{}
	assigned, err := l.Assignments(ctx)
	if err != nil {
		return err
	}
	for _, one := range assigned {
		readers[one.Shard] = one.Consumer
	}
	lines := make([]shardStatus, len(rows))
	for i, row := range rows {
		lines[i] = statusOf(ctx, row, redisstock.NewShard(rdb, c.Redis.Prefix, row.Number))
		lines[i].Reader = readers[row.Number]
	}
	return writeStatus(c, out, lines)
}

func statusOf(ctx context.Context, row ledger.Shard, shard *redisstock.Shard) shardStatus {
	line := shardStatus{Shard: row.Number, State: row.State, Reason: row.Reason, Epoch: row.Epoch, Applied: row.Applied}
	s, err := shard.Status(ctx)
	if err != nil {
		line.Redis = err.Error()
		return line
	}
	line.Redis, line.Token, line.Log = s.Mode+", fence "+s.Fence, s.Token, s.Last
	if s.Mode == "" {
		line.Redis = "empty, fence " + s.Fence
	}
	end, err := stock.ParsePosition(s.Last)
	switch {
	case err != nil:
	case end.Epoch == row.Epoch:
		line.Lag = max(end.Seq-row.Applied, 0)
	default:
		line.Lag = -1
	}
	return line
}

func writeStatus(c Config, out io.Writer, lines []shardStatus) error {
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"shards": lines})
	}
	table := tabwriter.NewWriter(out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "SHARD\tSTATE\tEPOCH\tAPPLIED\tLAG\tREDIS\tLOG END\tREADER\tREASON")
	for _, s := range lines {
		lag := fmt.Sprint(s.Lag)
		if s.Lag < 0 {
			lag = "other epoch"
		}
		fmt.Fprintf(table, "%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", s.Shard, s.State, s.Epoch, s.Applied, lag, s.Redis, s.Log, s.Reader, s.Reason)
	}
	return table.Flush()
}
