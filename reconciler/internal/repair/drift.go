package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// findings is what an audit found, by what is to be done.
type findings struct {
	again    bool          // the shard is not fit to be compared: the probe's business
	apply    []audit.Drift // Postgres stands still
	halt     []audit.Drift // the log cannot be followed
	tampered []audit.Drift // differs at one position
	recount  []audit.Drift // limits that nobody counts yet
	person   []audit.Drift
}

// sort decides by the drift's class and the verb that the audit proposes.
func (w *ward) sort(drifts []audit.Drift) findings {
	var f findings
	for _, d := range drifts {
		switch {
		case d.Class == audit.Overdue && w.endedInRedis(d.Order):
			// Redis ended it a moment ago; Postgres learns it from the log.
		case d.Class == takeover.Uncounted:
			f.recount = append(f.recount, d)
		case d.Class == takeover.Foreign || d.Class == takeover.Halted || d.Class == takeover.Unfenced || d.Class.NeedsTakeover():
			f.again = true
		case d.Verb == audit.VerbApply:
			f.apply = append(f.apply, d)
		case d.Verb == audit.VerbHalt:
			f.halt = append(f.halt, d)
		case d.Class == audit.Tampered:
			f.tampered = append(f.tampered, d)
		default:
			f.person = append(f.person, d)
		}
	}
	return f
}

// act does what the findings of one audit ask for. Nothing is done if the shard has moved to another epoch since:
// what was found was true there.
func (w *ward) act(ctx context.Context, r audit.Report) (acts []Act, again bool, err error) {
	f := w.sort(r.Drifts)
	if len(f.apply)+len(f.halt)+len(f.tampered)+len(f.recount)+len(f.person) == 0 {
		return nil, f.again, nil
	}
	w.repairing.Lock()
	defer w.repairing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	row, err := w.opener.Shard(ctx, w.number)
	if err != nil {
		return nil, false, err
	}
	if row.Epoch != r.Ledger.Epoch || row.State != takeover.StateOpen {
		return nil, true, nil
	}
	names, err := w.names(ctx, r.Drifts)
	if err != nil {
		return nil, false, err
	}
	for _, d := range f.apply {
		acts = append(acts, w.applyLog(ctx, w.actOf(d, names)))
	}
	for i, d := range f.halt {
		act := w.actOf(d, names)
		if i == 0 {
			if act = w.haltOn(ctx, d, row).located(act); act.State == Left {
				return acts, true, nil
			}
		}
		act.State = Operator
		acts = append(acts, *act)
	}
	switch {
	case len(f.tampered) == 0:
	case len(f.halt) > 0: // the shard is halted: nothing can be written, and a takeover would destroy evidence
		for _, d := range f.tampered {
			act := w.actOf(d, names)
			act.Verb, act.State = "wait", Operator
			acts = append(acts, *act)
		}
	case w.OnTampered == LedgerWins:
		acts = append(acts, w.ledgerWins(ctx, f.tampered, names)...)
	case r.Unlisted[audit.Tampered] > 0:
		halted := w.haltAll(ctx, r, row, f.tampered, names)
		if len(halted) == 0 {
			return acts, true, nil
		}
		acts = append(acts, halted...)
	default:
		more, err := w.freezeAll(ctx, f.tampered, names)
		acts = append(acts, more...)
		if err != nil {
			return acts, false, err
		}
	}
	// A takeover counts what buyers have; but it would put over what is in doubt, and a person decides about that.
	if len(f.recount) > 0 && len(f.halt)+len(f.tampered) == 0 {
		acts, again = append(acts, w.recount(ctx, f.recount, names)...), true
	}
	for _, d := range f.person {
		act := w.actOf(d, names)
		act.State, act.Remedy = Operator, w.remedy(d.Class, d.Order)
		acts = append(acts, *act)
	}
	return acts, f.again || again, nil
}

// haltOn stops the shard for a log that cannot be followed. A ledger that has come beyond the place in question proves
// the finding void; the place of a fork is one that it has passed by definition.
func (w *ward) haltOn(ctx context.Context, d audit.Drift, row takeover.Shard) *Act {
	until := int64(math.MaxInt64)
	if at, err := stock.ParsePosition(d.Position); err == nil && d.Class != audit.Fork {
		until = at.Seq
	}
	return w.haltWhere(ctx, string(d.Class), d.String(), w.figures(ctx, d), row, until)
}

