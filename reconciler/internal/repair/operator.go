package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A verb of an operator works on one shard. It asks who serves for the turn.
func (w *Warden) byHand(ctx context.Context, shard int, work func(context.Context, *ward, *Report) error) (Report, error) {
	one, err := w.ward(shard)
	if err != nil {
		return Report{}, err
	}
	report := Report{Shard: shard, Acts: []Act{}}
	err = one.waitTurn(ctx, true, func(ctx context.Context) error { return work(ctx, one, &report) })
	if errors.Is(err, errBusy) {
		err = fmt.Errorf("shard %d: %w and does not give it up: look at the table turn, and type the command again", shard, err)
	}
	return report, err
}

func (w *Warden) ward(shard int) (*ward, error) {
	if shard < 0 || shard >= len(w.wards) {
		return nil, fmt.Errorf("shard %d: the ledger has shards 0 to %d", shard, len(w.wards)-1)
	}
	return w.wards[shard], nil
}

// looking is byHand for a plan: it needs no turn, for it changes nothing.
func (w *Warden) looking(ctx context.Context, shard int, work func(context.Context, *ward, takeover.Finding, *Report) error) (Report, error) {
	one, err := w.ward(shard)
	if err != nil {
		return Report{}, err
	}
	f, err := one.settled(ctx)
	if err != nil {
		return Report{Shard: shard, Acts: []Act{}}, err
	}
	report := reportOf(f)
	return report, work(ctx, one, f, &report)
}

// TakeOver is the operator's verb: halted shards, too, and with adopt a Redis that another ledger wrote. With giveUp
// what cannot be applied is given up; without, what halted the shard is tried again. SKUs in doubt sell again
// after it: Redis has what Postgres says.
func (w *Warden) TakeOver(ctx context.Context, shard int, adopt, giveUp bool) (Report, error) {
	return w.takeOverBy(ctx, shard, takeover.Options{Operator: true, GiveUp: giveUp, Adopt: adopt})
}

func (w *Warden) takeOverBy(ctx context.Context, shard int, o takeover.Options) (Report, error) {
	return w.byHand(ctx, shard, func(ctx context.Context, one *ward, report *Report) error {
		f, err := one.probe(ctx)
		if err != nil {
			return err
		}
		report.take(f)
		one.repairing.Lock()
		defer one.repairing.Unlock()
		act := one.attempt(ctx, string(f.Class), f, o)
		report.Acts = append(report.Acts, told(act)...)
		if act.State == Done && o.GiveUp {
			report.Acts = append(report.Acts, one.thaw(ctx)...)
		}
		return nil
	})
}

// PlanTakeOver says what TakeOver would do and give up.
func (w *Warden) PlanTakeOver(ctx context.Context, shard int, adopt, giveUp bool) (Report, error) {
	return w.looking(ctx, shard, func(ctx context.Context, one *ward, f takeover.Finding, report *Report) error {
		act := Act{Shard: shard, Class: string(f.Class), Verb: "takeover", State: Proposed, Text: f.String()}
		switch {
		case f.Class == takeover.Foreign && !adopt:
			act = one.proposal(ctx, f)
		case f.Class == takeover.Foreign:
			act.GivesUp = "all that this Redis holds; its log is kept as evidence"
		case !giveUp: // a retry
			act.Verb, act.GivesUp = "retry", "nothing: an entry that cannot be applied halts the shard again"
		case f.Class == takeover.Halted, f.Class == takeover.Unfenced:
			act.GivesUp = one.losses(ctx, f) + "; " + one.remedyOfHalt(ctx, f)
		default:
			act.GivesUp = one.wouldGiveUp(ctx, f)
		}
		report.Acts = append(report.Acts, act)
		if f.Class != takeover.Healthy || !giveUp {
			return nil
		}
		tampered, err := one.tampered(ctx, report)
		report.Acts = append(report.Acts, tampered...)
		return err
	})
}

// tampered lists what a takeover would put over, and what Redis has of it now.
func (w *ward) tampered(ctx context.Context, report *Report) ([]Act, error) {
	found, err := w.audit(ctx, audit.Sweep, audit.Options{SkipInvariants: true})
	report.Audit = auditedOf(found)
	if err != nil {
		return nil, err
	}
	names, err := w.names(ctx, found.Drifts)
	if err != nil {
		return nil, err
	}
	var acts []Act
	for _, d := range found.Drifts {
		if d.Class == audit.Tampered {
			act := w.actOf(d, names)
			act.Verb, act.State, act.GivesUp = "takeover", Proposed, "what Redis has instead"
			acts = append(acts, *act)
		}
	}
	return acts, nil
}

