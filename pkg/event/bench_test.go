package event

import (
	"fmt"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// reserves are n one-line reserves; distinct SKUs give every operation a body of its own.
func reserves(n, skus int) []stock.Operation {
	ops := make([]stock.Operation, n)
	for i := range ops {
		line := stock.Line{SKU: int64(i%skus + 1), Asked: 1, Now: 1}
		ops[i] = stock.Operation{Kind: stock.Reserve, ID: fmt.Sprintf("order-%06d", i), Attempt: 1, Buyer: fmt.Sprintf("u%d", i), TTL: 900_000, Lines: stock.Lines{line}}
	}
	return ops
}

func perOperation(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/operation")
}

func BenchmarkAppendOperations(b *testing.B) {
	for _, skus := range []int{1, 256} {
		b.Run(fmt.Sprintf("%d SKUs", skus), func(b *testing.B) {
			ops, out := reserves(256, skus), []byte(nil)
			b.ReportAllocs()
			for b.Loop() {
				out = AppendOperations(out[:0], ops)
			}
			perOperation(b, 256)
		})
	}
}

func BenchmarkParseEntry(b *testing.B) {
	for _, skus := range []int{1, 256} {
		b.Run(fmt.Sprintf("%d SKUs", skus), func(b *testing.B) {
			entry := Entry{Position: stock.Position{Epoch: 3, Seq: 7}, AtMillis: 1_790_000_000_000, Ops: reserves(256, skus)}
			for sku := range skus {
				entry.After = append(entry.After, After{SKU: int64(sku + 1), Quantities: stock.Quantities{Available: 1000, Held: 256}})
			}
			raw := entry.Raw()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := raw.Parse(); err != nil {
					b.Fatal(err)
				}
			}
			perOperation(b, 256)
		})
	}
}

func BenchmarkBookApply(b *testing.B) {
	entry := Entry{Position: stock.Position{Epoch: 3, Seq: 7}, AtMillis: 1_790_000_000_000, Ops: reserves(256, 16)}
	b.ReportAllocs()
	for b.Loop() {
		book := NewBook(0)
		for sku := range int64(16) {
			book.Stock[sku+1] = stock.Quantities{Available: 1000}
		}
		if _, err := book.Apply(&entry, nil); err != nil {
			b.Fatal(err)
		}
	}
	perOperation(b, 256)
}
