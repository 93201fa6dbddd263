package takeover_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A world is a shard without servers: what the ledger has and what Redis has, held by hand.
type world struct {
	t testing.TB

	// The ledger.
	stock   map[int64]event.Field
	records []takeover.Record
	bought  []takeover.Bought
	breaks  int // the reading of records breaks at this page, counted from 1
	panics  bool
	begun   int
	closed  int

	// Redis.
	state  map[string]string
	hashes map[string]map[string]string // target → field → text
	twice  bool                         // each scan gives each field twice, in pages of their own
	room   int                          // fields that orders may have before a set is refused; 0: no limit
	puts   []takeover.Put
	asked  map[string][]int // target → how many fields each question named
	scans  map[string]int   // target → pages
	names  []string         // of the scan at hand
	seq    int64
	opened bool
	seal   takeover.Seal
}

func newWorld(t testing.TB) *world {
	return &world{t: t, stock: map[int64]event.Field{1: {}}, state: map[string]string{},
		hashes: map[string]map[string]string{takeover.TargetOrders: {}, takeover.TargetBuyers: {}}, asked: map[string][]int{}, scans: map[string]int{}}
}

// with gives the ledger so many records.
func (w *world) with(records int) *world {
	w.records = nil
	for i := range records {
		w.records = append(w.records, recordNumber(i))
	}
	return w
}

func recordNumber(i int) takeover.Record {
	return takeover.Record{ID: fmt.Sprintf("order-%08d-of-the-day", i), Text: fmt.Sprintf("h|7-%d-0|1|1900000000000|buyer-%d|1=1,2=3", i, i)}
}

// kept puts into Redis what the ledger has.
func (w *world) kept() *world {
	for _, r := range w.records {
		w.hashes[takeover.TargetOrders][r.ID] = r.Text
	}
	for _, b := range w.bought {
		w.hashes[takeover.TargetBuyers][takeover.BuyerField(b.BuyerKey)] = strconv.FormatInt(b.Units, 10)
	}
	for sku, f := range w.stock {
		w.state[strconv.FormatInt(sku, 10)] = f.String()
		if f.Limit > 0 {
			w.hashes[takeover.TargetBuyers][takeover.MarkField(sku)] = takeover.Counted
		}
	}
	return w
}

func (w *world) run(o takeover.Options) (takeover.Report, error) {
	w.t.Helper()
	return takeover.Run(ctx, worldRedis{w}, worldLedger{w}, o)
}

// differs is what Redis lacks, has more or has otherwise than the ledger.
func (w *world) differs() (fields []string) {
	want := newWorld(w.t)
	want.stock, want.records, want.bought = w.stock, w.records, w.bought
	want.kept()
	for target, have := range map[string][2]map[string]string{
		"state":               {w.state, want.state},
		takeover.TargetOrders: {w.hashes[takeover.TargetOrders], want.hashes[takeover.TargetOrders]},
		takeover.TargetBuyers: {w.hashes[takeover.TargetBuyers], want.hashes[takeover.TargetBuyers]},
	} {
		all := maps.Clone(have[0])
		maps.Copy(all, have[1])
		for field := range all {
			if a, b := have[0][field], have[1][field]; a != b {
				fields = append(fields, fmt.Sprintf("%s %s: %q, not %q", target, field, a, b))
			}
		}
	}
	slices.Sort(fields)
	return fields
}

type worldLedger struct{ w *world }

func (worldLedger) ID() string { return "ours" }

func (worldLedger) Shard(context.Context, int) (takeover.Shard, error) {
	return takeover.Shard{Epoch: 1, Claim: 1, State: takeover.StateOpen}, nil
}

func (worldLedger) Claim(context.Context, int, int64, bool) (takeover.Seal, error) {
	return takeover.Seal{Ledger: "ours", Epoch: 2, Nonce: "n"}, nil
}

func (worldLedger) SayOpen(context.Context, takeover.Seal) error { return nil }

func (worldLedger) Drain(context.Context, takeover.Seal, []event.Raw) (takeover.Drained, error) {
	return takeover.Drained{}, nil
}

func (worldLedger) CloseEpoch(context.Context, takeover.Seal, []event.Raw) (takeover.Closed, error) {
	return takeover.Closed{}, nil
}

func (worldLedger) Accounted(context.Context, int) (map[int64]int64, error) { return nil, nil }

func (worldLedger) RecordOrphans(context.Context, int, []event.Raw) (int, error) { return 0, nil }

