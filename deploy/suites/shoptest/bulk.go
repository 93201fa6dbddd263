package shoptest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// bulkCallers share the calls of a bulk, so that each carries many operations.
const bulkCallers = 512

// A Counter is a desk of the row's own, for what would take too long over HTTP.
type Counter struct {
	*redisstock.Desk
	shop *Shop

	mu     sync.Mutex
	epochs map[int]stock.Epoch
}

// Counter opens a desk on the shop's Redis as it is now. It learns of no takeover.
func (s *Shop) Counter() *Counter {
	s.T.Helper()
	c := &Counter{shop: s, epochs: map[int]stock.Epoch{}}
	rows, err := s.Ledger.Shards(s.T.Context())
	Need(s.T, err)
	for _, row := range rows {
		c.epochs[row.Number] = stock.Epoch{
			Shard: row.Number, Ledger: s.Ledger.ID(), Epoch: row.Epoch, Applied: row.Applied, Library: 1, Open: row.State == ledger.StateOpen,
		}
	}
	c.Desk = redisstock.NewDesk(s.RDB, Prefix, c)
	s.T.Cleanup(c.Close)
	return c
}

// Epoch is the epoch that the counter found.
func (c *Counter) Epoch(shard int) stock.Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epochs[shard]
}

// Doubt does nothing: the counter lives within one epoch.
func (c *Counter) Doubt(int, string) {}

// Hold makes n holds of one unit each, of SKUs in turn, under ids stem-0, stem-1, …, and wants every one accepted.
func (c *Counter) Hold(n int, stem string, ttl time.Duration, skus ...string) {
	c.shop.T.Helper()
	var mu sync.Mutex
	var failed error
	Crowd(n, bulkCallers, func(i int) {
		sku := skus[i%len(skus)]
		ctx, cancel := context.WithTimeout(c.shop.T.Context(), Patience)
		defer cancel()
		out, err := c.Do(ctx, c.shop.Homes[sku], stock.Operation{
			Kind: stock.Reserve, ID: fmt.Sprintf("%s-%d", stem, i), Attempt: 1, TTL: ttl.Milliseconds(),
			Lines: stock.Lines{{SKU: c.shop.Numbers[sku], Asked: 1, Now: 1}},
		})
		if err == nil && out.Code != stock.Accepted {
			err = fmt.Errorf("answered %v", out.Code)
		}
		if err != nil {
			mu.Lock()
			failed = fmt.Errorf("hold %s-%d: %w", stem, i, err)
			mu.Unlock()
		}
	})
	Need(c.shop.T, failed)
}

// Audit makes one audit of a shard.
func (s *Shop) Audit(o audit.Options) (audit.Report, error) {
	return audit.Run(s.T.Context(), ledger.NewAuditor(s.Ledger, 0), redisstock.NewSampler(s.Shard(o.Shard)), o)
}

// Sweep audits all of a shard.
func (s *Shop) Sweep(o audit.Options) (audit.Report, error) {
	return audit.Sweep(s.T.Context(), ledger.NewAuditor(s.Ledger, 0), redisstock.NewSampler(s.Shard(o.Shard)), o)
}
