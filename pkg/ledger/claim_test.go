package ledger

import (
	"context"
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestEveryClaimIsAboveEverythingSeen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	last := int64(1) << 24 // timeline 1
	for _, seen := range []int64{0, 0, 1 << 30, 5} {
		c, err := l.Claim(ctx, 0, seen, false)
		check(t, err)
		if c.Epoch <= last || c.Epoch <= seen || c.Epoch > max(last, seen)+256 || c.Nonce == "" {
			t.Errorf("claim %+v after %d, Redis at %d", c, last, seen)
		}
		last = c.Epoch
	}
	if s, err := l.Shard(ctx, 0); err != nil || s.Claim != last || s.Epoch != 0 || s.State != StateNew {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAStaleClaimIsRefusedAtEveryStep(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	l := w.l
	before := w.at
	old, err := l.Claim(ctx, 0, 0, false)
	check(t, err)
	newest, err := l.Claim(ctx, 0, 0, false)
	check(t, err)
	forged := Claim{Epoch: newest.Epoch, Nonce: old.Nonce}
	opened := event.Entry{Position: stock.Position{Epoch: before.Epoch + 1, Seq: 1}, Ops: []stock.Operation{{Kind: stock.Opened, ID: "~~open", Continues: before}}}.Raw()
	steps := map[string]func(Claim) error{
		"close":    func(c Claim) error { _, err := l.CloseEpoch(ctx, c); return err },
		"follow":   func(c Claim) error { return l.FollowOpened(ctx, c, opened) },
		"open":     func(c Claim) error { return l.SayOpen(ctx, c) },
		"resume":   func(c Claim) error { return l.Resume(ctx, c) },
		"snapshot": func(c Claim) error { _, err := l.Snapshot(ctx, c); return err },
	}
	refused := func(c Claim, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := steps[name](c); !errors.Is(err, ErrStaleClaim) {
				t.Errorf("%s with %+v: %v", name, c, err)
			}
		}
	}
	refused(old, "close", "follow", "open", "resume", "snapshot")
	refused(forged, "close", "follow", "open", "resume", "snapshot")
	refused(newest, "open", "snapshot") // nothing was closed yet
	if s, err := l.Shard(ctx, 0); err != nil || s.Position() != before || s.State != StateOpen {
		t.Fatalf("%+v, %v: a refused step left a trace", s, err)
	}

	closed, err := l.CloseEpoch(ctx, newest)
	check(t, err)
	if closed != before {
		t.Errorf("closed at %v, want %v", closed, before)
	}
	refused(newest, "close") // its epoch has begun
	snapshot, err := l.Snapshot(ctx, newest)
	check(t, err)
	check(t, snapshot.Close())
	check(t, l.SayOpen(ctx, newest))
	refused(newest, "open", "snapshot")
	if n := count(t, l, `select last_seq from epoch_end where epoch = $1`, before.Epoch); n != before.Seq {
		t.Errorf("epoch %d ended at %d", before.Epoch, n)
	}
}

func TestAnAutomaticClaimLeavesAHaltedShardAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	mid, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	halting := halt(t, w.l, "an operator said so")
	if _, err := w.l.CloseEpoch(ctx, mid); !errors.Is(err, ErrStaleClaim) {
		t.Errorf("a takeover under way went on over the halt: %v", err)
	}
	_, err = w.l.Claim(ctx, 0, 0, false)
	if halted := mustHalt(t, err); halted.Reason != "an operator said so" {
		t.Error(halted.Reason)
	}
	c, err := w.l.Claim(ctx, 0, 0, true)
	check(t, err)
	if c.Epoch <= halting.Epoch {
		t.Errorf("claim %d after %d", c.Epoch, halting.Epoch)
	}
	_, err = w.l.Apply(ctx, 0, []event.Raw{w.log[0]})
	_ = mustHalt(t, err)
	check(t, w.l.Resume(ctx, c))
	w.apply(w.log[0])
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
}

