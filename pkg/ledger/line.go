package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// What few runs change of rows that stand: lines, the end of holds, orders by their documents. Each is a statement that
// is sent only when there is something of it, and that finds its rows by their key first, as the updates of write.go do.
const (
	updateLines = `update reservation_line l set now = y.now, fulfilled = y.fulfilled
from (select x.ctid, v.now, v.fulfilled
    from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) v(id, key, sku, now, fulfilled),
        lateral (select ctid from reservation_line where shard = $1 and order_id = v.id and attempt = v.key and sku = v.sku offset 0) x) y
where l.ctid = y.ctid`

	insertLines = `insert into reservation_line (shard, order_id, attempt, sku, asked, now, fulfilled)
select $1, v.id, v.key, v.sku, v.asked, v.now, v.fulfilled
from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) v(id, key, sku, now, fulfilled, asked)`

	deleteLines = `delete from reservation_line l using (select x.ctid
    from unnest($2::text[], $3::bigint[], $4::bigint[]) v(id, key, sku),
        lateral (select ctid from reservation_line where shard = $1 and order_id = v.id and attempt = v.key and sku = v.sku offset 0) x) y
where l.ctid = y.ctid`

	returnLines = `update reservation_line l set returned = l.returned + y.units
from (select x.ctid, v.units
    from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) v(id, key, sku, units),
        lateral (select ctid from reservation_line where shard = $1 and order_id = v.id and attempt = v.key and sku = v.sku offset 0) x) y
where l.ctid = y.ctid`

	// extendHolds: due by Postgres' own clock from the moment it is persisted, as a new hold is.
	extendHolds = `update reservation r set expires_ms = y.expires, due = clock_timestamp() + y.longer * interval '1 ms'
from (select x.ctid, v.expires, v.longer
    from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) v(id, key, expires, longer),
        lateral (select ctid from reservation where shard = $1 and order_id = v.id and attempt = v.key offset 0) x) y
where r.ctid = y.ctid`

	updateLate = `update reservation r set state = y.after
from (select x.ctid, v.after
    from unnest($2::text[], $3::bigint[], $4::text[]) v(id, key, after),
        lateral (select ctid from reservation where shard = $1 and order_id = v.id and attempt = v.key offset 0) x) y
where r.ctid = y.ctid`

	keepRecords = `update reservation r set moved = now()
from (select x.ctid
    from unnest($2::text[], $3::bigint[]) v(id, key),
        lateral (select ctid from reservation where shard = $1 and order_id = v.id and attempt = v.key offset 0) x) y
where r.ctid = y.ctid`

	updateCounted = `update stock s set
    counted_epoch = case when (y.epoch, y.seq) > (s.counted_epoch, s.counted_seq) then y.epoch else s.counted_epoch end,
    counted_seq = case when (y.epoch, y.seq) > (s.counted_epoch, s.counted_seq) then y.seq else s.counted_seq end
from (select x.ctid, v.epoch, v.seq
    from unnest($2::bigint[], $3::bigint[], $4::bigint[]) v(sku, epoch, seq),
        lateral (select ctid from stock where sku = v.sku and shard = $1 offset 0) x) y
where s.ctid = y.ctid`
)

// lineRows are lines of orders as columns.
type lineRows struct {
	ids                               []string
	keys, skus, asked, now, fulfilled []int64
}

func (r *lineRows) add(of orderKey, l *stock.Line) {
	r.ids, r.keys, r.skus = append(r.ids, of.id), append(r.keys, of.key), append(r.skus, l.SKU)
	r.asked, r.now, r.fulfilled = append(r.asked, l.Asked), append(r.now, l.Now), append(r.fulfilled, l.Fulfilled)
}