// maxChase bounds how often a halt follows a ledger that consumers move on meanwhile.
const maxChase = 5

// haltWhere stops the shard where it stands. A ledger that only applied more since the row was read is followed, as
// long as it is below until; a claim, another epoch or another state ends the case: it is Left.
func (w *ward) haltWhere(ctx context.Context, class, reason string, before any, row takeover.Shard, until int64) *Act {
	var act *Act
	for range maxChase {
		now, err := w.opener.Shard(ctx, w.number)
		if err == nil && (now.Epoch != row.Epoch || now.Claim != row.Claim || now.State != row.State || now.Applied >= until) {
			err = ledger.ErrMoved
		}
		if err != nil {
			act = &Act{Shard: w.number, Class: class, Verb: "halt", Text: reason}
			if act.fail(err); errors.Is(err, ledger.ErrMoved) {
				act.State = Left
			}
			return act
		}
		act = w.halt(ctx, class, ledger.Verdict{Shard: w.number, Position: now.Position(), Claim: now.Claim, Reason: reason}, before)
		if act.State != Left {
			return act
		}
	}
	return act
}

// haltAll is for more tampered SKUs and orders than an audit names: what it does not name could not be frozen, and this
// Redis is not to be trusted with any of its numbers. Nothing comes back when the shard moved on meanwhile.
func (w *ward) haltAll(ctx context.Context, r audit.Report, row takeover.Shard, drifts []audit.Drift, names map[int64]string) (acts []Act) {
	reason := fmt.Sprintf("%d differences, too many to freeze their SKUs one by one", len(drifts)+r.Unlisted[audit.Tampered])
	halted := w.haltWhere(ctx, string(audit.Tampered), reason, drifts, row, math.MaxInt64)
	if halted.State == Left {
		return nil
	}
	for _, d := range drifts {
		act := w.actOf(d, names)
		act.Verb, act.State, act.Repair, act.Remedy = halted.Verb, halted.State, halted.Repair, halted.Remedy
		acts = append(acts, *act)
	}
	acts[0].Text += "; " + halted.Text
	return acts
}

// figure is a SKU of which Redis has other numbers than Postgres, behind a gap.
type figure struct {
	SKU      int64
	Redis    string
	Postgres string
}

// figures is the evidence of a log that cannot be followed: the difference, and what it is about. Redis' numbers are
// after the lost entries, Postgres' before them.
func (w *ward) figures(ctx context.Context, d audit.Drift) any {
	before := struct {
		Drift   audit.Drift
		Figures []figure `json:",omitempty"`
		Error   string   `json:",omitempty"`
	}{Drift: d}
	state, err := w.redis.State(ctx)
	if err != nil {
		before.Error = err.Error()
		return before
	}
	var numbers []int64
	for field := range state {
		if sku, err := strconv.ParseInt(field, 10, 64); err == nil && len(numbers) < ledger.MaxLookup {
			numbers = append(numbers, sku)
		}
	}
	slices.Sort(numbers)
	known, err := w.Ledger.Stocks(ctx, numbers)
	if err != nil {
		before.Error = err.Error()
		return before
	}
	for _, sku := range numbers {
		ours := event.Field{Quantities: known[sku].Quantities, Settings: known[sku].Settings}.String()
		if theirs := state[fmt.Sprint(sku)]; theirs != ours {
			before.Figures = append(before.Figures, figure{SKU: sku, Redis: theirs, Postgres: ours})
		}
	}
	return before
}

// names are the texts of the SKUs that drifts are about.
func (w *ward) names(ctx context.Context, drifts []audit.Drift) (map[int64]string, error) {
	numbers := map[int64]bool{}
	for _, d := range drifts {
		for _, sku := range skusOf(d) {
			numbers[sku] = true
		}
	}
	return w.Ledger.SKUNames(ctx, slices.Sorted(maps.Keys(numbers)))
}

// actOf says a drift in the words of an act.
func (w *ward) actOf(d audit.Drift, names map[int64]string) *Act {
	act := &Act{
		Shard: w.number, Class: string(d.Class), Verb: string(d.Verb), SKU: d.SKU, Name: names[d.SKU], Order: d.Order,
		Position: d.Position, Redis: d.Redis, Postgres: d.Postgres, Text: d.Text, Key: d.Key,
	}
	if d.Buyer != "" {
		act.Text = "buyer " + d.Buyer + ": " + act.Text
	}
	if d.Key != "ledger" {
		act.Key = w.Key(w.number, d.Key)
	}
	switch {
	case d.Key == "state" && d.SKU != 0:
		act.Key += fmt.Sprintf(" field %d", d.SKU)
	case d.Key == takeover.TargetBuyers && d.SKU != 0:
		act.Key += " field " + takeover.MarkField(d.SKU)
		if d.Buyer != "" {
			act.Key += ":" + d.Buyer
		}
	case d.Key == "orders":
		act.Key += " field " + d.Order
	case d.Key == "log":
		act.Key += " entry " + d.Position
	}
	return act
}

