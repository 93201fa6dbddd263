package repair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	// turnWait is how long a pass waits for the turn: longer than a turn lasts, so that one whose holder died is
	// not skipped.
	turnWait = turnTTL + 2*time.Second
	// maxRounds bounds how often one pass begins again because the shard moved.
	maxRounds = 5
	// maxAttempts bounds the takeovers of one pass.
	maxAttempts = 3
	lookAgain   = 100 * time.Millisecond
	settleTime  = takeover.StallAfter + 2*time.Second
)

func reportOf(f takeover.Finding) Report {
	return Report{
		Shard: f.Row.Number, Class: string(f.Class), Evidence: f.String(), Epoch: f.Row.Epoch, Applied: f.Row.Applied,
		Skew: skew(f).Milliseconds(), Acts: []Act{},
	}
}

// Once makes one pass over a shard: opens it, ends what is due, finishes documents, has Redis forget what is old enough,
// audits all of it, and acts on what was found. Where another reconciler has the turn and keeps it, it only looks.
func (w *Warden) Once(ctx context.Context, shard int) Report {
	one := w.wards[shard]
	var report Report
	err := one.waitTurn(ctx, false, func(ctx context.Context) error {
		report = one.pass(ctx)
		if shard > 0 {
			return nil
		}
		if err := w.DropProducers(ctx); err != nil { // of all shards, so by the pass over the first
			report.Fail(err)
		}
		return nil
	})
	switch {
	case errors.Is(err, errBusy):
		report = w.Plan(ctx, shard)
		report.Expired, report.Documents = 0, 0
		for i := range report.Acts {
			if report.Acts[i].State == Proposed {
				report.Acts[i].State = Left
				report.Acts[i].Remedy = "another reconciler has the turn and will see to it"
			}
		}
	case err != nil:
		report.Shard = shard
		report.Fail(err)
	}
	return report
}

// Fail adds what could not be looked at.
func (r *Report) Fail(err error) {
	r.Acts = append(r.Acts, Act{Shard: r.Shard, Class: "unchecked", Verb: "again", State: Failed, Text: err.Error()})
}

// waitTurn is underTurn with some patience. It may ask who serves for the turn, which a person's command does: who
// serves keeps it otherwise. A pass does not ask: it may take long, and holds have to end meanwhile.
func (w *ward) waitTurn(ctx context.Context, ask bool, work func(context.Context) error) error {
	for deadline := time.Now().Add(turnWait); ; {
		err := w.underTurn(ctx, work)
		if !errors.Is(err, errBusy) || time.Now().After(deadline) {
			return err
		}
		if ask {
			if err := w.Pulse.TellDoubt(ctx, w.number, AskTurn); err != nil {
				return err
			}
		}
		if !pause(ctx, turnTry/4) {
			return err
		}
	}
}

func (w *ward) pass(ctx context.Context) Report {
	var report Report
	for range maxRounds {
		again, err := w.round(ctx, &report)
		if err != nil {
			report.Fail(err)
			return report
		}
		if !again {
			return report
		}
	}
	report.Fail(fmt.Errorf("shard %d did not come to rest in %d rounds", w.number, maxRounds))
	return report
}

// round is one way through all duties; again asks for another because the shard moved.
func (w *ward) round(ctx context.Context, report *Report) (again bool, err error) {
	f, err := w.settled(ctx)
	if err != nil {
		if report.Class == "" {
			report.Shard, report.Acts = w.number, []Act{}
		}
		return false, err
	}
	report.take(f)
	if f.Class != takeover.Healthy {
		return w.mend(ctx, f, report)
	}
	if act, is := skewAct(f); is {
		report.Acts = append(report.Acts, act)
	}
	if f.Row.Writer != "redis" {
		return false, nil
	}
	ended, err := w.expire(ctx, math.MaxInt)
	report.Expired += ended.Expired
	report.NotDue = ended.NotDue
	if err != nil {
		return false, err
	}
	papers, err := w.documents(ctx)
	report.Documents += papers.Finished
	report.Acts = append(report.Acts, papers.Stuck...)
	if err != nil {
		return false, err
	}
	forgotten, err := w.forgetAll(ctx)
	report.Forgotten += forgotten
	if err != nil {
		return false, err
	}
	return w.auditAll(ctx, report)
}

// mend opens what is not open; again if it is worth going on.
func (w *ward) mend(ctx context.Context, f takeover.Finding, report *Report) (again bool, err error) {
	for attempt := 1; ; attempt++ {
		act := w.open(ctx, f)
		if act == nil {
			return true, nil // somebody else is at it
		}
		if act.State != Failed || attempt == maxAttempts || !pause(ctx, w.backoff.Next(0)) {
			report.Acts = append(report.Acts, told(act)...)
			return act.State == Done || act.State == Left, nil
		}
		if f, err = w.settled(ctx); err != nil || f.Class == takeover.Healthy {
			return err == nil, err
		}
	}
}

