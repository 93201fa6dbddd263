package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/verdict"
	"github.com/stockpipe/stockpipe/pkg/ledger"
)

// lagEvery is how often the stores are asked how far they are.
const lagEvery = 200 * time.Millisecond

// A lagMeter knows how many entries Postgres was behind a moment ago.
type lagMeter struct {
	pipeline *pipeline.Pipeline
	halt     context.CancelCauseFunc // called when a shard is halted
	entries  atomic.Int64
}

// run asks until ctx ends.
func (m *lagMeter) run(ctx context.Context) {
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	for {
		reached, err := m.pipeline.Reach(ctx)
		if ctx.Err() != nil {
			return
		}
		m.entries.Store(pipeline.LagOf(reached, err))
		for _, r := range reached {
			if r.State == ledger.StateHalted {
				m.halt(fmt.Errorf("shard %d is halted: %s", r.Shard, r.Reason))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (m *lagMeter) String() string {
	lag := m.entries.Load()
	if lag < 0 {
		return "?"
	}
	return verdict.Count(lag)
}
