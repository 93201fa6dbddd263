package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A paper is what the tables have of a document whose entry is to be folded.
type paper struct {
	shard int64
	kind  string
	lines stock.Lines
	state DocumentState
	at    stock.Position // of its entry, once settled
	sku   string         // of an opening: the text of its number
	units stock.Lines    // of a scrapped return: what came back
	order stock.OrderRef // that it is about
	buyer string
	asOf  stock.Position // of a count
}

const selectPapers = `
		select d.id, d.shard, d.kind, d.lines, d.state, coalesce(d.epoch, 0), coalesce(d.seq, 0), coalesce(s.sku, ''),
		       d.units, coalesce(d.order_id, ''), coalesce(d.order_key, 0), coalesce(d.order_asked, 0), d.buyer,
		       coalesce(d.as_of_epoch, 0), coalesce(d.as_of_seq, 0)
		from stock_document` + documentSKU + `where d.id = any($1::text[])`

func (f *fold) loadPapers(rows pgx.Rows) error {
	var id string
	var p paper
	var text, units []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &p.shard, &p.kind, &text, &p.state, &p.at.Epoch, &p.at.Seq, &p.sku,
		&units, &p.order.ID, &p.order.Key, &p.order.Asked, &p.buyer, &p.asOf.Epoch, &p.asOf.Seq}, func() (err error) {
		p.lines, err = parseMovementJSON(text)
		p.units = nil
		if err == nil && units != nil {
			p.units, err = parseMovementJSON(units)
		}
		f.papers[id] = p
		return err
	})
	return err
}

// unfit answers why an entry does not settle a document: there is none, it was settled already, or another one
// stands under the id, which both are named for. The note, the reason and the deadline are no part of it: they move
// nothing.
func (f *fold) unfit(op *stock.Operation) string {
	p, there := f.papers[paperID(op.ID)]
	switch kind := kindOf(op); {
	case !there:
		return "it is no document's id, so none can be written again from it"
	case p.shard != f.shard:
		return fmt.Sprintf("its document was written for shard %d", p.shard)
	case p.state != DocumentWritten:
		return fmt.Sprintf("its document was %s by entry %s", p.state, p.at)
	case p.kind != kind || !sameMovement(p.lines, op.Lines):
		return fmt.Sprintf("two documents have this id: the ledger has %s %s, the entry %s %s",
			p.kind, movementJSON(p.lines), kind, movementJSON(op.Lines))
	case p.order != op.Order || p.buyer != op.Buyer:
		return fmt.Sprintf("two documents have this id: the ledger has order %+v of %q, the entry %+v of %q", p.order, p.buyer, op.Order, op.Buyer)
	case op.Kind == stock.NewSKU && p.sku != op.SKU:
		return fmt.Sprintf("two SKUs have number %d: the ledger has %+q, the entry %+q", op.Lines[0].SKU, p.sku, op.SKU)
	}
	return ""
}

func kindOf(op *stock.Operation) string {
	if op.Kind == stock.NewSKU {
		return stock.DocumentOpening
	}
	return op.Document
}

func sameMovement(a, b stock.Lines) bool {
	return slices.EqualFunc(a, b, func(x, y stock.Line) bool { return x.SKU == y.SKU && x.Asked == y.Asked })
}

// A lostPaper is an operation of the log without a row in stock_document.
type lostPaper struct {
	*stock.Operation
	item  int // of the batch
	entry stock.Position
}

// queueRebuild writes what the entry tells. A count is taken to be as of its own entry, which is later than the truth: an
// older one could correct a difference a second time.
func (p *lostPaper) queueRebuild(queue *pgx.Batch, shard int) {
	var order *string
	var key, asked, epoch, seq *int64
	if p.Order.ID != "" {
		order, key, asked = &p.Order.ID, &p.Order.Key, &p.Order.Asked
	}
	if p.Document == stock.DocumentCount {
		epoch, seq = &p.entry.Epoch, &p.entry.Seq
	}
	queue.Queue(`
		insert into stock_document (id, shard, kind, reason, lines, deadline_ms, rebuilt, order_id, order_key, order_asked, buyer,
		    as_of_epoch, as_of_seq)
		values ($1, $2, $3, $4, $5, $6, true, $7, $8, $9, $10, $11, $12) on conflict (id) do nothing`,
		paperID(p.ID), shard, kindOf(p.Operation), p.Reason, movementJSON(p.Lines), p.Deadline, order, key, asked, p.Buyer, epoch, seq)
}

