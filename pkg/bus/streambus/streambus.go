// Package streambus reads a shard's log from its Redis Stream through the consumer group "ledger".
//
// The group is for lag tools, memory and many readers in turn, not for correctness: an entry that the group says is
// delivered is never work by itself. After every error the stream itself is read (XRANGE) from the ledger's position,
// the group is put there, and what is pending at or below it is acknowledged. XAUTOCLAIM is not used at all: it takes
// entries from readers that are slow but alive.
//
// The stream and its keys belong to the function library: this package never creates or deletes it, and shortens it
// only when it is told to (Trim).
package streambus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Group is the name of the consumer group on every log.
const Group = "ledger"

// Bounds of a Source.
const (
	minCount     = 100 // entries of one read: fewer cost a round trip each
	maxCount     = 10_000
	defaultCount = 1000
	minBlock     = 10 * time.Millisecond
	maxBlock     = 10 * time.Second
	defaultBlock = time.Second
	// While Redis is too full to make the group, the stream itself is read every fullPause, and the group is tried
	// again every fullRetry.
	fullPause = 50 * time.Millisecond
	fullRetry = time.Second
	// slack is how much longer than its block a read may take before the connection counts as dead.
	slack = time.Second
)

// Config of a Source.
type Config struct {
	// Redis answers each call once (MaxRetries -1, ContextTimeoutEnabled) and has a free connection in its pool
	// for every Source, because a read that waits keeps one to itself.
	Redis    redis.UniversalClient
	Log      string        // key of the stream
	Consumer string        // name of this reader in the group, the same while the process lives
	Count    int64         // entries of one read, 100 to 10,000; 0 = 1000
	Block    time.Duration // how long Next waits, 10 ms to 10 s; 0 = 1 s
}

// A Source is one reader of one stream. It is made for one goroutine at a time.
type Source struct {
	Config
	following bool           // the group is where this reader put it, and Next goes on there
	full      time.Time      // when Redis last had no room for the group; zero unless Next reads without one
	place     stock.Position // where Next goes on: what the ledger had when it began, or what it brought without a group
	applied   stock.Position // the ledger's, as far as it is known here
	unacked   []string       // ids that Next brought and the ledger had not reached: at most two reads' worth
	tidied    time.Time      // last look at what other readers left behind
}

var _ bus.Source = (*Source)(nil)

// New makes a reader; it does not talk to Redis yet. A Count or Block out of bounds is brought to the nearest bound.
func New(c Config) *Source {
	if c.Count == 0 {
		c.Count = defaultCount
	}
	if c.Block == 0 {
		c.Block = defaultBlock
	}
	c.Count = min(max(c.Count, minCount), maxCount)
	c.Block = min(max(c.Block, minBlock), maxBlock)
	return &Source{Config: c}
}

// From reads the stream itself right after the position.
func (s *Source) From(ctx context.Context, after stock.Position) ([]event.Raw, error) {
	s.following, s.full = false, time.Time{}
	return s.after(ctx, after)
}

func (s *Source) after(ctx context.Context, after stock.Position) ([]event.Raw, error) {
	messages, err := s.Redis.XRangeN(ctx, s.Log, "("+after.String(), "+", s.Count).Result()
	if err != nil {
		return nil, s.lostOr(err, "read after "+after.String())
	}
	return raws(messages), nil
}

// Next acknowledges up to the ledger's position, then waits up to Block for entries that the group did not deliver
// yet. When it begins, it moves the group to the ledger's position, or creates it there. Where Redis is too full to
// create it, the stream itself is read until there is room: what is full is to be emptied by those who confirm and
// release, and they wait for the ledger. Errors: bus.ErrMissing, bus.ErrInterrupted when stream or group went away,
// or what Redis said.
func (s *Source) Next(ctx context.Context, applied stock.Position) ([]event.Raw, error) {
	s.applied = applied
	found, err := s.next(ctx)
	if err != nil {
		s.following, s.full = false, time.Time{}
	}
	return found, err
}

