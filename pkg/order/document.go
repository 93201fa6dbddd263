package order

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A Movement asks for a change of a SKU's available units under a document of its own.
type Movement struct {
	DocumentID string
	Kind       string // stock.DocumentReceive (goods in, above 0) or stock.DocumentAdjust (signed, not 0)
	SKU        string
	Units      int64
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
	SKU      string
	Units    int64
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
		ID: m.DocumentID, Kind: m.Kind, Reason: m.Reason, Note: m.Note, SKU: s.Number, Units: m.Units,
	}, c.redisNow(ctx, s.Shard))
	if err != nil {
		return Document{}, c.documentError(m.SKU, err)
	}
	d := Document{ID: m.DocumentID, Kind: m.Kind, SKU: m.SKU, Units: m.Units, Reason: m.Reason, Replayed: !created}
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
	if err := stock.CheckOrderID("document_id", m.DocumentID); err != nil {
		return err
	}
	if m.Units == 0 || m.Kind == stock.DocumentReceive && m.Units < 0 || m.Units > stock.MaxMovementQuantity || m.Units < -stock.MaxMovementQuantity {
		remedy := "use a whole number from 1 to 999999999"
		if m.Kind == stock.DocumentAdjust {
			remedy = "use a whole number from -999999999 to 999999999 that is not 0"
		}
		return stock.BadField("quantity", strconv.FormatInt(m.Units, 10), remedy)
	}
	if err := stock.CheckReason("reason", m.Reason); err != nil {
		return err
	}
	if len(m.Note) > MaxNoteBytes {
		return stock.BadField("note", m.Note, fmt.Sprintf("use at most %d bytes", MaxNoteBytes))
	}
	for i := range len(m.Note) {
		if m.Note[i] == 0 {
			return stock.BadField("note", m.Note, "leave out the NUL character")
		}
	}
	return checkLevel(m.Ack)
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
	var field *stock.FieldError
	switch {
	case errors.Is(err, ErrUnknownSKU):
		return &UnknownSKUError{Fields: []stock.FieldError{unknownSKU("sku", sku)}}
	case errors.As(err, &conflict), errors.As(err, &field):
		return err
	}
	// The write may have been committed: the id makes the repeat harmless.
	return fmt.Errorf("%w (write the document: %w)", stock.ErrUnknown, err)
}

// carry has a written document decided, waits for the level, and sends it again where a takeover lost it.
func (c *Clerk) carry(ctx context.Context, d Document, p Paper, ack Level) (Document, error) {
	for range mostLost {
		if p.State != Written {
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
	e := &RefusedError{Document: *d, Line: ShortLine{SKU: d.SKU, Asked: d.Units}}
	if f, _, ok, err := c.parts.Records.Field(ctx, p.Shard, p.SKU); err == nil && ok {
		e.Line.Available = f.Available
	}
	return e
}

// A Shelf is what both stores say of a SKU's quantities, read one after the other.
type Shelf struct {
	SKU
	Text       string
	Redis      *Figure // nil: Redis does not have it, or is away
	Ledger     *Figure // nil: the opening is not applied, or Postgres is away
	Incomplete []string
}

// A Figure is quantities at a position of the shard's log.
type Figure struct {
	event.Field
	stock.Position
}

// Stock asks both stores for a SKU. Errors: *UnknownSKUError.
func (c *Clerk) Stock(ctx context.Context, text string) (Shelf, error) {
	if err := stock.CheckSKU("sku", text); err != nil {
		return Shelf{}, err
	}
	s, err := c.sku(ctx, "sku", text)
	if err != nil {
		return Shelf{}, err
	}
	shelf := Shelf{SKU: s, Text: text}
	switch f, at, ok, err := c.parts.Records.Field(ctx, s.Shard, s.Number); {
	case err != nil:
		shelf.Incomplete = append(shelf.Incomplete, fmt.Sprintf("redis shard %d", s.Shard))
	case ok:
		shelf.Redis = &Figure{Field: f, Position: at}
	}
	switch f, at, ok, err := c.parts.Figures.Figure(ctx, text); {
	case err != nil:
		shelf.Incomplete = append(shelf.Incomplete, "ledger")
	case ok:
		shelf.Ledger = &Figure{Field: f, Position: at}
	}
	return shelf, nil
}
