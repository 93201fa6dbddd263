package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var ctx = context.Background()

const epoch = 7

// A world is a Redis and a ledger in memory, in agreement until a test changes one of them: the ledger is the
// fold of the first entries of the log, Redis of all of them.
type world struct {
	log    []event.Raw // of epoch, from seq 1
	redis  *event.Book
	ledger *event.Book

	row       takeover.Shard
	status    takeover.Status
	state     map[string]string
	records   map[string]string
	buyers    map[string]string
	snap      Snapshot
	bought    map[event.BuyerKey]int64 // of the ledger
	late      map[string]Order         // known to the ledger, outside its page
	broken    []Broken
	trimmed   int // entries missing at the head of the log
	onView    func()
	onSample  func()
	onRange   func()
	other     []event.Raw // not nil: Range is answered by another process, which has this log
	samples   int
	openViews int
}

func reserve(id string, attempt int64, units ...int64) stock.Operation {
	op := stock.Operation{Kind: stock.Reserve, ID: id, Attempt: attempt, TTL: 60_000, Buyer: "b"}
	for i, u := range units {
		if u > 0 {
			op.Lines = append(op.Lines, stock.Line{SKU: int64(i + 1), Asked: u, Now: u})
		}
	}
	return op
}

func move(kind stock.Kind, id string) stock.Operation {
	return stock.Operation{Kind: kind, ID: id, Attempt: 1}
}

func sku(number, units int64) stock.Operation {
	return stock.Operation{Kind: stock.NewSKU, ID: fmt.Sprintf("~~open:%d", number), Deadline: 1, SKU: "tea",
		Lines: stock.Lines{{SKU: number, Asked: units, Now: units}}}
}

func receive(id string, number, units int64) stock.Operation {
	return stock.Operation{Kind: stock.Movement, ID: id, Deadline: 1, Document: "receive", Reason: "goods",
		Lines: stock.Lines{{SKU: number, Asked: units, Now: units}}}
}

// ofOrder is a document of the first attempt of an order, about one SKU.
func ofOrder(kind, id, order, buyer string, number, units int64) stock.Operation {
	return stock.Operation{Kind: stock.Movement, ID: id, Buyer: buyer, Deadline: 1, Document: kind, Reason: "shop",
		Order: stock.OrderRef{ID: order, Key: 1, Asked: 1}, Lines: stock.Lines{{SKU: number, Asked: units, Now: units}}}
}

func set(number int64, change stock.Change) stock.Operation {
	return stock.Operation{Kind: stock.Configure, ID: "~~t", Lines: stock.Lines{{SKU: number}}, Change: change}
}

// lines are of one SKU.
func lines(number, asked, now int64) stock.Lines {
	return stock.Lines{{SKU: number, Asked: asked, Now: now}}
}

// story is a log with every kind of operation in it. SKU 3 has a limit.
var story = [][]stock.Operation{
	{{Kind: stock.Opened, ID: "~~open", Continues: stock.Position{Epoch: 3, Seq: 9}}},
	{sku(1, 100), sku(2, 50), sku(3, 40), set(3, stock.Change{Opens: stock.Keep, Limit: 20})},
	{reserve("a", 1, 2), reserve("b", 1, 3, 4), reserve("c", 1, 1), reserve("g", 1, 0, 0, 6),
		{Kind: stock.Sale, ID: "f", Attempt: 1, Buyer: "b2", Lines: lines(3, 4, 4)}},
	{move(stock.Confirm, "a"), move(stock.Release, "b"), {Kind: stock.Confirm, ID: "g", Attempt: 1, Lines: lines(3, 0, 4)}},
	{receive("~d1", 2, 20), set(2, stock.Change{Opens: stock.Keep, Closed: stock.On, Limit: stock.Keep}), ofOrder(stock.DocumentFulfil, "~df", "f", "", 3, -1)},
	// The ledger has what stands above when a world begins.
	{{Kind: stock.Reserve, ID: "p", Attempt: 1, TTL: 60_000, Buyer: "b", Partial: true, Lines: lines(3, 9, 7)}, reserve("e", 1, 5),
		{Kind: stock.Sale, ID: "s", Attempt: 1, Lines: lines(1, 1, 1)}},
	{move(stock.Expire, "c"), move(stock.Confirm, "e")},
	{move(stock.LateConfirm, "c"), reserve("b", 2, 1), receive("~d2", 1, 7),
		{Kind: stock.Release, ID: "p", Attempt: 1, Lines: lines(3, 0, 5)}, {Kind: stock.Extend, ID: "p", Attempt: 1, Until: 90_000},
		{Kind: stock.Replace, ID: "p", Attempt: 1, Lines: stock.Lines{{SKU: 2, Asked: 1, Now: 1}, {SKU: 3, Asked: 2, Now: 2}}},
		ofOrder(stock.DocumentCancel, "~dc", "g", "b", 3, 4), ofOrder(stock.DocumentFulfil, "~df2", "f", "", 3, -3)},
	{set(2, stock.Change{Opens: stock.Keep, Frozen: stock.On, Limit: stock.Keep}), set(3, stock.Change{Opens: stock.Keep, Limit: 30})},
}

