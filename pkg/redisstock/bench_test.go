package redisstock

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// BenchmarkReserveHot is a quick look at the Desk alone; the figures that count are ratios against a reference
// that runs beside it (make bench).
func BenchmarkReserveHot(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			server := sandboxtest.Redis(b, sandbox.RedisOptions{MaxMemory: "4gb"})
			s := openShop(b, server.Addr(), "")
			s.sku(1, 999_999_999)
			var next atomic.Int64
			cpu := redisCPU(b, s)
			b.ResetTimer()
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						out, err := s.desk.Do(context.Background(), 0, reserve(fmt.Sprintf("order-%09d", n), one(1, 1)))
						if err != nil || out.Code != stock.Accepted {
							b.Errorf("%+v %v", out, err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric((redisCPU(b, s)-cpu)*1e6/float64(b.N), "redis-µs/order")
			st := s.desk.Stats()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
			b.ReportMetric(float64(st.Operations.Load())/float64(st.Calls.Load()), "batch")
		})
	}
}

// redisCPU is the CPU time that the server has used, in seconds.
func redisCPU(b *testing.B, s *shop) float64 {
	info := parseInfo(s.rdb.Info(context.Background(), "cpu").Val())
	user, err1 := strconv.ParseFloat(info["used_cpu_user"], 64)
	system, err2 := strconv.ParseFloat(info["used_cpu_sys"], 64)
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	return user + system
}
