package takeover_test

import (
	"errors"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestEmptyRedisIsOpened(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if f := s.probe(); f.Class != takeover.Missing {
		t.Fatal(f)
	}
	r := s.takeover(takeover.Options{})
	if r.Epoch == 0 || r.Continues != (stock.Position{}) || len(r.Steps) != len(takeover.Steps)-1 {
		t.Errorf("report %+v", r)
	}
	s.stocked().sells("first")
}

// TestEveryFaultIsHealed breaks Redis while it has orders that the ledger has, and orders that it has not.
func TestEveryFaultIsHealed(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name  string
		hurt  func(s *shop, backup string)
		class takeover.Class
		late  stock.Standing // of the orders that were not persisted before
	}{
		{"crash", func(s *shop, _ string) { s.flushed(); s.crash() }, takeover.Unopened, stock.StandingPersisted},
		{"orderly restart", func(s *shop, _ string) { s.must(s.server.Stop()); s.must(s.server.Restart(ctx)) }, takeover.Unopened, stock.StandingPersisted},
		{"flushall", func(s *shop, _ string) { s.must(s.rdb.FlushAll(ctx).Err()) }, takeover.Missing, stock.StandingLost},
		{"state deleted", func(s *shop, _ string) { s.must(s.rdb.Del(ctx, s.shard.Keys().State).Err()) }, takeover.Missing, stock.StandingPersisted},
		{"orders deleted", func(s *shop, _ string) { s.must(s.rdb.Del(ctx, s.shard.Keys().Orders).Err()) }, takeover.Torn, stock.StandingPersisted},
		{"log deleted", func(s *shop, _ string) { s.must(s.rdb.Del(ctx, s.shard.Keys().Log).Err()) }, takeover.Missing, stock.StandingLost},
		{"orders of another type", func(s *shop, _ string) { s.must(s.rdb.Set(ctx, s.shard.Keys().Orders, "x", 0).Err()) }, takeover.Torn, stock.StandingPersisted},
		{"state of another type", func(s *shop, _ string) { s.must(s.rdb.Set(ctx, s.shard.Keys().State, "x", 0).Err()) }, takeover.Missing, stock.StandingPersisted},
		{"log of another type", func(s *shop, _ string) { s.must(s.rdb.Set(ctx, s.shard.Keys().Log, "x", 0).Err()) }, takeover.Missing, stock.StandingLost},
		{"functions flushed", func(s *shop, _ string) { s.must(s.rdb.FunctionFlush(ctx).Err()) }, takeover.Unopened, stock.StandingPersisted},
		{"rewound copy", func(s *shop, backup string) { s.restore(backup) }, takeover.Rewound, stock.StandingLost},
		{"token edited", func(s *shop, _ string) {
			s.must(s.rdb.HSet(ctx, s.shard.Keys().State, "n", "x").Err())
		}, takeover.Torn, stock.StandingPersisted},
		{"log with a later id", func(s *shop, _ string) {
			s.consume()
			s.must(s.rdb.Del(ctx, s.shard.Keys().Log, s.shard.Keys().State).Err())
			s.must(s.rdb.Do(ctx, "XADD", s.shard.Keys().Log, "9007199254740000-1", "x", "y").Err())
		}, takeover.Missing, stock.StandingPersisted},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t).stocked()
			backup := s.backup()
			early := s.reserve("early", 2)
			s.consume()
			late := s.reserve("late", 3)
			f.hurt(s, backup)
			if found := s.probe(); found.Class != f.class {
				t.Fatal(found)
			}
			s.refuses("between")
			if found := s.probe(); !found.Class.NeedsTakeover() {
				t.Fatal(found)
			}
			o := takeover.Options{}
			if f.name == "log with a later id" {
				// Entries beyond that continue nothing are given up by an operator only.
				var gap *takeover.GapError
				if _, err := takeover.Run(ctx, s.opener, s.seals, o); !errors.As(err, &gap) {
					t.Fatalf("an automatic takeover went on: %v", err)
				}
				s.refuses("still")
				o.Operator, o.GiveUp = true, true
			}
			r := s.takeover(o)
			if s.standing(early) != stock.StandingPersisted || s.standing(late) != f.late {
				t.Fatalf("early is %s, late is %s; %+v", s.standing(early), s.standing(late), r)
			}
			s.sells("after")
			t.Logf("closed for %v: %d drained, %d put, %d deleted, %d same", r.Closed, r.Drained, r.Put, r.Deleted, r.Same)
		})
	}
}