const applied = 5

// clock is the Postgres time of every world's snapshot.
var clock = time.Unix(1_700_000_000, 0)

func newBook() *event.Book {
	b := event.NewBook(0)
	b.Bought = map[event.BuyerKey]int64{}
	return b
}

// counts are the fields of the buyers hash that a takeover, and the library after it, leave behind.
func counts(b *event.Book) map[string]string {
	fields := map[string]string{"~": "nonce"}
	for number, s := range b.Settings {
		if s.Limit > 0 {
			fields[takeover.MarkField(number)] = takeover.Counted
		}
	}
	for key, units := range b.Bought {
		fields[takeover.BuyerField(key)] = strconv.FormatInt(units, 10)
	}
	return fields
}

func newWorld() *world {
	w := &world{redis: newBook(), ledger: newBook(), late: map[string]Order{}}
	for i, ops := range story {
		e := event.Entry{Position: stock.Position{Epoch: epoch, Seq: int64(i + 1)}, AtMillis: int64(1000 * (i + 1)), Ops: ops}
		touched := map[int64]bool{}
		if _, err := w.redis.Apply(&e, func(c event.Change) {
			if c.After != nil {
				for _, l := range append(slices.Clone(c.Op.Lines), c.After.Lines...) {
					touched[l.SKU] = true
				}
			}
		}); err != nil {
			panic(err)
		}
		for _, number := range slices.Sorted(maps.Keys(touched)) {
			e.After = append(e.After, event.After{SKU: number, Quantities: w.redis.Stock[number]})
		}
		w.log = append(w.log, e.Raw())
	}
	w.row = takeover.Shard{Writer: "redis", Epoch: epoch, Claim: epoch, Library: 1, State: takeover.StateOpen, Changed: clock, Now: clock}
	w.status = takeover.Status{Loaded: true, Version: "1", Token: "ours.7", Ledger: "ours", Epoch: epoch, Seq: int64(len(w.log)),
		Mode: takeover.ModeOpen, Fence: takeover.FenceSame, AtMillis: 100_000, First: "7-1", Last: w.log[len(w.log)-1].ID}
	w.state = map[string]string{"e": "ours.7", "q": "9", "m": "open", "n": "nonce", "v": "1"}
	for number, q := range w.redis.Stock {
		w.state[strconv.FormatInt(number, 10)] = event.Field{Quantities: q, Settings: w.redis.Settings[number]}.String()
	}
	w.records = map[string]string{"~": "nonce"}
	for id, r := range w.redis.Orders {
		w.records[id] = event.FormatRecord(r)
	}
	w.buyers = counts(w.redis)
	w.persist(applied)
	return w
}

// persist lets the ledger apply the log up to a seq.
func (w *world) persist(to int64) {
	for _, raw := range w.log[w.row.Applied:to] {
		e, err := raw.Parse()
		if err != nil {
			panic(err)
		}
		if _, err := w.ledger.Apply(&e, nil); err != nil {
			panic(err)
		}
	}
	w.row.Applied = to
	w.snap = Snapshot{Stock: map[int64]event.Field{}, Doubt: map[int64]string{}, Orders: map[string]Order{}, Retention: time.Hour}
	if to > 0 {
		w.snap.Last = w.log[to-1]
	}
	for number, q := range w.ledger.Stock {
		w.snap.Stock[number] = event.Field{Quantities: q, Settings: w.ledger.Settings[number]}
	}
	for id, r := range w.ledger.Orders {
		w.snap.Orders[id] = Order{Reservation: *r, Moved: clock.Add(-time.Minute)}
	}
	w.bought = maps.Clone(w.ledger.Bought)
}

// renew puts everything back in agreement, as a finished takeover does.
func (w *world) renew() {
	open := w.openViews
	*w = *newWorld()
	w.openViews = open
}

