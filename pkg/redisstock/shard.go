package redisstock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
}

// NewShard binds a shard's number to a client; it does not touch the network.
func NewShard(rdb redis.Cmdable, prefix string, number int) *Shard {
	return &Shard{rdb: rdb, keys: NewKeys(prefix, number), number: number}
}

// Number is the shard's number.
func (s *Shard) Number() int { return s.number }

// Keys are the shard's keys.
func (s *Shard) Keys() Keys { return s.keys }

// A Status is what a Redis says of itself. It works on a replica, too.
type Status struct {
	Token       string // "<ledger>.<epoch>", empty when the state is missing
	Ledger      string
	Epoch       int64
	Seq         int64
	Mode        string // open, closed, empty when the state is missing
	Nonce       string
	Version     int64
	OrdersNonce string // sentinel in orders
	BuyersNonce string // sentinel in buyers
	Fence       string // of this process: absent, same, differs
	TimeMillis  int64
	First, Last string // ids of the log's first and last entry, empty when there is none
	Loaded      bool   // the library is loaded; without it only Token, Seq, Mode and Nonce are known
}

// Open reports whether this server process would sell: opened by a takeover and untouched since.
func (s Status) Open() bool { return s.Mode == "open" && s.Fence == "same" }

// Status asks the server. A server without the library answers from the plain keys with Loaded false.
func (s *Shard) Status(ctx context.Context) (Status, error) {
	text, err := s.rdb.FCallRO(ctx, fnStatus, s.keys.list()).Text()
	var server redis.Error
	if errors.As(err, &server) && strings.Contains(server.Error(), "Function not found") {
		return s.plainStatus(ctx)
	}
	if err != nil {
		return Status{}, fmt.Errorf("status of shard %d: %w", s.number, err)
	}
	return parseStatus(text)
}

func parseStatus(text string) (Status, error) {
	f := strings.Split(text, "\n")
	if len(f) != 11 {
		return Status{}, fmt.Errorf("status: %d lines in place of 11: %q", len(f), text)
	}
	s := Status{Token: f[0], Mode: f[2], Nonce: f[3], OrdersNonce: f[5], BuyersNonce: f[6], Fence: f[7], First: f[9], Last: f[10], Loaded: true}
	s.Seq, _ = strconv.ParseInt(f[1], 10, 64)     // empty when missing
	s.Version, _ = strconv.ParseInt(f[4], 10, 64) // empty when missing
	s.TimeMillis, _ = strconv.ParseInt(f[8], 10, 64)
	s.split()
	return s, nil
}

func (s *Status) split() {
	if dot := strings.LastIndexByte(s.Token, '.'); dot >= 0 {
		s.Ledger = s.Token[:dot]
		s.Epoch, _ = strconv.ParseInt(s.Token[dot+1:], 10, 64) // a foreign token has no epoch: 0
	}
}

func (s *Shard) plainStatus(ctx context.Context) (Status, error) {
	out := Status{Fence: "absent"}
	values, err := s.rdb.HMGet(ctx, s.keys.State, "e", "q", "m", "n").Result()
	if err != nil {
		return out, fmt.Errorf("state of shard %d: %w", s.number, err)
	}
	text := func(i int) string { t, _ := values[i].(string); return t }
	out.Token, out.Mode, out.Nonce = text(0), text(2), text(3)
	out.Seq, _ = strconv.ParseInt(text(1), 10, 64)
	out.split()
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return out, fmt.Errorf("time of shard %d: %w", s.number, err)
	}
	out.TimeMillis = now.UnixMilli()
	return out, nil
}

// A RefusedError is a function of the library that refused, by its class.
type RefusedError struct {
	Function string
	Class    string // BAD, MISSING, EPOCH, VERSION, CLOSED, FENCED, TORN, REWOUND, LATE, FOREIGN
	Detail   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refused: %s %s", e.Function, e.Class, e.Detail)
}

// call runs a function and splits its reply; a class other than OK is a *RefusedError.
func (s *Shard) call(ctx context.Context, fn string, keys []string, args ...any) (reply, error) {
	text, err := s.rdb.FCall(ctx, fn, keys, args...).Text()
	if err != nil {
		return reply{}, fmt.Errorf("%s on shard %d: %w", fn, s.number, err)
	}
	r, err := parseReply(text)
	if err == nil && r.class != "OK" {
		err = &RefusedError{Function: fn, Class: r.class, Detail: r.rest}
	}
	return r, err
}

