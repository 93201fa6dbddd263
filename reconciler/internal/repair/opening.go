package repair

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	// attemptGrace is how long an attempt that is in hand may go on after it was told to end: it is cheaper to
	// finish one than to leave the shard closed for the next.
	attemptGrace = 8 * time.Second
	// maxCounted bounds the entries that are read to say what an attempt would give up.
	maxCounted = 100_000
)

// open does what a finding asks for before anything else can be done with the shard. No act: it is healthy, or
// changing.
func (w *ward) open(ctx context.Context, f takeover.Finding) *Act {
	switch {
	case f.Class == takeover.Foreign:
		return &Act{Shard: w.number, Class: string(f.Class), Verb: "refuse", State: Operator, Text: f.String(),
			Remedy: fmt.Sprintf("point both at the right servers, or `stockpipe-reconciler takeover --shard %d --adopt`, which gives up all that this Redis holds", w.number)}
	case f.Class == takeover.Unfenced:
		return w.fenceHalted(ctx, f)
	case f.Class == takeover.Halted:
		return w.halted(ctx, f)
	case f.Class.NeedsTakeover():
		return w.takeOver(ctx, f)
	}
	return nil
}

// halted is what a person has to know about a halted shard.
func (w *ward) halted(ctx context.Context, f takeover.Finding) *Act {
	return &Act{Shard: w.number, Class: string(takeover.Halted), Verb: "wait", State: Operator,
		Text:    fmt.Sprintf("the shard is halted since %s: %s", f.Row.Changed.UTC().Format(time.RFC3339), f.Row.Reason),
		GivesUp: w.losses(ctx, f),
		Remedy:  w.remedyOfHalt(ctx, f)}
}

// remedyOfHalt names the verb: another one where the log does not go on behind Postgres' position.
func (w *ward) remedyOfHalt(ctx context.Context, f takeover.Finding) string {
	next := stock.Position{Epoch: f.Row.Epoch, Seq: f.Row.Applied + 1}
	page, err := w.redis.Range(ctx, f.Row.Position(), 1)
	if err == nil && len(page) > 0 && page[0].ID != next.String() {
		return fmt.Sprintf("entry %s is gone: %s", next, w.remedyOfGap(f.Row.Position(), page[0].ID))
	}
	return fmt.Sprintf("look at the table dead_event; mend the cause and `stockpipe-reconciler retry --shard %[1]d`, or give up what lies beyond: `stockpipe-reconciler takeover --shard %[1]d`", w.number)
}

// remedyOfGap depends on where the log goes on: records of Redis tell what is missing within an epoch. Beyond an
// opening they do not, for it was rebuilt from a Postgres that this one has forgotten.
func (w *ward) remedyOfGap(have stock.Position, next string) string {
	if at, err := stock.ParsePosition(next); err == nil && at.Epoch != have.Epoch {
		return fmt.Sprintf("the log goes on in another epoch, so nothing can be put back: `stockpipe-reconciler takeover --shard %d` gives up what lies beyond %s (with --plan it only says what)", w.number, have)
	}
	return fmt.Sprintf("`stockpipe-reconciler gapfill --shard %d` puts back what Redis' records tell (with --plan it only says what)", w.number)
}

// nextOf is the id of the first entry of the log behind a position; empty when there is none, or no answer.
func (w *ward) nextOf(ctx context.Context, at stock.Position) string {
	page, err := w.redis.Range(ctx, at, 1)
	if err != nil || len(page) == 0 {
		return ""
	}
	return page[0].ID
}

// fenceHalted closes a halted shard that still sells.
func (w *ward) fenceHalted(ctx context.Context, f takeover.Finding) *Act {
	w.repairing.Lock()
	defer w.repairing.Unlock()
	act := w.halted(ctx, f)
	act.Class, act.Verb = string(f.Class), "fence"
	id, err := w.begin(ctx, act.Class, act.Verb, f)
	if err != nil {
		return act.fail(err)
	}
	act.Repair = id
	if err := takeover.FenceHalted(ctx, w.redis, w.opener, w.number); err != nil {
		return act.fail(errors.Join(err, w.finish(ctx, id, act.Class, act.Verb, outcome{Error: err.Error()})))
	}
	act.Text = "it still sold and was closed; " + act.Text
	if err := w.finish(ctx, id, act.Class, act.Verb, outcome{Text: "closed"}); err != nil {
		return act.fail(err)
	}
	return act
}

// outcome is the evidence after a repair that has no report of its own.
type outcome struct {
	Text  string           `json:"text,omitempty"`
	Error string           `json:"error,omitempty"`
	Code  stock.Code       `json:"code,omitempty"`
	At    string           `json:"at,omitempty"` // receipt
	Took  *takeover.Report `json:"takeover,omitempty"`
}

