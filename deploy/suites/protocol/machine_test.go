package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A machine is one random history: shards, what was sent to them, and the first thing that was not as it must be.
type machine struct {
	h     *house
	rooms []*room
	seen  *sights
	name  string // part of every SKU and document, which are unique in the ledger

	openings  map[int][]ledger.Document // by room: the documents that created SKUs
	documents map[string]ledger.Document
	err       error
}

// begin opens fresh shards of the house, with two SKUs each.
func begin(ctx context.Context, h *house, first, shards int, seen *sights) (*machine, error) {
	m := &machine{h: h, seen: seen, name: fmt.Sprintf("m%d-", first), openings: map[int][]ledger.Document{}, documents: map[string]ledger.Document{}}
	for n := range shards {
		r := newRoom(h, first+n)
		m.rooms = append(m.rooms, r)
		if err := m.open(ctx, r); err != nil {
			return nil, err
		}
		for units := range int64(2) {
			if _, err := m.create(ctx, r, 4+4*units); err != nil {
				return nil, err
			}
		}
		var ops []stock.Operation
		for _, d := range m.openings[r.number] {
			ops = append(ops, d.Operation())
		}
		if err := m.send(ctx, map[*room][]stock.Operation{r: ops}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// open takes a shard over and lets the model follow.
func (m *machine) open(ctx context.Context, r *room) error {
	before := r.at
	r.touched = true
	report, err := m.h.takeover(ctx, r.number)
	if err != nil {
		return fmt.Errorf("take shard %d over: %w", r.number, err)
	}
	if report.Continues.Epoch != before.Epoch || report.Continues.Seq > before.Seq {
		return fmt.Errorf("the takeover of shard %d went on from %s, Redis was at %s", r.number, report.Continues, before)
	}
	if r.opened(report.Continues, report.Epoch) > 0 {
		m.seen.saw("a takeover that lost a tail")
	}
	return nil
}

// create writes a SKU; its opening is sent later, by whoever sends openings.
func (m *machine) create(ctx context.Context, r *room, units int64) (ledger.Document, error) {
	now, err := m.h.now(ctx, r.number)
	if err != nil {
		return ledger.Document{}, err
	}
	name := fmt.Sprintf("%s%d-%d", m.name, r.number, len(m.openings[r.number]))
	d, _, err := m.h.ledger.WriteOpening(ctx, name, units, r.number, m.h.ledger.Deadline(now))
	m.openings[r.number] = append(m.openings[r.number], d)
	return d, err
}

// send has operations decided, all at the same time, and judges the answers.
func (m *machine) send(ctx context.Context, batch map[*room][]stock.Operation) error {
	var group sync.WaitGroup
	outs, errs := map[*room][]stock.Outcome{}, make(chan error, 1024)
	from, err := m.h.now(ctx, m.rooms[0].number)
	if err != nil {
		return err
	}
	sent := m.h.desk.Stats().Operations.Load()
	total := 0
	for r, ops := range batch {
		answers := make([]stock.Outcome, len(ops))
		outs[r] = answers
		total += len(ops)
		for i, op := range ops {
			group.Go(func() {
				var err error
				if answers[i], err = m.h.desk.Do(ctx, r.number, op); err != nil {
					errs <- fmt.Errorf("%s: %w", describe(&op), err)
				}
			})
		}
	}
	group.Wait()
	if len(errs) > 0 {
		return <-errs
	}
	to, err := m.h.now(ctx, m.rooms[0].number)
	if err != nil {
		return err
	}
	// An operation that is not answered the first time was sent again because the call was full.
	if m.h.desk.Stats().Operations.Load() > sent+int64(total) && total > 100 {
		m.seen.saw("a call that was full")
	}
	for r := range batch {
		r.touched = true
		m.note(r, batch[r], outs[r])
		if err := r.judge(batch[r], outs[r], from, to); err != nil {
			return fmt.Errorf("shard %d: %w", r.number, err)
		}
	}
	return nil
}

// note counts what the answers were about.
func (m *machine) note(r *room, ops []stock.Operation, outs []stock.Outcome) {
	taken := map[string]bool{}
	for i, out := range outs {
		if out.Code == stock.Accepted {
			taken[ops[i].ID] = true
			if out.Receipt.Index > 0 {
				m.seen.saw("an entry of several operations")
			}
		}
	}
	for i, out := range outs {
		op := &ops[i]
		m.seen.saw(string(out.Code))
		switch {
		case out.Code == stock.Accepted && op.Kind == stock.LateConfirm:
			m.seen.saw("a late confirm that was taken")
		case out.Code == stock.SoldOut && op.Kind == stock.LateConfirm:
			m.seen.saw("a late confirm that found too little")
		case out.Code == stock.Accepted && op.Kind == stock.Expire:
			m.seen.saw("a hold that expired")
		case out.Code == stock.Accepted && op.Kind.Takes() && op.Attempt > 1 && r.attempt(op.ID) > 0:
			m.seen.saw("a next attempt that was taken")
		case out.Code == stock.Accepted && op.Kind.Takes() && r.aged[op.ID] > 0 && r.attempt(op.ID) == 0:
			m.seen.saw("an order that came again after it was forgotten")
		case out.Code == stock.Accepted && op.Partial && out.Reservation.Lines.Units() < op.Lines.Units():
			m.seen.saw("a partial one that got less")
		case out.Code == stock.Accepted && op.Kind == stock.Release && out.Reservation.State == stock.Held:
			m.seen.saw("a release of a part")
		case out.Code == stock.Accepted && op.Kind == stock.Confirm && len(op.Lines) > 0:
			m.seen.saw("a confirm of a part")
		case out.Code == stock.Accepted && (op.Kind == stock.Extend || op.Kind == stock.Replace):
			m.seen.saw("a hold that was changed")
		case out.Code == stock.Accepted && op.Document == stock.DocumentFulfil:
			m.seen.saw("a parcel")
		case out.Code == stock.Accepted && op.Document == stock.DocumentCancel:
			m.seen.saw("a cancellation")
		case out.Code == stock.Accepted && op.Document == stock.DocumentReturn && op.Order.ID != "":
			m.seen.saw("a return of an order")
		case out.Code == stock.Accepted && op.Document == stock.DocumentCount && op.Lines.Units() != 0:
			m.seen.saw("a count that corrected")
		case out.Code == stock.Replayed && taken[op.ID]:
			m.seen.saw("a repeat at the same time")
		case out.Code == stock.SoldOut && len(op.Lines) > 1:
			m.seen.saw("a cart that was refused whole")
		}
	}
}

// actions are what may happen next. Each draws all that it needs and answers what went wrong.
func (m *machine) actions(ctx context.Context) map[string]func(*rapid.T) {
	steps := map[string]func(context.Context, *rapid.T) error{
		"orders 1": m.drawOrders, "orders 2": m.drawOrders, "orders 3": m.drawOrders, "orders 4": m.drawOrders, "orders 5": m.drawOrders,
		"rush":      m.drawRush,
		"documents": m.drawDocuments,
		"parcels 1": m.drawParcels, "parcels 2": m.drawParcels,
		"new SKU":    m.drawSKU,
		"settings 1": m.drawSettings, "settings 2": m.drawSettings,
		"time 1": m.drawTime, "time 2": m.drawTime,
		"ledger 1": m.drawApply, "ledger 2": m.drawApply,
		"forget": m.drawForget,
		"counts": m.drawCounts,
		"fault":  m.drawFault,
	}
	actions := map[string]func(*rapid.T){}
	for name, step := range steps {
		actions[name] = func(t *rapid.T) {
			if m.err == nil {
				m.err = step(ctx, t)
			}
		}
	}
	actions[""] = func(*rapid.T) {
		for _, r := range m.rooms {
			if m.err == nil && r.touched {
				m.err = r.same(ctx)
				r.touched = false
			}
		}
	}
	return actions
}

// What is drawn is numbers: a failure prints every draw.
func (m *machine) drawRoom(t *rapid.T) *room {
	return m.rooms[rapid.IntRange(0, len(m.rooms)-1).Draw(t, "shard")]
}

// drawSKUs draws some of a shard's SKUs, in order; they may not be opened yet.
func drawSKUs(t *rapid.T, opened []ledger.Document, most int) []int64 {
	var all []int64
	for _, d := range opened {
		all = append(all, d.Lines[0].SKU)
	}
	some := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, min(most, len(all)), rapid.ID).Draw(t, "SKUs")
	slices.Sort(some)
	return some
}

// drawOrders sends up to a dozen operations at once, to all shards.
func (m *machine) drawOrders(ctx context.Context, t *rapid.T) error {
	batch := map[*room][]stock.Operation{}
	for range rapid.IntRange(1, 12).Draw(t, "operations") {
		r := m.drawRoom(t)
		op := drawOrder(t, r, m.openings[r.number])
		batch[r] = append(batch[r], op)
		if rapid.IntRange(0, 3).Draw(t, "twice") == 0 {
			batch[r] = append(batch[r], op)
		}
	}
	return m.send(ctx, batch)
}

// drawRush sends one operation of a cart more often than a call has room for.
func (m *machine) drawRush(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	cart := stock.Operation{Kind: stock.Reserve, ID: "cart", Attempt: 1, TTL: stock.DefaultTTLMillis}
	for _, d := range m.openings[r.number] {
		cart.Lines = append(cart.Lines, stock.Line{SKU: d.Lines[0].SKU, Asked: 1, Now: 1})
	}
	move := stock.Operation{Kind: rapid.SampledFrom([]stock.Kind{stock.Confirm, stock.Release}).Draw(t, "kind"), ID: "cart", Attempt: max(1, r.attempt("cart"))}
	return m.send(ctx, map[*room][]stock.Operation{r: append([]stock.Operation{cart, cart}, slices.Repeat([]stock.Operation{move}, 200)...)})
}

func (m *machine) drawDocuments(ctx context.Context, t *rapid.T) error {
	return m.drawPapers(ctx, t, "documents", m.drawDocument)
}

// drawPapers lets some documents be written and decided, some of them twice.
func (m *machine) drawPapers(ctx context.Context, t *rapid.T, label string, one func(context.Context, *rapid.T, *room) (ledger.Document, bool, error)) error {
	batch := map[*room][]stock.Operation{}
	for range rapid.IntRange(1, 3).Draw(t, label) {
		r := m.drawRoom(t)
		d, written, err := one(ctx, t, r)
		if err != nil {
			return err
		}
		if written {
			batch[r] = append(batch[r], slices.Repeat([]stock.Operation{d.Operation()}, rapid.IntRange(1, 2).Draw(t, "times"))...)
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return m.send(ctx, batch)
}

// drawDocument finds a document that stands, or writes one; an overdue one may get a new deadline. False when nothing was
// written.
func (m *machine) drawDocument(ctx context.Context, t *rapid.T, r *room) (d ledger.Document, written bool, err error) {
	id := fmt.Sprintf("%s%d-d%d", m.name, r.number, rapid.IntRange(0, 9).Draw(t, "document"))
	now, err := m.h.now(ctx, r.number)
	if err != nil {
		return d, false, err
	}
	if _, stands := m.documents[id]; stands {
		d, err = m.standing(ctx, r, id)
		return d, err == nil, err
	}
	n := ledger.NewDocument{ID: id, Reason: "machine", DeadlineMillis: m.h.ledger.Deadline(now)}
	if rapid.IntRange(0, 4).Draw(t, "overdue") == 0 {
		n.DeadlineMillis = now - 1
	}
	m.drawStockPaper(t, r, &n)
	if d, written, err = m.writeStockPaper(ctx, r, n); written {
		m.documents[id] = d
	}
	return d, written, err
}

// standing gives a document once more, with a new deadline if its own has passed before it was settled.
func (m *machine) standing(ctx context.Context, r *room, id string) (ledger.Document, error) {
	d := m.documents[id]
	now, err := m.h.now(ctx, r.number)
	if err != nil {
		return d, err
	}
	if settled := r.now.Orders[stock.DocumentID(id)].State != ""; settled || d.DeadlineMillis >= now {
		return d, nil
	}
	renewed, err := m.h.ledger.RenewDocument(ctx, id, d.DeadlineMillis, m.h.ledger.Deadline(now))
	if err != nil || !renewed {
		return d, fmt.Errorf("renew document %s: %v (%w)", id, renewed, err)
	}
	m.documents[id], err = m.h.ledger.Document(ctx, id)
	return m.documents[id], err
}

// mostSKUs bounds the SKUs of a shard: few enough to be fought for.
const mostSKUs = 3

// drawSKU creates a SKU, or sends an opening again.
func (m *machine) drawSKU(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	if len(m.openings[r.number]) < mostSKUs {
		if _, err := m.create(ctx, r, rapid.Int64Range(0, 9).Draw(t, "units")); err != nil {
			return err
		}
	}
	n := rapid.IntRange(0, len(m.openings[r.number])-1).Draw(t, "opening")
	op := m.openings[r.number][n].Operation()
	return m.send(ctx, map[*room][]stock.Operation{r: {op, op}})
}

// drawSettings changes what a SKU is told, and looks at once what a buyer of it gets.
func (m *machine) drawSettings(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	now, err := m.h.now(ctx, r.number)
	if err != nil {
		return err
	}
	sku := drawSKUs(t, m.openings[r.number], 1)[0]
	lift := stock.Change{Frozen: stock.Off, Closed: stock.Off}
	change := rapid.SampledFrom([]stock.Change{
		lift, lift, lift, {Opens: stock.Keep, Frozen: stock.On, Limit: stock.Keep}, {Opens: stock.Keep, Closed: stock.On, Limit: stock.Keep},
		{Opens: now + 60_000, Limit: stock.Keep}, {Opens: stock.Keep, Limit: 3}, {Opens: stock.Keep, Limit: 5}, {Frozen: stock.Off, Closed: stock.Off, Limit: stock.Keep},
	}).Draw(t, "change")
	if err := m.send(ctx, map[*room][]stock.Operation{r: {
		{Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: sku}}, Change: change},
		drawOrder(t, r, m.openings[r.number]),
	}}); err != nil {
		return err
	}
	if change.Limit > 0 && rapid.Bool().Draw(t, "counted") {
		// Only a takeover counts what buyers have; the log is read before, because it begins anew.
		if err := errors.Join(r.sameLog(ctx), m.open(ctx, r)); err != nil {
			return err
		}
	}
	units := rapid.Int64Range(1, 6).Draw(t, "units") // some of them beyond any limit
	buyer := stock.Operation{Kind: stock.Sale, ID: fmt.Sprintf("s%d", r.at.Seq), Attempt: 1, Lines: stock.Lines{{SKU: sku, Asked: units, Now: units}}}
	buyer.Buyer = rapid.SampledFrom(buyers).Draw(t, "buyer")
	return m.send(ctx, map[*room][]stock.Operation{r: {buyer, buyer}})
}

// drawTime lets time pass, and the reconciler come by to end what is due.
func (m *machine) drawTime(ctx context.Context, t *rapid.T) error {
	span := rapid.SampledFrom([]time.Duration{time.Second, 2 * time.Minute, 2 * time.Minute, 20 * time.Minute}).Draw(t, "time")
	if err := m.h.tick(ctx, span); err != nil {
		return err
	}
	r := m.drawRoom(t)
	var ops []stock.Operation
	for id, o := range r.now.Orders {
		if o.State == stock.Held {
			ops = append(ops, stock.Operation{Kind: stock.Expire, ID: id, Attempt: o.Attempt})
		}
	}
	if len(ops) == 0 || rapid.Bool().Draw(t, "reconciler") {
		return nil
	}
	return m.send(ctx, map[*room][]stock.Operation{r: ops})
}

// drawApply lets the ledger of one shard catch up, often only in part.
func (m *machine) drawApply(ctx context.Context, t *rapid.T) error {
	r := m.drawRoom(t)
	r.touched = true
	n, err := m.h.apply(ctx, r.number, rapid.IntRange(1, 12).Draw(t, "entries"))
	r.applied += int64(n)
	if n > 0 && r.applied < r.at.Seq {
		m.seen.saw("a ledger that is behind")
	}
	return err
}

// finish lets the ledger catch up and compares once more.
func (m *machine) finish(ctx context.Context) error {
	for _, r := range m.rooms {
		if err := m.h.catchUp(ctx, r.number); err != nil {
			return err
		}
		r.applied = r.at.Seq
		if err := r.same(ctx); err != nil {
			return err
		}
	}
	if n := m.h.desk.Stats().Unclassified.Load(); n > 0 {
		return fmt.Errorf("the desk met %d errors that it does not know", n)
	}
	return nil
}

// history plays one random history on shards of the house that nobody had before.
func history(ctx context.Context, t *rapid.T, h *house, first, shards int, seen *sights) error {
	m, err := begin(ctx, h, first, shards, seen)
	if err != nil {
		return err
	}
	t.Repeat(m.actions(ctx))
	if m.err == nil {
		m.err = m.finish(ctx)
	}
	return m.err
}
