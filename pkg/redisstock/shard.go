package redisstock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A Shard is the raw access to one shard's keys and functions: for takeovers, audits and tests. Safe for
// concurrent use. It neither retries nor batches.
type Shard struct {
	rdb    redis.Cmdable
	keys   Keys
	number int

	library atomic.Int64 // version whose functions answer for the shard, as last seen; 0: none was seen
}

// NewShard binds a shard's number to a client; it does not touch the network.
func NewShard(rdb redis.Cmdable, prefix string, number int) *Shard {
	return &Shard{rdb: rdb, keys: NewKeys(prefix, number), number: number}
}

// Keys are the shard's keys.
func (s *Shard) Keys() Keys { return s.keys }

// Status asks the server process how it stands, by the version of the library that is in force there, whether this
// build carries it or not. A server without it answers from the plain keys, with Loaded false. It works on a replica,
// too.
func (s *Shard) Status(ctx context.Context) (status takeover.Status, err error) {
	err = s.asked(func() (string, error) {
		status, err = s.statusBy(ctx, functionsOf(s.inForce()).status)
		return status.Version, err
	})
	return status, err
}

func (s *Shard) statusBy(ctx context.Context, function string) (takeover.Status, error) {
	text, err := s.rdb.FCallRO(ctx, function, s.keys.list()).Text()
	if isNoFunction(err) {
		return s.plainStatus(ctx)
	}
	if err != nil {
		return takeover.Status{}, fmt.Errorf("status of shard %d: %w", s.number, err)
	}
	return parseStatus(text)
}

// inForce is the version by which the shard is asked.
func (s *Shard) inForce() int {
	if version := s.library.Load(); version != 0 {
		return int(version)
	}
	return LibraryVersion
}

// learn takes the version that a shard's state names, and reports whether another one was asked.
func (s *Shard) learn(version string) bool {
	n, err := strconv.ParseInt(version, 10, 32)
	if err != nil || n < 1 || n == int64(s.inForce()) {
		return false
	}
	s.library.Store(n)
	return true
}

// asked asks by the version that was seen last, and once more where the answer names another: each version has a
// memory of its own of what it opened.
func (s *Shard) asked(ask func() (version string, err error)) error {
	version, err := ask()
	if err == nil && s.learn(version) {
		_, err = ask()
	}
	return err
}

func parseStatus(text string) (takeover.Status, error) {
	f := strings.Split(text, "\n")
	if len(f) != 11 {
		return takeover.Status{}, fmt.Errorf("status: %d lines in place of 11: %q", len(f), text)
	}
	s := takeover.Status{Token: f[0], Mode: f[2], Nonce: f[3], Version: f[4], Fence: f[7], First: f[9], Last: f[10], Loaded: true}
	s.Seq, _ = strconv.ParseInt(f[1], 10, 64) // empty when missing
	s.AtMillis, _ = strconv.ParseInt(f[8], 10, 64)
	return withEpoch(s), nil
}

// withEpoch fills in the halves of the token; a foreign one may have no epoch: 0.
func withEpoch(s takeover.Status) takeover.Status {
	if dot := strings.LastIndexByte(s.Token, '.'); dot >= 0 {
		s.Ledger = s.Token[:dot]
		s.Epoch, _ = strconv.ParseInt(s.Token[dot+1:], 10, 64)
	}
	return s
}

// A plain is what a status without the library is made of, in whichever pipeline it is asked.
type plain struct {
	state       *redis.SliceCmd
	first, last *redis.XMessageSliceCmd
	now         *redis.TimeCmd
}

func (s *Shard) askPlain(ctx context.Context, pipe redis.Pipeliner) plain {
	return plain{
		state: pipe.HMGet(ctx, s.keys.State, "e", "q", "m", "n", "v"),
		first: pipe.XRangeN(ctx, s.keys.Log, "-", "+", 1), last: pipe.XRevRangeN(ctx, s.keys.Log, "+", "-", 1),
		now: pipe.Time(ctx),
	}
}

