package redisstock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var _ takeover.Redis = (*Opener)(nil)

// An Opener is a shard as a takeover sees it. Its client must not retry (Connect sees to that).
type Opener struct {
	shard  *Shard
	unsafe Unsafe
}

// NewOpener binds a shard; unsafe names the checks of the server that are left out.
func NewOpener(s *Shard, unsafe Unsafe) *Opener { return &Opener{shard: s, unsafe: unsafe} }

// Status asks the process; a missing library is told by Loaded.
func (o *Opener) Status(ctx context.Context) (takeover.Status, error) {
	s, err := o.shard.Status(ctx)
	if err != nil {
		return takeover.Status{}, err
	}
	out := s.forTakeover()
	if s.Loaded {
		return out, nil
	}
	// Without the library the ends of the log are asked for themselves: they tell what must be renamed.
	keys := o.shard.keys
	first, err := o.shard.rdb.XRangeN(ctx, keys.Log, "-", "+", 1).Result()
	if err == nil && len(first) > 0 {
		out.First = first[0].ID
	}
	last, err := o.shard.rdb.XRevRangeN(ctx, keys.Log, "+", "-", 1).Result()
	if err == nil && len(last) > 0 {
		out.Last = last[0].ID
	}
	if err != nil && !isWrongType(err) {
		return out, fmt.Errorf("ends of the log of shard %d: %w", o.shard.number, err)
	}
	return out, nil
}

func (s Status) forTakeover() takeover.Status {
	return takeover.Status{
		Loaded: s.Loaded, Token: s.Token, Ledger: s.Ledger, Epoch: s.Epoch, Seq: s.Seq, Mode: s.Mode, Nonce: s.Nonce,
		Version: strconv.FormatInt(s.Version, 10), Fence: s.Fence, AtMillis: s.TimeMillis, First: s.First, Last: s.Last,
	}
}

// Check looks at the settings of the server.
func (o *Opener) Check(ctx context.Context) error { return o.shard.Check(ctx, o.unsafe) }

// Load loads the library beside older ones.
func (o *Opener) Load(ctx context.Context) error { return o.shard.Load(ctx) }

// Fence closes the shard under the seal's epoch.
func (o *Opener) Fence(ctx context.Context, s takeover.Seal, adopt bool) error {
	_, err := o.shard.Fence(ctx, s.Ledger, s.Epoch, s.Nonce, adopt)
	return forTakeover(err)
}

// Put changes the closed shard.
func (o *Opener) Put(ctx context.Context, s takeover.Seal, seq int64, p takeover.Put) (int64, error) {
	a := Attempt{Ledger: s.Ledger, Epoch: s.Epoch, Nonce: s.Nonce, Seq: seq}
	if p.Verb == takeover.VerbRename {
		err := o.shard.RenameLog(ctx, &a)
		return a.Seq, forTakeover(err)
	}
	err := o.shard.Put(ctx, &a, p.Target, p.Verb, p.Args)
	return a.Seq, forTakeover(err)
}

// Open lets the shard sell.
func (o *Opener) Open(ctx context.Context, s takeover.Seal, seq int64, continues stock.Position) error {
	a := Attempt{Ledger: s.Ledger, Epoch: s.Epoch, Nonce: s.Nonce, Seq: seq}
	return forTakeover(o.shard.Open(ctx, &a, continues))
}

func forTakeover(err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return &takeover.RefusedError{Function: refused.Function, Class: refused.Class, Token: refused.Detail}
	}
	return err
}

// State is every field of the state hash.
func (o *Opener) State(ctx context.Context) (map[string]string, error) {
	fields, err := o.shard.rdb.HGetAll(ctx, o.shard.keys.State).Result()
	if err != nil {
		return nil, fmt.Errorf("state of shard %d: %w", o.shard.number, err)
	}
	return fields, nil
}

// Orders is a page of the records.
func (o *Opener) Orders(ctx context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return o.shard.Scan(ctx, takeover.TargetOrders, cursor, int64(count))
}

// Buyers is a page of what buyers hold.
func (o *Opener) Buyers(ctx context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return o.shard.Scan(ctx, takeover.TargetBuyers, cursor, int64(count))
}

// Range is up to count entries of the log after a position.
func (o *Opener) Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error) {
	return o.shard.Range(ctx, after, count)
}

func isWrongType(err error) bool {
	var server redis.Error
	return errors.As(err, &server) && strings.HasPrefix(server.Error(), "WRONGTYPE")
}
