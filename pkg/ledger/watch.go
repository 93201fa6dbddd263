package ledger

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// WatchConfig says who watches. Its zero value, with a ProducerID, is what a producer uses.
type WatchConfig struct {
	// ProducerID names this process in the table producer. Without one no row is written: the exchange only
	// reads, which an isolated old primary still answers, so only who decides nothing by it may go without.
	ProducerID string
	Libraries  []int64       // versions of the function library that this producer carries
	MaxAge     time.Duration // knowledge older than this opens no shard; 0 = 10 s
	Poll       time.Duration // between two exchanges; 0 = 500 ms
}

const (
	defaultMaxAge = 10 * time.Second
	defaultPoll   = 500 * time.Millisecond
	// doubtPause is the least time between two exchanges, however many doubt.
	doubtPause = 50 * time.Millisecond
	leaveLimit = 2 * time.Second
	// exchangeLimit is the longest that one statement of an exchange may take, half of MaxAge if that is less.
	exchangeLimit = 5 * time.Second
)

// A Watch keeps in memory what a producer must know of every shard: its newest epoch, whether the ledger says
// open, and how far the ledger has come. An exchange with Postgres every Poll is the floor; notices make it
// faster and may fail. Those who wait for a receipt are woken one by one, in the order of the log.
//
// All methods are safe for concurrent use; what they answer without an error from memory, they answer at once.
type Watch struct {
	ledger *Ledger
	config WatchConfig
	start  time.Time

	shards atomic.Pointer[[]*watchedShard] // by number; it only grows
	fresh  atomic.Int64                    // when the newest good exchange began, since start; -1 = none yet
	ready  chan struct{}                   // closed by the first good exchange
	kick   chan struct{}                   // asks for an exchange now

	mu     sync.Mutex
	doubts map[int]string // not sent yet, the newest of each shard
	err    error          // of the newest exchange
	next   chan struct{}  // closed by the next good exchange
}

// watchedShard is one shard in memory, with those who wait for it: knowledge and waiters change under one
// lock, or one could begin to wait just after it was called.
type watchedShard struct {
	mu      sync.Mutex
	epoch   stock.Epoch
	heard   time.Time       // when a notice last moved epoch.Applied
	ends    map[int64]int64 // last seq of older epochs that were asked for, while epoch.Epoch stays
	waiting waitroom
}

var _ stock.Epochs = (*Watch)(nil)

// NewWatch makes a Watch that knows nothing yet: start Run, and wait for Ready.
func NewWatch(l *Ledger, config WatchConfig) *Watch {
	if config.MaxAge <= 0 {
		config.MaxAge = defaultMaxAge
	}
	if config.Poll <= 0 {
		config.Poll = defaultPoll
	}
	if config.Libraries == nil {
		config.Libraries = []int64{}
	}
	w := &Watch{
		ledger: l, config: config, start: time.Now(),
		ready: make(chan struct{}), kick: make(chan struct{}, 1), doubts: map[int]string{}, next: make(chan struct{}),
	}
	w.shards.Store(&[]*watchedShard{})
	w.fresh.Store(-1)
	return w
}

// Run exchanges and listens until ctx ends, and returns nil then. A Postgres that does not answer is no error:
// knowledge grows old, and Epoch says so. Run it once.
func (w *Watch) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		w.poll(ctx)
		return nil
	})
	group.Go(func() error { return w.ledger.Listen(ctx, w.hear, ChannelApplied, ChannelShard) })
	err := group.Wait()
	w.leave(ctx)
	return err
}

// Ready is closed once the first exchange succeeded.
func (w *Watch) Ready() <-chan struct{} { return w.ready }

// Age is how old the knowledge is, by the monotonic clock: the time since the newest successful exchange
// began. Before the first one it is the longest duration there is.
func (w *Watch) Age() time.Duration {
	fresh := w.fresh.Load()
	if fresh < 0 {
		return math.MaxInt64
	}
	return time.Since(w.start) - time.Duration(fresh)
}

