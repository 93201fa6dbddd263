package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	drainPause = 50 * time.Millisecond
	// sharingPatience is longer than the consumers take to come to a fair share.
	sharingPatience = 5 * time.Second
	drainPatience   = 60 * time.Second // without any progress of the consumers
	pageOfOrders    = 1000
	mostRepairs     = 1000
)

// A Figure is what both stores say of a SKU.
type Figure struct {
	Number   int64 // by which Redis knows it; 0 when Postgres has no such SKU
	Shard    int
	Opening  int64
	Redis    *event.Field // nil: it has none
	Postgres *event.Field // nil: it has none
	Doubt    string       // why the ledger froze it
	Foul     string       // what Redis has that can not be read
}

// Stock reads SKUs in both stores, whole shards at a time. It is exact when nothing moves.
func (p *Pipeline) Stock(ctx context.Context, texts []string) (map[string]Figure, error) {
	figures := make(map[string]Figure, len(texts))
	state := map[int]map[int64]string{}
	for chunk := range slices.Chunk(texts, ledger.MaxLookup) {
		skus, err := p.ledger.SKUsByText(ctx, chunk)
		if err != nil {
			return nil, err
		}
		var numbers []int64
		for _, s := range skus {
			numbers = append(numbers, s.Number)
			if state[s.Shard] == nil {
				if state[s.Shard], err = p.shard(s.Shard).Fields(ctx); err != nil {
					return nil, fmt.Errorf("read the stock of shard %d in Redis: %w", s.Shard, err)
				}
			}
		}
		rows, err := p.ledger.Stocks(ctx, numbers)
		if err != nil {
			return nil, err
		}
		for _, text := range chunk {
			if s, ok := skus[text]; ok {
				figures[text] = figure(s, rows[s.Number], state[s.Shard])
			}
		}
	}
	return figures, nil
}

func figure(s ledger.SKU, row ledger.Stock, state map[int64]string) Figure {
	f := Figure{Number: s.Number, Shard: s.Shard, Opening: s.Opening, Doubt: row.Doubt}
	if row.Exists {
		f.Postgres = &event.Field{Quantities: row.Quantities, Settings: row.Settings}
	}
	if text, ok := state[s.Number]; ok {
		field, err := event.ParseField(text)
		if err != nil {
			f.Foul = err.Error()
			return f
		}
		f.Redis = &field
	}
	return f
}

func (p *Pipeline) shard(n int) *redisstock.Shard {
	return redisstock.NewShard(p.rdb, p.shape.Prefix, n)
}

// Orders reads from Postgres the newest attempt of orders; those it does not have are absent.
func (p *Pipeline) Orders(ctx context.Context, ids []string) (map[string]stock.Reservation, error) {
	found := make(map[string]stock.Reservation, len(ids))
	err := p.views(ctx, func(v *ledger.View) error {
		for chunk := range slices.Chunk(ids, pageOfOrders) {
			some, err := v.Orders(ctx, chunk)
			if err != nil {
				return err
			}
			maps.Copy(found, some)
		}
		return nil
	})
	return found, err
}

// Recent lists every order that Postgres holds, or moved inside its retention.
func (p *Pipeline) Recent(ctx context.Context) ([]stock.Reservation, error) {
	var found []stock.Reservation
	err := p.views(ctx, func(v *ledger.View) error {
		for after := ""; ; {
			page, err := v.Page(ctx, after, pageOfOrders)
			if err != nil || len(page) == 0 {
				return err
			}
			found = append(found, page...)
			after = page[len(page)-1].ID
		}
	})
	return found, err
}

// views opens a snapshot of each shard after the other.
func (p *Pipeline) views(ctx context.Context, read func(*ledger.View) error) error {
	for n := range p.shape.Shards {
		v, err := p.ledger.View(ctx, n)
		if err != nil {
			return err
		}
		err = read(v)
		_ = v.Close() // read only: nothing can be lost
		if err != nil {
			return fmt.Errorf("read the orders of shard %d in Postgres: %w", n, err)
		}
	}
	return nil
}

// Repairs lists what the reconciler did since a time about stores that contradict each other. What a fault explains
// (a restart, a loss, a standstill), expired holds and finished documents are its daily work and left out.
func (p *Pipeline) Repairs(ctx context.Context, since time.Time) ([]ledger.Repair, error) {
	all, err := p.ledger.Repairs(ctx, -1, mostRepairs)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r ledger.Repair) bool { return r.Began.Before(since) || isDaily(r.Class) }), nil
}

