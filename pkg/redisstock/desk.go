package redisstock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of the Desk.
const (
	maxTries      = 3                     // tries of one operation whose outcome stays unknown
	maxRounds     = 1000                  // calls of one operation that were full or out of date; never met in practice
	maxQueue      = 65536                 // operations waiting in one lane; beyond it a caller is told busy
	flushers      = 2                     // calls under way per lane
	callTimeout   = 2 * time.Second       // of one call; its deadline in Redis time is the same
	retryCap      = 50 * time.Millisecond // of the pause before the first repeat, doubled for the second
	closedRetry   = 500 * time.Millisecond
	closedForLong = 5 * time.Second
)

// A Desk is the lua strategy: it decides operations by the function library, many callers sharing one call
// (group commit). There is no timer: a caller that finds the lane idle calls at once and alone; while calls
// are under way the others gather, and whoever comes free takes what is there. So a batch is as large as the
// load makes it, and an idle shop pays no delay.
//
// It implements stock.Desk. Safe for concurrent use. Close it when its callers are done.
type Desk struct {
	rdb    redis.UniversalClient
	prefix string
	epochs stock.Epochs
	stats  Stats

	mu     sync.RWMutex
	shards map[int]*branch
	work   sync.WaitGroup // flushers under way
}

var _ stock.Desk = (*Desk)(nil)

// NewDesk makes a Desk over a client from Connect; it does not touch the network.
func NewDesk(rdb redis.UniversalClient, prefix string, epochs stock.Epochs) *Desk {
	return &Desk{rdb: rdb, prefix: prefix, epochs: epochs, shards: map[int]*branch{}}
}

// Close waits for the calls under way. The client stays open: it was given.
func (d *Desk) Close() { d.work.Wait() }

// Stats are counters since the start, for metrics.
type Stats struct {
	Calls        atomic.Int64 // calls of the library
	Operations   atomic.Int64 // operations sent in them
	Repeats      atomic.Int64 // operations sent again after an unknown outcome
	Unknown      atomic.Int64 // operations answered unknown
	Refused      atomic.Int64 // calls refused as a whole
	Unclassified atomic.Int64 // errors that no rule knows: must stay 0
}

// Stats are the Desk's live counters.
func (d *Desk) Stats() *Stats { return &d.stats }

// A branch is one shard's part of the Desk: its two lanes and what its replies taught.
type branch struct {
	number int
	keys   []string
	apply  lane // may take units; a full Redis refuses it
	settle lane // never takes units, works in a full Redis

	clock atomic.Int64 // Redis time minus ours in milliseconds; valid once known
	known atomic.Bool
	seen  atomic.Pointer[stock.Position] // newest position answered to us
}

