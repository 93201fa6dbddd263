package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// How often each duty is done on a shard.
const (
	probeEvery    = 500 * time.Millisecond
	probePause    = 50 * time.Millisecond  // between two probes, however many hints
	checkPause    = time.Second            // between two checks of a server that may not sell
	expireEvery   = 100 * time.Millisecond // and so how late a hold ends, about
	expireRest    = 500 * time.Millisecond // after a round in which Redis found nothing due that Postgres did
	documentEvery = 1500 * time.Millisecond
	hurryPause    = 500 * time.Millisecond // before an audit that somebody asked for, so that many who ask get one
	// invariantEvery is rarer than the audits: the invariants read whole tables.
	invariantEvery = time.Minute
	// tellAgain is how long a difference that stays is not told again.
	tellAgain = 10 * time.Minute
	maxTold   = 1000
	// digestEvery is how often closed epochs without a digest are looked for, and digestRest the pause between two
	// pages of one: nobody waits for it.
	digestEvery = time.Minute
	digestRest  = 50 * time.Millisecond
	// producerEvery is how often producers that are gone are forgotten, and producerSilence after how long: one that
	// lives says so every second or so, and comes back by itself.
	producerEvery   = time.Hour
	producerSilence = time.Hour
)

// Run keeps all shards well until ctx ends: those whose turn it gets; of the others it is the standby. On each shard
// six duties run side by side, so that a long audit never delays a takeover, nor that the next shard's expiry.
func (w *Warden) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, one := range w.wards {
		group.Go(func() error {
			one.run(ctx)
			return nil
		})
	}
	group.Go(func() error { w.keepProducers(ctx); return nil })
	return group.Wait()
}

// keepProducers forgets producers that were killed, now and every hour, whoever has the turns.
func (w *Warden) keepProducers(ctx context.Context) {
	for again := true; again; again = pause(ctx, producerEvery) {
		if err := w.DropProducers(ctx); err != nil && ctx.Err() == nil {
			w.Metrics.failed("producers")
			w.Tell(0, "producers", nil, err)
		}
	}
}

// DropProducers forgets producers that have been silent for an hour: their rows would stay for ever.
func (w *Warden) DropProducers(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := w.Ledger.DropProducers(asking, producerSilence)
	return err
}

// run is standby → turn → standby …, until ctx ends.
func (w *ward) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.underTurn(ctx, func(ctx context.Context) error {
			w.Tell(w.number, "has the turn", nil, nil)
			ctx, done := w.leavable(ctx)
			defer done()
			return w.duties(ctx)
		})
		w.Metrics.forget(w.number)
		if err != nil && !errors.Is(err, errBusy) && ctx.Err() == nil {
			w.Tell(w.number, "turn", nil, err)
		}
		pause(ctx, max(turnTry, w.stayAside()))
	}
}

// duties ends when ctx does. Whatever fails is told and tried again at its next time.
func (w *ward) duties(ctx context.Context) error {
	var group errgroup.Group
	w.backoff, w.notBefore = takeover.Backoff{}, time.Time{}
	w.setClosed(true) // until the first probe
	auditor := &rolling{ward: w, told: map[string]time.Time{}}
	group.Go(func() error { w.keepOpen(ctx); return nil })
	group.Go(func() error { w.every(ctx, expireEvery, nil, "expiry", w.expireRound); return nil })
	group.Go(func() error { w.every(ctx, documentEvery, nil, "documents", w.documentRound); return nil })
	group.Go(func() error { w.every(ctx, w.AuditEvery, w.hurry, "audit", auditor.round); return nil })
	soon := make(chan struct{}, 1) // the first digests do not wait for their time: epochs may have been closed meanwhile
	soon <- struct{}{}
	group.Go(func() error { w.every(ctx, digestEvery, soon, "digests", w.digestRound); return nil })
	group.Go(func() error { w.keepForgetting(ctx); return nil })
	return group.Wait()
}

