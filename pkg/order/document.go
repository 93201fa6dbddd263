package order

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Movement asks for a change of a SKU's available units under a document of its own.
type Movement struct {
	DocumentID string
	Kind       string // stock.DocumentReceive or stock.DocumentReturn (above 0), or stock.DocumentAdjust (signed, not 0)
	SKU        string
	Units      int64
	Scrap      bool   // return: they came back and are not for sale
	Reason     string // a code of 1 to 32 characters
	Note       string // free text of at most MaxNoteBytes
	Ack        Level
}

// MaxNoteBytes bounds a document's note.
const MaxNoteBytes = 1024

// A Document is what became of a document.
type Document struct {
	ID       string // empty for an opening
	Kind     string
	SKU      string // empty for a document of an order
	Units    int64  // signed, of SKU; of a count what it corrects
	Counted  int64  // count: what the stocktake found
	Order    string // of fulfil, cancel and the return of an order, with Attempt
	Attempt  int64
	Lines    []Line // units of each SKU of the order, above 0
	Scrap    bool   // return: they are not for sale
	Reason   string
	State    PaperState
	Receipt  stock.Receipt // zero while written
	Level    Level         // of its outcome; empty while written
	Replayed bool          // the document stood before this call
}

// Move writes a document in Postgres and then has its movement decided. Once it is written it will be decided, by
// this call or by the reconciler: so a Desk that is closed is no error here, the answer then says Written. Repeats
// answer the original outcome, for ever. Errors: *UnknownSKUError, *DocumentConflictError, *RefusedError (final).
func (c *Clerk) Move(ctx context.Context, m Movement) (Document, error) {
	if err := checkMovement(&m); err != nil {
		return Document{}, err
	}
	s, err := c.sku(ctx, "sku", m.SKU)
	if err != nil {
		return Document{}, err
	}
	p, created, err := c.parts.Documents.Write(ctx, Draft{
		ID: m.DocumentID, Kind: m.Kind, Reason: m.Reason, Note: m.Note, SKU: s.Number, Units: m.Units, Scrap: m.Scrap,
	}, c.redisNow(ctx, s.Shard))
	if err != nil {
		return Document{}, c.documentError(m.SKU, err)
	}
	d := Document{ID: m.DocumentID, Kind: m.Kind, SKU: m.SKU, Units: m.Units, Scrap: m.Scrap, Reason: m.Reason, Replayed: !created}
	return c.carry(ctx, d, p, m.Ack)
}

// Create makes a SKU with its opening stock, in the shard that its text leads to. The same opening again is
// answered as it stands. Errors: *DocumentConflictError when it was created with another.
func (c *Clerk) Create(ctx context.Context, sku string, opening int64, ack Level) (Document, error) {
	if err := stock.CheckSKU("sku", sku); err != nil {
		return Document{}, err
	}
	if opening < 0 || opening > stock.MaxMovementQuantity {
		return Document{}, stock.BadField("opening", fmt.Sprint(opening), fmt.Sprintf("use a whole number from 0 to %d", stock.MaxMovementQuantity))
	}
	if err := checkLevel(ack); err != nil {
		return Document{}, err
	}
	shard := shardOf(sku, c.parts.Shards)
	p, created, err := c.parts.Documents.Open(ctx, sku, opening, shard, c.redisNow(ctx, shard))
	if err != nil {
		return Document{}, c.documentError(sku, err)
	}
	d := Document{Kind: stock.DocumentOpening, SKU: sku, Units: opening, Replayed: !created}
	return c.carry(ctx, d, p, ack)
}

// shardOf spreads new SKUs evenly. Where a SKU went stands in Postgres: only new ones are asked here.
func shardOf(sku string, shards int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(sku)) // never fails
	return int(h.Sum32() % uint32(shards))
}

func checkMovement(m *Movement) error {
	if err := stock.CheckSKU("sku", m.SKU); err != nil {
		return err
	}
	signed := m.Kind == stock.DocumentAdjust
	if m.Units == 0 || !signed && m.Units < 0 || m.Units > stock.MaxMovementQuantity || m.Units < -stock.MaxMovementQuantity {
		remedy := "use a whole number from 1 to 999999999"
		if signed {
			remedy = "use a whole number from -999999999 to 999999999 that is not 0"
		}
		return stock.BadField("quantity", strconv.FormatInt(m.Units, 10), remedy)
	}
	return checkPaper(m.DocumentID, m.Reason, m.Note, m.Ack)
}