func TestPromotedReplicaIsRefusedUntilTakenOver(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	s.must(s.rdb.ConfigSet(ctx, "min-replicas-to-write", "0").Err())
	replica := sandboxtest.Redis(t, sandbox.RedisOptions{ReplicaOf: s.server.Addr()})
	master := s.server
	early := s.reserve("early", 2)
	s.consume()
	s.must(s.rdb.Wait(ctx, 1, 5e9).Err())
	stale := s.reserve("replicated", 1)
	s.must(s.rdb.Wait(ctx, 1, 5e9).Err())
	s.must(s.rdb.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	s.must(master.Kill())
	s.use(replica)
	s.refuses("replica")
	if _, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{}); err == nil {
		t.Fatal("a replica was opened")
	}
	s.must(s.rdb.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	s.refuses("promoted")
	if f := s.probe(); f.Class != takeover.Unopened && f.Class != takeover.Rewound {
		t.Fatal(f)
	}
	s.takeover(takeover.Options{})
	if s.standing(early) != stock.StandingPersisted || s.standing(stale) != stock.StandingPersisted {
		t.Fatalf("early is %s, replicated is %s", s.standing(early), s.standing(stale))
	}
	s.sells("after")
	// The old master comes back: it still has its keys, and must not sell under anybody's epoch.
	s.must(master.Restart(ctx))
	s.use(master)
	s.refuses("old master")
	if f := s.probe(); f.Class != takeover.Rewound {
		t.Fatal(f)
	}
}

func TestForeignRedisIsRefusedUntilAdopted(t *testing.T) {
	t.Parallel()
	theirs := newShop(t).stocked()
	theirs.reserve("theirs", 5)
	ours := newShop(t).stocked()
	mine := ours.reserve("mine", 2)
	ours.consume()
	// Epochs rise by chance. Ours has to be the higher one, or their log would be in the way of it whoever wrote it.
	for ours.epoch() <= theirs.epoch() {
		ours.takeover(takeover.Options{Operator: true})
	}
	ours.use(theirs.server)
	before := ours.field()
	var foreign *takeover.ForeignError
	if _, err := takeover.Run(ctx, ours.opener, ours.seals, takeover.Options{}); !errors.As(err, &foreign) {
		t.Fatalf("a foreign Redis was taken: %v", err)
	}
	if ours.field() != before {
		t.Fatal("it wrote to a foreign Redis")
	}
	theirs.reserve("more", 1) // and they go on
	r := ours.takeover(takeover.Options{Operator: true, Adopt: true})
	if !r.RenamedLog || r.Drained != 0 {
		t.Errorf("their log was not put aside: %+v", r)
	}
	if ours.standing(mine) != stock.StandingPersisted {
		t.Errorf("mine is %s", ours.standing(mine))
	}
	ours.sells("after")
	theirs.refuses("gone")
}

// epoch is the one that the ledger of the shop is in.
func (s *shop) epoch() int64 {
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	return row.Epoch
}

func TestHaltedShardWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	s.reserve("good", 1)
	s.consume()
	s.must(s.rdb.HSet(ctx, s.shard.Keys().Orders, "ghost", "h|1-1-0|1|0||1=1").Err())
	s.must(s.rdb.HSet(ctx, s.shard.Keys().State, "1", "998|2|0").Err())
	s.accept(stock.Operation{Kind: stock.Release, ID: "ghost", Attempt: 1}) // the ledger never heard of it
	lost := s.reserve("behind", 1)
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	batch, err := s.shard.Range(ctx, row.Position(), 10)
	s.must(err)
	if _, err = s.ledger.Apply(ctx, 0, batch); err == nil {
		t.Fatal("poison was applied")
	}
	if f := s.probe(); f.Class != takeover.Unfenced {
		t.Fatal(f)
	}
	s.must(takeover.FenceHalted(ctx, s.opener, s.seals, 0))
	if f := s.probe(); f.Class != takeover.Halted {
		t.Fatal(f)
	}
	s.refuses("halted")
	if _, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{}); !errors.Is(err, takeover.ErrHalted) {
		t.Fatalf("an automatic takeover of a halted shard: %v", err)
	}
	if _, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{Operator: true}); !errors.Is(err, takeover.ErrHalted) {
		t.Fatalf("a retry of what cannot be applied: %v", err)
	}
	r := s.takeover(takeover.Options{Operator: true, GiveUp: true})
	if r.GivenUp != 2 || r.Orphans != 2 || r.FirstLost.Seq != row.Applied+1 {
		t.Errorf("given up: %+v", r)
	}
	if s.standing(lost) != stock.StandingLost {
		t.Errorf("behind is %s", s.standing(lost))
	}
	s.sells("after")
}

