package reconcilerapp

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// BenchmarkExpiry ends holds that are all due at once while a consumer persists, the start of the reconciler
// included. Use -benchtime=50000x.
func BenchmarkExpiry(b *testing.B) {
	s := newShop(b, 1)
	s.run("--once")
	s.consume()
	sku := s.sku("tea", 10_000_000, 0)
	const callers = 256
	var wait sync.WaitGroup
	for g := range callers {
		wait.Go(func() {
			for i := g; i < b.N; i += callers {
				op := stock.Operation{Kind: stock.Reserve, ID: fmt.Sprint("o", i), Attempt: 1, TTL: 1000, Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}}
				if _, err := s.desk.Do(b.Context(), 0, op); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wait.Wait()
	sandboxtest.Eventually(b, time.Minute, func() error {
		n, err := s.ledger.Overdue(b.Context(), 0, 0)
		if err != nil || n < int64(min(b.N, 100_000)) {
			return fmt.Errorf("%d are due, %w", n, err)
		}
		return nil
	})
	b.ResetTimer()
	s.serve()
	sandboxtest.Eventually(b, time.Minute, func() error {
		if got := s.state(0, sku); got != "10000000|0|0" {
			return fmt.Errorf("Redis has %s", got)
		}
		return nil
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "holds/s")
}
