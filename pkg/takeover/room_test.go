package takeover_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// used is the memory that Redis counts.
func (s *shop) used() int {
	s.t.Helper()
	info, err := s.rdb.Info(ctx, "memory").Result()
	s.must(err)
	found := regexp.MustCompile(`used_memory:(\d+)`).FindStringSubmatch(info)
	if found == nil {
		s.t.Fatalf("no used memory in %q", info)
	}
	n, err := strconv.Atoi(found[1])
	s.must(err)
	return n
}

// A copy of the Redis of long ago comes back: what it has is gone by now, and what it should have is missing. It has room
// for one of both.
func TestARedisWithRoomForOneRetentionOnlyIsOpenedByTheSecondAttempt(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	for _, id := range names("o", 990) {
		s.reserve(id, 1)
	}
	s.consume()
	orders := s.shard.Keys().Orders
	s.must(s.rdb.Del(ctx, orders).Err())
	const extra = 20_000
	for from := 0; from < extra; from += 1000 {
		var fields []any
		for i := from; i < from+1000; i++ {
			fields = append(fields, fmt.Sprint("long-ago-", i), strings.Repeat("x", 150))
		}
		s.must(s.rdb.HSet(ctx, orders, fields...).Err())
	}
	// What Redis counts moves by some hundred kilobytes while it moves a hash to a larger table; the extra take 4 MB.
	s.must(s.rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(s.used()-(1<<20))).Err())
	r, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{})
	var refused *takeover.RefusedError
	if !errors.As(err, &refused) || refused.Class != takeover.ClassMemory || !strings.Contains(err.Error(), "raise maxmemory") || r.Deleted != extra {
		t.Fatalf("put %d, deleted %d: %v", r.Put, r.Deleted, err)
	}
	s.refuses("closed")
	if r = s.takeover(takeover.Options{}); r.Deleted != 0 {
		t.Errorf("put %d, deleted %d", r.Put, r.Deleted)
	}
	s.agrees()
}

// At the limit of memory what only takes away goes through, and never a set in its clothes.
func TestDropTakesNoRoom(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	seal, err := s.seals.Claim(ctx, 0, row.Epoch, false)
	s.must(err)
	s.must(s.opener.Fence(ctx, seal, false))
	s.must(s.rdb.ConfigSet(ctx, "maxmemory", "1mb").Err())
	set := takeover.Put{Target: takeover.TargetOrders, Verb: takeover.VerbSet, Args: []string{"o", "x"}}
	var refused *takeover.RefusedError
	if seq, err := s.opener.Put(ctx, seal, 0, set); !errors.As(err, &refused) || refused.Class != takeover.ClassMemory || seq != 0 {
		t.Errorf("a set: %d, %v", seq, err)
	}
	seq, err := s.opener.Put(ctx, seal, 0, takeover.Put{Target: takeover.TargetOrders, Verb: takeover.VerbDelete, Args: []string{"o"}})
	s.must(err)
	keys := s.shard.Keys()
	answer, err := s.rdb.FCall(ctx, "stockpipe_1_drop", []string{keys.State, keys.Orders, keys.Buyers, keys.Log, keys.Archive(seal.Epoch)},
		seal.Token(), seal.Nonce, seq, takeover.TargetOrders, takeover.VerbSet, "o", "x").Text()
	if err != nil || !strings.HasPrefix(answer, "BAD") {
		t.Errorf("a set by drop: %q, %v", answer, err)
	}
	late := takeover.Put{Target: takeover.TargetOrders, Verb: takeover.VerbDelete, Args: []string{"o"}}
	if _, err := s.opener.Put(ctx, seal, 0, late); !errors.As(err, &refused) || refused.Class != "LATE" {
		t.Errorf("a late copy of a deletion: %v", err)
	}
	s.must(s.rdb.ConfigSet(ctx, "maxmemory", "256mb").Err())
	s.takeover(takeover.Options{})
	s.sells("after")
}
