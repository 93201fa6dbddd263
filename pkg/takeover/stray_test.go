package takeover_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// A deaf producer knows one epoch and hears of no other.
type deaf struct{ epoch stock.Epoch }

func (d deaf) Epoch(int) stock.Epoch { return d.epoch }
func (d deaf) Doubt(int, string)     {}

// isolated sells on a server that the shop has left, under the epoch that it had there.
func (s *shop) isolated(server *sandbox.Redis, epoch stock.Epoch, ids ...string) (receipts []stock.Receipt) {
	s.t.Helper()
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL(), Name: "test"})
	s.must(err)
	defer rdb.Close()
	desk := redisstock.NewDesk(rdb, "sp", deaf{epoch})
	defer desk.Close()
	for _, id := range ids {
		out, err := desk.Do(ctx, 0, s.order(id, 1))
		s.must(err)
		if out.Code != stock.Accepted {
			s.t.Fatalf("%s: %+v", id, out)
		}
		receipts = append(receipts, out.Receipt)
	}
	return receipts
}

// orphans are the receipts' positions that the ledger has recorded.
func (s *shop) orphans() []string {
	s.t.Helper()
	conn, err := pgx.Connect(ctx, s.url)
	s.must(err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `select raw ->> 'id' from orphan where shard = 0 order by epoch, seq`)
	s.must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	return ids
}

// A counting Redis counts reads of the log.
type counting struct {
	*redisstock.Opener
	reads int
}

func (c *counting) Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error) {
	c.reads++
	return c.Opener.Range(ctx, after, count)
}

func (s *shop) counted(o takeover.Options) (takeover.Report, int) {
	s.t.Helper()
	c := &counting{Opener: s.opener}
	r, err := takeover.Run(ctx, c, s.seals, o)
	s.must(err)
	return r, c.reads
}

func TestWhatAnIsolatedMasterSoldIsRecordedWhenItComesBack(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	old, away := s.server, sandboxtest.Redis(t)
	var want []string
	for round := range 3 {
		s.consume()
		before := s.Epoch(0)
		s.use(away)
		s.takeover(takeover.Options{})
		lost := s.isolated(old, before, names(fmt.Sprint("isolated-", round), 2*round+1)...)
		s.reserve(fmt.Sprint("meanwhile-", round), 1)
		s.consume()
		if got := s.orphans(); !slices.Equal(want, got) {
			t.Errorf("before it came back: %v", got)
		}
		s.use(old)
		r, _ := s.counted(takeover.Options{Page: 2})
		for _, receipt := range lost {
			want = append(want, receipt.Position.String())
			if got := s.standing(receipt); got != stock.StandingLost {
				t.Errorf("%s is %s", receipt, got)
			}
		}
		if got := s.orphans(); r.Strays != len(lost) || r.GivenUp != 0 || !slices.Equal(want, got) {
			t.Errorf("round %d: %+v\nwant %v\ngot  %v", round, r, want, got)
		}
	}
	// All is accounted for: the next one reads each epoch of the log once, and records nothing.
	r, reads := s.counted(takeover.Options{Page: 2})
	if r.Strays != 0 || reads > 8 {
		t.Errorf("%d reads, %+v", reads, r)
	}
	s.sells("after")
}

func TestStraysOfAnAttemptThatDiedBeforeItRecordedThemAreFound(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	gone := s.reserve("gone", 1)
	beyond := s.reserve("beyond", 1)
	s.must(s.rdb.XDel(ctx, s.shard.Keys().Log, gone.Position.String()).Err())
	s.takeover(takeover.Options{Operator: true, GiveUp: true})
	if got := s.orphans(); !slices.Equal([]string{beyond.Position.String()}, got) {
		t.Fatalf("%v", got)
	}
	s.sql(`delete from orphan`)
	s.takeover(takeover.Options{})
	if got := s.orphans(); !slices.Equal([]string{beyond.Position.String()}, got) {
		t.Errorf("%v", got)
	}
	s.sells("after")
}

func TestATrimmedLogIsNotSearchedForStrays(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	for range 5 {
		s.takeover(takeover.Options{})
	}
	s.consume()
	_, all := s.counted(takeover.Options{})
	s.consume()
	s.must(s.rdb.XTrimMinID(ctx, s.shard.Keys().Log, fmt.Sprintf("%d-1", s.Epoch(0).Epoch)).Err())
	r, trimmed := s.counted(takeover.Options{})
	// The drain reads what the ledger lacks, and looks once more behind it.
	if trimmed > 2 || all > trimmed+8 {
		t.Errorf("%d reads of a log with 7 epochs, %d of a trimmed one: %+v", all, trimmed, r)
	}
}

// TestStraysAreRecordedInBoundedPortions leaves more of them in the log than one attempt records.
func TestStraysAreRecordedInBoundedPortions(t *testing.T) {
	t.Parallel()
	const most, more = 10_000, 500
	s := newShop(t).stocked()
	before := s.Epoch(0)
	s.takeover(takeover.Options{})
	s.consume()
	log := s.shard.Keys().Log
	kept, err := s.rdb.XRange(ctx, log, "-", "+").Result()
	s.must(err)
	s.must(s.rdb.Del(ctx, log).Err())
	pipe := s.rdb.Pipeline()
	for i := range most + more {
		pipe.Do(ctx, "XADD", log, fmt.Sprintf("%d-%d", before.Epoch, before.Applied+1+int64(i)), "v", "1")
	}
	pipe.Do(ctx, "XADD", log, kept[len(kept)-1].ID, "v", "1")
	_, err = pipe.Exec(ctx)
	s.must(err)
	for _, want := range []int{most, more, 0} {
		if r := s.takeover(takeover.Options{}); r.Strays != want {
			t.Errorf("%d recorded, want %d", r.Strays, want)
		}
		s.consume()
	}
}