// checkPaper bounds what every document has.
func checkPaper(id, reason, note string, ack Level) error {
	if err := stock.CheckOrderID("document_id", id); err != nil {
		return err
	}
	if err := stock.CheckReason("reason", reason); err != nil {
		return err
	}
	if len(note) > MaxNoteBytes {
		return stock.BadField("note", note, fmt.Sprintf("use at most %d bytes", MaxNoteBytes))
	}
	if strings.IndexByte(note, 0) >= 0 {
		return stock.BadField("note", note, "leave out the NUL character")
	}
	return checkLevel(ack)
}

// redisNow is Redis' clock; while Redis is away our own must do: the document is then decided later, by a
// reconciler, which gives it a new deadline.
func (c *Clerk) redisNow(ctx context.Context, shard int) int64 {
	if now, err := c.parts.Records.Now(ctx, shard); err == nil {
		return now
	}
	return time.Now().UnixMilli()
}

func (c *Clerk) documentError(sku string, err error) error {
	var conflict *DocumentConflictError
	var count *CountError
	var field *stock.FieldError
	switch {
	case errors.Is(err, ErrUnknownSKU):
		return &UnknownSKUError{Fields: []stock.FieldError{unknownSKU("sku", sku)}}
	case errors.As(err, &conflict), errors.As(err, &count), errors.As(err, &field):
		return err
	}
	// The write may have been committed: the id makes the repeat harmless.
	return fmt.Errorf("%w (write the document: %w)", stock.ErrUnknown, err)
}

// carry has a written document decided, waits for the level, and sends it again where a takeover lost it.
func (c *Clerk) carry(ctx context.Context, d Document, p Paper, ack Level) (Document, error) {
	for range mostLost {
		if p.State != Written {
			failpoint.Hit(failpoint.DocumentAnswered)
			d.State, d.Receipt, d.Level = p.State, p.Receipt, Persisted
			return d, c.refused(ctx, &d, &p)
		}
		state, receipt := c.send(ctx, &p)
		d.State, d.Receipt = state, receipt
		if state == Written {
			return d, nil
		}
		d.Level = Memory
		// Redis may lose the entry of a refusal, and the document be applied when it is sent again: until the ledger
		// has it, nobody is told to send another document in its place.
		if ack != Persisted && state != Refused {
			return d, nil
		}
		switch c.await(ctx, receipt) {
		case stock.StandingPersisted:
			// Only the ledger says how a document ended.
			last, err := c.parts.Documents.Paper(ctx, p.ID)
			if err != nil || last.State == Written {
				return d, nil
			}
			p = last
		case stock.StandingLost:
			d.Level = ""
		default:
			if state == Refused {
				d.State, d.Level = Written, ""
			}
			return d, nil
		}
	}
	d.State, d.Receipt, d.Level = Written, stock.Receipt{}, ""
	return d, nil
}

// send has the movement decided once. Whatever keeps it from that leaves the document written.
func (c *Clerk) send(ctx context.Context, p *Paper) (PaperState, stock.Receipt) {
	failpoint.Hit(failpoint.DocumentWritten)
	out, err := c.decide(ctx, p.Shard, p.Operation)
	failpoint.Hit(failpoint.DocumentDecided)
	switch {
	case err != nil:
		return Written, stock.Receipt{}
	case out.Code == stock.Accepted:
		return Applied, out.Receipt
	case out.Code == stock.NotAllowed:
		return Refused, out.Receipt
	case out.Code == stock.Replayed && out.Reservation.State == stock.Refused:
		return Refused, out.Reservation.Receipt
	case out.Code == stock.Replayed:
		return Applied, out.Reservation.Receipt
	}
	return Written, stock.Receipt{}
}

// refused is the error of a refused document, with the units that are there now.
func (c *Clerk) refused(ctx context.Context, d *Document, p *Paper) error {
	if d.State != Refused {
		return nil
	}
	e := &RefusedError{Document: *d}
	for i, part := range c.named(ctx, p.Operation.Lines, nil) {
		l := &p.Operation.Lines[i]
		short := ShortLine{SKU: part.SKU, Asked: l.Asked}
		if f, _, ok, err := c.parts.Records.Field(ctx, p.Shard, l.SKU); err == nil && ok {
			if short.Available = f.Available; stock.OfOrder(d.Kind) {
				short.Available = f.Committed
			}
		}
		e.Lines = append(e.Lines, short)
		if l.Asked < 0 && !stock.OfOrder(d.Kind) {
			e.Holds = append(e.Holds, c.promised(ctx, SKU{Number: l.SKU, Shard: p.Shard})...)
		}
	}
	return e
}
