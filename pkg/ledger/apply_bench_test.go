package ledger

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// BenchmarkApply compares Apply with the raw COPY of the rows that it makes into the same tables, on one
// connection and with a commit for each batch, in turns. The goals are 0.8 of it for reserves of one line, and
// 0.45 for a mix of reserves with confirms and releases of stored orders.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name string
		mix  bool
	}{{"reserves", false}, {"mixed", true}} {
		b.Run(c.name, func(b *testing.B) {
			server := sandboxtest.OwnPostgres(b)
			ctx := context.Background()
			url, err := server.CreateDatabase(ctx, "bench")
			check(b, err)
			check(b, migrations.Up(ctx, url))
			l := openURL(b, url, 2)
			w, ref := newTeller(b, l, 0), newTeller(b, l, 1)
			var skus []int64
			for range 100 {
				skus = append(skus, w.sku(900_000_000))
			}
			const entries, ops = 20, 50 // 1,000 operations a batch
			var ours, copied time.Duration
			var stored []string
			var done int
			for n := 0; b.Loop(); n++ {
				var batch []event.Raw
				var next []string
				for e := range entries {
					var list []stock.Operation
					for o := range ops {
						id := fmt.Sprintf("order-%08d-%02d-%02d", n, e, o)
						if c.mix && len(stored) > 0 && o%2 == 1 {
							kind := stock.Confirm
							if o%4 == 3 {
								kind = stock.Release
							}
							list = append(list, move(kind, stored[0], 1))
							stored = stored[1:]
							continue
						}
						list = append(list, reserve(id, 1, lines(skus[(n+e*ops+o)%100], 1)))
						next = append(next, id)
					}
					slices.SortStableFunc(list, func(x, y stock.Operation) int { return int(x.Kind) - int(y.Kind) })
					batch = append(batch, w.entry(list...))
				}
				stored = append(stored, next...)
				if len(stored) > 3000 {
					stored = stored[len(stored)-3000:]
				}
				w.log = nil
				start := time.Now()
				w.apply(batch...)
				ours += time.Since(start)
				copied += rawCopy(b, ref, batch)
				done += entries * ops
			}
			b.ReportMetric(float64(done)/ours.Seconds(), "ops/s")
			b.ReportMetric(float64(done)/copied.Seconds(), "copy-ops/s")
			b.ReportMetric(copied.Seconds()/ours.Seconds(), "of-copy")
		})
	}
}

// rawCopy writes the same rows under another shard's number.
func rawCopy(b *testing.B, ref *teller, batch []event.Raw) time.Duration {
	ctx := context.Background()
	f := newFold(ref.shard, 1000)
	for _, raw := range batch {
		e, err := raw.Parse()
		check(b, err)
		for i := range e.Ops {
			op := &e.Ops[i]
			r := stock.Receipt{Shard: ref.shard, Position: e.Position, Index: i}
			f.addEvent(event.Change{Op: op, Receipt: r}, e.AtMillis, raw.After)
			if op.Kind == stock.Reserve {
				f.make(event.Change{Op: op, After: &stock.Reservation{ID: op.ID, State: stock.Held, Attempt: 1, Buyer: op.Buyer, Lines: op.Lines, Receipt: r}})
			}
		}
	}
	reservations, rows := f.orderRows()
	conn, err := ref.l.pool.Acquire(ctx)
	check(b, err)
	defer conn.Release()
	pg := conn.Conn().PgConn()
	start := time.Now()
	_, err = pg.Exec(ctx, "begin").ReadAll()
	check(b, err)
	for table, r := range map[string]*copyRows{eventColumns: &f.rows, reservationColumns: &reservations, lineColumns: &rows} {
		_, err := pg.CopyFrom(ctx, bytes.NewReader(append(r.b, 0xff, 0xff)), "copy "+table+" from stdin (format binary)")
		check(b, err)
	}
	_, err = pg.Exec(ctx, "commit").ReadAll()
	check(b, err)
	return time.Since(start)
}