// fail makes an act a failed one, to be tried again.
func (a *Act) fail(err error) *Act {
	a.State = Failed
	a.Text = err.Error()
	return a
}

// takeOver makes an automatic attempt, if the shard needs one still: while this one waited for the shard's lock, an
// attempt of this process may have opened what it had closed itself, or somebody else may have claimed the shard.
// One that is healthy again would be closed for nothing.
func (w *ward) takeOver(ctx context.Context, f takeover.Finding) *Act {
	w.repairing.Lock()
	defer w.repairing.Unlock()
	now, err := w.probe(ctx)
	if err != nil {
		return (&Act{Shard: w.number, Class: string(f.Class), Verb: "takeover"}).fail(err)
	}
	if !now.Class.NeedsTakeover() || now.Row.Claim != f.Row.Claim {
		return nil
	}
	return w.attempt(ctx, string(now.Class), now, takeover.Options{})
}

// verbCheck is the verb of an act that ended before anything was claimed, because of a setting of the server.
const verbCheck = "check"

// attempt makes one, with the shard's lock held. before is the evidence that it rests on. A server that may not sell
// is found out before anything is claimed or written down: it is asked again and again until a person mends it.
func (w *ward) attempt(ctx context.Context, class string, before any, o takeover.Options) *Act {
	act := &Act{Shard: w.number, Class: class, Verb: "takeover", State: Done, Text: "the shard was rebuilt from Postgres and opened"}
	own, cancel := finishing(ctx, attemptGrace)
	defer cancel()
	if err := w.check(own); err != nil {
		act.Verb = verbCheck
		if act.fail(err); isSetting(own, err) {
			act.State = Operator
		}
		return act
	}
	id, err := w.begin(own, class, act.Verb, before)
	if err != nil {
		return act.fail(err)
	}
	act.Repair = id
	o.Shard, o.FreshLog = w.number, w.freshLog
	bound, release := w.Bind(w.number)
	report, failed := takeover.Run(own, prompt{bound}, w.opener, o)
	release()
	var step *takeover.StepError
	if failed != nil {
		w.abandoned.Store(report.Epoch)
	}
	w.freshLog = errors.As(failed, &step) && step.Step == takeover.StepOpen
	w.Metrics.tookOver(class, report, failed)
	act.describe(report)
	after := outcome{Took: &report}
	if failed != nil {
		after.Error = failed.Error()
	}
	err = errors.Join(w.finish(own, id, class, act.Verb, after), w.learn(own))
	switch {
	case failed != nil:
		return w.attemptFailed(own, act, failed)
	case err != nil:
		act.Text += "; but " + err.Error() // it is open all the same
	}
	return act
}

// check looks at the server's settings. The attempt does so again, on the connection that it works on.
func (w *ward) check(ctx context.Context) error {
	bound, release := w.Bind(w.number)
	defer release()
	return prompt{bound}.Check(ctx)
}

func (a *Act) describe(r takeover.Report) {
	a.Takeover = &Takeover{
		Epoch: r.Epoch, Continues: r.Continues.String(), ClosedMillis: r.Closed.Milliseconds(), Drained: r.Drained,
		Put: r.Put, Deleted: r.Deleted, Same: r.Same, GivenUp: r.GivenUp, RenamedLog: r.RenamedLog, Orphans: r.Orphans, Strays: r.Strays, Followed: r.Followed,
	}
	if r.GivenUp > 0 {
		a.GivesUp = fmt.Sprintf("%d entries of the log, %s to %s (%d recorded as orphans; their receipts are answered lost)", r.GivenUp, r.FirstLost, r.LastLost, r.Orphans)
	}
}

// attemptFailed tells what a failed attempt asks for: a person, a halt, or another attempt.
func (w *ward) attemptFailed(ctx context.Context, act *Act, err error) *Act {
	var gap *takeover.GapError
	var foreign *takeover.ForeignError
	var step *takeover.StepError
	switch {
	case errors.Is(err, takeover.ErrSuperseded):
		act.State, act.Text = Left, "a newer attempt is under way: "+err.Error()
	case errors.As(err, &gap):
		id := act.Repair
		act = w.halt(ctx, string(audit.GapLost), ledger.Verdict{Shard: w.number, Position: gap.Have, Claim: act.Takeover.Epoch, Reason: err.Error()}, err.Error())
		act.Text += fmt.Sprintf(" (found by repair %d)", id)
	case errors.As(err, &foreign), errors.Is(err, takeover.ErrHalted):
		act.State, act.Text = Operator, err.Error()
	case errors.As(err, &step) && step.Step == takeover.StepCheck && isSetting(ctx, err):
		act.State, act.Text = Operator, err.Error()
	default:
		act.fail(err)
	}
	return act
}

