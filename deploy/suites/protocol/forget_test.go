package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/stock/stocktest"
)

// drawForget lets the retention of some orders that ended be over, and the reconciler come by to drop their records. The
// ledger lists them where it stands: what has moved on in Redis since stays there.
func (m *machine) drawForget(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	var rested []string
	for _, id := range slices.Sorted(maps.Keys(r.past[r.applied].Orders)) {
		if o := r.past[r.applied].Orders[id]; o.State.Ended() && shipped(o.Lines) == 0 {
			rested = append(rested, id)
		}
	}
	if len(rested) == 0 {
		return nil
	}
	some := rapid.SliceOfNDistinct(rapid.SampledFrom(rested), 1, min(3, len(rested)), rapid.ID).Draw(t, "rested")
	if err := m.h.age(ctx, r.number, some); err != nil {
		return err
	}
	page, _, err := m.h.ledger.ForgetPage(ctx, r.number, m.h.ledger.Retention(), ledger.ForgetCursor{}, 10_000)
	if err != nil {
		return err
	}
	dropped, err := m.h.shards[r.number].Forget(ctx, m.h.Epoch(r.number), page)
	if err != nil {
		return err
	}
	r.touched = true
	if want := r.forgot(page); dropped != want {
		return fmt.Errorf("shard %d dropped %d records of %v, %d stood where the ledger knows them", r.number, dropped, page, want)
	}
	if dropped > 0 {
		m.seen.saw("a record that was dropped")
	}
	if dropped < len(page) {
		m.seen.saw("a record that had moved on, or was dropped before")
	}
	return nil
}

// age makes orders look as if they had moved last before the retention. Postgres' clock cannot be set.
func (h *house) age(ctx context.Context, shard int, orders []string) (err error) {
	conn, err := pgx.Connect(ctx, h.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, `update reservation set moved = now() - $3 * interval '2 ms' where shard = $1 and order_id = any($2)`,
		shard, orders, h.ledger.Retention().Milliseconds())
	return err
}

// forgot follows a forget: from where the ledger stands on, whatever still is as the ledger knows it is gone, for the model
// and for all that an audit compares. It says how many of them Redis had.
func (r *room) forgot(page []stock.Ending) (dropped int) {
	gone := map[*stocktest.Model]*stocktest.Model{}
	without := func(m *stocktest.Model) *stocktest.Model {
		if gone[m] == nil {
			gone[m] = m.Clone()
			for _, e := range page {
				if o, stands := m.Orders[e.ID]; stands && o.Receipt == e.Receipt {
					r.aged[e.ID] = o.Attempt
					delete(gone[m].Orders, e.ID)
				}
			}
		}
		return gone[m]
	}
	before := len(r.now.Orders)
	for seq, m := range r.past {
		if seq >= r.applied {
			r.past[seq] = without(m)
		}
	}
	r.now = without(r.now)
	return before - len(r.now.Orders)
}