func (w *world) ID() string { return "ours" }

func (w *world) Shard(context.Context, int) (takeover.Shard, error) { return w.row, nil }

func (w *world) View(_ context.Context, _ int, after string, limit int) (View, error) {
	if w.onView != nil {
		w.onView()
	}
	w.openViews++
	s := w.snap
	s.Shard = w.row
	s.Orders = map[string]Order{}
	for _, id := range slices.Sorted(maps.Keys(w.snap.Orders)) {
		if id <= after {
			continue
		}
		if len(s.Orders) == limit {
			break
		}
		s.Orders[id], s.Next = w.snap.Orders[id], id
	}
	if len(s.Orders) < limit {
		s.Next = ""
	}
	all := maps.Clone(w.snap.Orders)
	maps.Copy(all, w.late)
	return &worldView{w, s, all, w.broken}, nil
}

type worldView struct {
	w      *world
	s      Snapshot
	all    map[string]Order
	broken []Broken
}

func (v *worldView) Snapshot() Snapshot { return v.s }
func (v *worldView) Orders(_ context.Context, ids []string) (map[string]Order, error) {
	found := map[string]Order{}
	for _, id := range ids {
		if o, ok := v.all[id]; ok {
			found[id] = o
		}
	}
	return found, nil
}

func (v *worldView) Bought(_ context.Context, after event.BuyerKey, limit int) (map[event.BuyerKey]int64, event.BuyerKey, error) {
	page, next := map[event.BuyerKey]int64{}, event.BuyerKey{}
	for _, key := range slices.SortedFunc(maps.Keys(v.w.bought), compareKeys) {
		switch {
		case compareKeys(key, after) <= 0 || v.s.Stock[key.SKU].Limit == 0:
			continue
		case len(page) == limit:
			return page, next, nil
		}
		page[key], next = v.w.bought[key], key
	}
	return page, event.BuyerKey{}, nil
}

func (v *worldView) BoughtOf(_ context.Context, keys []event.BuyerKey) (map[event.BuyerKey]int64, error) {
	found := map[event.BuyerKey]int64{}
	for _, key := range keys {
		if units, there := v.w.bought[key]; there && v.s.Stock[key.SKU].Limit > 0 {
			found[key] = units
		}
	}
	return found, nil
}

func (v *worldView) Invariants(context.Context) ([]Broken, error) { return v.broken, nil }
func (v *worldView) Close() error                                 { v.w.openViews--; return nil }

func (w *world) Sample(_ context.Context, q Question) (Sample, error) {
	if w.onSample != nil {
		w.onSample()
	}
	w.samples++
	s := Sample{Status: w.status, State: maps.Clone(w.state), Records: only(w.records, q.Records), Buyers: only(w.buyers, q.Buyers)}
	s.Page, s.Next = scanned(w.records, q.Orders, q.Page)
	s.BuyersPage, s.BuyersNext = scanned(w.buyers, q.Counts, q.Page)
	return s, nil
}

func only(hash map[string]string, fields []string) map[string]string {
	found := map[string]string{}
	for _, field := range fields {
		if text, ok := hash[field]; ok {
			found[field] = text
		}
	}
	return found
}

func scanned(hash map[string]string, cursor uint64, count int) (page map[string]string, next uint64) {
	page = map[string]string{}
	all := slices.Sorted(maps.Keys(hash))
	end := min(int(cursor)+count, len(all))
	for _, field := range all[min(int(cursor), end):end] {
		page[field] = hash[field]
	}
	if end < len(all) {
		next = uint64(end)
	}
	return page, next
}

func (w *world) Range(_ context.Context, after stock.Position, count int) ([]event.Raw, error) {
	if w.onRange != nil {
		w.onRange()
	}
	var out []event.Raw
	log := w.log[w.trimmed:]
	if w.other != nil {
		log = w.other
	}
	for _, raw := range log {
		at, err := stock.ParsePosition(raw.ID)
		if err != nil {
			panic(err)
		}
		if (at.Epoch > after.Epoch || at.Epoch == after.Epoch && at.Seq > after.Seq) && len(out) < count {
			out = append(out, raw)
		}
	}
	return out, nil
}

func (w *world) Entry(_ context.Context, at stock.Position) (takeover.Status, bool, error) {
	there := slices.ContainsFunc(w.log[w.trimmed:], func(raw event.Raw) bool { return raw.ID == at.String() })
	return w.status, there, nil
}