// isSetting reports whether a failed check is about a setting of the server, which only a person mends: the error
// names it and its remedy.
func isSetting(ctx context.Context, err error) bool {
	var network net.Error
	return !errors.As(err, &network) && ctx.Err() == nil
}

// halt stops a shard whose log can not be followed, so that no more is sold that would be lost. It is Left when the
// shard moved on since the verdict: nothing was done, and it has to be looked at again.
func (w *ward) halt(ctx context.Context, class string, v ledger.Verdict, before any) *Act {
	act := &Act{Shard: w.number, Class: class, Verb: "halt", State: Operator, Text: v.Reason,
		Remedy: fmt.Sprintf("look at the log and the table repair; then `stockpipe-reconciler takeover --shard %d`, which gives up what lies beyond Postgres' position", w.number)}
	if class == string(audit.GapLost) {
		act.Remedy = w.remedyOfGap(v.Position, w.nextOf(ctx, v.Position))
	}
	id, err := w.begin(ctx, class, act.Verb, before)
	if err != nil {
		return act.fail(err)
	}
	act.Repair = id
	claim, err := w.Ledger.Halt(ctx, v)
	if errors.Is(err, ledger.ErrMoved) {
		act.State, act.Remedy = Left, ""
	}
	if err == nil {
		err = w.redis.Fence(ctx, takeover.Seal{Shard: w.number, Ledger: w.Ledger.ID(), Epoch: claim.Epoch, Nonce: claim.Nonce}, false)
	}
	after := outcome{Text: "halted and closed"}
	if err != nil { // a shard that is halted and not closed is closed by the next probe
		after = outcome{Error: err.Error()}
		act.Text += "; the halt failed: " + err.Error()
	}
	if err := errors.Join(w.finish(ctx, id, class, act.Verb, after), w.learn(ctx)); err != nil {
		act.Text += "; " + err.Error()
	}
	return act
}

// losses says what a takeover that gives up would give up: the entries beyond the ledger's position.
func (w *ward) losses(ctx context.Context, f takeover.Finding) string {
	return w.beyond(ctx, f, false)
}

// beyond counts the entries of the log beyond the ledger's position. Those that continue it are applied first, if
// drained is set, and only what lies behind a hole is lost.
func (w *ward) beyond(ctx context.Context, f takeover.Finding, drained bool) string {
	at, next, count := f.Row.Position(), f.Row.Applied+1, 0
	var first, last string
	for count < maxCounted {
		page, err := w.redis.Range(ctx, at, takeover.DefaultPage)
		if err != nil {
			return "unknown: " + err.Error()
		}
		if len(page) == 0 {
			break
		}
		for _, raw := range page {
			if at, err = stock.ParsePosition(raw.ID); err != nil {
				return "unknown: " + err.Error()
			}
			if drained && at == (stock.Position{Epoch: f.Row.Epoch, Seq: next}) {
				next++
				continue
			}
			if first == "" {
				first = raw.ID
			}
			last = raw.ID
			count++
		}
	}
	if count == 0 {
		return "nothing that the log still has"
	}
	return fmt.Sprintf("%d entries of the log, %s to %s", count, first, last)
}

// replay applies what the log has and the ledger has not, as a consumer would: for a shard whose consumers are gone.
func (w *ward) replay(ctx context.Context) (entries int, err error) {
	for entries < maxCounted {
		row, err := w.opener.Shard(ctx, w.number)
		if err != nil {
			return entries, err
		}
		page, err := w.redis.Range(ctx, row.Position(), takeover.DefaultPage)
		if err != nil {
			return entries, err
		}
		did, err := w.apply(ctx, page)
		entries += did.Entries
		if err != nil || did.Entries == 0 {
			return entries, err
		}
	}
	return entries, nil
}

// apply ends a holder that was stopped with the shard's row in its hands, and then tries again, once.
func (w *ward) apply(ctx context.Context, page []event.Raw) (ledger.Applied, error) {
	if len(page) == 0 {
		return ledger.Applied{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	did, err := w.Ledger.Apply(ctx, w.number, page)
	var held *ledger.HeldError
	if !errors.As(err, &held) {
		return did, err
	}
	if ended, failed := w.Ledger.EndStalledHolder(ctx, w.number); failed != nil || !ended {
		return did, errors.Join(err, failed)
	}
	return w.Ledger.Apply(ctx, w.number, page)
}