func (s *Source) next(ctx context.Context) ([]event.Raw, error) {
	var err error
	switch {
	case s.following:
		err = s.acknowledge(ctx)
	case time.Since(s.full) < fullRetry:
		return s.poll(ctx)
	default:
		err = s.begin(ctx)
		if firstWord(err) == "OOM" {
			s.full = time.Now()
			return s.poll(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.follow(ctx)
}

// poll waits up to Block for what follows its place in the stream, without a group.
func (s *Source) poll(ctx context.Context) ([]event.Raw, error) {
	tick := time.NewTicker(fullPause)
	defer tick.Stop()
	for end := time.Now().Add(s.Block); ; {
		found, err := s.after(ctx, s.place)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			// An id that is no position is for the ledger to halt on: until then it is read again.
			if p, err := stock.ParsePosition(found[len(found)-1].ID); err == nil {
				s.place = p
			}
			return found, nil
		}
		if !time.Now().Before(end) {
			return nil, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("follow, log %s: %w", s.Log, ctx.Err())
		}
	}
}

// follow waits up to Block for what the group did not deliver yet.
func (s *Source) follow(ctx context.Context) ([]event.Raw, error) {
	// The driver would wait for 10 s beyond Block on a dead connection.
	within, cancel := context.WithTimeout(ctx, s.Block+slack)
	defer cancel()
	streams, err := s.Redis.XReadGroup(within, &redis.XReadGroupArgs{
		Group: Group, Consumer: s.Consumer, Streams: []string{s.Log, ">"}, Count: s.Count, Block: s.Block,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil): // nothing arrived
		return nil, nil
	case err != nil:
		return nil, s.lostOr(err, "follow")
	case len(streams) != 1:
		return nil, nil
	}
	found := raws(streams[0].Messages)
	for i := range found {
		s.unacked = append(s.unacked, found[i].ID)
	}
	return found, nil
}

// begin puts the group at the ledger's position, or behind what was read without it. Never at "$", which would skip
// what was written meanwhile, and never with MKSTREAM: a log that is absent is a finding, and a stream made here would
// hide it. A group that exists is moved first, because a full Redis refuses to create even one that exists.
func (s *Source) begin(ctx context.Context) error {
	if s.full.IsZero() {
		s.place = s.applied
	}
	kind, err := s.Redis.Type(ctx, s.Log).Result()
	if err != nil {
		return fmt.Errorf("look for log %s: %w", s.Log, err)
	}
	if kind == "none" {
		return fmt.Errorf("log %s: %w", s.Log, bus.ErrMissing)
	}
	at := s.place.String()
	err = s.Redis.XGroupSetID(ctx, s.Log, Group, at).Err()
	if firstWord(err) == "NOGROUP" {
		err = s.Redis.XGroupCreate(ctx, s.Log, Group, at).Err()
	}
	if firstWord(err) == "BUSYGROUP" { // another reader was faster
		err = s.Redis.XGroupSetID(ctx, s.Log, Group, at).Err()
	}
	if err != nil {
		return s.lostOr(err, "put group "+Group+" at "+at)
	}
	s.following, s.full = true, time.Time{}
	s.unacked = s.unacked[:0] // tidy finds them as pending
	return s.tidy(ctx)
}

// lostOr wraps an error with what was being done, and gives what the server said the bus' own name.
func (s *Source) lostOr(err error, doing string) error {
	switch {
	case isLost(err):
		err = fmt.Errorf("%w (%w)", bus.ErrInterrupted, err)
	case firstWord(err) == "WRONGTYPE":
		err = fmt.Errorf("%w (%w)", bus.ErrTorn, err)
	}
	return fmt.Errorf("%s, log %s: %w", doing, s.Log, err)
}

// isLost tells the two answers to a reader whose stream or group went away.
func isLost(err error) bool {
	word := firstWord(err)
	return word == "NOGROUP" || word == "UNBLOCKED"
}

// firstWord is the part of a server's error that Redis keeps stable; empty for every other error.
func firstWord(err error) string {
	var server redis.Error
	if !errors.As(err, &server) {
		return ""
	}
	word, _, _ := strings.Cut(server.Error(), " ")
	return word
}

func raws(messages []redis.XMessage) []event.Raw {
	out := make([]event.Raw, len(messages))
	for i, m := range messages {
		out[i] = event.RawOf(m.ID, m.Values)
	}
	return out
}