func isDaily(class string) bool {
	return slices.Contains([]string{
		string(takeover.Unopened), string(takeover.Missing), string(takeover.Rewound), string(takeover.Torn),
		string(takeover.Stalled), string(takeover.Ahead), string(audit.GapLog), string(audit.Overdue), string(audit.Document),
	}, class)
}

// Now is Postgres' clock, for Repairs.
func (p *Pipeline) Now(ctx context.Context) (time.Time, error) {
	millis, err := p.ledger.Now(ctx)
	return time.UnixMilli(millis), err
}

// A Reach is how far one shard got.
type Reach struct {
	Shard    int
	Redis    stock.Position // of the newest entry
	Postgres stock.Position // applied
	Consumer string         // that reads it; empty when none does at the moment
	State    string         // as the ledger says
	Reason   string         // why halted
}

// Lag is how many entries Postgres is behind; -1 while the two are not in the same epoch.
func (r Reach) Lag() int64 {
	if r.Redis.Epoch != r.Postgres.Epoch {
		return -1
	}
	return max(0, r.Redis.Seq-r.Postgres.Seq)
}

// Reach asks both stores how far they are. Postgres is read first, so a lag is never told too small.
func (p *Pipeline) Reach(ctx context.Context) ([]Reach, error) {
	rows, err := p.ledger.Shards(ctx)
	if err != nil {
		return nil, err
	}
	owners, err := p.ledger.Assignments(ctx)
	if err != nil {
		return nil, err
	}
	reached := make([]Reach, len(rows))
	for i, row := range rows {
		status, err := p.shard(row.Number).Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask shard %d in Redis: %w", row.Number, err)
		}
		reached[i] = Reach{Shard: row.Number, Redis: stock.Position{Epoch: status.Epoch, Seq: status.Seq},
			Postgres: row.Position(), State: row.State, Reason: row.Reason}
		for _, a := range owners {
			if a.Shard == row.Number {
				reached[i].Consumer = consumerName(a.Consumer)
			}
		}
	}
	return reached, nil
}

// AwaitSharing waits until every consumer reads a shard, or there are no more shards, and says who reads which. The
// first consumer takes all and gives up what is too much, which takes some heartbeats; it waits no longer than that.
func (p *Pipeline) AwaitSharing(ctx context.Context) ([]Reach, error) {
	for deadline := time.Now().Add(sharingPatience); ; {
		reached, err := p.Reach(ctx)
		if err != nil {
			return nil, err
		}
		readers := map[string]bool{}
		for _, r := range reached {
			readers[r.Consumer] = true
		}
		if !readers[""] && len(readers) == min(len(reached), p.shape.Consumers) || time.Now().After(deadline) {
			return reached, nil
		}
		if !pause(ctx, drainPause) {
			return nil, context.Cause(ctx)
		}
	}
}

// Lag is the sum over all shards, or -1 when it can not be told now.
func (p *Pipeline) Lag(ctx context.Context) int64 { return LagOf(p.Reach(ctx)) }

// LagOf is Lag of an answer of Reach.
func LagOf(reached []Reach, err error) int64 {
	if err != nil {
		return -1
	}
	var sum int64
	for _, r := range reached {
		lag := r.Lag()
		if lag < 0 {
			return -1
		}
		sum += lag
	}
	return sum
}

// Drain waits until Postgres has everything that Redis has. It gives up when a shard is halted, or when the consumers
// get nowhere for a minute.
func (p *Pipeline) Drain(ctx context.Context) error {
	var before []Reach
	deadline := time.Now().Add(drainPatience)
	for {
		reached, err := p.Reach(ctx)
		behind := slices.ContainsFunc(reached, func(r Reach) bool { return r.Lag() != 0 })
		if err == nil && !behind {
			return nil
		}
		if !slices.EqualFunc(before, reached, func(a, b Reach) bool { return a.Postgres == b.Postgres }) {
			before, deadline = reached, time.Now().Add(drainPatience)
		}
		halted := slices.ContainsFunc(reached, func(r Reach) bool { return r.State == ledger.StateHalted })
		switch {
		case halted || time.Now().After(deadline):
			return fmt.Errorf("wait until Postgres has everything: %s", stuck(reached, err))
		case !pause(ctx, drainPause):
			return context.Cause(ctx)
		}
	}
}

func stuck(reached []Reach, err error) string {
	if err != nil {
		return err.Error()
	}
	for _, r := range reached {
		if r.Lag() != 0 {
			return fmt.Sprintf("shard %d is at %v (%s), Redis at %v", r.Shard, r.Postgres, strings.TrimSpace(r.State+" "+r.Reason), r.Redis)
		}
	}
	return "it took too long"
}