// lines writes what changed of lines that stand, brings those that a replace brought, and takes away those of which
// nothing is left. Lines of attempts that began here were copied as they end up, but for what was shipped.
func (u *updates) lines(f *fold) {
	var changed, brought, gone lineRows
	for _, id := range slices.Sorted(maps.Keys(f.moves)) {
		m := f.moves[id]
		compareLines(orderKey{id, m.key}, m.before.Lines, m.after.Lines, &changed, &brought, &gone)
	}
	for _, of := range f.amends.lateKeys() {
		late := f.amends.late[of]
		compareLines(of, late.before.Lines, late.after.Lines, &changed, &brought, &gone)
	}
	for i := range f.made {
		m := &f.made[i]
		for k := range m.Lines {
			if m.Lines[k].Fulfilled != 0 {
				changed.add(orderKey{m.ID, m.key}, &m.Lines[k])
			}
		}
	}
	if n := len(changed.ids); n > 0 {
		u.queue(n, "changed lines", updateLines, u.shard, changed.ids, changed.keys, changed.skus, changed.now, changed.fulfilled)
	}
	if n := len(brought.ids); n > 0 {
		u.queue(n, "new lines", insertLines, u.shard, brought.ids, brought.keys, brought.skus, brought.now, brought.fulfilled, brought.asked)
	}
	if n := len(gone.ids); n > 0 {
		u.queue(n, "lines that are gone", deleteLines, u.shard, gone.ids, gone.keys, gone.skus)
	}
	u.returns(f)
}

// compareLines merges two ordered lists.
func compareLines(of orderKey, before, after stock.Lines, changed, brought, gone *lineRows) {
	if len(before) == len(after) && (len(after) == 0 || &before[0] == &after[0]) {
		return // most moves leave the lines alone
	}
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].SKU < after[0].SKU:
			gone.add(of, &before[0])
			before = before[1:]
		case len(before) == 0 || after[0].SKU < before[0].SKU:
			brought.add(of, &after[0])
			after = after[1:]
		default:
			if before[0] != after[0] {
				changed.add(of, &after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
}

// returns adds up what came back, line by line: one row is changed once.
func (u *updates) returns(f *fold) {
	if len(f.amends.back) == 0 {
		return
	}
	type lineKey struct {
		orderKey
		sku int64
	}
	sums := map[lineKey]int64{}
	for _, b := range f.amends.back {
		sums[lineKey{b.orderKey, b.sku}] += b.units
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b lineKey) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.key, b.key), cmp.Compare(a.sku, b.sku))
	})
	var rows lineRows
	for _, k := range keys {
		rows.add(k.orderKey, &stock.Line{SKU: k.sku, Now: sums[k]})
	}
	u.queue(len(keys), "lines that came back", returnLines, u.shard, rows.ids, rows.keys, rows.skus, rows.now)
}

// holds writes until when extended holds last.
func (u *updates) holds(f *fold, moved []string) {
	var ids []string
	var keys, expires, longer []int64
	for _, id := range moved {
		if m := f.moves[id]; m.longer != 0 {
			ids, keys = append(ids, id), append(keys, m.key)
			expires, longer = append(expires, m.after.ExpiresMillis), append(longer, m.longer)
		}
	}
	if len(ids) > 0 {
		u.queue(len(ids), "extended holds", extendHolds, u.shard, ids, keys, expires, longer)
	}
}

// amendments writes what documents did to orders beside their lines, and to which position SKUs are counted.
func (u *updates) amendments(f *fold) {
	var ids, states []string
	var keys []int64
	for _, of := range f.amends.lateKeys() {
		ids, keys, states = append(ids, of.id), append(keys, of.key), append(states, string(f.amends.late[of].after.State))
	}
	if len(ids) > 0 {
		u.queue(len(ids), "orders of documents", updateLate, u.shard, ids, keys, states)
	}
	if len(f.amends.kept) > 0 {
		ids, keys = nil, nil
		for _, of := range sortedKeys(slices.Clone(f.amends.kept)) {
			ids, keys = append(ids, of.id), append(keys, of.key)
		}
		u.queue(len(ids), "orders of refused documents", keepRecords, u.shard, ids, keys)
	}
	newest := map[int64]stock.Position{}
	for _, c := range f.amends.count {
		if last, there := newest[c.sku]; !there || later(c.at, last) {
			newest[c.sku] = c.at
		}
	}
	if len(newest) == 0 {
		return
	}
	skus := slices.Sorted(maps.Keys(newest))
	var epochs, seqs []int64
	for _, sku := range skus {
		epochs, seqs = append(epochs, newest[sku].Epoch), append(seqs, newest[sku].Seq)
	}
	u.queue(len(skus), "counted stock", updateCounted, u.shard, skus, epochs, seqs)
}

func (a *amendments) lateKeys() []orderKey { return sortedKeys(slices.Collect(maps.Keys(a.late))) }

// sortedKeys orders keys and drops what is twice in them: rows are touched in one order, each once.
func sortedKeys(keys []orderKey) []orderKey {
	slices.SortFunc(keys, func(a, b orderKey) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.key, b.key)) })
	return slices.Compact(keys)
}