// Err is why the newest exchange failed, nil when it did not.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Shards is how many shards the ledger has, as far as is known.
func (w *Watch) Shards() int { return len(*w.shards.Load()) }

func (w *Watch) shard(number int) *watchedShard {
	shards := *w.shards.Load()
	if number < 0 || number >= len(shards) {
		return nil
	}
	return shards[number]
}

// Epoch implements stock.Epochs. Reasons for not open are stale, unknown (no such shard) and the shard's state
// (new, rebuilding, halted).
func (w *Watch) Epoch(shard int) stock.Epoch {
	stale := w.Age() > w.config.MaxAge
	s := w.shard(shard)
	if s == nil {
		if stale {
			return stock.Epoch{Shard: shard, Reason: "stale"}
		}
		return stock.Epoch{Shard: shard, Reason: "unknown"}
	}
	s.mu.Lock()
	e := s.epoch
	s.mu.Unlock()
	if stale {
		e.Open, e.Reason = false, "stale"
	}
	return e
}

// Newest is the newest epoch of a shard, 0 when none is known.
func (w *Watch) Newest(shard int) int64 { return w.Epoch(shard).Epoch }

// Doubt implements stock.Epochs: an exchange follows at once (at most one every 50 ms), and the others are
// told what a shard answered.
func (w *Watch) Doubt(shard int, what string) {
	// A number that no ledger has is not kept: so there is at most one doubt a shard.
	if shard >= 0 && shard < stock.MaxShards {
		w.mu.Lock()
		w.doubts[shard] = what
		w.mu.Unlock()
	}
	w.ask()
}

func (w *Watch) ask() {
	select {
	case w.kick <- struct{}{}:
	default: // somebody asked already
	}
}

// poll exchanges now, every Poll, when asked, and again soon after one that failed: what asked for it may not ask again.
func (w *Watch) poll(ctx context.Context) {
	tick := time.NewTicker(w.config.Poll)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		w.tellDoubts(ctx)
		err := w.exchange(ctx)
		if err == nil {
			err = w.settle(ctx)
		}
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		again, cancel := ctx, func() {}
		if err != nil {
			again, cancel = context.WithTimeout(ctx, defaultPoll)
		}
		select {
		case <-tick.C:
		case <-w.kick:
			wait(ctx, doubtPause-time.Since(began))
		case <-again.Done():
		}
		cancel()
	}
}

// limit bounds one exchange, so that one that hangs leaves time for another before knowledge is too old. A
// producer's row proves life only: nothing depends on its commit having been awaited to the end.
func (w *Watch) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(w.config.MaxAge/2, exchangeLimit))
}

// The exchange is one statement, so it is one transaction and one snapshot. Its rows count only when the query
// has ended without an error, which is after the commit.
const (
	selectEpochs = `
		select s.number, s.epoch, s.applied, s.state, s.library, l.id
		from shard s cross join ledger l order by s.number limit 1024`
	writeProducer = `
		with me as (
			insert into producer (id, libraries, seen) values ($1, $2, now())
			on conflict (id) do update set libraries = excluded.libraries, seen = excluded.seen
		)` + selectEpochs
)

func (w *Watch) exchange(ctx context.Context) error {
	ctx, cancel := w.limit(ctx)
	defer cancel()
	began := time.Now()
	var rows pgx.Rows
	var err error
	if w.config.ProducerID == "" {
		rows, err = w.ledger.pool.Query(ctx, selectEpochs)
	} else {
		rows, err = w.ledger.pool.Query(ctx, writeProducer, w.config.ProducerID, w.config.Libraries)
	}
	if err != nil {
		return fmt.Errorf("ask Postgres for the epochs: %w", err)
	}
	learnt, err := pgx.CollectRows(rows, scanEpoch)
	if err != nil {
		return fmt.Errorf("ask Postgres for the epochs: %w", err)
	}
	shards := *w.shards.Load()
	for _, e := range learnt {
		if e.Shard > len(shards) {
			return fmt.Errorf("shard %d is missing: shards are numbered from 0 without a gap", len(shards))
		}
		if e.Shard == len(shards) {
			shards = append(shards[:e.Shard:e.Shard], &watchedShard{})
		}
		shards[e.Shard].learn(e, began)
	}
	w.shards.Store(&shards)
	first := w.fresh.Swap(int64(began.Sub(w.start))) < 0
	if first {
		close(w.ready)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.next)
	w.next = make(chan struct{})
	return nil
}

