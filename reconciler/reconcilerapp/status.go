package reconcilerapp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

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
	roots, err := c.Redis.Roots()
	if err != nil {
		return err
	}
	rdb, err := redisstock.Connect(redisstock.Options{URL: url, RootCAs: roots, Name: Name, Timeout: redisTimeout})
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
