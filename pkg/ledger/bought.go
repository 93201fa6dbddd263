package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// What buyers have of SKUs with a limit stands in a table of its own, written in the transaction of their orders: an
// audit reads it page by page, a takeover whole, and neither counts orders.
const (
	allBought = `select sku, buyer, units from bought where shard = $1`

	boughtPage = `select sku, buyer, units from bought where shard = $1 and (sku, buyer) > ($2, $3) order by sku, buyer limit $4`

	boughtOf = `select b.sku, b.buyer, b.units from unnest($2::bigint[], $3::text[]) v(sku, buyer),
    lateral (select * from bought where shard = $1 and sku = v.sku and buyer = v.buyer offset 0) b`

	moreBought = `insert into bought (shard, sku, buyer, units)
select $1, v.sku, v.buyer, v.units from unnest($2::bigint[], $3::text[], $4::bigint[]) v(sku, buyer, units)
on conflict (shard, sku, buyer) do update set units = bought.units + excluded.units`

	lessBought = `update bought b set units = b.units - y.units from (` + boughtRows + `where x.units > v.units) y where b.ctid = y.ctid`

	noneBought = `delete from bought b using (` + boughtRows + `where x.units = v.units) y where b.ctid = y.ctid`

	boughtRows = `select x.ctid, v.units from unnest($2::bigint[], $3::text[], $4::bigint[]) v(sku, buyer, units),
    lateral (select ctid, units from bought where shard = $1 and sku = v.sku and buyer = v.buyer offset 0) x `

	dropBought = `delete from bought where shard = $1 and sku = any($2::bigint[])`
)

// countBought counts SKUs from all their orders. The order is that of the key: a million rows come in at the end of the
// index, and not all over it.
var countBought = `insert into bought (shard, sku, buyer, units)
select $1::bigint, o.sku, o.buyer, o.units from (` + boughtByOrders(`select unnest($2::bigint[]) as sku`) + `) o order by o.sku, o.buyer`

// boughtByOrders sums up what buyers have of SKUs: held, confirmed and shipped units. Lines are found by their SKU (the
// condition of its index stands beside it) and go to the key of their order, whatever the statistics say.
func boughtByOrders(skus string) string {
	return `select s.sku, o.buyer, sum(o.units)::bigint as units
from (` + skus + ` offset 0) s,
    lateral (select order_id, attempt, now, fulfilled from reservation_line where shard = $1 and sku = s.sku and asked >= 0 offset 0) l,
    lateral (select buyer, case when r.state in ('held', 'confirmed') then l.now else 0 end + l.fulfilled as units
        from reservation r where r.shard = $1 and r.order_id = l.order_id and r.attempt = l.attempt offset 0) o
where o.buyer <> '' and o.units > 0 group by s.sku, o.buyer`
}

// limits are the SKUs of a run whose buyers are counted, or were. In most runs there are none.
type limits struct {
	had      []int64 // SKUs that had a limit before the run
	switched []int64 // SKUs that got a limit in it where there was none, or lost it
}

// bought brings what buyers have to what the run made of their orders: by the difference, as the rows of the orders end
// up. A SKU of which a limit was switched on, or off and on again, is counted from its orders, those of this run
// included, and one without a limit has no rows. anew counts every SKU so: a difference did not fit what stood, and what
// is only counted must not halt a shard.
func (u *updates) bought(f *fold, anew bool) {
	if len(f.limits.had) == 0 && len(f.limits.switched) == 0 {
		return
	}
	switched := f.limits.switched
	if anew {
		switched = slices.Concat(switched, f.limits.had)
	}
	switched = compacted(switched)
	followed := map[int64]bool{}
	for _, sku := range f.limits.had {
		if _, counted := slices.BinarySearch(switched, sku); !counted {
			followed[sku] = true
		}
	}
	if len(followed) > 0 {
		u.boughtBy(f.bought(followed))
	}
	if len(switched) == 0 {
		return
	}
	u.batch.Queue(dropBought, u.shard, switched)
	var limited []int64
	for _, sku := range switched {
		if f.signs[sku].Limit > 0 {
			limited = append(limited, sku)
		}
	}
	if len(limited) > 0 {
		u.batch.Queue(countBought, u.shard, limited)
	}
}

// bought is what the run changed, by buyer: each row of an order, as it ends up, less as the table has it.
func (f *fold) bought(followed map[int64]bool) map[event.BuyerKey]int64 {
	sums := map[event.BuyerKey]int64{}
	add := func(r *stock.Reservation, buyer string, sign int64) {
		if buyer == "" {
			return
		}
		for _, l := range event.Counted(r) {
			if followed[l.SKU] {
				sums[event.BuyerKey{SKU: l.SKU, Buyer: buyer}] += sign * (l.Now + l.Fulfilled)
			}
		}
	}
	for i := range f.made {
		add(f.made[i].Reservation, f.made[i].Buyer, 1)
	}
	// A row keeps its buyer.
	for _, m := range f.moves {
		add(m.before, m.before.Buyer, -1)
		add(m.after, m.before.Buyer, 1)
	}
	for _, m := range f.amends.late {
		add(m.before, m.before.Buyer, -1)
		add(m.after, m.before.Buyer, 1)
	}
	return sums
}