func TestAnOpenedEpochIsFollowedByATakeoverOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	before := w.at
	// A ledger that was lost had closed the epoch here and opened the next; its log goes on.
	next := stock.Position{Epoch: before.Epoch + 3, Seq: 1}
	opening := func(continues stock.Position) event.Raw {
		return event.Entry{Position: next, AtMillis: w.clock, Ops: []stock.Operation{{Kind: stock.Opened, ID: "~~open", Continues: continues}}}.Raw()
	}
	_, err := w.l.Apply(ctx, 0, []event.Raw{opening(before)})
	var ahead *AheadError
	if !errors.As(err, &ahead) || ahead.Have != before {
		t.Fatalf("Apply followed it: %v", err)
	}
	c, err := w.l.Claim(ctx, 0, next.Epoch, false)
	check(t, err)
	if err := w.l.FollowOpened(ctx, c, opening(stock.Position{Epoch: before.Epoch, Seq: before.Seq - 1})); !errors.Is(err, ErrStaleClaim) {
		t.Fatalf("followed an epoch that continues another position: %v", err)
	}
	check(t, w.l.FollowOpened(ctx, c, opening(before)))
	w.log, w.at = append(w.log, opening(before)), next
	w.apply(opening(before), w.entry(reserve("o1", 1, lines(a, 1))))
	w.same()
	closed, err := w.l.CloseEpoch(ctx, c)
	check(t, err)
	if closed != w.at {
		t.Errorf("closed at %v, want %v", closed, w.at)
	}
}

func TestWhatAClosedEpochHasBeyondItsEndIsAnOrphan(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	end := w.at
	lost := w.entry(reserve("o1", 1, lines(a, 1))) // Redis had it, the ledger never did
	torn := w.entry(reserve("o2", 1, lines(a, 1)))
	torn.Ops = "not an operation"
	never := event.Raw{ID: "7-1"} // an epoch that the ledger never had
	w.book.Orders = map[string]*stock.Reservation{}
	w.book.Stock[a] = stock.Quantities{Available: 10}
	w.takeover()
	batch := []event.Raw{lost, torn, never, w.entry(reserve("o3", 1, lines(a, 1)))}
	for i, orphans := range []int{3, 0} {
		if done := w.apply(batch...); done.Entries != 1-i || done.Orphans != orphans {
			t.Errorf("time %d applied %+v", i+1, done)
		}
	}
	w.same()
	if n := count(t, w.l, `select count(*) from orphan where seq > $1 or epoch = 7`, end.Seq); n != 3 {
		t.Errorf("%d orphans, want 3", n)
	}
	if n, err := w.l.RecordOrphans(ctx, 0, []event.Raw{lost, torn, never, w.log[0], w.log[len(w.log)-1]}); n != 0 || err != nil {
		t.Errorf("recorded %d more, %v", n, err)
	}
}

func TestOrphansAreAccountedForAsFarAsThereIsNoHole(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 2), 0)
	a := w.sku(10)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1))))
	first := w.at
	w.takeover()
	orphan := func(epoch int64, seqs ...int64) (raws []event.Raw) {
		for _, seq := range seqs {
			raws = append(raws, event.Raw{ID: stock.Position{Epoch: epoch, Seq: seq}.String()})
		}
		return raws
	}
	for _, step := range []struct {
		raws  []event.Raw
		first int64 // of the first epoch
		never int64 // of an epoch that this ledger never had
	}{
		{nil, first.Seq, 0},
		{orphan(first.Epoch, first.Seq+2), first.Seq, 0},
		{orphan(first.Epoch, first.Seq+1), first.Seq + 2, 0},
		{orphan(first.Epoch, first.Seq+3, first.Seq+5), first.Seq, 0},
		{orphan(7, 1, 2), first.Seq, 2},
		{orphan(7, 4), first.Seq, 0},
	} {
		_, err := w.l.RecordOrphans(ctx, 0, step.raws)
		check(t, err)
		got, err := w.l.Accounted(ctx, 0)
		check(t, err)
		if got[first.Epoch] != step.first || got[7] != step.never {
			t.Errorf("after %v: %v", step.raws, got)
		}
		if other, err := w.l.Accounted(ctx, 1); err != nil || len(other) != 0 {
			t.Errorf("shard 1 has %v, %v", other, err)
		}
	}
}

func TestAnEpochThatContinuesAnotherPositionHalts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	c, err := w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	closed, err := w.l.CloseEpoch(ctx, c)
	check(t, err)
	closed.Seq++
	raw := event.Entry{Position: stock.Position{Epoch: c.Epoch, Seq: 1}, Ops: []stock.Operation{{Kind: stock.Opened, ID: "~~open", Continues: closed}}}.Raw()
	_, err = w.l.Apply(ctx, 0, []event.Raw{raw})
	_ = mustHalt(t, err)
}

