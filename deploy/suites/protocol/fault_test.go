package protocol

import (
	"context"
	"errors"
	"fmt"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// kept says whether a takeover that had the whole log went on from a seq.
func (r *room) kept(seq int64) error {
	if end := r.ends[r.before]; end != seq {
		return fmt.Errorf("shard %d went on from %d-%d, its log reached %d", r.number, r.before, end, seq)
	}
	return nil
}

// drawFault lets something happen to one shard or, in a flush and a restart, to all.
func (m *machine) drawFault(ctx context.Context, t *rapid.T) error {
	what := rapid.SampledFrom([]string{"state", "orders", "buyers", "log", "sentinel", "seq", "takeover", "takeover", "flush", "restart", "restart"}).Draw(t, "fault")
	hit := m.rooms
	if what != "flush" && what != "restart" {
		hit = []*room{m.drawRoom(t)}
	}
	m.seen.saw("a fault: " + what)
	seqs := map[*room]int64{}
	for _, r := range hit {
		seqs[r] = r.at.Seq
	}
	if what == "takeover" {
		if err := m.open(ctx, hit[0]); err != nil {
			return err
		}
	} else if err := m.fault(ctx, hit, what == "log", func() error { return m.hurt(ctx, hit[0], what) }); err != nil {
		return err
	}
	if what == "log" || what == "flush" || what == "restart" {
		// A killed server may not have written its newest entries yet (everysec: never while an fsync is under way).
		return nil
	}
	for r, seq := range seqs {
		if err := r.kept(seq); err != nil {
			return fmt.Errorf("after %s: %w", what, err)
		}
	}
	return nil
}

// hurt takes away a key, what the guard looks at, everything, or the process.
func (m *machine) hurt(ctx context.Context, r *room, what string) error {
	keys := m.h.shards[r.number].Keys()
	switch what {
	case "state":
		return m.h.rdb.Del(ctx, keys.State).Err()
	case "orders":
		return m.h.rdb.Del(ctx, keys.Orders).Err()
	case "buyers":
		return m.h.rdb.Del(ctx, keys.Buyers).Err()
	case "log":
		return m.h.rdb.Del(ctx, keys.Log).Err()
	case "sentinel":
		return m.h.rdb.HSet(ctx, keys.Orders, "~", "another").Err()
	case "seq":
		return m.h.rdb.HIncrBy(ctx, keys.State, "q", 1).Err()
	case "flush":
		return m.h.rdb.FlushAll(ctx).Err()
	}
	return m.h.restart()
}

// fault does something to Redis and takes over what it hit; until then nothing may be sold there. A log that is
// gone is found by the write: what takes nothing may still be answered.
func (m *machine) fault(ctx context.Context, hit []*room, answers bool, what func() error) error {
	if err := what(); err != nil {
		return err
	}
	for _, r := range hit {
		if err := m.refuses(ctx, r, answers); err != nil {
			return err
		}
	}
	for _, r := range hit {
		if err := m.open(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// refuses sends what would be sold if the shard were open.
func (m *machine) refuses(ctx context.Context, r *room, answers bool) error {
	op := stock.Operation{Kind: stock.Reserve, ID: "probe", Attempt: 1, TTL: stock.DefaultTTLMillis,
		Lines: stock.Lines{{SKU: m.openings[r.number][0].Lines[0].SKU, Asked: 1, Now: 1}}}
	var err error
	for range 20 { // connections of before a restart are found dead one by one
		var out stock.Outcome
		out, err = m.h.desk.Do(ctx, r.number, op)
		if err == nil && answers && out.Code != stock.Accepted {
			return nil
		}
		if err == nil {
			return fmt.Errorf("shard %d was not opened again and answered %+v", r.number, out)
		}
		if closed := new(stock.ClosedError); errors.As(err, &closed) && closed.Reason != "unreachable" {
			return nil
		}
	}
	return fmt.Errorf("shard %d does not say that it is closed: %w", r.number, err)
}