func scanEpoch(row pgx.CollectableRow) (stock.Epoch, error) {
	var e stock.Epoch
	var state string
	err := row.Scan(&e.Shard, &e.Epoch, &e.Applied, &state, &e.Library, &e.Ledger)
	e.Open = state == StateOpen
	if !e.Open {
		e.Reason = state
	}
	return e, err
}

// learn takes what an exchange read that began at the given time. The ledger's word stands even where it goes
// back (a standby was promoted); only a notice that came after the exchange began is newer.
func (s *watchedShard) learn(e stock.Epoch, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Epoch == s.epoch.Epoch && e.Applied < s.epoch.Applied && s.heard.After(began) {
		e.Applied = s.epoch.Applied
	}
	if e.Epoch != s.epoch.Epoch {
		s.ends = nil // a ledger that lost its tail may have closed them elsewhere; then it is in another epoch, too
	}
	s.epoch = e
	s.waiting.reached(e.Epoch, e.Applied)
}

// hear takes a notice.
func (w *Watch) hear(h Heard) {
	if h.Channel == ChannelApplied {
		number, epoch, applied, ok := parseApplied(h.Payload)
		if s := w.shard(number); ok && s != nil && s.advance(epoch, applied) {
			return
		}
	}
	// Connected anew, a shard's state changed, or the notice speaks of what we do not know yet.
	w.ask()
}

// advance takes a notice of the epoch that is known; false means that it is of another.
func (s *watchedShard) advance(epoch, applied int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch.Epoch {
		return false
	}
	if applied > s.epoch.Applied {
		s.epoch.Applied = applied
		s.heard = time.Now()
		s.waiting.reached(epoch, applied)
	}
	return true
}

