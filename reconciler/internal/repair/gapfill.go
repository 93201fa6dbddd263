package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	// gapTime bounds the reading of a gap: a view of the ledger stays, the log and all of Redis' records are read.
	gapTime = 2 * time.Minute
	// maxGapEntries bounds what a reconstruction holds in memory: missing entries and those behind them.
	maxGapEntries = 200_000
	// gapWork bounds the filling and draining of a gap.
	gapWork = 10 * time.Minute
)

const verbGapfill = "gapfill"

// A Gap is what is known of lost entries, and what a filling would save.
type Gap struct {
	Missing     []audit.Hole  `json:"missing"`     // positions of the epoch, each run with both ends
	Behind      int           `json:"behind"`      // entries that the log still has behind the first of them
	Orders      int           `json:"orders"`      // steps of orders that were reconstructed
	Documents   int           `json:"documents"`   // documents that were reconstructed
	Records     int           `json:"records"`     // records of Redis that last moved beyond the ledger
	Proven      bool          `json:"proven"`      // everything came out, to the last unit
	Unexplained []audit.Units `json:"unexplained"` // per SKU
	Doubts      []string      `json:"doubts"`
	More        int           `json:"more_doubts"`
}

func (g *Gap) String() string {
	holes := make([]string, len(g.Missing))
	for i, h := range g.Missing {
		holes[i] = h.String()
	}
	text := fmt.Sprintf("missing entries %s, %d entries behind them; from %d records of Redis %d steps of orders and %d documents were reconstructed",
		strings.Join(holes, " "), g.Behind, g.Records, g.Orders, g.Documents)
	if g.Proven {
		return text + "; ledger, reconstruction and the rest of the log fold to Redis' figures exactly"
	}
	const most = 5
	text += "; NOT explained"
	for i, u := range g.Unexplained {
		if i == most {
			text += fmt.Sprintf("; %d more SKUs", len(g.Unexplained)-most)
			break
		}
		text += "; " + u.String()
	}
	for i, d := range g.Doubts {
		if i == most {
			text += fmt.Sprintf("; %d more doubts", len(g.Doubts)-most+g.More)
			break
		}
		text += "; " + d
	}
	return text
}

// gap reads both stores and reconstructs. It changes nothing. The entries are the filling and the rest of the log.
func (w *ward) gap(ctx context.Context, f takeover.Finding) (*Gap, []event.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, gapTime)
	defer cancel()
	lost := audit.Gap{Shard: w.number, AtMillis: f.Status.AtMillis}
	raws, err := w.fillIn(ctx, &lost)
	if err != nil {
		return nil, nil, fmt.Errorf("look at the gap of shard %d: %w", w.number, err)
	}
	filling := lost.Fill()
	out := &Gap{
		Missing: filling.Holes, Behind: len(lost.Entries), Orders: filling.Orders, Documents: filling.Papers, Records: len(lost.Records),
		Proven: filling.Proven(), Unexplained: filling.Units, Doubts: filling.Doubts, More: filling.More,
	}
	for i := range filling.Entries {
		raws = append(raws, filling.Entries[i].Raw())
	}
	slices.SortFunc(raws, func(a, b event.Raw) int { return seqOf(a) - seqOf(b) })
	return out, raws, nil
}

func seqOf(raw event.Raw) int {
	at, _ := stock.ParsePosition(raw.ID) // was read, or made, a moment ago
	return int(at.Seq)
}