// err is the first failure that is more than a key of another type, which counts as missing.
func (p plain) err() error {
	for _, cmd := range []redis.Cmder{p.state, p.first, p.last, p.now} {
		if err := cmd.Err(); err != nil && !isWrongType(err) {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
	}
	return nil
}

func (p plain) status() takeover.Status {
	values := p.state.Val()
	text := func(i int) string {
		if i >= len(values) {
			return ""
		}
		t, _ := values[i].(string)
		return t
	}
	out := takeover.Status{Token: text(0), Mode: text(2), Nonce: text(3), Version: text(4), Fence: takeover.FenceAbsent, AtMillis: p.now.Val().UnixMilli()}
	out.Seq, _ = strconv.ParseInt(text(1), 10, 64) // unreadable is as good as missing
	if m := p.first.Val(); len(m) > 0 {
		out.First = m[0].ID
	}
	if m := p.last.Val(); len(m) > 0 {
		out.Last = m[0].ID
	}
	return withEpoch(out)
}

func (s *Shard) plainStatus(ctx context.Context) (takeover.Status, error) {
	pipe := s.rdb.Pipeline()
	p := s.askPlain(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) {
		return takeover.Status{}, fmt.Errorf("keys of shard %d: %w", s.number, err)
	}
	if err := p.err(); err != nil {
		return takeover.Status{}, fmt.Errorf("keys of shard %d: %w", s.number, err)
	}
	return p.status(), nil
}

// A statusReply is a status that was asked for within a pipeline, with what it is made of where there is no library.
type statusReply struct {
	text  *redis.Cmd
	plain plain
}

func (s *Shard) askStatus(ctx context.Context, pipe redis.Pipeliner) statusReply {
	return statusReply{text: pipe.FCallRO(ctx, functionsOf(s.inForce()).status, s.keys.list()), plain: s.askPlain(ctx, pipe)}
}

func (r statusReply) status() (takeover.Status, error) {
	if err := r.plain.err(); err != nil {
		return takeover.Status{}, err
	}
	text, err := r.text.Text()
	switch {
	case err == nil:
		return parseStatus(text)
	case isNoFunction(err):
		return r.plain.status(), nil
	}
	return takeover.Status{}, fmt.Errorf("status: %w", err)
}

// call runs a function and splits its reply; a class other than OK is a *takeover.RefusedError.
func (s *Shard) call(ctx context.Context, fn string, keys []string, args ...any) (reply, error) {
	text, err := s.rdb.FCall(ctx, fn, keys, args...).Text()
	if err != nil {
		return reply{}, fmt.Errorf("%s on shard %d: %w", fn, s.number, err)
	}
	r, err := parseReply(text)
	if err == nil && r.class != "OK" {
		err = &takeover.RefusedError{Function: fn, Class: r.class, Token: r.rest}
	}
	return r, err
}

func isWrongType(err error) bool { return serverSays(err, "WRONGTYPE") }

func isNoFunction(err error) bool { return serverSays(err, "Function not found") }

func serverSays(err error, text string) bool {
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(server.Error(), text)
}

// MaxForget is how many records one call of Forget drops at most.
const MaxForget = 256

// Forget drops the records of orders and documents that ended or were confirmed, each only while it stands where the
// ledger knows it, and gives how many were there. Nothing that anybody counts changes, so it leaves no entry. It may be
// repeated. A shard that is not open under this epoch is a *takeover.RefusedError.
func (s *Shard) Forget(ctx context.Context, e stock.Epoch, endings []stock.Ending) (dropped int, err error) {
	for batch := range slices.Chunk(endings, MaxForget) {
		args := make([]any, 0, 2+2*len(batch))
		args = append(args, e.Token(), e.Applied)
		for _, ending := range batch {
			r := ending.Receipt
			args = append(args, ending.ID, fmt.Sprintf("%s-%d", r.Position, r.Index))
		}
		got, err := s.call(ctx, functionsOf(e.Library).forget, s.keys.list(), args...)
		if err != nil {
			return dropped, err
		}
		n, err := strconv.Atoi(got.rest)
		if err != nil {
			return dropped, fmt.Errorf("unexpected answer %q to a forget", got.rest)
		}
		dropped += n
	}
	return dropped, nil
}

// Range reads log entries after a position (exclusive), oldest first, at most count, without judging them. A
// key that is no stream is takeover.ErrNotLog; no key is an empty log.
func (s *Shard) Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error) {
	messages, err := s.rdb.XRangeN(ctx, s.keys.Log, "("+after.String(), "+", int64(count)).Result()
	if isWrongType(err) {
		return nil, fmt.Errorf("%s: %w", s.keys.Log, takeover.ErrNotLog)
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of shard %d after %s: %w", s.number, after, err)
	}
	raws := make([]event.Raw, len(messages))
	for i, m := range messages {
		raws[i] = event.RawOf(m.ID, m.Values)
	}
	return raws, nil
}

