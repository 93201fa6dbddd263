package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/stock/stocktest"
)

// A room is one shard beside what it must be: the model now, the model at every position of the present epoch
// (the ledger is at one of them), and the entries of the log that count, folded into a book.
type room struct {
	h      *house
	number int

	now     *stocktest.Model
	past    map[int64]*stocktest.Model // by seq of the epoch
	at      stock.Position             // of Redis
	applied int64                      // of the ledger, in the epoch
	before  int64                      // epoch before this one, 0 in the first
	ends    map[int64]int64            // epoch → last seq that counts, of closed epochs

	entries  []event.Entry
	book     *event.Book
	read     int64            // seq of the epoch that the book has
	aged     map[string]int64 // orders whose retention was once over → the attempt that they had then
	touched  bool             // something was done to it since it was compared
	receipts []stock.Receipt  // of everything that was accepted, the newest last
}

func newRoom(h *house, number int) *room {
	return &room{h: h, number: number, now: stocktest.NewModel(), ends: map[int64]int64{}, aged: map[string]int64{}, book: newBook(number)}
}

// newBook reads a log beside which records are dropped.
func newBook(number int) *event.Book {
	b := event.NewBook(number)
	b.Forgetful = true
	return b
}

// mostReceipts bounds how many receipts are asked for after each step.
const mostReceipts = 3

// opened follows a takeover that went on from a position: what lay beyond is lost, for the model, too.
func (r *room) opened(continues stock.Position, epoch int64) (lost int64) {
	if r.past != nil {
		lost = r.at.Seq - continues.Seq
		r.now = r.past[continues.Seq].Clone()
		r.before, r.ends[r.at.Epoch] = r.at.Epoch, continues.Seq
		r.entries = slices.DeleteFunc(r.entries, func(e event.Entry) bool {
			return e.Position.Epoch == r.at.Epoch && e.Position.Seq > continues.Seq
		})
	}
	r.book, r.read = newBook(r.number), 0
	for i := range r.entries {
		if _, err := r.book.Apply(&r.entries[i], nil); err != nil {
			panic(err) // they were folded once already
		}
	}
	r.now.Recount() // what a takeover does for SKUs with a limit
	r.at, r.applied = stock.Position{Epoch: epoch, Seq: 1}, 0
	r.past = map[int64]*stocktest.Model{0: r.now, 1: r.now}
	return lost
}

