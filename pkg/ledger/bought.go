package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
)

// boughtLines are the lines that count for a buyer: held, confirmed and shipped units. They are found by their SKU (the
// condition of its index stands beside it) and go to the key of their order, whatever the statistics say.
const boughtLines = `, lateral (select order_id, attempt, now, fulfilled from reservation_line where shard = $1 and sku = s.sku and asked >= 0 offset 0) l,
    lateral (select buyer, case when r.state in ('held', 'confirmed') then l.now else 0 end + l.fulfilled as units
        from reservation r where r.shard = $1 and r.order_id = l.order_id and r.attempt = l.attempt offset 0) o`

const (
	allBought = `select s.sku, o.buyer, sum(o.units)::bigint
from (select sku from stock where shard = $1 and buyer_limit > 0 offset 0) s` + boughtLines + `
where o.buyer <> '' and o.units > 0 group by s.sku, o.buyer`

	boughtPage = `select s.sku, o.buyer, sum(o.units)::bigint
from (select sku from stock where shard = $1 and buyer_limit > 0 and sku >= $2 offset 0) s` + boughtLines + `
where o.buyer <> '' and o.units > 0 and (s.sku, o.buyer) > ($2, $3)
group by s.sku, o.buyer order by s.sku, o.buyer limit $4`

	boughtOf = `select s.sku, o.buyer, sum(o.units)::bigint
from (select sku from stock where shard = $1 and buyer_limit > 0 and sku = any($2::bigint[]) offset 0) s` + boughtLines + `
, (select distinct v.sku, v.buyer collate "C" as buyer from unnest($2::bigint[], $3::text[]) v(sku, buyer)) w
where w.sku = s.sku and w.buyer = o.buyer and o.units > 0 group by s.sku, o.buyer`
)

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
		return fmt.Errorf("count what buyers have in shard %d: %w", s.shard, err)
	}
	return nil
}

// Bought is a page of what buyers have of the SKUs with a limit, by SKU number and buyer, behind a key (the zero one
// begins), at most limit. The next key is the zero one when this was the last page. Each page counts its first SKU in
// full.
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
		return nil, next, fmt.Errorf("count what buyers have in shard %d: %w", v.shard.Number, err)
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
		return nil, fmt.Errorf("count what %d buyers have in shard %d: %w", len(keys), v.shard.Number, err)
	}
	return found, nil
}