// State reads every field of the state hash as it stands.
func (s *Shard) State(ctx context.Context) (map[string]string, error) {
	fields, err := s.rdb.HGetAll(ctx, s.keys.State).Result()
	if err != nil {
		return nil, fmt.Errorf("state of shard %d: %w", s.number, err)
	}
	return fields, nil
}

// Fields reads every SKU's field, by SKU number, as text.
func (s *Shard) Fields(ctx context.Context) (map[int64]string, error) {
	all, err := s.State(ctx)
	out := make(map[int64]string, len(all))
	for name, text := range all {
		if n, err := strconv.ParseInt(name, 10, 64); err == nil {
			out[n] = text
		}
	}
	return out, err
}

// Scan reads a page of one of the hashes orders and buyers, without the sentinel; cursor 0 begins and ends.
// A field may come twice.
func (s *Shard) Scan(ctx context.Context, target string, cursor uint64, count int64) (map[string]string, uint64, error) {
	pairs, next, err := s.rdb.HScan(ctx, s.hash(target), cursor, "", count).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("scan %s of shard %d: %w", target, s.number, err)
	}
	out := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != "~" {
			out[pairs[i]] = pairs[i+1]
		}
	}
	return out, next, nil
}

// hash is the key of orders or buyers.
func (s *Shard) hash(target string) string {
	if target == takeover.TargetBuyers {
		return s.keys.Buyers
	}
	return s.keys.Orders
}

// Record reads one order's or document's record; the second result is false when there is none.
func (s *Shard) Record(ctx context.Context, id string) (stock.Reservation, bool, error) {
	text, err := s.rdb.HGet(ctx, s.keys.Orders, id).Result()
	if errors.Is(err, redis.Nil) {
		return stock.Reservation{}, false, nil
	}
	if err != nil {
		return stock.Reservation{}, false, fmt.Errorf("record of %s: %w", id, err)
	}
	r, err := event.ParseRecord(s.number, id, text)
	return r, err == nil, err
}

// Field reads one SKU; the second result is false when Redis does not have it.
func (s *Shard) Field(ctx context.Context, sku int64) (event.Field, bool, error) {
	text, err := s.rdb.HGet(ctx, s.keys.State, strconv.FormatInt(sku, 10)).Result()
	if errors.Is(err, redis.Nil) {
		return event.Field{}, false, nil
	}
	if err != nil {
		return event.Field{}, false, fmt.Errorf("SKU number %d of shard %d: %w", sku, s.number, err)
	}
	f, err := event.ParseField(text)
	return f, err == nil, err
}

// Time is Redis' clock.
func (s *Shard) Time(ctx context.Context) (time.Time, error) {
	t, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("time of shard %d: %w", s.number, err)
	}
	return t, nil
}

func token(ledger string, epoch int64) string { return ledger + "." + strconv.FormatInt(epoch, 10) }