// rebuildPapers writes documents again from their entries, and the SKUs of openings with them. Documents are
// written before they are sent, so an entry without a row means that Postgres lost a tail in a failover of its own
// that the log still has. Written as if it had never been lost, the row is then settled like any other.
//
// Somebody may be writing the same id at this moment: the insert waits for him, and what is read behind it is what
// stands.
func (t *transaction) rebuildPapers(ctx context.Context) error {
	lost := t.lostPapers()
	if len(lost) == 0 {
		return nil
	}
	ids := make([]string, len(lost))
	var queue pgx.Batch
	if err := t.rebuildSKUs(ctx, lost); err != nil {
		return err
	}
	for i, p := range lost {
		ids[i] = paperID(p.ID)
		p.queueRebuild(&queue, t.batch.shard)
	}
	queue.Queue(selectPapers, ids).Query(t.fold.loadPapers)
	if err := t.conn.SendBatch(ctx, &queue).Close(); err != nil {
		return fmt.Errorf("write %d documents again from their entries: %w", len(lost), err)
	}
	return nil
}

// lostPapers are in the order of their ids, so that two appliers write them in one order.
func (t *transaction) lostPapers() []lostPaper {
	var lost []lostPaper
	seen := map[string]bool{}
	for _, i := range t.fresh {
		entry := t.batch.items[i].entry
		for j := range entry.Ops {
			op := &entry.Ops[j]
			if op.Kind != stock.Movement && op.Kind != stock.NewSKU {
				continue
			}
			id := paperID(op.ID)
			if _, there := t.fold.papers[id]; there || seen[id] || !isPaper(op) {
				continue
			}
			seen[id] = true
			lost = append(lost, lostPaper{op, i, entry.Position})
		}
	}
	slices.SortFunc(lost, func(a, b lostPaper) int { return strings.Compare(a.ID, b.ID) })
	return lost
}

// isPaper tells a document's id from an order's, and an opening's from a client's.
func isPaper(op *stock.Operation) bool {
	id := paperID(op.ID)
	if op.Kind == stock.NewSKU {
		return op.ID != id && id == OpeningID(op.Lines[0].SKU)
	}
	return op.ID != id && stock.CheckOrderID("id", id) == nil
}

// rebuildSKUs gives SKUs the numbers that Redis knows them by. A text that lives under another number by now was
// created once more before the log was read: which of the two is meant is not for us to say, and both have stock.
func (t *transaction) rebuildSKUs(ctx context.Context, lost []lostPaper) error {
	var numbers, openings []int64
	var texts []string
	for _, p := range lost {
		if p.Kind == stock.NewSKU {
			numbers, openings, texts = append(numbers, p.Lines[0].SKU), append(openings, p.Lines[0].Asked), append(texts, p.SKU)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	alive := map[string]int64{}
	var text string
	var number int64
	var queue pgx.Batch
	queue.Queue(`
		insert into sku (number, shard, sku, opening) overriding system value
		select v.number, $1, v.sku, v.opening from unnest($2::bigint[], $3::text[], $4::bigint[]) v(number, sku, opening)
		on conflict do nothing`, t.batch.shard, numbers, texts, openings)
	queue.Queue(raiseNumbers)
	queue.Queue(`select sku, number from sku where sku = any($1::text[]) and deleted is null`, texts).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&text, &number}, func() error {
			alive[text] = number
			return nil
		})
		return err
	})
	if err := t.conn.SendBatch(ctx, &queue).Close(); err != nil {
		return fmt.Errorf("write %d SKUs again from their entries: %w", len(numbers), err)
	}
	for _, p := range lost {
		if other, ok := alive[p.SKU]; ok && p.Kind == stock.NewSKU && other != p.Lines[0].SKU {
			return t.poison(p.item, (&event.PoisonError{
				Receipt: stock.Receipt{Shard: t.batch.shard, Position: t.batch.items[p.item].position}, Op: *p.Operation,
				Why: fmt.Sprintf("SKU %+q was created again as number %d after a failover of Postgres that forgot number %d: mark one of them deleted (sku.deleted), then retry",
					p.SKU, other, p.Lines[0].SKU),
			}).Error())
		}
	}
	return nil
}
