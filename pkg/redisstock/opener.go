package redisstock

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var _ takeover.Redis = (*Opener)(nil)

// An Opener is a shard as a takeover sees it: what it may read, and the calls that close, fill and open it. Its
// client must not retry (Connect sees to that).
type Opener struct {
	*Shard
	unsafe Unsafe
}

// NewOpener binds a shard; unsafe names the checks of the server that are left out.
func NewOpener(s *Shard, unsafe Unsafe) *Opener { return &Opener{Shard: s, unsafe: unsafe} }

// Check looks at the settings of the server: CheckServer.
func (o *Opener) Check(ctx context.Context) error { return CheckServer(ctx, o.rdb, o.unsafe) }

// Load loads a version of the function library beside whatever is there: LoadLibrary.
func (o *Opener) Load(ctx context.Context, library int) error {
	return LoadLibrary(ctx, o.rdb, library)
}

// by are the functions of the seal's library; a seal that names none closes the shard by the one in force.
func (o *Opener) by(ctx context.Context, s takeover.Seal) (functions, int, error) {
	if s.Library != 0 {
		return functionsOf(s.Library), s.Library, nil
	}
	status, err := o.plainStatus(ctx)
	if err == nil {
		o.learn(status.Version)
	}
	return functionsOf(o.inForce()), o.inForce(), err
}

// Fence claims this server process for one takeover attempt: the shard is closed under the seal's epoch, and only
// calls with its nonce may fill and open it. A *takeover.RefusedError of class EPOCH means that Redis has that
// epoch or a later one, FOREIGN that another ledger wrote it; adopt overrides that and moves the other ledger's
// log to the archive key in the same step.
func (o *Opener) Fence(ctx context.Context, s takeover.Seal, adopt bool) error {
	flag := ""
	if adopt {
		flag = "1"
	}
	keys := append(o.keys.list(), o.keys.Archive(s.Epoch))
	call, version, err := o.by(ctx, s)
	if err != nil {
		return err
	}
	_, err = o.call(ctx, call.fence, keys, s.Token(), s.Nonce, version, flag)
	return err
}

// Put changes the closed shard: it sets (pairs of field and value) or deletes (fields) in one of the hashes, or
// moves the log to the archive key. It answers the mirrored seq, which the next call must name: so a late copy of
// an earlier call is refused. At the server's limit of memory a set is a *takeover.RefusedError of class MEMORY, and
// nothing was written; the rest goes through. After any other error the attempt is over.
func (o *Opener) Put(ctx context.Context, s takeover.Seal, seq int64, p takeover.Put) (int64, error) {
	args := make([]any, 0, len(p.Args)+5)
	args = append(args, s.Token(), s.Nonce, seq, p.Target, p.Verb)
	for _, arg := range p.Args {
		args = append(args, arg)
	}
	keys := append(o.keys.list(), o.keys.Archive(s.Epoch))
	call, _, err := o.by(ctx, s)
	if err != nil {
		return seq, err
	}
	function, name := call.drop, "drop"
	if p.Verb == takeover.VerbSet {
		function, name = call.put, "put"
	}
	if _, err := o.call(ctx, function, keys, args...); err != nil {
		if classify(err).reason == "memory" {
			return seq, fmt.Errorf("%w (%w)", &takeover.RefusedError{Function: name, Class: takeover.ClassMemory}, err)
		}
		return seq, err
	}
	return seq + 1, nil
}

// Open lets the shard sell: it writes the first entry of the epoch, naming the position that it continues. It is
// sent once per epoch: after an unknown outcome begin a new attempt.
func (o *Opener) Open(ctx context.Context, s takeover.Seal, seq int64, continues stock.Position) error {
	call, _, err := o.by(ctx, s)
	if err != nil {
		return err
	}
	_, err = o.call(ctx, call.open, o.keys.list(), s.Token(), s.Nonce, seq, continues.String())
	return err
}

// Count is how many fields orders or buyers have, without the sentinel.
func (o *Opener) Count(ctx context.Context, target string) (int, error) {
	pipe, key := o.rdb.Pipeline(), o.hash(target)
	all, sentinel := pipe.HLen(ctx, key), pipe.HExists(ctx, key, "~")
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("count %s of shard %d: %w", target, o.number, err)
	}
	if sentinel.Val() {
		return int(all.Val()) - 1, nil
	}
	return int(all.Val()), nil
}

// Texts are the values of named fields of orders or buyers, "" for a missing one.
func (o *Opener) Texts(ctx context.Context, target string, fields []string) ([]string, error) {
	values, err := o.rdb.HMGet(ctx, o.hash(target), fields...).Result()
	if err != nil {
		return nil, fmt.Errorf("read %d fields of %s of shard %d: %w", len(fields), target, o.number, err)
	}
	texts := make([]string, len(fields))
	for i, value := range values {
		texts[i], _ = value.(string)
	}
	return texts, nil
}

// Orders is a page of the records, without the sentinel.
func (o *Opener) Orders(ctx context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return o.Scan(ctx, takeover.TargetOrders, cursor, int64(count))
}

// Buyers is a page of what buyers hold, without the sentinel.
func (o *Opener) Buyers(ctx context.Context, cursor uint64, count int) (map[string]string, uint64, error) {
	return o.Scan(ctx, takeover.TargetBuyers, cursor, int64(count))
}