func (d *Desk) branch(shard int) *branch {
	d.mu.RLock()
	c := d.shards[shard]
	d.mu.RUnlock()
	if c != nil {
		return c
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c = d.shards[shard]; c == nil {
		c = &branch{number: shard, keys: NewKeys(d.prefix, shard).list()}
		c.settle.settles = true
		d.shards[shard] = c
	}
	return c
}

// began anchors our side of the clock comparison in the monotonic clock, which no step of the wall clock moves.
var began = time.Now()

func ours() int64 { return time.Since(began).Milliseconds() }

// redisNow is Redis' time by what the last reply said.
func (c *branch) redisNow() int64 { return ours() + c.clock.Load() }

func (c *branch) learn(r reply, epoch int64) {
	if r.time > 0 {
		c.clock.Store(r.time - ours())
		c.known.Store(true)
	}
	if r.class != "OK" {
		return
	}
	now := &stock.Position{Epoch: epoch, Seq: r.seq}
	for {
		old := c.seen.Load()
		if old != nil && (old.Epoch > epoch || old.Epoch == epoch && old.Seq >= r.seq) || c.seen.CompareAndSwap(old, now) {
			return
		}
	}
}

// minSeq is the highest seq that we know of this epoch: a Redis below it was rewound.
func (c *branch) minSeq(e stock.Epoch) int64 {
	if seen := c.seen.Load(); seen != nil && seen.Epoch == e.Epoch && seen.Seq > e.Applied {
		return seen.Seq
	}
	return e.Applied
}

// Do decides one operation. Errors: *stock.FieldError (the operation is out of bounds), *stock.ClosedError
// (nothing was written), stock.ErrUnknown (send the same id and attempt again).
func (d *Desk) Do(ctx context.Context, shard int, op stock.Operation) (stock.Outcome, error) {
	if err := event.CheckOperation(&op); err != nil {
		return stock.Outcome{}, err
	}
	c := d.branch(shard)
	var unknownUntil int64 // Redis time until which an earlier try of ours may still be executed; 0 = none
	tries := 0
	for range maxRounds {
		if ctx.Err() != nil {
			return stock.Outcome{}, d.unknown(ctx, unknownUntil > 0, shard)
		}
		a := d.submit(ctx, c, &op)
		switch {
		case a.left:
			return stock.Outcome{}, d.unknown(ctx, true, shard)
		case a.class.unknown:
			unknownUntil = max(unknownUntil, a.deadline)
			if tries++; tries == maxTries || !pause(ctx, tries) {
				return stock.Outcome{}, d.unknown(ctx, true, shard)
			}
			d.stats.Repeats.Add(1)
		case a.class.reason == "late":
			continue // nothing was written, and the reply taught us Redis' clock
		case a.class.reread && d.newer(shard, a.epoch):
			continue
		case a.class.reason != "":
			if unknownUntil > 0 {
				return stock.Outcome{}, d.unknown(ctx, true, shard)
			}
			return stock.Outcome{}, &stock.ClosedError{Shard: shard, Reason: a.class.reason, RetryAfter: retryAfter(a.class)}
		case a.outcome.Code == stock.Again:
			continue
		case unknownUntil >= a.time && !settled(a.outcome.Code):
			// An earlier try may still be waiting in a socket: this refusal is not final yet. [model]
			if !wait(ctx, time.Duration(unknownUntil-a.time+1)*time.Millisecond) {
				return stock.Outcome{}, d.unknown(ctx, true, shard)
			}
		default:
			return a.outcome, nil
		}
	}
	return stock.Outcome{}, &stock.ClosedError{Shard: shard, Reason: "busy", RetryAfter: closedRetry}
}

// settled outcomes are final whatever else is on its way: the order stands, by this try or another.
func settled(code stock.Code) bool {
	return code == stock.Accepted || code == stock.Replayed || code == stock.NotAllowed
}

// unknown is the error of a caller whose context ended or whose tries are used up: when nothing was sent, it
// says so.
func (d *Desk) unknown(ctx context.Context, sent bool, shard int) error {
	if !sent {
		return &stock.ClosedError{Shard: shard, Reason: "busy", RetryAfter: closedRetry}
	}
	d.stats.Unknown.Add(1)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w (%w)", stock.ErrUnknown, err)
	}
	return stock.ErrUnknown
}

// newer asks for a fresh look at the ledger and reports whether it already knows a newer epoch than the one
// that was refused.
func (d *Desk) newer(shard int, epoch int64) bool {
	e := d.epochs.Epoch(shard)
	return e.Open && e.Epoch > epoch
}

func retryAfter(c class) time.Duration {
	switch c.reason {
	case "access", "disk", "memory", "halted":
		return closedForLong
	}
	return closedRetry
}