// every does a duty at its times, and when it is hurried, while the shard is open. A round that takes longer than that
// delays the next.
func (w *ward) every(ctx context.Context, period time.Duration, hurry <-chan struct{}, duty string, round func(context.Context) error) {
	for pauseUnless(ctx, period, hurry) {
		if w.isClosed() {
			continue
		}
		if err := round(ctx); err != nil && ctx.Err() == nil {
			w.Metrics.failed(duty)
			w.Tell(w.number, duty, nil, err)
		}
	}
}

// pauseUnless waits as pause does, and no longer than hurryPause once it is hurried.
func pauseUnless(ctx context.Context, period time.Duration, hurry <-chan struct{}) bool {
	timer := time.NewTimer(period)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-hurry:
		return pause(ctx, min(period, hurryPause))
	case <-ctx.Done():
		return false
	}
}

func (w *ward) setClosed(closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = closed
}

func (w *ward) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *ward) expireRound(ctx context.Context) error {
	w.sweepSent()
	ended, err := w.expire(ctx, maxEnded)
	if ended.NotDue > 0 && ended.Expired == 0 {
		pause(ctx, expireRest) // their clocks differ: asking faster would not bring them together
	}
	return err
}

func (w *ward) documentRound(ctx context.Context) error {
	papers, err := w.documents(ctx)
	if papers.Finished > 0 {
		w.Tell(w.number, "documents finished", &Act{Shard: w.number, Class: "document", Verb: "apply", State: Done,
			Text: fmt.Sprintf("%d documents were written but not moved, %d of them beyond their deadline", papers.Finished, papers.Renewed)}, nil)
	}
	for i := range papers.Stuck {
		w.Tell(w.number, "document", &papers.Stuck[i], nil)
	}
	return err
}

// digestRound keeps the digests of epochs that were closed since, slowly.
func (w *ward) digestRound(ctx context.Context) error {
	for {
		found, err := w.Ledger.KeepDigest(ctx, w.number, func(ctx context.Context) error {
			pause(ctx, digestRest)
			return ctx.Err()
		})
		if err != nil || !found {
			return err
		}
	}
}

