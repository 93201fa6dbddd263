package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A Policy says what becomes of a SKU or an order on which Redis and Postgres disagree at the same position.
type Policy string

// The policies.
const (
	Freeze     Policy = "freeze"      // the SKU stops selling until a person decides
	LedgerWins Policy = "ledger-wins" // a takeover puts what Postgres and the log say
)

// Config is what all shards share.
type Config struct {
	Ledger *ledger.Ledger
	Pulse  *ledger.Ledger // turns, rows and takeovers, which must not wait for a connection behind audits; nil = Ledger
	Epochs *Epochs
	Desk   stock.Desk
	// Opener and Sampler bind one shard of Redis; Key names one of its keys ("state", "orders", "log", …).
	Opener func(shard int) takeover.Redis
	// Bind is Opener for one takeover: all of it goes over one connection, which release gives back. Connections of
	// a pool may lead to two servers while an address moves from one to the other, and a shard that was fenced on
	// one and compared on the other would open with what nobody looked at.
	Bind    func(shard int) (bound takeover.Redis, release func())
	Sampler func(shard int) audit.Redis
	// Forgetter drops records of one shard.
	Forgetter func(shard int) Forgetter
	Key       func(shard int, part string) string

	Holder     string        // this process among the holders of turns
	OnTampered Policy        // "" = Freeze
	AuditEvery time.Duration // between two rolling audits; 0 = 5 s
	StuckAfter time.Duration // how long Postgres may stand still behind a log that goes on; 0 never asks
	Metrics    *Metrics
	// Tell hears what is worth a line: a word, the act or the error that it is about. It may be called often and
	// from several goroutines.
	Tell func(shard int, word string, act *Act, err error)
}

// A Warden keeps shards well.
type Warden struct {
	Config
	opener *ledger.Opener
	wards  []*ward
	audits chan struct{} // one for each audit under way
}

// auditsAtOnce bounds the audits of all shards: each holds a connection for its snapshot while it asks for others.
const auditsAtOnce = 2

// ward is one shard and what is remembered of it.
type ward struct {
	*Warden
	number int
	redis  takeover.Redis
	sample audit.Redis
	wake   chan struct{} // look now
	hurry  chan struct{} // audit soon

	forgetter Forgetter

	// repairing keeps acts of this process on this shard apart from each other.
	repairing sync.Mutex
	freshLog  bool // under repairing: the last attempt failed where a log in the way is the likely reason

	// abandoned is the epoch of this process' own last attempt, if that failed: nobody is at it any more.
	abandoned atomic.Int64

	// Of who probes, alone.
	backoff   takeover.Backoff
	notBefore time.Time      // of the next takeover
	reached   stock.Position // of the ledger, at the last look

	mu        sync.Mutex
	sent      map[string]sentHold // by order: expiries that need no repeating now
	swept     time.Time           // when sent was last cleared of what is old
	forgotten time.Time           // when nothing was left that Redis should have forgotten
	closed    bool                // the last probe found the shard not fit for operations
	aside     time.Time           // until then the turn is left to a person's command
	leave     context.CancelFunc  // ends the duties; nil without the turn
}

// New makes a warden for shards 0 to shards-1.
func New(c Config, shards int) *Warden {
	if c.OnTampered == "" {
		c.OnTampered = Freeze
	}
	if c.AuditEvery <= 0 {
		c.AuditEvery = 5 * time.Second
	}
	if c.Pulse == nil {
		c.Pulse = c.Ledger
	}
	w := &Warden{Config: c, opener: ledger.NewOpener(c.Pulse), audits: make(chan struct{}, auditsAtOnce)}
	for n := range shards {
		w.wards = append(w.wards, &ward{
			Warden: w, number: n, redis: prompt{c.Opener(n)}, sample: c.Sampler(n), wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), sent: map[string]sentHold{},
			forgetter: c.Forgetter(n),
		})
	}
	c.Epochs.doubt = w.Notice
	for n := range shards {
		c.Metrics.turn(n, false)
	}
	return w
}

