package redisstock

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// BenchmarkLibrary measures Redis' own CPU per order, by batch size, without a Desk.
func BenchmarkLibrary(b *testing.B) {
	for _, aof := range []bool{false, true} {
		for _, k := range []int{1, 10, 50, 200} {
			b.Run(fmt.Sprintf("aof=%v/batch=%d", aof, k), func(b *testing.B) {
				server := sandboxtest.Redis(b, sandbox.RedisOptions{MaxMemory: "4gb", NoAOF: !aof})
				s := openShop(b, server.Addr(), "")
				s.sku(1, 999_999_999)
				cpu := redisCPU(b, s)
				b.ResetTimer()
				for n := 0; n < b.N; n += k {
					var text strings.Builder
					text.WriteString("R900000|1|1=1")
					for i := range k {
						fmt.Fprintf(&text, " order-%09d", n+i)
					}
					got, err := s.rdb.FCall(context.Background(), fnApply, s.shard.keys.list(), token(testLedger, 5), 0, farAway, text.String()).Text()
					if err != nil || !strings.HasSuffix(got, "*") {
						b.Fatal(got, err)
					}
				}
				b.StopTimer()
				b.ReportMetric((redisCPU(b, s)-cpu)*1e6/float64(b.N), "redis-µs/order")
			})
		}
	}
}