// Repair is the operator's verb that makes every repair which is safe, and lets Postgres and the log win where a person
// has to decide: the warden's policy has to be LedgerWins. SKUs that were frozen before sell again once nothing
// differs any more.
func (w *Warden) Repair(ctx context.Context, shard int) (Report, error) {
	return w.byHand(ctx, shard, func(ctx context.Context, one *ward, report *Report) error {
		*report = one.pass(ctx)
		if report.Class != string(takeover.Healthy) || !report.Audit.Compared || report.Exit() > ExitRepaired {
			return nil
		}
		one.repairing.Lock()
		defer one.repairing.Unlock()
		report.Acts = append(report.Acts, one.thaw(ctx)...)
		return nil
	})
}

// PlanRepair says what Repair would do and give up.
func (w *Warden) PlanRepair(ctx context.Context, shard int) (Report, error) {
	one, err := w.ward(shard)
	if err != nil {
		return Report{}, err
	}
	report := w.Plan(ctx, shard)
	if report.Class != string(takeover.Healthy) {
		return report, nil
	}
	doubts, err := one.doubtActs(ctx)
	for i := range doubts {
		doubts[i].Verb, doubts[i].State, doubts[i].Remedy = "thaw", Proposed, ""
	}
	report.Acts = append(report.Acts, doubts...)
	return report, err
}

// doubtActs are the SKUs that Postgres froze, each a decision that a person owes.
func (w *ward) doubtActs(ctx context.Context) ([]Act, error) {
	doubts, err := w.doubts(ctx)
	if err != nil {
		return nil, err
	}
	numbers := slices.Sorted(maps.Keys(doubts))
	known, err := w.Ledger.SKUNames(ctx, numbers)
	if err != nil {
		return nil, err
	}
	acts := make([]Act, 0, len(numbers))
	for _, sku := range numbers {
		acts = append(acts, Act{Shard: w.number, Class: string(audit.Tampered), Verb: string(audit.VerbFreeze), State: Operator, SKU: sku, Name: known[sku],
			Key: w.Key(w.number, takeover.TargetState) + fmt.Sprintf(" field %d", sku), Text: "frozen because " + doubts[sku],
			Remedy: w.remedy(audit.Tampered, "")})
	}
	return acts, nil
}

// PlanGapFill says what GapFill would do and give up.
func (w *Warden) PlanGapFill(ctx context.Context, shard int, acceptLoss bool) (Report, error) {
	return w.looking(ctx, shard, func(ctx context.Context, one *ward, f takeover.Finding, report *Report) error {
		switch f.Class {
		case takeover.Halted, takeover.Unfenced, takeover.Healthy:
			act, _, _ := one.gapPlan(ctx, f, acceptLoss)
			if act.Gap == nil && f.Class == takeover.Healthy && act.State == Operator {
				act = one.noGap(f, Done, "nothing is missing: the log continues Postgres' position")
			}
			if f.Class != takeover.Halted && act.Gap != nil {
				act.Text += "; the shard still sells, so this is of a moment: the verb halts and closes it first"
			}
			report.Acts = append(report.Acts, *act)
		default:
			report.Acts = append(report.Acts, one.proposal(ctx, f))
		}
		return nil
	})
}

// Audit is the read-only verb: one audit, or with everyOrder a sweep over all orders of both sides. What it finds is a
// person's: it repairs nothing.
func (w *Warden) Audit(ctx context.Context, shard int, everyOrder bool) (Report, error) {
	how := audit.Run
	if everyOrder {
		how = audit.Sweep
	}
	return w.looking(ctx, shard, func(ctx context.Context, one *ward, f takeover.Finding, report *Report) error {
		if act, is := skewAct(f); is {
			report.Acts = append(report.Acts, act)
		}
		if f.Row.Writer != "redis" {
			return nil
		}
		found, err := one.audit(ctx, how, audit.Options{})
		report.Audit = auditedOf(found)
		if err != nil {
			return err
		}
		names, err := one.names(ctx, found.Drifts)
		if err != nil {
			return err
		}
		seen := map[int64]bool{}
		for _, d := range found.Drifts {
			act := one.actOf(d, names)
			act.State, act.Remedy = Operator, one.remedy(d.Class, d.Order)
			if d.Class == takeover.Halted {
				act.Remedy, act.GivesUp = one.remedyOfHalt(ctx, f), one.losses(ctx, f)
			}
			seen[d.SKU] = true
			report.Acts = append(report.Acts, *act)
		}
		if !found.Compared {
			return nil
		}
		doubts, err := one.doubtActs(ctx)
		if err != nil {
			return err
		}
		report.Acts = append(report.Acts, slices.DeleteFunc(doubts, func(a Act) bool { return seen[a.SKU] })...)
		report.Orphans, err = one.orphans(ctx)
		return err
	})
}
