package apply

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of the trimming.
const (
	// trimEvery is the least time between two looks at the size of a log.
	trimEvery = 5 * time.Second
	// maxMarks is how many marks a loop remembers; within LogKeep it makes half of them at most.
	maxMarks = 64
	// cutTo is how much of its share a log that outgrew it keeps: a little less, or it would be cut every time.
	cutTo = 0.9
)

// trim measures the log and shortens it, when it is time. The ledger alone says how far: entries stay until Postgres
// has them, and then for LogKeep, because a Postgres that fails over to a standby may have lost its last commits and
// reads them again from the log. Its troubles are told and change nothing else: a log that is not trimmed only
// takes memory.
func (l *Loop) trim(ctx context.Context) {
	if time.Since(l.trimmed) < trimEvery || ctx.Err() != nil {
		return
	}
	l.trimmed = time.Now()
	// One deadline for the ledger's word and for what is done on the strength of it: a process that was stopped in
	// between does not act on what it heard before.
	within, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := l.shorten(within); err != nil && ctx.Err() == nil {
		l.Metrics.trimFailed()
		l.Tell(l.shard, "trim", err)
	}
}

func (l *Loop) shorten(ctx context.Context) error {
	size, err := l.source.Size(ctx)
	if err != nil {
		return err
	}
	l.Metrics.measured(l.shard, size)
	if l.LogKeep == 0 {
		return nil
	}
	before := l.trimmable(size)
	if before.Seq == 0 || before == l.cut {
		return nil
	}
	if allowed, err := l.mayTrim(ctx, before); err != nil || !allowed {
		return err
	}
	failpoint.Hit(failpoint.ConsumerTrimming)
	removed, err := l.source.Trim(ctx, before)
	l.Metrics.trimmed(removed)
	if err != nil {
		return err
	}
	if removed == 0 { // else there may be more than one call's worth
		l.cut = before
	}
	return nil
}

// trimmable is how far the log may be cut: to the newest position older than LogKeep by the clock that wrote the
// entries, or further where the log takes more than its share. Never beyond what this loop saw the ledger reach.
func (l *Loop) trimmable(size bus.Size) stock.Position {
	if l.marks.isEmpty() { // what was applied before this loop began is no newer than now
		l.marks.note(l.at, size.Now.UnixMilli())
	}
	before := l.marks.due(size.Now.Add(-l.LogKeep).UnixMilli())
	most := float64(size.Limit) * l.LogShare
	if size.Limit == 0 || float64(size.Bytes) <= most {
		return before
	}
	last, err := stock.ParsePosition(size.Last)
	if err != nil || last.Epoch != l.at.Epoch {
		return before
	}
	keep := int64(float64(size.Entries) * most / float64(size.Bytes) * cutTo)
	if seq := min(max(last.Seq-keep, 1), l.at.Seq); seq > before.Seq {
		before = stock.Position{Epoch: l.at.Epoch, Seq: seq}
	}
	return before
}

// mayTrim asks both sides anew. The ledger: a failover of Postgres may have taken back what this loop saw applied,
// and a takeover may have closed the epoch. Redis: another shop's, given by mistake, must not lose its log to our
// positions.
func (l *Loop) mayTrim(ctx context.Context, before stock.Position) (bool, error) {
	row, err := l.Ledger.Shard(ctx, l.shard)
	if err != nil {
		return false, fmt.Errorf("read how far the log may be trimmed: %w", err)
	}
	if row.Writer != "redis" || row.State != ledger.StateOpen || row.Epoch != before.Epoch {
		return false, nil // the loop finds out by itself
	}
	if row.Applied < before.Seq {
		l.marks.back(row.Position())
		return false, nil
	}
	owns, err := l.Owns(ctx, l.shard, row.Epoch)
	if err != nil {
		return false, fmt.Errorf("ask Redis whose log it has: %w", err)
	}
	return owns, nil
}

// remember notes when the entry at a position was written, if it is among these.
func (l *Loop) remember(at stock.Position, entries []event.Raw) {
	id := at.String()
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].ID != id {
			continue
		}
		if millis, err := strconv.ParseInt(entries[i].At, 10, 64); err == nil {
			l.marks.note(at, millis)
		}
		return
	}
}

// A mark is a position that the ledger has reached and when its entry was written, in ms since 1970 by Redis' clock.
type mark struct {
	at     stock.Position
	millis int64
}

// marks are positions of one epoch that the ledger has reached, in order, some apart in time: enough to tell which of
// them is just older than a given age, in bounded memory.
type marks struct {
	apart  int64  // ms between two that are kept
	kept   []mark // at most maxMarks
	newest mark
}

func (m *marks) isEmpty() bool { return m.newest.at == stock.Position{} }

func (m *marks) note(at stock.Position, millis int64) {
	switch {
	case at == m.newest.at:
		return
	case at.Epoch != m.newest.at.Epoch:
		m.kept = m.kept[:0]
	case len(m.kept) == 0 || (m.newest.millis-m.kept[len(m.kept)-1].millis) >= m.apart || m.newest.millis < m.kept[len(m.kept)-1].millis:
		if len(m.kept) == maxMarks { // nothing could be trimmed for long; later ones say all that the first did
			m.kept = append(m.kept[:0], m.kept[1:]...)
		}
		m.kept = append(m.kept, m.newest)
	}
	m.newest = mark{at, millis}
}

// due is the last position that was written by a moment, none if there is none, and forgets what lies before it.
func (m *marks) due(by int64) stock.Position {
	if !m.isEmpty() && m.newest.millis <= by {
		m.kept = m.kept[:0]
		return m.newest.at
	}
	for i := len(m.kept) - 1; i >= 0; i-- {
		if m.kept[i].millis <= by {
			m.kept = append(m.kept[:0], m.kept[i:]...)
			return m.kept[0].at
		}
	}
	return stock.Position{}
}

// back forgets what lies beyond a position: the ledger has it no more, or is in another epoch.
func (m *marks) back(to stock.Position) {
	reached := func(k mark) bool { return k.at.Epoch == to.Epoch && k.at.Seq <= to.Seq }
	if reached(m.newest) {
		return
	}
	n := len(m.kept)
	for n > 0 && !reached(m.kept[n-1]) {
		n--
	}
	m.kept, m.newest = m.kept[:n], mark{}
	if n > 0 {
		m.kept, m.newest = m.kept[:n-1], m.kept[n-1]
	}
}
