package streambus

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/bus/bustest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func (s *stream) Trimmer(testing.TB) bus.Trimmer { return s.source("trims") }

func TestAStreamIsATrimmedLog(t *testing.T) {
	t.Parallel()
	bustest.RunTrimmer(t, func(t testing.TB) bustest.TrimmedLog { return newStream(t) })
}

// write appends entries in bulk.
func (s *stream) write(t testing.TB, epoch, from, to int64) {
	t.Helper()
	pipe := s.rdb.Pipeline()
	for seq := from; seq <= to; seq++ {
		pipe.Do(t.Context(), "XADD", s.key, at(epoch, seq).String(), "v", "1", "t", "1700000000000", "o", "C1 a", "a", "1=1|0|0")
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestALongBacklogIsTrimmedInBoundedSteps(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.write(t, 5, 1, 3*trimPage)
	if removed, err := s.source("a").Trim(t.Context(), at(5, 3*trimPage)); err != nil || removed < 3*trimPage-200 {
		t.Fatalf("%d removed, %v", removed, err)
	}
	if left, err := s.rdb.XLen(t.Context(), s.key).Result(); err != nil || left < 1 || left > 200 {
		t.Errorf("%d are left, %v", left, err)
	}
	// One step alone is bounded, whatever there is to do.
	s.write(t, 6, 1, 2*trimPage)
	if removed, err := s.rdb.XTrimMinIDApprox(t.Context(), s.key, at(6, 2*trimPage).String(), trimPage).Result(); err != nil || removed > trimPage {
		t.Errorf("%d removed by one step, %v", removed, err)
	}
}

func TestAReplicaRefusesToTrimAndSaysSo(t *testing.T) {
	t.Parallel()
	master := sandboxtest.Redis(t)
	s := &stream{connect(t, master.Addr()), "{0}:log"}
	s.write(t, 5, 1, 500)
	replica := &stream{connect(t, sandboxtest.Redis(t, sandbox.RedisOptions{ReplicaOf: master.Addr()}).Addr()), s.key}
	sandboxtest.Eventually(t, 15*time.Second, func() error {
		size, err := replica.source("a").Size(t.Context())
		if err == nil && size.Entries != 500 {
			err = fmt.Errorf("the replica has %d entries", size.Entries)
		}
		return err
	})
	removed, err := replica.source("a").Trim(t.Context(), at(5, 400))
	if removed != 0 || firstWord(err) != "READONLY" {
		t.Errorf("%d removed, %v", removed, err)
	}
}

func TestWhatIsNoLogIsNotTrimmed(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	if err := s.rdb.Set(t.Context(), s.key, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.source("a").Trim(t.Context(), at(5, 1)); !errors.Is(err, bus.ErrTorn) {
		t.Errorf("Trim: %v", err)
	}
	if _, err := s.source("a").Size(t.Context()); !errors.Is(err, bus.ErrTorn) {
		t.Errorf("Size: %v", err)
	}
}

// What was trimmed while it was pending is acknowledged by whoever tidies: the group's list does not grow for ever.
func TestTrimmedEntriesThatPendAreAcknowledged(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.write(t, 5, 1, 1)
	dead := s.source("dead")
	if _, err := dead.Next(t.Context(), at(5, 1)); err != nil {
		t.Fatal(err)
	}
	s.write(t, 5, 2, 500)
	if found, err := dead.Next(t.Context(), at(5, 1)); err != nil || len(found) != 499 {
		t.Fatal(len(found), err)
	}
	if _, err := s.source("trims").Trim(t.Context(), at(5, 450)); err != nil {
		t.Fatal(err)
	}
	next := s.source("next")
	if pending, err := next.Pending(t.Context()); err != nil || pending != 499 {
		t.Fatalf("%d pending, %v", pending, err)
	}
	if found, err := next.Next(t.Context(), at(5, 500)); err != nil || len(found) != 0 {
		t.Errorf("Next brought %d, %v", len(found), err)
	}
	if pending, err := next.Pending(t.Context()); err != nil || pending != 0 {
		t.Errorf("%d pending, %v", pending, err)
	}
}
