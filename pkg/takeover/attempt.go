package takeover

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of one attempt.
const (
	DefaultPage = 1000    // entries or records of one read
	maxLost     = 10_000  // entries beyond the end that are recorded as orphans; more are only counted
	maxPutSize  = 1 << 18 // bytes of one put, so that Redis is not held up by it
	maxPutItems = 512     // fields of one put (the library's unpack ends near 8,000 values)
)

// Options shape an attempt. The zero value is an automatic attempt on shard 0.
type Options struct {
	Shard int
	// Operator is set when a person asked. Only then may a halted shard be claimed.
	Operator bool
	// GiveUp goes on although entries of the log cannot be applied: on a halted shard nothing of the log is
	// drained, and a gap is no error. What lies beyond is reported as given up. Operators only.
	GiveUp bool
	// Adopt takes over a Redis that another ledger wrote; what it holds is overwritten.
	Adopt bool
	// FreshLog keeps the old log as evidence and begins a new one even where the ids would fit: for a shard
	// whose last attempt failed at StepOpen.
	FreshLog bool
	// Library is the version of the function library that will be in force; 0 keeps the one that is. Producers that
	// do not carry it sell nothing more, so whoever asks for another one looks first whether all of them do.
	Library int
	Page    int // entries or records of one read; 0 = DefaultPage
	// At is called before each step and once at the end; an error ends the attempt there. It exists for tests
	// that stop, stall or crash an attempt, and is nil in production.
	At func(Step) error
}

// Run makes one attempt to open a shard. It is not safe to retry a step of it, so it never does: any error is
// a *StepError, the shard stays closed, and the remedy is another Run after the wait that a Backoff names.
// errors.Is tells ErrSuperseded (somebody newer is at it: look again), ErrHalted, ErrDisagrees; errors.As tells
// *ForeignError, *GapError and what the adapters return.
func Run(ctx context.Context, r Redis, l Ledger, o Options) (Report, error) {
	if o.Page <= 0 {
		o.Page = DefaultPage
	}
	a := &attempt{redis: r, ledger: l, options: o, report: Report{Shard: o.Shard}, marks: map[string]*marks{}}
	defer a.leave()
	for _, s := range []struct {
		step Step
		do   func(context.Context) error
	}{
		{StepClaim, a.claim}, {StepCheck, a.check}, {StepFence, a.fence}, {StepDrain, a.drain},
		{StepClose, a.closeEpoch}, {StepSnapshot, a.snapshot}, {StepPut, a.put}, {StepVerify, a.verify},
		{StepOpen, a.open}, {StepSay, a.say}, {StepDone, nil},
	} {
		if err := a.take(ctx, s.step, s.do); err != nil {
			return a.report, &StepError{Shard: o.Shard, Epoch: a.seal.Epoch, Step: s.step, Err: err}
		}
	}
	return a.report, nil
}

// attempt is what one Run carries from step to step.
type attempt struct {
	redis   Redis
	ledger  Ledger
	options Options
	report  Report

	seal   Seal
	seq    int64 // mirrored seq: moves with each put
	fenced time.Time
	// strange is set when this Redis' log is not ours to apply: another ledger wrote it, or it is no stream.
	strange bool
	drained stock.Position // that the ledger had reached behind the drain
	newest  stock.Position // of the ledger's entries, which the opening names
	beyond  []event.Raw    // entries that will be given up

	source  Snapshot          // from its step until all of it was read
	state   map[string]string // what the state has to be, by field
	limited map[int64]bool    // SKUs that have a limit per buyer
	marks   map[string]*marks // target → what orders and buyers have to be
	touched bool              // something was put, so Redis has to be read back
	full    error             // Redis had no memory for what was put: nothing more is, and the attempt ends with this
}

func (a *attempt) take(ctx context.Context, step Step, do func(context.Context) error) error {
	if a.options.At != nil {
		if err := a.options.At(step); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.Takeover(string(step)))
	if do == nil {
		return nil
	}
	began := time.Now()
	err := do(ctx)
	a.report.Steps = append(a.report.Steps, Timing{Step: step, Took: time.Since(began)})
	return err
}

// claim is step 0. The epoch must lie above whatever this Redis already has, else it could not be fenced; and
// no two attempts may share one, or both could go on believing to be the newest. [model]
func (a *attempt) claim(ctx context.Context) error {
	var err error
	if a.report.Row, err = a.ledger.Shard(ctx, a.options.Shard); err != nil {
		return fmt.Errorf("read the shard's row: %w", err)
	}
	if a.report.Before, err = a.redis.Status(ctx); err != nil {
		return fmt.Errorf("ask Redis how it stands: %w", err)
	}
	redisEpoch := a.report.Before.Epoch
	if s := a.report.Before; s.Token != "" && s.Ledger != a.ledger.ID() {
		// Epochs of another ledger mean nothing here, and neither do the entries of its log: they may look as
		// if they continued ours.
		a.strange, redisEpoch = true, 0
		if !a.options.Adopt {
			return &ForeignError{Token: s.Token, Ours: a.ledger.ID()}
		}
	}
	a.seal, err = a.ledger.Claim(ctx, a.options.Shard, redisEpoch, a.options.Operator)
	a.report.Epoch = a.seal.Epoch
	a.seal.Library = a.report.Row.Library
	if a.options.Library != 0 {
		a.seal.Library = a.options.Library
	}
	return err
}

