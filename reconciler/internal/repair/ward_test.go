package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// TestAShardThatHealedWhileTheLockWasAwaitedIsLeftAlone is a probe that saw the shard between the fence and the close
// of an attempt of this process: the claim that it saw is that attempt's.
func TestAShardThatHealedWhileTheLockWasAwaitedIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	f := s.probe()
	for _, f.Class = range []takeover.Class{takeover.Ahead, takeover.Stalled} {
		if act := s.ward.takeOver(t.Context(), f); act != nil {
			t.Errorf("%s: a healthy shard was taken over: %v", f.Class, act)
		}
	}
	if row := s.row(); row.Claim != f.Row.Claim || s.repairs() != 1 {
		t.Errorf("%+v, %d repairs", row, s.repairs())
	}
}

// TestAServerWithAWrongSettingCostsNoClaimAndNoRow looks as often as doubts of producers make it look.
func TestAServerWithAWrongSettingCostsNoClaimAndNoRow(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	before, repairs := s.row(), s.repairs()
	check(t, s.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	s.flushSettled()
	for range 20 {
		check(t, s.ward.look(t.Context()))
	}
	if row := s.row(); row.Claim != before.Claim || s.repairs() != repairs {
		t.Errorf("%d claims and %d repairs", row.Claim-before.Claim, s.repairs()-repairs)
	}
	if len(s.told) == 0 || len(s.told) > 10 || s.told[0].State != Operator || !strings.Contains(s.told[0].Text, "maxmemory") {
		t.Errorf("told %+v", s.told)
	}
	if s.ward.backoff.Struggling() {
		t.Error("a check counts as a takeover that does not last")
	}
	check(t, s.rdb.ConfigSet(t.Context(), "maxmemory", "64mb").Err())
	s.ward.notBefore = time.Now()
	check(t, s.ward.look(t.Context()))
	if row := s.row(); row.State != takeover.StateOpen || row.Epoch <= before.Epoch {
		t.Errorf("it does not open when the setting is mended: %+v", row)
	}
}

// unchecked is a Redis whose settings change while an attempt is at it: every second check fails.
type unchecked struct {
	takeover.Redis
	checks *int
}

func (u unchecked) Check(context.Context) error {
	if *u.checks++; *u.checks%2 == 0 {
		return errors.New("maxmemory is 0")
	}
	return nil
}

// TestAnAttemptThatNeedsAPersonWaitsLikeOneThatFailed finds the wrong setting only after the claim.
func TestAnAttemptThatNeedsAPersonWaitsLikeOneThatFailed(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	bind, checks := s.ward.Bind, 0
	s.ward.Bind = func(n int) (takeover.Redis, func()) {
		bound, release := bind(n)
		return unchecked{bound, &checks}, release
	}
	repairs := s.repairs()
	s.flushSettled()
	for range 20 {
		check(t, s.ward.look(t.Context()))
	}
	if got := s.repairs() - repairs; got < 1 || got > 3 || s.told[0].State != Operator {
		t.Errorf("%d attempts, told %+v", got, s.told)
	}
}

// TestAnEditedSKUStopsAloneHoweverManyHoldsAreLate is an audit that could not name all late holds.
func TestAnEditedSKUStopsAloneHoweverManyHoldsAreLate(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	tea := s.sku("tea")
	s.edit(tea, "17|0|0")
	found, err := s.ward.audit(t.Context(), audit.Sweep, audit.Options{})
	check(t, err)
	found.More, found.Unlisted = 900, map[audit.Class]int{audit.Overdue: 900}
	acts, _, err := s.ward.act(t.Context(), found)
	if err != nil || len(acts) != 1 || acts[0].Verb != "freeze" || acts[0].SKU != tea {
		t.Errorf("%+v, %v", acts, err)
	}
	if row := s.row(); row.State != takeover.StateOpen {
		t.Errorf("the shard is %s: %s", row.State, row.Reason)
	}
	found.Unlisted[audit.Tampered] = 1
	acts, _, err = s.ward.act(t.Context(), found)
	if row := s.row(); err != nil || len(acts) != 1 || acts[0].Verb != "halt" || row.State != takeover.StateHalted {
		t.Errorf("what is not named cannot be frozen: %+v, %+v, %v", row, acts, err)
	}
}

// TestAHaltThatWasJudgedBeforeATakeoverStopsNothing is a process that was held up between the judgement and the halt.
func TestAHaltThatWasJudgedBeforeATakeoverStopsNothing(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	judged := s.row()
	check(t, s.rdb.FlushAll(t.Context()).Err())
	act := s.ward.takeOver(t.Context(), s.probe())
	if act == nil || act.State != Done {
		t.Fatalf("%+v", act)
	}
	lost := audit.Drift{Class: audit.GapLost, Verb: audit.VerbHalt, Position: fmt.Sprintf("%d-%d", judged.Epoch, judged.Applied+1)}
	if act := s.ward.haltOn(t.Context(), lost, judged); act.State != Left {
		t.Errorf("%+v", act)
	}
	if f := s.probe(); f.Class != takeover.Healthy {
		t.Errorf("%s", f)
	}
}

// TestAHaltFollowsALedgerThatOnlyAppliesMore has consumers at work between the judgement and the halt.
func TestAHaltFollowsALedgerThatOnlyAppliesMore(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	judged := s.row()
	s.sku("tea")
	now := s.row()
	at := func(seq int64) string { return stock.Position{Epoch: now.Epoch, Seq: seq}.String() }
	reached := audit.Drift{Class: audit.GapLost, Verb: audit.VerbHalt, Position: at(now.Applied)}
	if act := s.ward.haltOn(t.Context(), reached, judged); act.State != Left || s.row().State != takeover.StateOpen {
		t.Errorf("the ledger has what was called lost: %+v", act)
	}
	lost := audit.Drift{Class: audit.GapLost, Verb: audit.VerbHalt, Position: at(now.Applied + 1)}
	if act := s.ward.haltOn(t.Context(), lost, judged); act.State != Operator || s.row().State != takeover.StateHalted {
		t.Errorf("%+v", act)
	}
	if f := s.probe(); f.Class != takeover.Halted { // and closed
		t.Errorf("%s", f)
	}
}