// boughtBy writes differences, by SKU and buyer. Nobody has less than nothing: what is taken off must be there.
func (u *updates) boughtBy(sums map[event.BuyerKey]int64) {
	var more, less boughtColumns
	for _, key := range slices.SortedFunc(maps.Keys(sums), func(a, b event.BuyerKey) int {
		return cmp.Or(cmp.Compare(a.SKU, b.SKU), cmp.Compare(a.Buyer, b.Buyer))
	}) {
		switch n := sums[key]; {
		case n > 0:
			more.add(key, n)
		case n < 0:
			less.add(key, -n)
		}
	}
	if n := len(more.skus); n > 0 {
		u.queue(n, "what buyers have", moreBought, u.shard, more.skus, more.buyers, more.units)
	}
	n := int64(len(less.skus))
	if n == 0 {
		return
	}
	var gone int64
	u.batch.Queue(noneBought, u.shard, less.skus, less.buyers, less.units).Exec(func(tag pgconn.CommandTag) error {
		gone = tag.RowsAffected()
		return nil
	})
	u.batch.Queue(lessBought, u.shard, less.skus, less.buyers, less.units).Exec(func(tag pgconn.CommandTag) error {
		if found := gone + tag.RowsAffected(); found != n {
			return fmt.Errorf("%w: %d of %d rows of what buyers gave back", errShort, found, n)
		}
		return nil
	})
}

// boughtColumns are rows of what buyers have as columns.
type boughtColumns struct {
	skus, units []int64
	buyers      []string
}

func (c *boughtColumns) add(key event.BuyerKey, units int64) {
	c.skus, c.buyers, c.units = append(c.skus, key.SKU), append(c.buyers, key.Buyer), append(c.units, units)
}

func eachBought(rows pgx.Rows, each func(key event.BuyerKey, units int64) error) error {
	var key event.BuyerKey
	var units int64
	_, err := pgx.ForEachRow(rows, []any{&key.SKU, &key.Buyer, &units}, func() error { return each(key, units) })
	return err
}

// Bought gives what buyers have of the SKUs with a limit, over all orders: held, confirmed and shipped, by SKU number and
// buyer. A buyer with nothing is absent.
func (s *Snapshot) Bought(ctx context.Context, each func(key event.BuyerKey, units int64) error) error {
	rows, err := s.open(ctx, "bought", allBought+` order by 1, 2`, s.shard)
	if err == nil {
		err = eachBought(rows, each)
	}
	if err != nil {
		return fmt.Errorf("read what buyers have in shard %d: %w", s.shard, err)
	}
	return nil
}

// Bought is a page of what buyers have of the SKUs with a limit, by SKU number and buyer, behind a key (the zero one
// begins), at most limit. The next key is the zero one when this was the last page. A page costs what it has, however
// many orders it rests on.
func (v *View) Bought(ctx context.Context, after event.BuyerKey, limit int) (page map[event.BuyerKey]int64, next event.BuyerKey, err error) {
	page = map[event.BuyerKey]int64{}
	rows, err := v.tx.Query(ctx, boughtPage, v.shard.Number, after.SKU, after.Buyer, limit)
	if err == nil {
		err = eachBought(rows, func(key event.BuyerKey, units int64) error {
			page[key], next = units, key
			return nil
		})
	}
	if err != nil {
		return nil, next, fmt.Errorf("read what buyers have in shard %d: %w", v.shard.Number, err)
	}
	if len(page) < limit {
		next = event.BuyerKey{}
	}
	return page, next, nil
}

// BoughtOf is the same of keys that are named; one of which there is nothing is absent.
func (v *View) BoughtOf(ctx context.Context, keys []event.BuyerKey) (map[event.BuyerKey]int64, error) {
	found := map[event.BuyerKey]int64{}
	if len(keys) == 0 {
		return found, nil
	}
	skus, buyers := make([]int64, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		skus[i], buyers[i] = k.SKU, k.Buyer
	}
	rows, err := v.tx.Query(ctx, boughtOf, v.shard.Number, skus, buyers)
	if err == nil {
		err = eachBought(rows, func(key event.BuyerKey, units int64) error {
			found[key] = units
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read what %d buyers have in shard %d: %w", len(keys), v.shard.Number, err)
	}
	return found, nil
}
