package takeover_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// endless is a shard with so many records that nobody holds them: both sides make them as they are asked for. Of the
// first one Redis has another text until it is put.
type endless struct {
	worldRedis
	records int
	mended  bool
}

func (e *endless) text(i int) string {
	if i == 0 && !e.mended {
		return "x"
	}
	return recordNumber(i).Text
}

func (e *endless) Count(_ context.Context, target string) (int, error) {
	if target == takeover.TargetBuyers {
		return 0, nil
	}
	return e.records, nil
}

func (e *endless) Texts(_ context.Context, _ string, fields []string) ([]string, error) {
	texts := make([]string, len(fields))
	for i, field := range fields {
		n, err := strconv.Atoi(field[len("order-"):][:8])
		if err != nil {
			return nil, err
		}
		texts[i] = e.text(n)
	}
	return texts, nil
}

func (e *endless) Orders(_ context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	page, at := map[string]string{}, int(cursor)
	for ; at < e.records && len(page) < count; at++ {
		page[recordNumber(at).ID] = e.text(at)
	}
	if at == e.records {
		at = 0
	}
	return page, uint64(at), nil
}

func (e *endless) Put(_ context.Context, _ takeover.Seal, seq int64, p takeover.Put) (int64, error) {
	if p.Target == takeover.TargetOrders {
		e.mended = len(p.Args) == 2 && p.Args[0] == recordNumber(0).ID
	}
	return seq + 1, nil
}

func (*endless) Open(context.Context, takeover.Seal, int64, stock.Position) error { return nil }

type endlessLedger struct {
	worldLedger
	records int
}

func (l endlessLedger) Snapshot(context.Context, takeover.Seal) (takeover.Snapshot, error) {
	return endlessSnapshot{worldSnapshot{l.w}, l.records}, nil
}

type endlessSnapshot struct {
	worldSnapshot
	records int
}

func (s endlessSnapshot) Records(_ context.Context, page func([]takeover.Record) error) error {
	var next []takeover.Record
	for i := range s.records {
		if next = append(next, recordNumber(i)); len(next) == takeover.SnapshotPage || i == s.records-1 {
			if err := page(next); err != nil {
				return err
			}
			next = next[:0]
		}
	}
	return nil
}

func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one freed of pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What an attempt holds when it reads back, where it holds most, is a few bytes of each record, whatever its name and
// text. The process that is to open the shop must not be killed for its memory while it does. It runs alone, so that
// nobody else's memory is counted.
func TestATakeoverHoldsAFewBytesOfEachRecord(t *testing.T) {
	const records, most = 300_000, 40
	w := newWorld(t)
	w.stock = nil
	redis := &endless{worldRedis: worldRedis{w}, records: records}
	var held int64
	before := live()
	_, err := takeover.Run(ctx, redis, endlessLedger{worldLedger{w}, records}, takeover.Options{At: func(at takeover.Step) error {
		if at == takeover.StepVerify {
			held = live() - before
		}
		return nil
	}})
	if err != nil || !redis.mended {
		t.Fatalf("mended %v: %v", redis.mended, err)
	}
	if held < 16*records || held > most*records {
		t.Errorf("%d bytes for %d records, %.1f of each: more than %d, or nothing was measured", held, records, float64(held)/records, most)
	}
	t.Logf("%.1f bytes of each record", float64(held)/records)
}
