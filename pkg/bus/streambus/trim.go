package streambus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of the trimming.
const (
	// trimPage is how many entries one XTRIM removes at most: it runs alone in Redis, and everybody waits for it.
	trimPage = 10_000
	// maxTrimPages bounds one call of Trim; what is left goes with the next.
	maxTrimPages = 50
	// sizeSamples is of how many of the stream's blocks Redis takes the average: entries differ in size by far.
	sizeSamples = 100
)

var _ bus.Trimmer = (*Source)(nil)

// Size asks for the stream's length and memory and for what Redis has in use, in one round trip.
func (s *Source) Size(ctx context.Context) (bus.Size, error) {
	pipe := s.Redis.Pipeline()
	entries, bytes := pipe.XLen(ctx, s.Log), pipe.MemoryUsage(ctx, s.Log, sizeSamples)
	last, info, now := pipe.XRevRangeN(ctx, s.Log, "+", "-", 1), pipe.Info(ctx, "memory"), pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) { // nil: no key, no memory
		return bus.Size{}, s.lostOr(err, "measure")
	}
	size := bus.Size{Entries: entries.Val(), Bytes: bytes.Val(), Now: now.Val()}
	size.Used, size.Limit = number(info.Val(), "used_memory"), number(info.Val(), "maxmemory")
	if found := last.Val(); len(found) > 0 {
		size.Last = found[0].ID
	}
	return size, nil
}

// number is one figure of INFO; absent is 0.
func number(info, name string) int64 {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// Trim sends XTRIM MINID ~ … LIMIT until nothing more goes. "~" removes whole blocks of the stream only (up to 100
// entries), so up to a block's worth stays: an exact cut could not be limited, and would take out a long backlog in
// one go while everybody waits. Nothing else about the log is changed, in particular nothing of the group: ids that
// pend for a reader are acknowledged as ever, whether their entries are there or not.
func (s *Source) Trim(ctx context.Context, before stock.Position) (removed int64, err error) {
	placed, err := s.has(ctx, before)
	if err != nil || !placed {
		return 0, err
	}
	for range maxTrimPages {
		n, err := s.Redis.XTrimMinIDApprox(ctx, s.Log, before.String(), trimPage).Result()
		if err != nil {
			return removed, s.lostOr(err, "trim before "+before.String())
		}
		removed += n
		if n == 0 {
			break
		}
	}
	return removed, nil
}

// has looks for the entry at a position; false means that the log begins after it, so that there is nothing to do.
func (s *Source) has(ctx context.Context, at stock.Position) (bool, error) {
	pipe := s.Redis.Pipeline()
	found, first := pipe.XRangeN(ctx, s.Log, at.String(), at.String(), 1), pipe.XRangeN(ctx, s.Log, "-", "+", 1)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, s.lostOr(err, "look for "+at.String())
	}
	if len(found.Val()) > 0 {
		return true, nil
	}
	if oldest := first.Val(); len(oldest) > 0 {
		p, err := stock.ParsePosition(oldest[0].ID)
		if err == nil && (p.Epoch > at.Epoch || p.Epoch == at.Epoch && p.Seq > at.Seq) {
			return false, nil
		}
	}
	return false, fmt.Errorf("trim log %s before %s: %w", s.Log, at, bus.ErrUnplaced)
}