// keepOpen probes, and opens what is not open.
func (w *ward) keepOpen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.Metrics.failed("probe")
			w.Tell(w.number, "probe", nil, err)
		}
		timer := time.NewTimer(probeEvery)
		select {
		case <-w.wake:
			pause(ctx, probePause)
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (w *ward) look(ctx context.Context) error {
	f, err := w.probe(ctx)
	if err != nil {
		w.setClosed(true)
		return err
	}
	w.setClosed(f.Class != takeover.Healthy && f.Class != takeover.Changing || f.Row.Writer != "redis")
	w.Metrics.state(w.number, f)
	if err := w.noticeSetback(ctx, f); err != nil {
		return err
	}
	if act, is := skewAct(f); is {
		w.Tell(w.number, "skew", &act, nil)
	}
	if f.Class.NeedsTakeover() && !w.mayTakeOver(f) {
		return nil
	}
	act := w.open(ctx, f)
	if act == nil {
		return nil
	}
	w.notBefore = time.Time{}
	switch {
	case !f.Class.NeedsTakeover() || act.State == Done:
	case act.Verb == verbCheck:
		// Nothing was claimed, and the shard is to open soon after the setting is mended.
		w.notBefore = time.Now().Add(checkPause)
	default:
		w.notBefore = time.Now().Add(w.backoff.Next(0))
	}
	w.Tell(w.number, act.Verb, act, nil)
	if act.State == Done {
		w.Notice(w.number) // see it healthy at once, so that the other duties go on
	}
	return nil
}

// noticeSetback tells of a ledger that has less of the same epoch than a look before: a failover of Postgres to a
// standby that lacked its last commits. The log still has them, and whoever follows it applies them again; only a
// person can know what else that Postgres has lost.
func (w *ward) noticeSetback(ctx context.Context, f takeover.Finding) error {
	before, now := w.reached, f.Row.Position()
	w.reached = now
	if now.Epoch != before.Epoch || now.Seq >= before.Seq {
		return nil
	}
	act := Act{Shard: w.number, Class: classBehind, Verb: string(audit.VerbApply), State: Done,
		Text: fmt.Sprintf("Postgres had reached %s and is at %s: it lost a tail, a failover of its own; the log has it and it is applied again", before, now)}
	id, err := w.begin(ctx, act.Class, act.Verb, map[string]string{"reached": before.String(), "now": now.String(), "probe": f.String()})
	if err == nil {
		err = w.finish(ctx, id, act.Class, act.Verb, outcome{Text: act.Text})
	}
	act.Repair = id
	w.Tell(w.number, act.Class, &act, nil)
	return err
}

// mayTakeOver keeps takeovers that do not last apart: 1, 2, 4 … 60 s. A shard that was never opened does not wait.
func (w *ward) mayTakeOver(f takeover.Finding) bool {
	if f.Row.State == takeover.StateNew && w.notBefore.IsZero() {
		return true
	}
	if !w.notBefore.IsZero() {
		return time.Now().After(w.notBefore)
	}
	open := takeover.SettledAfter // a shard that this process has not seen failing
	if f.Row.State == takeover.StateOpen && !f.Row.Opened.IsZero() {
		open = f.Row.Now.Sub(f.Row.Opened).Abs() // an opening that lies ahead was before the clock was set back
	}
	wait := w.backoff.Next(open)
	w.notBefore = time.Now().Add(wait)
	w.Metrics.struggle(w.number, w.backoff.Struggling())
	if w.backoff.Struggling() {
		w.Tell(w.number, "struggling", nil, fmt.Errorf("takeovers of shard %d do not last: the next one waits %v (%s)", w.number, wait, f))
	}
	return wait == 0
}

// rolling is the audit that goes on page by page.
type rolling struct {
	*ward
	cursor audit.Cursor
	whole  time.Time // when the invariants were checked last
	told   map[string]time.Time

	stood stock.Position // where the last audit found the ledger
	since time.Time      // the first audit that found it there
}

func (r *rolling) round(ctx context.Context) error {
	skip := time.Since(r.whole) < invariantEvery
	found, err := r.audit(ctx, audit.Run, audit.Options{Cursor: r.cursor, SkipInvariants: skip})
	if err != nil {
		return err
	}
	if !r.stands(found.Ledger) {
		// A lag is no standstill: the next entry is old, but the consumers are on their way to it.
		found.Drifts = slices.DeleteFunc(found.Drifts, func(d audit.Drift) bool { return d.Class == audit.GapLog })
	}
	if found.Compared {
		r.cursor = found.Cursor
		if !skip {
			r.whole = time.Now()
		}
	}
	if slices.ContainsFunc(found.Drifts, isUncounted) && !r.lasted(ctx) {
		// What a takeover would heal again and again is left to the next audit, when this one has lasted.
		found.Drifts = slices.DeleteFunc(found.Drifts, isUncounted)
	}
	if r.OnTampered == LedgerWins && len(found.Drifts) > 0 && !r.lasted(ctx) {
		return nil // somebody tampers faster than takeovers last: the next audit will see
	}
	acts, again, err := r.act(ctx, found)
	for i := range acts {
		r.tell(&acts[i])
	}
	if again || len(acts) > 0 {
		r.Notice(r.number)
	}
	return err
}

func isUncounted(d audit.Drift) bool { return d.Class == takeover.Uncounted }

// stands reports whether the ledger has been at a position for as long as it may.
func (r *rolling) stands(at stock.Position) bool {
	if at != r.stood {
		r.stood, r.since = at, time.Now()
	}
	return time.Since(r.since) >= r.StuckAfter
}

// lasted reports whether the last takeover has.
func (r *rolling) lasted(ctx context.Context) bool {
	row, err := r.opener.Shard(ctx, r.number)
	return err == nil && row.Now.Sub(row.Opened).Abs() >= takeover.SettledAfter
}

// tell leaves out what was told a while ago and is as it was.
func (r *rolling) tell(act *Act) {
	key := fmt.Sprintf("%s/%s/%s", act.Class, act.Key, act.Order)
	now := time.Now()
	if at, there := r.told[key]; there && now.Sub(at) < tellAgain && act.Repair == 0 {
		return
	}
	if len(r.told) >= maxTold {
		clear(r.told)
	}
	r.told[key] = now
	r.Tell(r.number, act.Class, act, nil)
}