// fillIn gathers what both stores say. The shard is halted, so both stand still; a ledger that moved meanwhile is seen
// when the filling is applied.
func (w *ward) fillIn(ctx context.Context, lost *audit.Gap) (raws []event.Raw, err error) {
	view, err := ledger.NewAuditor(w.Ledger, 0).View(ctx, w.number, "", 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	s := view.Snapshot()
	lost.Have, lost.Stock, lost.Doubt = s.Shard.Position(), s.Stock, s.Doubt
	if lost.Continues, err = w.Ledger.LastClosed(ctx, w.number, lost.Have.Epoch); err != nil {
		return nil, err
	}
	if raws, err = w.logBehind(ctx, lost); err != nil {
		return nil, err
	}
	if lost.Records, err = w.recordsBeyond(ctx, lost.Have); err != nil {
		return nil, err
	}
	if lost.State, err = w.fields(ctx); err != nil {
		return nil, err
	}
	return raws, w.known(ctx, view, lost)
}

// logBehind reads what the log still has of the ledger's epoch.
func (w *ward) logBehind(ctx context.Context, lost *audit.Gap) (raws []event.Raw, err error) {
	for at := lost.Have; ; {
		page, err := w.redis.Range(ctx, at, takeover.DefaultPage)
		if err != nil {
			return nil, err
		}
		for _, raw := range page {
			entry, err := raw.Parse()
			if err != nil {
				return nil, fmt.Errorf("an entry behind the gap cannot be read, so nothing behind it can be judged: %w", err)
			}
			if entry.Epoch != lost.Have.Epoch {
				return nil, fmt.Errorf("the log goes on in epoch %d, the ledger is in %d: take the shard over", entry.Epoch, lost.Have.Epoch)
			}
			at = entry.Position
			raws, lost.Entries = append(raws, raw), append(lost.Entries, entry)
		}
		if len(raws) > maxGapEntries || at.Seq-lost.Have.Seq > maxGapEntries {
			return nil, fmt.Errorf("more than %d entries lie beyond %s: too many to reconstruct at once, take the shard over", maxGapEntries, lost.Have)
		}
		if len(page) == 0 {
			return raws, nil
		}
	}
}

// recordsBeyond are Redis' records that last moved in the ledger's epoch, beyond its position.
func (w *ward) recordsBeyond(ctx context.Context, have stock.Position) (map[string]stock.Reservation, error) {
	found := map[string]stock.Reservation{}
	for cursor := uint64(0); ; {
		page, next, err := w.redis.Orders(ctx, cursor, takeover.DefaultPage)
		if err != nil {
			return nil, err
		}
		for id, text := range page {
			r, err := event.ParseRecord(w.number, id, text)
			if err != nil {
				continue // what was edited by hand explains nothing; an audit names it
			}
			if r.Receipt.Epoch == have.Epoch && r.Receipt.Seq > have.Seq {
				found[id] = r
			}
			if r.Receipt.Epoch == have.Epoch && r.Receipt.Seq-have.Seq > maxGapEntries {
				return nil, fmt.Errorf("the record of %s lies more than %d entries beyond the ledger: take the shard over", id, maxGapEntries)
			}
		}
		if cursor = next; cursor == 0 {
			return found, nil
		}
	}
}

// fields are Redis' figures of all SKUs that can be read.
func (w *ward) fields(ctx context.Context) (map[int64]event.Field, error) {
	state, err := w.redis.State(ctx)
	if err != nil {
		return nil, err
	}
	out := map[int64]event.Field{}
	for name, text := range state {
		sku, err := strconv.ParseInt(name, 10, 64)
		if err != nil || strconv.FormatInt(sku, 10) != name {
			continue // a word of the protocol, or nobody's field
		}
		if field, err := event.ParseField(text); err == nil {
			out[sku] = field
		}
	}
	return out, nil
}

// known reads what the ledger has of the orders and documents that the log or the records name.
func (w *ward) known(ctx context.Context, view audit.View, lost *audit.Gap) error {
	named := map[string]bool{}
	for id := range lost.Records {
		named[id] = true
	}
	for i := range lost.Entries {
		for j := range lost.Entries[i].Ops {
			op := &lost.Entries[i].Ops[j]
			named[op.ID] = true
			if op.Order.ID != "" {
				named[op.Order.ID] = true
			}
		}
	}
	var orders, papers []string
	for id := range named {
		switch {
		case strings.HasPrefix(id, "~"):
			papers = append(papers, id[1:])
		default:
			orders = append(orders, id)
		}
	}
	lost.Orders = map[string]stock.Reservation{}
	for part := range slices.Chunk(orders, audit.DefaultPage) {
		found, err := view.Orders(ctx, part)
		if err != nil {
			return err
		}
		for id, order := range found {
			lost.Orders[id] = order.Reservation
		}
	}
	lost.Documents = map[string]stock.Operation{}
	for part := range slices.Chunk(papers, audit.DefaultPage) {
		found, err := w.Ledger.WaitingDocuments(ctx, w.number, part)
		if err != nil {
			return err
		}
		for id, document := range found {
			lost.Documents[stock.DocumentID(id)] = document.Operation()
		}
	}
	return nil
}

// GapFill is the operator's verb for entries that were lost before Postgres had them. What Redis still knows of them
// is put back, if it comes out to the last unit; else nothing is changed, unless acceptLoss is set: then the shard is
// taken over from where Postgres stands, and all beyond is given up and answered lost. A partial filling would call
// persisted what it does not have.
func (w *Warden) GapFill(ctx context.Context, shard int, acceptLoss bool) (Report, error) {
	return w.byHand(ctx, shard, func(ctx context.Context, one *ward, report *Report) error {
		f, acts, err := one.stopped(ctx)
		report.take(f)
		report.Acts = append(report.Acts, acts...)
		if err != nil || f.Class != takeover.Halted {
			return err
		}
		one.repairing.Lock()
		defer one.repairing.Unlock()
		report.Acts = append(report.Acts, one.gapfill(ctx, f, acceptLoss)...)
		return nil
	})
}

// stopped makes sure that a shard with a gap is halted and closed before anything is read of it.
func (w *ward) stopped(ctx context.Context) (f takeover.Finding, acts []Act, err error) {
	if f, err = w.settled(ctx); err != nil {
		return f, nil, err
	}
	switch f.Class {
	case takeover.Halted:
		return f, nil, nil
	case takeover.Unfenced:
		acts = append(acts, *w.fenceHalted(ctx, f))
	case takeover.Healthy:
		found, err := w.audit(ctx, audit.Run, audit.Options{SkipInvariants: true})
		if err != nil {
			return f, nil, err
		}
		at := slices.IndexFunc(found.Drifts, func(d audit.Drift) bool { return d.Class == audit.GapLost })
		if at < 0 {
			return f, []Act{*w.noGap(f, Done, "nothing is missing: the log continues Postgres' position")}, nil
		}
		acts = append(acts, *w.haltAlone(ctx, found.Drifts[at], f.Row))
	default:
		act := w.proposal(ctx, f)
		act.State = Operator
		return f, []Act{act}, nil
	}
	f, err = w.settled(ctx)
	return f, acts, err
}

func (w *ward) haltAlone(ctx context.Context, d audit.Drift, row takeover.Shard) *Act {
	w.repairing.Lock()
	defer w.repairing.Unlock()
	return w.haltOn(ctx, d, row)
}

func (w *ward) noGap(f takeover.Finding, state State, text string) *Act {
	return &Act{Shard: w.number, Class: string(f.Class), Verb: verbGapfill, State: state, Text: text}
}

// gapfill plans, and carries out what may be.
func (w *ward) gapfill(ctx context.Context, f takeover.Finding, acceptLoss bool) []Act {
	act, raws, ready := w.gapPlan(ctx, f, acceptLoss)
	if !ready {
		return []Act{*act}
	}
	ctx, cancel := context.WithTimeout(ctx, gapWork)
	defer cancel()
	id, err := w.begin(ctx, act.Class, act.Verb, act.Gap)
	if err != nil {
		return []Act{*act.fail(err)}
	}
	act.Repair = id
	var after outcome
	if act.Gap.Proven {
		after.At, err = w.fill(ctx, f, raws)
		after.Text = fmt.Sprintf("%d entries were applied", len(raws))
	}
	if err != nil {
		return []Act{*act.fail(errors.Join(err, w.finish(ctx, id, act.Class, act.Verb, outcome{Error: err.Error()})))}
	}
	took := w.attempt(ctx, act.Class, act.Gap, takeover.Options{Operator: true, GiveUp: !act.Gap.Proven})
	act.State, after.Took = took.State, nil
	if took.State != Done {
		after.Error = took.Text
	}
	if err := w.finish(ctx, id, act.Class, act.Verb, after); err != nil {
		act.Text += "; but " + err.Error()
	}
	acts := []Act{*act, *took}
	if took.State == Done {
		acts = append(acts, w.thaw(ctx)...)
	}
	return acts
}

// gapPlan is the act that a gap asks for; ready means that it may be carried out. The entries are the whole log beyond
// the ledger, reconstructed and real.
func (w *ward) gapPlan(ctx context.Context, f takeover.Finding, acceptLoss bool) (act *Act, raws []event.Raw, ready bool) {
	act = &Act{Shard: w.number, Class: string(audit.GapLost), Verb: verbGapfill, State: Proposed, Position: f.Row.Position().String()}
	gap, raws, err := w.gap(ctx, f)
	if err != nil {
		return act.fail(err), nil, false
	}
	if len(gap.Missing) == 0 {
		act = w.noGap(f, Operator, "nothing is missing, the shard is halted for another reason: "+f.Row.Reason)
		act.Remedy = w.halted(ctx, f).Remedy
		return act, nil, false
	}
	act.Gap, act.Text = gap, gap.String()
	if gap.Proven {
		act.GivesUp = "nothing"
		return act, raws, true
	}
	act.GivesUp = w.losses(ctx, f) + fmt.Sprintf("; and what was in the missing entries; Postgres goes on from %s, their receipts are answered lost", f.Row.Position())
	if !acceptLoss {
		act.State = Operator
		act.Remedy = fmt.Sprintf("find the Redis that still has the records, or give up all beyond %s: `stockpipe-reconciler gapfill --shard %d --accept-loss`", f.Row.Position(), w.number)
	}
	return act, nil, acceptLoss
}

// fill applies the reconstructed entries and the rest of the log, under a claim of its own: Redis is fenced by it, so
// that nothing moves meanwhile, and the ledger takes entries again.
func (w *ward) fill(ctx context.Context, f takeover.Finding, raws []event.Raw) (reached string, err error) {
	seal, err := w.opener.Claim(ctx, w.number, f.Status.Epoch, true)
	if err != nil {
		return "", err
	}
	if err := w.redis.Fence(ctx, seal, false); err != nil {
		return "", err
	}
	at := f.Row.Position()
	for page := range slices.Chunk(raws, takeover.DefaultPage) {
		did, err := w.opener.Drain(ctx, seal, page)
		if err != nil {
			return did.Position.String(), fmt.Errorf("apply what was reconstructed: %w", err)
		}
		at = did.Position
	}
	if last := raws[len(raws)-1].ID; at.String() != last {
		return at.String(), fmt.Errorf("the ledger came to %s, not to %s: look again", at, last)
	}
	return at.String(), nil
}