// check is step 1: a process that evicts, replicates from another or keeps nothing on disk is not to sell.
func (a *attempt) check(ctx context.Context) error {
	if err := a.redis.Check(ctx); err != nil {
		return err
	}
	return a.redis.Load(ctx, a.seal.Library)
}

// fence is step 2. From here on put and open are refused by every process but this one: one attempt works on
// one process, whatever restarts or is promoted in between. [model]
func (a *attempt) fence(ctx context.Context) error {
	a.fenced = time.Now()
	return a.redis.Fence(ctx, a.seal, a.options.Adopt)
}

// drain is step 3. Nothing is accepted any more, so what the log has beyond the ledger is final: the ledger
// takes all of it that continues its position. An entry of kind O that names exactly its newest entry is an
// opening that the ledger lost (a failover of its own); it is followed here, under the newest claim, and by
// nobody else: a consumer that followed it would race with an older attempt. [model]
func (a *attempt) drain(ctx context.Context) error {
	row, err := a.ledger.Shard(ctx, a.options.Shard)
	if err != nil {
		return fmt.Errorf("read the shard's row: %w", err)
	}
	at := row.Position()
	defer func() { a.drained = at }()
	if a.strange {
		return nil
	}
	giveUp := a.options.Operator && a.options.GiveUp
	for skip := giveUp && a.report.Row.State == StateHalted; !skip; {
		batch, err := a.redis.Range(ctx, at, a.options.Page)
		if isNotLog(err) {
			a.strange = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the log after %s: %w", at, err)
		}
		if len(batch) == 0 {
			return nil
		}
		did, err := a.ledger.Drain(ctx, a.seal, batch)
		a.report.Drained += did.Entries
		a.report.Followed += did.Followed
		if err != nil {
			return fmt.Errorf("apply the log after %s: %w", at, err)
		}
		if did.Position == at {
			break
		}
		at = did.Position
	}
	return a.collect(ctx, at, giveUp)
}

// collect reads what lies beyond the end, so that it is given up by name and not in silence. In an automatic
// attempt there must be nothing: a log that goes on behind a hole was tampered with or trimmed too far.
func (a *attempt) collect(ctx context.Context, end stock.Position, giveUp bool) error {
	for at := end; ; {
		batch, err := a.redis.Range(ctx, at, a.options.Page)
		if isNotLog(err) {
			a.strange = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the log after %s: %w", at, err)
		}
		if len(batch) == 0 {
			return nil
		}
		if !giveUp {
			return &GapError{Have: end, Next: batch[0].ID}
		}
		for _, raw := range batch {
			if at, err = stock.ParsePosition(raw.ID); err != nil {
				return fmt.Errorf("entry of the log: %w", err)
			}
			a.giveUp(at, raw)
		}
	}
}

func (a *attempt) giveUp(at stock.Position, raw event.Raw) {
	if a.report.GivenUp == 0 {
		a.report.FirstLost = at
	}
	a.report.GivenUp++
	a.report.LastLost = at
	if len(a.beyond) < maxLost {
		a.beyond = append(a.beyond, raw)
	}
}

// closeEpoch is step 4, in one transaction that reads applied itself: an end that was read earlier would call
// lost what a consumer persisted meanwhile. It is sent once: repeated after a lost reply it would write the end
// of an epoch that goes on. [model]
func (a *attempt) closeEpoch(ctx context.Context) error {
	closed, err := a.ledger.CloseEpoch(ctx, a.seal, a.beyond)
	if err != nil {
		return err
	}
	a.report.Continues, a.report.Orphans, a.newest = closed.Ended, closed.Orphans, closed.Continues
	a.beyond = nil
	return a.recordStrays(ctx)
}

// snapshot begins step 5. It is begun after the epoch was closed, or a consumer could persist more than Redis
// is rebuilt from; and what is read of it is read once, so that what is compared at the end is what was put. [model]
func (a *attempt) snapshot(ctx context.Context) (err error) {
	if a.source, err = a.ledger.Snapshot(ctx, a.seal); err != nil {
		return err
	}
	fields, err := a.source.Stock(ctx)
	if err != nil {
		return err
	}
	a.state, a.limited = make(map[string]string, len(fields)), map[int64]bool{}
	for number, field := range fields {
		a.state[strconv.FormatInt(number, 10)] = field.String()
		if field.Limit > 0 {
			a.limited[number] = true
		}
	}
	return nil
}

// leave ends the snapshot of an attempt that did not come to its end, however it ended. What is wrong with it then is
// less than what ended the attempt.
func (a *attempt) leave() {
	if a.source != nil {
		_ = a.source.Close()
		a.source = nil
	}
}

// open is step 7. It is sent once in an epoch: a second copy could open a process that has moved on. [model]
func (a *attempt) open(ctx context.Context) error {
	return a.redis.Open(ctx, a.seal, a.seq, a.newest)
}

// say is step 8: only while the claim is the newest and the shard's epoch is still this attempt's, or the
// ledger would say open of a shard that nobody opened. [model]
func (a *attempt) say(ctx context.Context) error {
	if err := a.ledger.SayOpen(ctx, a.seal); err != nil {
		return err
	}
	a.report.Closed = time.Since(a.fenced)
	return nil
}