// Shards is how many there are.
func (w *Warden) Shards() int { return len(w.wards) }

// Notice says that a shard is worth a look; a negative number means all.
func (w *Warden) Notice(shard int) {
	for _, one := range w.wards {
		if shard < 0 || one.number == shard {
			select {
			case one.wake <- struct{}{}:
			default:
			}
		}
	}
}

// AskCount is the word by which somebody whose order was refused asks, on the channel of doubts, that what buyers have of
// SKUs with a new limit be counted.
const AskCount = string(takeover.Uncounted)

// Recount says that a shard may have a limit that nobody counts yet: it is audited soon, not only at its next time.
func (w *Warden) Recount(shard int) {
	for _, one := range w.wards {
		if one.number == shard {
			select {
			case one.hurry <- struct{}{}:
			default:
			}
		}
	}
}

// maxSkew is how far the two clocks that end holds may be apart.
const maxSkew = 2 * time.Second

// probe looks at the row and at Redis, and lets the desk know the row.
func (w *ward) probe(ctx context.Context) (takeover.Finding, error) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	began := time.Now()
	f, err := takeover.Probe(asking, w.redis, w.opener, w.number)
	if err != nil {
		return f, err
	}
	if f.Class != takeover.Changing {
		w.Epochs.learn(f.Row, began)
	}
	if f.Class == takeover.Rebuilding && f.Row.Claim == w.abandoned.Load() {
		f.Class = takeover.Stalled // the attempt that is under way was ours, and has ended
	}
	return f, nil
}

// learn reads the row for the desk, after something changed it.
func (w *ward) learn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	began := time.Now()
	row, err := w.opener.Shard(ctx, w.number)
	if err == nil {
		w.Epochs.learn(row, began)
	}
	return err
}

// skew is Redis' clock minus Postgres', as one probe saw them; 0 when Redis did not say.
func skew(f takeover.Finding) time.Duration {
	if f.Status.AtMillis == 0 {
		return 0
	}
	return time.Duration(f.Status.AtMillis-f.Row.Now.UnixMilli()) * time.Millisecond
}

func skewAct(f takeover.Finding) (Act, bool) {
	by := skew(f)
	if by.Abs() <= maxSkew {
		return Act{}, false
	}
	return Act{
		Shard: f.Row.Number, Class: "skew", Verb: "wait", State: Operator,
		Text:   fmt.Sprintf("Redis' clock is %v ahead of Postgres' (negative: behind); holds end when both say so", by),
		Remedy: "set the clocks of both machines, by one time server",
	}, true
}

// audit makes one audit, or a sweep of them, when its turn among all shards comes.
func (w *ward) audit(ctx context.Context, how func(context.Context, audit.Ledger, audit.Redis, audit.Options) (audit.Report, error), o audit.Options) (audit.Report, error) {
	select {
	case w.audits <- struct{}{}:
		defer func() { <-w.audits }()
	case <-ctx.Done():
		return audit.Report{}, ctx.Err()
	}
	o.Shard, o.StuckAfter = w.number, w.StuckAfter
	found, err := how(ctx, boundedLedger{ledger.NewAuditor(w.Ledger, 0)}, boundedRedis{w.sample}, o)
	w.Metrics.audited(found, err)
	return found, err
}

// evidence is JSON of whatever it is; it cannot fail for the values of this package.
func evidence(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		text, _ = json.Marshal(map[string]string{"unprintable": err.Error()})
	}
	return text
}

// begin writes a repair down before it is made.
func (w *ward) begin(ctx context.Context, class, verb string, before any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return w.Ledger.BeginRepair(ctx, ledger.Repair{Shard: w.number, Class: class, Verb: verb, By: w.Holder, Before: evidence(before)})
}

// finish writes down what came of it, and counts it.
func (w *ward) finish(ctx context.Context, id int64, class, verb string, after any) error {
	w.Metrics.repaired(class, verb)
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return w.Ledger.FinishRepair(ctx, id, evidence(after))
}
