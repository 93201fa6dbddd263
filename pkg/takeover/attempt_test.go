package takeover_test

import (
	"errors"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var errCrash = errors.New("crash")

func TestCrashAtAnyStepIsHealedByTheNextAttempt(t *testing.T) {
	t.Parallel()
	for _, step := range takeover.Steps {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			s := newShop(t).stocked()
			early := s.reserve("early", 2)
			s.consume()
			late := s.reserve("late", 3)
			s.flushed()
			s.crash()
			_, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{At: func(at takeover.Step) error {
				if at == step {
					return errCrash
				}
				return nil
			}})
			var ended *takeover.StepError
			if !errors.Is(err, errCrash) || !errors.As(err, &ended) || ended.Step != step {
				t.Fatal(err)
			}
			if step != takeover.StepDone {
				s.refuses("closed")
			}
			s.takeover(takeover.Options{})
			if s.standing(early) != stock.StandingPersisted || s.standing(late) != stock.StandingPersisted {
				t.Fatalf("early is %s, late is %s", s.standing(early), s.standing(late))
			}
			s.sells("after")
		})
	}
}

// stall starts an attempt that stands still before a step until go on is called; wait gives its end.
func stall(s *shop, step takeover.Step) (goOn func(), wait func() (takeover.Report, error)) {
	s.t.Helper()
	reached, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var report takeover.Report
	var err error
	opener := s.opener // the Redis of now, whatever the shop uses later
	go func() {
		defer close(ended)
		report, err = takeover.Run(ctx, opener, s.seals, takeover.Options{At: func(at takeover.Step) error {
			if at == step {
				close(reached)
				<-free
			}
			return nil
		}})
	}()
	select {
	case <-reached:
	case <-ended:
		s.t.Fatalf("the attempt ended before %s: %v", step, err)
	}
	return func() { close(free) }, func() (takeover.Report, error) { <-ended; return report, err }
}

func TestStalledAttemptGivesWayToANewerOne(t *testing.T) {
	t.Parallel()
	for _, step := range takeover.Steps {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			s := newShop(t).stocked()
			s.reserve("early", 2)
			s.flushed()
			s.crash()
			goOn, wait := stall(s, step)
			newer := s.takeover(takeover.Options{})
			r := s.reserve("sold", 1)
			goOn()
			stale, err := wait()
			switch step {
			case takeover.StepClaim:
				// It had no claim yet, so it is the newer one: the shop was taken over once more.
				s.must(err)
				if stale.Epoch <= newer.Epoch {
					t.Fatalf("epochs %d, then %d", newer.Epoch, stale.Epoch)
				}
			case takeover.StepDone:
				s.must(err)
			default:
				if err == nil {
					t.Fatal("both attempts went through")
				}
				var refused *takeover.RefusedError
				if !errors.Is(err, takeover.ErrSuperseded) && !errors.As(err, &refused) {
					t.Fatalf("it was not told why: %v", err)
				}
				if row, _ := s.ledger.Shard(ctx, 0); row.Epoch != newer.Epoch {
					t.Fatalf("the ledger is at epoch %d, %d was opened", row.Epoch, newer.Epoch)
				}
			}
			s.consume()
			if s.standing(r) != stock.StandingPersisted {
				t.Fatalf("the order sold meanwhile is %s", s.standing(r))
			}
			s.sells("after")
		})
	}
}

// TestStalledAttemptOnAnotherRedisNeverSells lets an attempt stand still on one Redis while the shard moves to
// another one.
func TestStalledAttemptOnAnotherRedisNeverSells(t *testing.T) {
	t.Parallel()
	for _, step := range takeover.Steps[1:] {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			s := newShop(t).stocked()
			s.reserve("early", 2)
			s.consume()
			old := s.server
			goOn, wait := stall(s, step)
			s.use(sandboxtest.Redis(t))
			newer := s.takeover(takeover.Options{})
			goOn()
			_, err := wait()
			if err == nil && step != takeover.StepDone {
				t.Fatal("both attempts went through")
			}
			moved := s.server
			s.use(old)
			s.refuses("old server")
			s.use(moved)
			if row, _ := s.ledger.Shard(ctx, 0); row.Epoch != newer.Epoch || row.State != takeover.StateOpen {
				t.Fatalf("the ledger is at epoch %d (%s), %d was opened", row.Epoch, row.State, newer.Epoch)
			}
			s.sells("after")
		})
	}
}

func TestLateCopiesOfCallsAreRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	seal, err := s.seals.Claim(ctx, 0, row.Epoch, false)
	s.must(err)
	s.must(s.opener.Fence(ctx, seal, false))
	put := takeover.Put{Target: takeover.TargetState, Verb: takeover.VerbSet, Args: []string{"1", "5|0|0"}}
	seq, err := s.opener.Put(ctx, seal, 0, put)
	s.must(err)
	refused := func(what string, err error) {
		t.Helper()
		var r *takeover.RefusedError
		if !errors.As(err, &r) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err = s.opener.Put(ctx, seal, 0, put)
	refused("the same put again", err)
	other := seal
	other.Nonce = "another"
	_, err = s.opener.Put(ctx, other, seq, put)
	refused("another attempt's put", err)
	refused("the fence again", s.opener.Fence(ctx, seal, false))
	s.flushed()
	s.crash()
	_, err = s.opener.Put(ctx, seal, seq, put)
	refused("a put after a restart", err)
	refused("open after a restart", s.opener.Open(ctx, seal, seq, stock.Position{}))
	s.takeover(takeover.Options{})
	_, err = s.opener.Put(ctx, seal, seq, put)
	refused("a put after the next takeover", err)
	refused("open after the next takeover", s.opener.Open(ctx, seal, seq, stock.Position{}))
	s.sells("after")
}

func TestSomebodyElseWritingIsNoticed(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	s.must(s.rdb.FlushAll(ctx).Err())
	_, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{At: func(at takeover.Step) error {
		if at == takeover.StepVerify {
			return s.rdb.HSet(ctx, s.shard.Keys().State, "1", "7|0|0").Err()
		}
		return nil
	}})
	if !errors.Is(err, takeover.ErrDisagrees) {
		t.Fatalf("it was opened: %v", err)
	}
	s.refuses("closed")
	s.takeover(takeover.Options{})
	s.sells("after")
}