// Load loads the function library onto the server, beside whatever is there.
func (s *Shard) Load(ctx context.Context) error { return LoadLibrary(ctx, s.rdb) }

// A Fenced is what a Redis held before it was fenced.
type Fenced struct {
	Token string // empty: nothing was there
	Seq   int64
	Mode  string
}

// Fence claims this server process for one takeover attempt: the shard is closed under the new epoch, and
// only calls with this nonce may fill and open it. A *RefusedError of class EPOCH means that Redis has that
// epoch or a later one, FOREIGN that another ledger wrote it; adopt overrides
// that and moves the other ledger's log to the archive key in the same step.
func (s *Shard) Fence(ctx context.Context, ledger string, epoch int64, nonce string, adopt bool) (Fenced, error) {
	flag := ""
	if adopt {
		flag = "1"
	}
	keys := append(s.keys.list(), s.keys.Archive(epoch))
	r, err := s.call(ctx, fnFence, keys, token(ledger, epoch), nonce, LibraryVersion, flag)
	if err != nil {
		return Fenced{}, err
	}
	lines := strings.Split(r.rest, "\n")
	if len(lines) != 3 {
		return Fenced{}, fmt.Errorf("fence of shard %d: unexpected reply %q", s.number, r.rest)
	}
	f := Fenced{Token: lines[0], Mode: lines[2]}
	f.Seq, _ = strconv.ParseInt(lines[1], 10, 64) // empty when missing
	return f, nil
}

// An Attempt names one takeover attempt on one server process. Seq is the count of its puts so far: every
// call must name it, so that a late copy of an earlier one is refused.
type Attempt struct {
	Ledger string
	Epoch  int64
	Nonce  string
	Seq    int64
}

// Put sets (pairs of field and value) or deletes (fields) in one of the hashes state, orders and buyers of a
// fenced shard and moves a.Seq. After an error the attempt is over: begin a new one.
func (s *Shard) Put(ctx context.Context, a *Attempt, target, verb string, args []string) error {
	return s.put(ctx, a, s.keys.list(), target, verb, args)
}

// RenameLog moves the shard's log out of the way, to the archive key of the attempt's epoch.
func (s *Shard) RenameLog(ctx context.Context, a *Attempt) error {
	return s.put(ctx, a, append(s.keys.list(), s.keys.Archive(a.Epoch)), "log", "rename", nil)
}

func (s *Shard) put(ctx context.Context, a *Attempt, keys []string, target, verb string, args []string) error {
	list := make([]any, 0, len(args)+5)
	list = append(list, token(a.Ledger, a.Epoch), a.Nonce, a.Seq, target, verb)
	for _, arg := range args {
		list = append(list, arg)
	}
	if _, err := s.call(ctx, fnPut, keys, list...); err != nil {
		return err
	}
	a.Seq++
	return nil
}

// Open lets the shard sell: it writes the first entry of the epoch, naming the position that it continues.
// Send it once per epoch: after an unknown outcome begin a new attempt.
func (s *Shard) Open(ctx context.Context, a *Attempt, continues stock.Position) error {
	_, err := s.call(ctx, fnOpen, s.keys.list(), token(a.Ledger, a.Epoch), a.Nonce, a.Seq, continues.String())
	return err
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

// State reads every SKU's field, by SKU number, as text.
func (s *Shard) State(ctx context.Context) (map[int64]string, error) {
	all, err := s.rdb.HGetAll(ctx, s.keys.State).Result()
	if err != nil {
		return nil, fmt.Errorf("state of shard %d: %w", s.number, err)
	}
	out := make(map[int64]string, len(all))
	for field, text := range all {
		if n, err := strconv.ParseInt(field, 10, 64); err == nil {
			out[n] = text
		}
	}
	return out, nil
}

// Scan reads a page of one of the hashes orders and buyers, without the sentinel; cursor 0 begins and ends.
// A field may come twice.
func (s *Shard) Scan(ctx context.Context, target string, cursor uint64, count int64) (map[string]string, uint64, error) {
	key := s.keys.Orders
	if target == "buyers" {
		key = s.keys.Buyers
	}
	pairs, next, err := s.rdb.HScan(ctx, key, cursor, "", count).Result()
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
