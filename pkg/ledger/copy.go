package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Guesses of a row's size in the buffer, so that it is allocated once.
const (
	eventRowBytes       = 176 // bytes
	reservationRowBytes = 160
	lineRowBytes        = 112
)

// copyRows is the text of one COPY in Postgres' binary format, built in place: a driver's row by row way
// would allocate each value.
type copyRows struct{ b []byte }

// copyHeader is the signature, no flags, no extension.
const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func (r *copyRows) grow(bytes int) {
	r.b = append(make([]byte, 0, len(copyHeader)+2+bytes), copyHeader...)
}

func (r *copyRows) row(columns uint16) { r.b = binary.BigEndian.AppendUint16(r.b, columns) }

func (r *copyRows) number(n int64) {
	r.b = append(r.b, 0, 0, 0, 8)
	r.b = binary.BigEndian.AppendUint64(r.b, uint64(n))
}

func (r *copyRows) text(s string) {
	r.b = binary.BigEndian.AppendUint32(r.b, uint32(len(s)))
	r.b = append(r.b, s...)
}

func (r *copyRows) null() { r.b = append(r.b, 0xff, 0xff, 0xff, 0xff) }

func (r *copyRows) body(op *stock.Operation) {
	at := len(r.b)
	r.b = event.AppendBody(append(r.b, 0, 0, 0, 0), op)
	binary.BigEndian.PutUint32(r.b[at:], uint32(len(r.b)-at-4))
}

// send copies the rows into a table, if there are any.
func (t *transaction) send(ctx context.Context, table string, r *copyRows) error {
	if len(r.b) <= len(copyHeader) {
		return nil
	}
	r.b = append(r.b, 0xff, 0xff)
	if _, err := t.conn.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(r.b), "copy "+table+" from stdin (format binary)"); err != nil {
		return fmt.Errorf("copy into %s: %w", table, err)
	}
	return nil
}

const eventColumns = "event (shard, epoch, seq, idx, id, buyer, body, at_ms, after_image)"

func (f *fold) addEvent(c event.Change, at int64, after string) {
	r := &f.rows
	r.row(9)
	r.number(f.shard)
	r.number(c.Receipt.Epoch)
	r.number(c.Receipt.Seq)
	r.number(int64(c.Receipt.Index))
	r.text(c.Op.ID)
	r.text(c.Op.Buyer)
	r.body(c.Op)
	r.number(at)
	if c.Receipt.Index == 0 {
		r.text(after)
	} else {
		r.text("")
	}
}

const (
	reservationColumns = "reservation (shard, order_id, attempt, asked, state, buyer, expires_ms, due, epoch, seq, idx)"
	lineColumns        = "reservation_line (shard, order_id, attempt, sku, asked, now)"
)

// postgresEpoch is 2000-01-01, from which Postgres counts, in microseconds since 1970.
const postgresEpoch = 946_684_800_000_000

// orderRows are the rows of the attempts that began here. A hold is due by Postgres' own clock from the moment
// it is persisted, so a jump of one clock can delay an expiry, never hasten it.
func (f *fold) orderRows() (reservations, lines copyRows) {
	count := 0
	for i := range f.made {
		count += len(f.made[i].Lines)
	}
	if count == 0 {
		return reservations, lines
	}
	reservations.grow(len(f.made) * reservationRowBytes)
	lines.grow(count * lineRowBytes)
	for i := range f.made {
		m := &f.made[i]
		r := &reservations
		r.row(11)
		r.number(f.shard)
		r.text(m.ID)
		r.number(m.key)
		r.number(m.Attempt)
		r.text(string(m.State))
		r.text(m.Buyer)
		r.number(m.ExpiresMillis)
		if m.ttl > 0 {
			r.number(f.now + m.ttl*1000 - postgresEpoch)
		} else {
			r.null()
		}
		r.number(m.Receipt.Epoch)
		r.number(m.Receipt.Seq)
		r.number(int64(m.Receipt.Index))
		for _, l := range m.Lines {
			lines.row(6)
			lines.number(f.shard)
			lines.text(m.ID)
			lines.number(m.key)
			lines.number(l.SKU)
			lines.number(l.Asked)
			lines.number(l.Now)
		}
	}
	return reservations, lines
}