// TestAnOpeningNamesTheNewestEntryOverEpochsThatHaveNone plays an attempt that dies between the close and the opening.
func TestAnOpeningNamesTheNewestEntryOverEpochsThatHaveNone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	newest := w.at
	var died []stock.Position
	for range 2 {
		c, err := w.l.Claim(ctx, 0, 0, false)
		check(t, err)
		closed, err := w.l.CloseEpoch(ctx, c)
		check(t, err)
		if names, err := newestEntry(ctx, w.l.pool, 0, closed); err != nil || names != newest {
			t.Errorf("an opening would name %v, the newest entry is %v (%v)", names, newest, err)
		}
		died = append(died, stock.Position{Epoch: c.Epoch})
	}
	opening := func(at, continues stock.Position) event.Raw {
		return event.Entry{Position: at, AtMillis: w.clock, Ops: []stock.Operation{{Kind: stock.Opened, ID: "~~open", Continues: continues}}}.Raw()
	}
	// A ledger that is at the newest entry, or that lost only the second attempt, follows the next opening.
	next := stock.Position{Epoch: died[1].Epoch + 3, Seq: 1}
	c, err := w.l.Claim(ctx, 0, next.Epoch, false)
	check(t, err)
	for _, other := range []stock.Position{died[0], {Epoch: newest.Epoch, Seq: newest.Seq - 1}, {}} {
		if err := w.l.FollowOpened(ctx, c, opening(next, other)); !errors.Is(err, ErrStaleClaim) {
			t.Errorf("followed an epoch that continues %v: %v", other, err)
		}
	}
	check(t, w.l.FollowOpened(ctx, c, opening(next, newest)))
	w.log, w.at = append(w.log, opening(next, newest)), next
	w.apply(opening(next, newest), w.entry(reserve("o1", 1, lines(a, 1))))
	w.same()
	// What the first version wrote names the epoch that closed empty.
	c, err = w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
	empty := stock.Position{Epoch: c.Epoch}
	c, err = w.l.Claim(ctx, 0, 0, false)
	check(t, err)
	_, err = w.l.CloseEpoch(ctx, c)
	check(t, err)
	w.at = stock.Position{Epoch: c.Epoch, Seq: 1}
	w.apply(opening(w.at, empty))
	w.same()
}

func TestInitIsRepeatableAndKeepsItsNumber(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 4)
	check(t, l.Init(ctx, 4))
	var field *stock.FieldError
	if err := l.Init(ctx, 5); !errors.As(err, &field) || field.Field != "shards" {
		t.Errorf("made it five: %v", err)
	}
	shards, err := l.Shards(ctx)
	check(t, err)
	var numbers []int
	for _, s := range shards {
		numbers = append(numbers, s.Number)
	}
	if diff := gocmp.Diff([]int{0, 1, 2, 3}, numbers); diff != "" {
		t.Error(diff)
	}
	if _, err := l.Shard(ctx, 9); !errors.Is(err, ErrUnknownShard) {
		t.Error(err)
	}
}

func TestAnEntryJudgedAtAnOlderPositionDoesNotHalt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	stale := &poisonError{have: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq - 1}, raw: w.log[0], why: "seen before another applier went on"}
	if _, done, err := w.l.haltOn(ctx, 0, stale); done || err != nil {
		t.Errorf("halted %v, %v", done, err)
	}
	if s, err := w.l.Shard(ctx, 0); err != nil || s.State != StateOpen || s.Claim != w.claim.Epoch {
		t.Errorf("%+v, %v", s, err)
	}
	if n := count(t, w.l, `select count(*) from dead_event`); n != 0 {
		t.Error("an entry was kept as dead")
	}
}

func TestTheSecondOfTwoHaltsTellsTheFirstReason(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	first := halt(t, w.l, "first")
	second := halt(t, w.l, "second")
	if s, err := w.l.Shard(ctx, 0); err != nil || s.Reason != "first" || second.Epoch <= first.Epoch || s.Claim != second.Epoch {
		t.Errorf("%+v, %v", s, err)
	}
}