// located gives an act the place of another.
func (a *Act) located(at *Act) *Act {
	a.Key, a.SKU, a.Name, a.Order, a.Position, a.Redis, a.Postgres = at.Key, at.SKU, at.Name, at.Order, at.Position, at.Redis, at.Postgres
	return a
}

// applyLog reads the log for Postgres when its consumers do not.
func (w *ward) applyLog(ctx context.Context, act *Act) Act {
	id, err := w.begin(ctx, act.Class, act.Verb, act)
	if err != nil {
		return *act.fail(err)
	}
	act.Repair = id
	entries, err := w.replay(ctx)
	after := outcome{Text: fmt.Sprintf("%d entries applied from the log", entries)}
	if err != nil {
		after.Error = err.Error()
	}
	if err := errors.Join(err, w.finish(ctx, id, act.Class, act.Verb, after), w.learn(ctx)); err != nil {
		return *act.fail(err)
	}
	act.State, act.Text = Done, act.Text+"; "+w.reader(ctx)+"; "+after.Text
	return *act
}

// skusOf are the SKUs that a drift puts in doubt: its own, or those of the order's lines by either side.
func skusOf(d audit.Drift) []int64 {
	if d.SKU != 0 {
		return []int64{d.SKU}
	}
	if d.Order == "" {
		return nil
	}
	seen := map[int64]bool{}
	for _, text := range []string{d.Redis, d.Postgres} {
		if record, err := event.ParseRecord(d.Shard, d.Order, text); err == nil {
			for _, line := range record.Lines {
				seen[line.SKU] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// freezeAll stops the sale of what is in doubt, each SKU once, in Postgres first: a freeze that only Redis had would
// be undone by the next takeover.
func (w *ward) freezeAll(ctx context.Context, drifts []audit.Drift, names map[int64]string) (acts []Act, err error) {
	numbers := make([]int64, 0, len(names))
	for sku := range names {
		numbers = append(numbers, sku)
	}
	known, err := w.Ledger.Stocks(ctx, numbers)
	if err != nil {
		return nil, err
	}
	inRedis, err := w.redis.State(ctx)
	if err != nil {
		return nil, err
	}
	frozen := map[int64]bool{}
	for _, d := range drifts {
		act := w.actOf(d, names)
		act.State = Operator
		act.Remedy = fmt.Sprintf("find out who wrote to Redis; then `stockpipe-reconciler repair --shard %d`, which puts what Postgres and the log say and lets the SKU sell again (or run with --on-tampered=ledger-wins)", w.number)
		for _, sku := range skusOf(d) {
			have, there := known[sku]
			if !there || !have.Exists || frozen[sku] {
				continue
			}
			frozen[sku] = true
			field, unreadable := event.ParseField(inRedis[fmt.Sprint(sku)])
			inDoubt := have.Doubt != ""
			if inDoubt && (unreadable != nil || field.Frozen) {
				continue // was done before; a field that cannot be read sells nothing
			}
			if err := w.freeze(ctx, act, d, have, field, unreadable == nil); err != nil {
				act.fail(err)
			}
		}
		acts = append(acts, *act)
	}
	return acts, nil
}

// freeze stops one SKU: in Postgres, and then in Redis by an entry of the log that changes nothing else.
func (w *ward) freeze(ctx context.Context, act *Act, d audit.Drift, have ledger.Stock, field event.Field, readable bool) error {
	id, err := w.begin(ctx, act.Class, act.Verb, d)
	if err != nil {
		return err
	}
	act.Repair = id
	var after outcome
	err = w.Ledger.Freeze(ctx, have.SKU.Number, d.String())
	if err == nil && readable && !field.Frozen {
		var out stock.Outcome
		out, err = w.switchFrozen(ctx, have.SKU.Number, stock.On)
		after.Code, after.At = out.Code, out.Receipt.String()
	}
	after.Text = fmt.Sprintf("SKU %q is frozen", have.SKU.Text)
	if err != nil {
		after.Error = err.Error()
	} else {
		act.Text += "; " + after.Text
	}
	return errors.Join(err, w.finish(ctx, id, act.Class, act.Verb, after))
}

// switchFrozen freezes a SKU in Redis, or lets it sell again, and keeps its other settings. An answer other than
// accepted is an error: nothing was changed.
func (w *ward) switchFrozen(ctx context.Context, sku int64, frozen stock.Switch) (stock.Outcome, error) {
	change := stock.Kept
	change.Frozen = frozen
	out, err := w.Desk.Do(ctx, w.number, stock.Operation{
		Kind: stock.Configure, ID: fmt.Sprintf("~~set:%d", sku), Lines: stock.Lines{{SKU: sku}}, Change: change,
	})
	if err == nil && out.Code != stock.Accepted {
		err = fmt.Errorf("the settings of SKU number %d were answered %q", sku, out.Code)
	}
	return out, err
}

// ledgerWins puts what Postgres and the log say by one takeover, and lets SKUs sell again that were frozen for it.
func (w *ward) ledgerWins(ctx context.Context, drifts []audit.Drift, names map[int64]string) []Act {
	took := w.attempt(ctx, string(audit.Tampered), drifts, takeover.Options{})
	acts := make([]Act, 0, len(drifts)+1)
	for _, d := range drifts {
		act := w.actOf(d, names)
		act.Verb, act.State, act.Repair = took.Verb, took.State, took.Repair
		acts = append(acts, *act)
	}
	acts[0].Takeover, acts[0].GivesUp = took.Takeover, took.GivesUp
	acts = append(acts, told(took)[1:]...)
	if took.State != Done {
		acts[0].Text += "; " + took.Text
		return acts
	}
	return append(acts, w.thaw(ctx)...)
}

// recount counts what buyers have of SKUs whose limit nobody counts yet, by one takeover.
func (w *ward) recount(ctx context.Context, drifts []audit.Drift, names map[int64]string) []Act {
	took := w.attempt(ctx, string(takeover.Uncounted), drifts, takeover.Options{})
	acts := make([]Act, 0, len(drifts)+1)
	for _, d := range drifts {
		act := w.actOf(d, names)
		act.State, act.Repair = took.State, took.Repair
		if took.State != Done {
			act.Text += "; " + took.Text
		}
		acts = append(acts, *act)
	}
	acts[0].Takeover, acts[0].GivesUp = took.Takeover, took.GivesUp
	return append(acts, told(took)[1:]...)
}

// thaw lets SKUs in doubt sell again, after a takeover has put what Postgres says.
func (w *ward) thaw(ctx context.Context) (acts []Act) {
	act := &Act{Shard: w.number, Class: string(audit.Tampered), Verb: "thaw", State: Done}
	doubts, err := w.doubts(ctx)
	if err != nil {
		return []Act{*act.fail(err)}
	}
	known, err := w.Ledger.Stocks(ctx, slices.Sorted(maps.Keys(doubts)))
	if err != nil {
		return []Act{*act.fail(err)}
	}
	for sku, doubt := range doubts {
		one := *act
		one.SKU, one.Name, one.Text = sku, known[sku].SKU.Text, "sells again; it was frozen because "+doubt
		one.Key = w.Key(w.number, takeover.TargetState) + fmt.Sprintf(" field %d", sku)
		id, err := w.begin(ctx, one.Class, one.Verb, map[string]any{"sku": sku, "doubt": doubt})
		if err == nil {
			one.Repair = id
			var out stock.Outcome
			out, err = w.switchFrozen(ctx, sku, stock.Off)
			after := outcome{Code: out.Code, At: out.Receipt.String()}
			if err != nil {
				after.Error = err.Error()
			}
			err = errors.Join(err, w.finish(ctx, id, one.Class, one.Verb, after))
		}
		if err != nil {
			one.fail(err)
		}
		acts = append(acts, one)
	}
	return acts
}

// doubts are the SKUs that Postgres froze, and why.
func (w *ward) doubts(ctx context.Context) (map[int64]string, error) {
	view, err := boundedLedger{ledger.NewAuditor(w.Ledger, 0)}.View(ctx, w.number, "", 1)
	if err != nil {
		return nil, err
	}
	doubts := view.Snapshot().Doubt
	return doubts, view.Close()
}
