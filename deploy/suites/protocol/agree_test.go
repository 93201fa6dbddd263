package protocol

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// sometimes are the sights that a run of the machine must have had: a run without them proves little.
var sometimes = []string{
	"a late confirm that was taken", "a late confirm that found too little", "a hold that expired", "a next attempt that was taken",
	"a repeat at the same time", "a cart that was refused whole", "an entry of several operations", "a call that was full",
	"a ledger that is behind", "a takeover that lost a tail", "a fault: restart", "a fault: takeover", "a fault: flush",
	string(stock.SoldOut), string(stock.Conflict), string(stock.NoRecord), string(stock.NotDue), string(stock.Retake),
	string(stock.Overdue), string(stock.FrozenSKU), string(stock.ClosedSKU), string(stock.UnopenedSKU), string(stock.NotAllowed),
	string(stock.MissingSKU), string(stock.OutOfBounds), string(stock.BuyerMissing), string(stock.Uncounted), string(stock.LimitReached),
	"a partial one that got less", "a release of a part", "a confirm of a part", "a hold that was changed", "a parcel", "a cancellation",
	"a return of an order", "a count", "a count that corrected", "a count that was refused: " + ledger.CountInFlight, "a count that was refused: " + ledger.CountOlder,
	"a count that was refused: " + ledger.CountBelowPromised,
	"a record that was dropped", "a record that had moved on, or was dropped before", "an order that came again after it was forgotten",
}

func (s *sights) missing() []string {
	var none []string
	for _, what := range sometimes {
		if s.counts[what] == 0 {
			none = append(none, what)
		}
	}
	return none
}

// mostRounds bounds how often a run begins again because it has not met everything yet.
const mostRounds = 20

func testMachine(t *testing.T, shards int) {
	t.Parallel()
	h := newHouse(t, withClock(t, redisstock.Library()), houseShards)
	seen, first := newSights(), 0
	began := time.Now()
	histories := 0
	play := func() {
		rapid.Check(t, func(r *rapid.T) {
			if first+shards > houseShards {
				h.renew()
				first = 0
			}
			at := first
			first += shards
			histories++
			if err := history(t.Context(), r, h, at, shards, seen); err != nil {
				r.Fatal(err)
			}
		})
	}
	play()
	for round := 1; round < mostRounds && len(seen.missing()) > 0 && !t.Failed(); round++ {
		t.Logf("not met in %d histories: %q", histories, seen.missing())
		play()
	}
	t.Logf("%d histories in %v: %v", histories, time.Since(began), seen.counts)
	if none := seen.missing(); len(none) > 0 && !t.Failed() {
		t.Errorf("%d histories never met %q", histories, none)
	}
}

func TestModelRedisLogAndPostgresAgreeOnOneShard(t *testing.T)   { testMachine(t, 1) }
func TestModelRedisLogAndPostgresAgreeOnFourShards(t *testing.T) { testMachine(t, 4) }

// sights counts the interesting things that histories met. Safe for concurrent use.
type sights struct {
	mu     sync.Mutex
	counts map[string]int
}

func newSights() *sights { return &sights{counts: map[string]int{}} }

func (s *sights) saw(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}