// settle answers those who wait for an epoch that is over: one question for each such epoch, however many wait.
func (w *Watch) settle(ctx context.Context) error {
	for number, s := range *w.shards.Load() {
		for _, epoch := range s.over() {
			if err := w.settleEpoch(ctx, number, s, epoch); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Watch) settleEpoch(ctx context.Context, number int, s *watchedShard, epoch int64) error {
	ctx, cancel := w.limit(ctx)
	defer cancel()
	v, err := w.ledger.viewEpoch(ctx, number, epoch)
	if err != nil {
		return fmt.Errorf("ask how epoch %d of shard %d ended: %w", epoch, number, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.closed(v)
	return nil
}

// over lists the epochs before the newest that somebody waits for.
func (s *watchedShard) over() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var epochs []int64
	for epoch := range s.waiting.lines {
		if epoch < s.epoch.Epoch {
			epochs = append(epochs, epoch)
		}
	}
	return epochs
}

// Resolve says what may be answered to an acceptance whose reply has just arrived (protocol N): accepted, or
// persisted already, from memory, when the receipt's epoch is the newest known and that knowledge is young
// enough. Else Redis may have accepted under an epoch that is over, and the ledger is asked: persisted and lost
// are final, but accepted counts only after an exchange, since an isolated old primary still serves reads.
// When ctx ends before that the answer is unknown, with the context's error.
func (w *Watch) Resolve(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	for asked := false; ; asked = true {
		next := w.nextExchange() // before memory is read, or the one that we need could be missed
		if standing, known := w.recall(r); known {
			return standing, nil
		}
		standing, err := w.standing(ctx, r)
		if err != nil || final(standing) {
			return standing, err
		}
		if asked {
			return stock.StandingUnknown, nil
		}
		w.ask()
		select {
		case <-next:
		case <-ctx.Done():
			return stock.StandingUnknown, fmt.Errorf("resolve receipt %s: %w", r, ctx.Err())
		}
	}
}

// recall answers from memory, if memory may be trusted with this receipt.
func (w *Watch) recall(r stock.Receipt) (standing stock.Standing, known bool) {
	s := w.shard(r.Shard)
	if s == nil || w.Age() > w.config.MaxAge {
		return stock.StandingUnknown, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := epochView{epoch: r.Epoch, current: s.epoch.Epoch, applied: s.epoch.Applied}
	known = v.epoch == v.current
	if !known {
		v.last, known = s.ends[r.Epoch]
	}
	return v.standing(r.Seq), known
}

// nextExchange is closed by the next exchange that succeeds.
func (w *Watch) nextExchange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

func final(s stock.Standing) bool { return s == stock.StandingPersisted || s == stock.StandingLost }

// Wait returns persisted or lost as soon as that is known, and unknown at once for a receipt that names no
// shard or position. When ctx ends before, the answer is accepted, with the context's error; ErrCrowded likewise.
func (w *Watch) Wait(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		return stock.StandingAccepted, fmt.Errorf("wait for receipt %s: %w", r, ctx.Err())
	}
	s := w.shard(r.Shard)
	if s == nil || r.Epoch < 1 || r.Seq < 1 {
		return stock.StandingUnknown, nil
	}
	if s.isOver(r.Epoch) {
		if standing, known := w.recall(r); known {
			return standing, nil
		}
		standing, err := w.standing(ctx, r)
		if err == nil && final(standing) {
			return standing, nil
		}
		// Postgres did not answer, or went back: the next exchange settles it.
	}
	return w.await(ctx, s, r)
}

func (s *watchedShard) isOver(epoch int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch < s.epoch.Epoch
}

func (w *Watch) await(ctx context.Context, s *watchedShard, r stock.Receipt) (stock.Standing, error) {
	s.mu.Lock()
	if r.Epoch == s.epoch.Epoch && r.Seq <= s.epoch.Applied {
		s.mu.Unlock()
		return stock.StandingPersisted, nil
	}
	known := r.Epoch == s.epoch.Epoch
	me, err := s.waiting.enter(r.Epoch, r.Seq)
	s.mu.Unlock()
	if err != nil {
		return stock.StandingAccepted, fmt.Errorf("wait for receipt %s: %w", r, err)
	}
	if !known {
		w.ask()
	}
	select {
	case standing := <-me.told:
		return standing, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.waiting.leave(me)
	s.mu.Unlock()
	select {
	case standing := <-me.told: // both at once: what is known is the better answer
		return standing, nil
	default:
		return stock.StandingAccepted, fmt.Errorf("wait for receipt %s: %w", r, ctx.Err())
	}
}

// tellDoubts sends the doubts to who listens. One that cannot be sent is dropped: it is a hint, and whoever
// repairs also looks by itself.
func (w *Watch) tellDoubts(ctx context.Context) {
	w.mu.Lock()
	payloads := make([]string, 0, len(w.doubts))
	for shard, what := range w.doubts {
		payloads = append(payloads, doubtPayload(shard, what))
	}
	clear(w.doubts)
	w.mu.Unlock()
	if len(payloads) == 0 {
		return
	}
	ctx, cancel := w.limit(ctx)
	defer cancel()
	_, _ = w.ledger.pool.Exec(ctx, `select pg_notify($1, p) from unnest($2::text[]) p`, ChannelDoubt, payloads)
}

// leave takes the producer's row away, so that a library version is not refused for one that is gone. A row
// that stays grows old instead.
func (w *Watch) leave(ctx context.Context) {
	if w.config.ProducerID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	_, _ = w.ledger.pool.Exec(ctx, `delete from producer where id = $1`, w.config.ProducerID)
}