// settled is a probe that waits while somebody else is at the shard.
func (w *ward) settled(ctx context.Context) (takeover.Finding, error) {
	for deadline := time.Now().Add(settleTime); ; {
		f, err := w.probe(ctx)
		if err != nil || f.Class != takeover.Changing && f.Class != takeover.Rebuilding {
			return f, err
		}
		if time.Now().After(deadline) || !pause(ctx, lookAgain) {
			return f, nil
		}
	}
}

func (w *ward) auditAll(ctx context.Context, report *Report) (again bool, err error) {
	found, err := w.audit(ctx, audit.Sweep, audit.Options{})
	report.Audit = auditedOf(found)
	if err != nil {
		return false, err
	}
	if report.Orphans, err = w.orphans(ctx); err != nil {
		return false, err
	}
	acts, again, err := w.act(ctx, found)
	report.Acts = append(report.Acts, acts...)
	return again, err
}

// Plan says what a pass would do, and changes nothing, not even the turn.
func (w *Warden) Plan(ctx context.Context, shard int) Report {
	one := w.wards[shard]
	f, err := one.settled(ctx)
	if err != nil {
		report := Report{Shard: shard, Acts: []Act{}}
		report.Fail(err)
		return report
	}
	report := reportOf(f)
	if f.Class != takeover.Healthy {
		report.Acts = append(report.Acts, one.proposal(ctx, f))
		return report
	}
	if act, is := skewAct(f); is {
		report.Acts = append(report.Acts, act)
	}
	if f.Row.Writer == "redis" {
		if err := one.planAll(ctx, &report); err != nil {
			report.Fail(err)
		}
	}
	return report
}

func (w *ward) planAll(ctx context.Context, report *Report) error {
	due, err := within(ctx, statementTime, func(ctx context.Context) (int64, error) { return w.Ledger.Overdue(ctx, w.number, 0) })
	if err != nil {
		return err
	}
	papers, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.Document, error) {
		return w.Ledger.PendingDocuments(ctx, w.number, documentGrace, "", maxDocuments)
	})
	if err != nil {
		return err
	}
	report.Expired, report.Documents = int(due), len(papers)
	found, err := w.audit(ctx, audit.Sweep, audit.Options{})
	report.Audit = auditedOf(found)
	if err != nil {
		return err
	}
	names, err := w.names(ctx, found.Drifts)
	if err != nil {
		return err
	}
	for _, d := range found.Drifts {
		if d.Class == audit.Overdue {
			continue // counted as due
		}
		act := w.actOf(d, names)
		act.State, act.Remedy = Operator, w.remedy(d.Class, d.Order) // the repair, if there is one, leaves a decision to a person
		if d.Verb == audit.VerbApply || d.Verb == audit.VerbTakeover || d.Verb == audit.VerbFence {
			act.State = Proposed
		}
		if d.Class == audit.Tampered && d.Verb == audit.VerbFreeze && w.OnTampered == LedgerWins {
			act.Verb, act.State = "takeover", Proposed
			act.GivesUp = "what Redis has instead"
		}
		if d.Class == audit.Tampered && w.OnTampered == Freeze && found.Unlisted[audit.Tampered] > 0 {
			act.Verb = string(audit.VerbHalt)
		}
		report.Acts = append(report.Acts, *act)
	}
	return nil
}

// proposal is the act that a finding asks for, with what it would give up.
func (w *ward) proposal(ctx context.Context, f takeover.Finding) Act {
	act := Act{Shard: w.number, Class: string(f.Class), Verb: "wait", State: Operator, Text: f.String()}
	switch {
	case f.Class == takeover.Foreign:
		act.Verb = "refuse"
		act.GivesUp = "nothing; `takeover --adopt` would give up all that this Redis holds"
		act.Remedy = fmt.Sprintf("point both at the right servers, or `stockpipe-reconciler takeover --shard %d --adopt`", w.number)
	case f.Class == takeover.Unfenced:
		act = *w.halted(ctx, f)
		act.Class, act.Verb = string(f.Class), "fence"
	case f.Class == takeover.Halted:
		act = *w.halted(ctx, f)
	case f.Class.NeedsTakeover():
		act.Verb, act.State = "takeover", Proposed
		act.GivesUp = w.wouldGiveUp(ctx, f)
	default: // changing, rebuilding
		act.State = Left
	}
	return act
}

// wouldGiveUp says what an automatic takeover of this finding could not keep.
func (w *ward) wouldGiveUp(ctx context.Context, f takeover.Finding) string {
	if f.Row.State == takeover.StateNew {
		return "nothing: the shard was never opened"
	}
	beyond := w.beyond(ctx, f, true)
	if f.Class == takeover.Missing || f.Class == takeover.Rewound {
		return beyond + "; and whatever was accepted beyond " + f.Row.Position().String() + " and is in no log any more"
	}
	return beyond
}