// judge compares the outcomes of operations that were sent at the same time, between the Redis times from and
// to. Those that were accepted have their order from their receipts; the others must fit somewhere in between.
func (r *room) judge(ops []stock.Operation, outs []stock.Outcome, from, to int64) error {
	order := make([]int, 0, len(ops))
	for i, out := range outs {
		if out.Code == stock.Accepted || out.Code == stock.NotAllowed {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := outs[a].Receipt, outs[b].Receipt
		if x.Seq != y.Seq {
			return int(x.Seq - y.Seq)
		}
		return x.Index - y.Index
	})
	states := []*stocktest.Model{r.now}
	for _, i := range order {
		next, err := r.accept(&ops[i], &outs[i], from, to)
		if err != nil {
			return err
		}
		states = append(states, next)
	}
	for i, out := range outs {
		if out.Code != stock.Accepted && out.Code != stock.NotAllowed {
			if err := fits(states, ops[i], out, from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// accept follows one accepted operation, the next in the order of the log.
func (r *room) accept(op *stock.Operation, out *stock.Outcome, from, to int64) (*stocktest.Model, error) {
	want := stock.Receipt{Shard: r.number, Position: r.at}
	last := stock.Receipt{}
	if n := len(r.receipts); n > 0 {
		last = r.receipts[n-1]
	}
	if out.Receipt.Seq == r.at.Seq && last.Position == r.at {
		want.Index = last.Index + 1
	} else {
		want.Seq++
	}
	if out.Receipt != want {
		return nil, fmt.Errorf("%c of %s got the receipt %v, the next one is %v", op.Kind, op.ID, out.Receipt, want)
	}
	// Whatever was accepted was so at some time of the call. A hold tells which; a document has a latest, the rest
	// an earliest one.
	now := to
	switch op.Kind {
	case stock.Reserve:
		if now = out.Reservation.ExpiresMillis - op.TTL; now < from || now > to {
			return nil, fmt.Errorf("hold of %s from %d on, it was sent between %d and %d", op.ID, now, from, to)
		}
	case stock.Movement, stock.NewSKU:
		now = from
	}
	before := r.now
	r.now = r.now.Clone()
	told := r.now.Do(*op, now, want)
	if diff := differ(op, told, *out); diff != "" {
		return nil, fmt.Errorf("%s\nwith %+v\nmodel and desk differ (-model +desk):\n%s", describe(op), before.Orders[op.ID], diff)
	}
	r.at, r.past[want.Seq] = want.Position, r.now
	r.receipts = append(r.receipts, want)
	return r.now, nil
}

func describe(op *stock.Operation) string {
	return fmt.Sprintf("%s of %s by %q", event.AppendBody(nil, op), op.ID, op.Buyer)
}

// fits looks for a state, and a time, in which the model gives the same answer.
func fits(states []*stocktest.Model, op stock.Operation, out stock.Outcome, from, to int64) error {
	diff := ""
	for _, m := range slices.Backward(states) {
		for _, now := range []int64{from, to} {
			d := differ(&op, m.Clone().Do(op, now, stock.Receipt{}), out)
			if d == "" {
				return nil
			}
			if diff == "" {
				diff = d
			}
		}
	}
	return fmt.Errorf("%s\nhas no place in which the model answers so (-model +desk):\n%s", describe(&op), diff)
}

// differ compares answers as far as the contract of the desk goes: a setting has no reservation, and a late
// confirm names no lines that were asked.
func differ(op *stock.Operation, want, got stock.Outcome) string {
	if op.Kind == stock.Configure {
		got.Reservation = stock.Reservation{}
	}
	if op.Kind == stock.LateConfirm {
		for i := range want.Short {
			want.Short[i].Asked = 0
		}
	}
	want.Reservation.Receipt.Shard, got.Reservation.Receipt.Shard = 0, 0
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

// same compares the model with Redis, with the replay of the log, with Postgres and with what receipts are told,
// and lets the audit have its say.
func (r *room) same(ctx context.Context) error {
	if why := r.now.Broken(); why != "" {
		return fmt.Errorf("shard %d, the model itself: %s", r.number, why)
	}
	for name, look := range map[string]func(context.Context) error{
		"Redis": r.sameRedis, "the log": r.sameLog, "Postgres": r.samePostgres, "receipts": r.sameReceipts,
	} {
		if err := look(ctx); err != nil {
			return fmt.Errorf("shard %d, %s: %w", r.number, name, err)
		}
	}
	var uncounted []int64
	for number, s := range r.now.Shelves {
		if s.Limit > 0 && !r.now.Counted[number] {
			uncounted = append(uncounted, number)
		}
	}
	return r.h.audited(ctx, r.number, uncounted...)
}

func (r *room) sameRedis(ctx context.Context) error {
	shard := r.h.shards[r.number]
	status, err := shard.Status(ctx)
	if err != nil {
		return err
	}
	if !status.Open() || status.Epoch != r.at.Epoch || status.Seq != r.at.Seq || status.Last != r.at.String() {
		return fmt.Errorf("the model is at %s, the status is %+v", r.at, status)
	}
	fields, err := shard.Fields(ctx)
	if err != nil {
		return err
	}
	shelves := map[int64]stocktest.Shelf{}
	for number, text := range fields {
		f, err := event.ParseField(text)
		if err != nil {
			return err
		}
		shelves[number] = stocktest.Shelf(f)
	}
	texts, err := r.h.rdb.HGetAll(ctx, shard.Keys().Orders).Result()
	if err != nil {
		return err
	}
	delete(texts, "~")
	orders := map[string]stock.Reservation{}
	for id, text := range texts {
		if orders[id], err = event.ParseRecord(r.number, id, text); err != nil {
			return err
		}
	}
	return errors.Join(equal(r.now, shelves, orders), r.sameBuyers(ctx))
}

// sameBuyers compares what buyers have of SKUs with a limit.
func (r *room) sameBuyers(ctx context.Context) error {
	fields, err := r.h.rdb.HGetAll(ctx, r.h.shards[r.number].Keys().Buyers).Result()
	if err != nil {
		return err
	}
	delete(fields, "~")
	want := map[string]string{}
	for number := range r.now.Counted {
		want[fmt.Sprint(number)] = "1"
	}
	for b, units := range r.now.Bought {
		want[fmt.Sprintf("%d:%s", b.SKU, b.Name)] = fmt.Sprint(units)
	}
	if diff := cmp.Diff(want, fields, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("buyers differ (-model +there):\n%s", diff)
	}
	return nil
}

func equal(want *stocktest.Model, shelves map[int64]stocktest.Shelf, orders map[string]stock.Reservation) error {
	if diff := cmp.Diff(want.Shelves, shelves, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("SKUs differ (-model +there):\n%s", diff)
	}
	if diff := cmp.Diff(want.Orders, orders, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("orders differ (-model +there):\n%s", diff)
	}
	return nil
}

// sameLog folds the entries that are new into the book.
func (r *room) sameLog(ctx context.Context) error {
	raws, err := r.h.shards[r.number].Range(ctx, stock.Position{Epoch: r.at.Epoch, Seq: r.read}, 10_000)
	if err != nil {
		return err
	}
	for _, raw := range raws {
		e, err := raw.Parse()
		if err != nil {
			return err
		}
		if want := (stock.Position{Epoch: r.at.Epoch, Seq: r.read + 1}); e.Position != want {
			return fmt.Errorf("entry %s in place of %s", e.Position, want)
		}
		off, err := r.book.Apply(&e, nil)
		if err != nil || len(off) > 0 {
			return errors.Join(err, fmt.Errorf("after-images that disagree: %v", off))
		}
		r.entries = append(r.entries, e)
		r.read++
	}
	if r.read != r.at.Seq {
		return fmt.Errorf("the log ends at %d, the model is at %s", r.read, r.at)
	}
	shelves := map[int64]stocktest.Shelf{}
	for number, q := range r.book.Stock {
		shelves[number] = stocktest.Shelf{Quantities: q, Settings: r.book.Settings[number]}
	}
	orders := map[string]stock.Reservation{}
	for id, o := range r.book.Orders {
		if _, stands := r.now.Orders[id]; !stands && r.aged[id] > 0 {
			delete(r.book.Orders, id) // no entry says that a record was dropped
			continue
		}
		orders[id] = *o
	}
	return equal(r.now, shelves, orders)
}

// samePostgres compares the ledger with the model as it was at the ledger's position: an exact past.
func (r *room) samePostgres(ctx context.Context) error {
	v, err := ledger.NewAuditor(r.h.ledger, 0).View(ctx, r.number, "", 10_000)
	if err != nil {
		return err
	}
	defer v.Close()
	s := v.Snapshot()
	if s.Shard.Epoch != r.at.Epoch || s.Shard.Applied != r.applied || s.Shard.State != ledger.StateOpen {
		return fmt.Errorf("the ledger should have applied %d of epoch %d: %+v", r.applied, r.at.Epoch, s.Shard)
	}
	shelves := map[int64]stocktest.Shelf{}
	for number, f := range s.Stock {
		shelves[number] = stocktest.Shelf(f)
	}
	orders := map[string]stock.Reservation{}
	for id, o := range s.Orders {
		orders[id] = o.Reservation
	}
	return equal(r.past[r.applied], shelves, orders)
}

// sameReceipts asks for the newest receipts and for one of long ago.
func (r *room) sameReceipts(ctx context.Context) error {
	n := len(r.receipts)
	ask := slices.Clone(r.receipts[max(0, n-mostReceipts):])
	if n > mostReceipts {
		ask = append(ask, r.receipts[int(r.at.Seq)%n])
	}
	for _, receipt := range ask {
		want := stock.StandingLost
		end, closed := r.ends[receipt.Epoch]
		switch {
		case closed && receipt.Seq <= end, !closed && receipt.Seq <= r.applied:
			want = stock.StandingPersisted
		case !closed:
			want = stock.StandingAccepted
		}
		got, err := r.h.ledger.Standing(ctx, receipt)
		if err != nil || got != want {
			return errors.Join(err, fmt.Errorf("receipt %+v is told %q, it is %s", receipt, got, want))
		}
	}
	return nil
}

// attempt is the newest attempt of an order, 0 when there is none.
func (r *room) attempt(id string) int64 { return r.now.Orders[id].Attempt }