func (l worldLedger) Snapshot(context.Context, takeover.Seal) (takeover.Snapshot, error) {
	l.w.begun++
	return worldSnapshot(l), nil
}

type worldSnapshot struct{ w *world }

func (s worldSnapshot) Stock(context.Context) (map[int64]event.Field, error) { return s.w.stock, nil }

func (s worldSnapshot) Records(_ context.Context, page func([]takeover.Record) error) error {
	n := 0
	for part := range slices.Chunk(s.w.records, takeover.SnapshotPage) {
		if n++; n == s.w.breaks {
			if s.w.panics {
				panic("the reading broke")
			}
			return errCrash
		}
		if err := page(part); err != nil {
			return err
		}
	}
	return nil
}

func (s worldSnapshot) Bought(_ context.Context, page func([]takeover.Bought) error) error {
	for part := range slices.Chunk(s.w.bought, takeover.SnapshotPage) {
		if err := page(part); err != nil {
			return err
		}
	}
	return nil
}

func (s worldSnapshot) Close() error {
	s.w.closed++
	return nil
}

type worldRedis struct{ w *world }

func (worldRedis) Status(context.Context) (takeover.Status, error) { return takeover.Status{}, nil }
func (worldRedis) Check(context.Context) error                     { return nil }
func (worldRedis) Load(context.Context, int) error                 { return nil }

func (r worldRedis) Fence(_ context.Context, s takeover.Seal, _ bool) error {
	r.w.seal, r.w.seq, r.w.opened = s, 0, false
	return nil
}

func (r worldRedis) Put(_ context.Context, s takeover.Seal, seq int64, p takeover.Put) (int64, error) {
	w := r.w
	if s != w.seal || seq != w.seq {
		return seq, &takeover.RefusedError{Function: "put", Class: "LATE"}
	}
	hash := w.hashes[p.Target]
	if p.Target == takeover.TargetState {
		hash = w.state
	}
	if p.Verb == takeover.VerbSet && w.room > 0 && len(w.hashes[takeover.TargetOrders]) >= w.room {
		return seq, &takeover.RefusedError{Function: "put", Class: takeover.ClassMemory}
	}
	w.puts = append(w.puts, p)
	for i := 0; i < len(p.Args); i++ {
		if p.Verb == takeover.VerbSet {
			hash[p.Args[i]] = p.Args[i+1]
			i++
		} else {
			delete(hash, p.Args[i])
		}
	}
	w.seq++
	return w.seq, nil
}

func (r worldRedis) Open(_ context.Context, s takeover.Seal, seq int64, _ stock.Position) error {
	if s != r.w.seal || seq != r.w.seq {
		return &takeover.RefusedError{Function: "open", Class: "LATE"}
	}
	r.w.opened = true
	return nil
}

func (r worldRedis) State(context.Context) (map[string]string, error) {
	all := maps.Clone(r.w.state)
	all["e"] = "ours.1"
	return all, nil
}

func (r worldRedis) Count(_ context.Context, target string) (int, error) {
	return len(r.w.hashes[target]), nil
}

func (r worldRedis) Texts(_ context.Context, target string, fields []string) ([]string, error) {
	r.w.asked[target] = append(r.w.asked[target], len(fields))
	texts := make([]string, len(fields))
	for i, field := range fields {
		texts[i] = r.w.hashes[target][field]
	}
	return texts, nil
}

func (r worldRedis) Orders(_ context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return r.scan(takeover.TargetOrders, cursor, count)
}

func (r worldRedis) Buyers(_ context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return r.scan(takeover.TargetBuyers, cursor, count)
}

// scan goes by the names that are there when it begins; those that are deleted meanwhile are passed over.
func (r worldRedis) scan(target string, cursor uint64, count int) (map[string]string, uint64, error) {
	w := r.w
	w.scans[target]++
	if cursor == 0 {
		w.names = slices.Sorted(maps.Keys(w.hashes[target]))
		if w.twice {
			w.names = append(w.names, w.names...)
		}
	}
	page, end := map[string]string{}, min(int(cursor)+count, len(w.names))
	for _, name := range w.names[cursor:end] {
		if text, there := w.hashes[target][name]; there {
			page[name] = text
		}
	}
	if end == len(w.names) {
		return page, 0, nil
	}
	return page, uint64(end), nil
}

func (worldRedis) Range(context.Context, stock.Position, int) ([]event.Raw, error) { return nil, nil }