// pause waits with full jitter before a repeat; false means that the context ended.
func pause(ctx context.Context, try int) bool {
	return wait(ctx, time.Duration(rand.Int64N(int64(retryCap)<<(try-1))))
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// call sends one batch and answers each of its operations. It never fails: failures are answers, too.
func (d *Desk) call(ctx context.Context, c *branch, l *lane, batch []*pending) {
	e := d.epochs.Epoch(c.number)
	if !e.Open {
		each(batch, answer{class: class{reason: e.Reason, known: true}, epoch: e.Epoch})
		return
	}
	if _, carried := LibraryText(e.Library); !carried { // its replies may not be what this build reads
		each(batch, answer{class: replyClasses["VERSION"], epoch: e.Epoch})
		return
	}
	if !c.known.Load() {
		now, err := d.rdb.Time(ctx).Result()
		if err != nil {
			d.failed(c, e, batch, err, 0)
			return
		}
		c.learn(reply{class: "TIME", time: now.UnixMilli()}, 0)
	}
	deadline := c.redisNow() + callTimeout.Milliseconds()
	if until, ok := ctx.Deadline(); ok {
		deadline = min(deadline, c.redisNow()+time.Until(until).Milliseconds())
	}
	d.stats.Calls.Add(1)
	d.stats.Operations.Add(int64(len(batch)))
	got, err := d.send(ctx, c, l, e, deadline, batch)
	if err != nil {
		d.failed(c, e, batch, err, deadline)
		return
	}
	r, err := parseReply(got)
	if err == nil {
		c.learn(r, e.Epoch)
	}
	if err == nil && r.class != "OK" {
		d.refused(c, e, batch, r)
		return
	}
	if err == nil {
		err = r.answer(c.number, e.Epoch, batch)
	}
	if err != nil { // an answer that we cannot read: it may have been done
		d.stats.Unclassified.Add(1)
		each(batch, answer{class: class{reason: "unknown", unknown: true}, deadline: deadline})
	}
}

// send writes the batch as one call and gives the reply's text.
func (d *Desk) send(ctx context.Context, c *branch, l *lane, e stock.Epoch, deadline int64, batch []*pending) (string, error) {
	w := wires.Get().(*wire)
	defer wires.Put(w)
	w.text.Reset()
	for _, p := range batch {
		w.text.Add(p.op)
	}
	w.args = append(w.args[:0], "fcall", l.function(e.Library), len(c.keys))
	for _, key := range c.keys {
		w.args = append(w.args, key)
	}
	w.args = append(w.args, e.Token(), c.minSeq(e), deadline, w.text.Bytes())
	return d.rdb.Do(ctx, w.args...).Text()
}

// failed answers all operations of a call that came back as an error.
func (d *Desk) failed(c *branch, e stock.Epoch, batch []*pending, err error, deadline int64) {
	cl := classify(err)
	if deadline == 0 {
		cl.unknown = false // nothing but TIME was sent
		if cl.reason == "unknown" {
			cl.reason = "unreachable"
		}
	}
	d.count(cl)
	if cl.doubt {
		d.epochs.Doubt(c.number, cl.reason)
	}
	each(batch, answer{class: cl, deadline: deadline, epoch: e.Epoch})
}

// refused answers all operations of a call that the library refused as a whole.
func (d *Desk) refused(c *branch, e stock.Epoch, batch []*pending, r reply) {
	cl, ok := replyClasses[r.class]
	if !ok {
		cl = class{reason: "error"}
	}
	d.stats.Refused.Add(1)
	d.count(cl)
	if cl.doubt || cl.reread {
		d.epochs.Doubt(c.number, cl.reason)
	}
	each(batch, answer{class: cl, time: r.time, epoch: e.Epoch})
}

func (d *Desk) count(c class) {
	if !c.known {
		d.stats.Unclassified.Add(1)
	}
}

func each(batch []*pending, a answer) {
	for _, p := range batch {
		p.answer = a
	}
}

// IsClosed reports whether an error is a *stock.ClosedError with one of the reasons.
func IsClosed(err error, reasons ...string) bool {
	var closed *stock.ClosedError
	if !errors.As(err, &closed) {
		return false
	}
	for _, r := range reasons {
		if closed.Reason == r {
			return true
		}
	}
	return len(reasons) == 0
}