func TestGapIsNotSkippedByItself(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	gone := s.reserve("gone", 1)
	beyond := s.reserve("beyond", 1)
	s.must(s.rdb.XDel(ctx, s.shard.Keys().Log, gone.Position.String()).Err())
	var gap *takeover.GapError
	if _, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{}); !errors.As(err, &gap) {
		t.Fatalf("it went over the gap: %v", err)
	}
	s.refuses("gap")
	r := s.takeover(takeover.Options{Operator: true, GiveUp: true})
	if r.GivenUp != 1 || s.standing(gone) != stock.StandingLost || s.standing(beyond) != stock.StandingLost {
		t.Errorf("%+v, gone is %s, beyond is %s", r, s.standing(gone), s.standing(beyond))
	}
	s.sells("after")
}

// TestLedgerThatLostAnOpeningFollowsIt plays a failover of Postgres that lost a whole takeover and what came
// after it, while Redis' log still has all of it.
func TestLedgerThatLostAnOpeningFollowsIt(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	first := s.reserve("first", 1)
	before, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	s.takeover(takeover.Options{})
	second := s.reserve("second", 1)
	s.sql(`delete from epoch_end where epoch > 0`)
	s.sql(`delete from event where (epoch, seq) > ($1, $2)`, before.Epoch, before.Applied)
	s.sql(`delete from reservation_line`)
	s.sql(`delete from reservation`)
	s.sql(`update stock set available = $1, held = 0`, opening)
	s.sql(`update shard set epoch = $1, applied = $2, claim = $1`, before.Epoch, before.Applied)
	if f := s.probe(); f.Class != takeover.Ahead {
		t.Fatal(f)
	}
	r := s.takeover(takeover.Options{})
	if r.Followed != 1 {
		t.Errorf("followed %d openings: %+v", r.Followed, r)
	}
	if s.standing(first) != stock.StandingPersisted || s.standing(second) != stock.StandingPersisted {
		t.Errorf("first is %s, second is %s", s.standing(first), s.standing(second))
	}
	s.sells("after")
}

func TestManyOrdersArePutInBoundedCalls(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	for _, id := range names("o", 900) {
		s.reserve(id, 1)
	}
	s.consume()
	s.must(s.rdb.FlushAll(ctx).Err())
	r := s.takeover(takeover.Options{Page: 100})
	if r.Put != 902 || r.Same != 0 { // the orders, the SKU and its opening document
		t.Errorf("%+v", r)
	}
	s.crash()
	again := s.takeover(takeover.Options{Page: 100})
	t.Logf("empty: closed for %v; intact: closed for %v, %d same", r.Closed, again.Closed, again.Same)
	s.sells("after")
}
