package repair

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (s *shop) sql(text string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.url)
	check(s.t, err)
	defer conn.Close(s.t.Context())
	_, err = conn.Exec(s.t.Context(), text, args...)
	check(s.t, err)
}

// sold makes orders that are confirmed, and persists them.
func (s *shop) sold(sku int64, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		out, err := s.ward.Desk.Do(s.t.Context(), 0, stock.Operation{Kind: stock.Sale, ID: id, Attempt: 1, Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}})
		if err != nil || out.Code != stock.Accepted {
			s.t.Fatalf("%s: %v, %v", id, out, err)
		}
	}
	s.persisted()
}

func (s *shop) persisted() {
	s.t.Helper()
	_, err := s.ward.replay(s.t.Context())
	check(s.t, err)
}

// older makes orders as old as if they had moved that much earlier.
func (s *shop) older(by time.Duration, ids ...string) {
	s.t.Helper()
	s.sql(`update reservation set moved = moved - $1 * interval '1 s' where order_id = any($2)`, by.Seconds(), ids)
}

func (s *shop) recorded(id string) bool {
	s.t.Helper()
	there, err := s.rdb.HExists(s.t.Context(), s.shard.Keys().Orders, id).Result()
	check(s.t, err)
	return there
}

func (s *shop) swept() audit.Report {
	s.t.Helper()
	r, err := s.ward.audit(s.t.Context(), audit.Sweep, audit.Options{})
	check(s.t, err)
	if !r.Clean() {
		s.t.Errorf("%v", r.Drifts)
	}
	return r
}

func TestOnlyWhatIsOlderThanTheRetentionIsForgotten(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	tea := s.sku("tea")
	s.sold(tea, "old", "new", "moving", "again")
	hold := stock.Operation{Kind: stock.Reserve, ID: "held", Attempt: 1, TTL: stock.MaxTTLMillis, Lines: stock.Lines{{SKU: tea, Asked: 1, Now: 1}}}
	for _, op := range []stock.Operation{hold, {Kind: stock.Release, ID: "gone", Attempt: 1}} {
		if op.Kind == stock.Release {
			take := hold
			take.ID = op.ID
			if out, err := s.ward.Desk.Do(t.Context(), 0, take); err != nil || out.Code != stock.Accepted {
				t.Fatal(out, err)
			}
		}
		if out, err := s.ward.Desk.Do(t.Context(), 0, op); err != nil || out.Code != stock.Accepted {
			t.Fatal(out, err)
		}
	}
	s.persisted()
	s.older(48*time.Hour, "old", "held", "gone", "moving")
	s.sql(`update stock_document set settled = settled - interval '48 h'`)
	// What Redis has moved on meanwhile is at another position, and stays.
	s.sql(`update reservation set seq = seq - 1 where order_id = 'moving'`)
	did, err := s.ward.forget(t.Context(), math.MaxInt)
	check(t, err)
	if did != (Forgotten{Dropped: 3, Listed: 4}) {
		t.Errorf("%+v", did)
	}
	for id, want := range map[string]bool{"old": false, "gone": false, "~~open:" + fmt.Sprint(tea): false, "new": true, "held": true, "moving": true, "again": true} {
		if s.recorded(id) != want {
			t.Errorf("%s: recorded is %v", id, !want)
		}
	}
	s.sql(`update reservation set seq = seq + 1, moved = now() where order_id = 'moving'`)
	if r := s.swept(); r.Orders == 0 {
		t.Errorf("%+v", r)
	}
	if did, err := s.ward.forget(t.Context(), math.MaxInt); err != nil || did.Listed != 0 {
		t.Errorf("the cursor was not kept: %+v, %v", did, err)
	}
	// The order may begin anew, and the ledger knows both lives of it.
	s.sold(tea, "old")
	s.swept()
}

func TestForgettingGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.sql(`insert into reservation (shard, order_id, attempt, asked, state, epoch, seq, idx, moved)
		select 0, 'o' || n, 1, 1, 'released', 1, n, 0, now() - interval '3 days' + n * interval '1 ms' from generate_series(1, $1) n`, forgetPage+10)
	limited, err := s.ward.forget(t.Context(), 1)
	check(t, err)
	if !limited.More || limited.Listed != forgetPage {
		t.Errorf("%+v", limited)
	}
	age, known := s.ward.backlog()
	if !known || age < 47*time.Hour || age > 49*time.Hour {
		t.Errorf("%v behind", age)
	}
	// A call that is refused leaves the cursor where it was.
	s.ward.forgetter = refusing{}
	if _, err := s.ward.forget(t.Context(), math.MaxInt); !errors.Is(err, errRefused) {
		t.Error(err)
	}
	s.ward.forgetter = s.shard
	rest, err := s.ward.forget(t.Context(), math.MaxInt)
	check(t, err)
	if rest.More || rest.Listed != 10 {
		t.Errorf("%+v", rest)
	}
	if age, _ := s.ward.backlog(); age > time.Minute {
		t.Errorf("%v behind", age)
	}
	s.sql(`delete from reservation where epoch = 1`)
}

var errRefused = errors.New("refused")

type refusing struct{}

func (refusing) Forget(context.Context, stock.Epoch, []stock.Ending) (int, error) {
	return 0, errRefused
}

// A document waits for its order's record, and a later one of an order whose record may be gone counts on none.
func TestDocumentsOfOrdersAreTrueWhetherTheirRecordIsForgottenOrNot(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	tea := s.sku("tea")
	s.sold(tea, "a", "b", "c")
	write := func(id, kind, order string) ledger.Document {
		t.Helper()
		now, err := s.rdb.Time(t.Context()).Result()
		check(t, err)
		doc, _, err := s.ledger.WriteDocument(t.Context(), ledger.NewDocument{ID: id, Kind: kind, Reason: "test",
			Order: ledger.DocumentOrder{ID: order}, DeadlineMillis: s.ledger.Deadline(now.UnixMilli())})
		check(t, err)
		return doc
	}
	move := func(doc ledger.Document) {
		t.Helper()
		if out, err := s.ward.Desk.Do(t.Context(), 0, doc.Operation()); err != nil || out.Code != stock.Accepted {
			t.Fatal(out, err)
		}
	}
	forget := func() {
		t.Helper()
		_, err := s.ward.forget(t.Context(), math.MaxInt)
		check(t, err)
	}
	waits := write("d1", stock.DocumentCancel, "a")
	s.older(48*time.Hour, "a", "b", "c")
	forget()
	if !s.recorded("a") || s.recorded("b") {
		t.Fatalf("a is recorded: %v, b: %v", s.recorded("a"), s.recorded("b"))
	}
	s.swept()
	move(waits)
	s.swept()
	move(write("d2", stock.DocumentFulfil, "b"))
	s.swept()
	s.persisted()
	s.swept()
	forget()
	if !s.recorded("a") {
		t.Error("the record of a cancelled order was dropped at once")
	}
	s.swept()
	// And through a takeover.
	s.flushSettled()
	check(t, s.ward.look(t.Context()))
	s.swept()
	move(write("d3", stock.DocumentCancel, "c"))
	s.swept()
	s.persisted()
	s.swept()
}
