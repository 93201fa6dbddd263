package faults

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A failover is one of Postgres to a standby, while two producers sell one SKU and orders are paid and given back.
type failover struct {
	name        string
	synchronous bool
	class       string
	whole       bool
	received    int64 // units that a document adds meanwhile
	mayLose     bool  // some holds may be reported lost, because neither store has them any more
	within      time.Duration

	// meanwhile happens while the standby hears nothing any more, before the three seconds of work that it lacks.
	meanwhile func(*shoptest.Shop, *shoptest.Traffic)
	// operator is what a person does where none of it comes back by itself.
	operator func(*shoptest.Shop)
	// after judges what came of it.
	after func(*shoptest.Shop)
}

var failovers = []failover{
	{name: "lacks 3 s of work", class: "ledger-behind", whole: true, within: shoptest.AutoOpen},
	{name: "lacks a takeover", class: "ahead", within: shoptest.AutoOpen, meanwhile: takeOver},
	{name: "lacks two takeovers", class: "ahead", whole: true, within: shoptest.AutoOpen, meanwhile: func(s *shoptest.Shop, load *shoptest.Traffic) {
		takeOver(s, load)
		load.More(50)
		takeOver(s, load)
	}},
	{name: "lacks a SKU and documents", class: "ledger-behind", within: shoptest.AutoOpen, received: documentUnits, meanwhile: writeDocuments, after: judgeDocuments},
	{name: "lacks a SKU, documents and a takeover", class: "ahead", whole: true, within: shoptest.AutoOpen, received: documentUnits, meanwhile: func(s *shoptest.Shop, load *shoptest.Traffic) {
		writeDocuments(s, load)
		takeOver(s, load)
	}, after: judgeDocuments},
	{name: "lacks a takeover, and Redis its log before that", class: "gap-lost", whole: true, mayLose: true, within: 2 * shoptest.Patience, meanwhile: flushAll, operator: giveUp},
	{name: "synchronous, lacks nothing", synchronous: true, within: shoptest.AutoOpen},
}

// TestPostgresFailsOverToAStandby promotes a standby and ends its primary.
func TestPostgresFailsOverToAStandby(t *testing.T) {
	for _, f := range failovers {
		if f.whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) { f.play(shoptest.Begin(t, "postgres fails over: "+f.name)) })
	}
}

func (f *failover) play(r *shoptest.Row) {
	t := r.T
	r.Class = f.class
	units := shoptest.Size[int64](20_000, 100_000)
	s := shoptest.Found(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Watched: true, Postgres: &sandbox.PostgresOptions{}})
	second := s.Standby(f.synchronous)
	s.StartAll()
	s.AwaitReady()
	s.Supply(units, "tea")
	load := s.Traffic(12, 60*time.Millisecond, false, "tea")
	load.More(100)
	load.AwaitPaid(r.Began)

	if !f.synchronous {
		caughtUp(s)
		second.Path.BlackHole(true)
		if f.meanwhile != nil {
			f.meanwhile(s, load)
		}
	}
	cut := time.Now()
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if lasted := time.Since(cut); lasted < 3*time.Second {
			return fmt.Errorf("work went on for %v", lasted)
		}
		return nil
	})
	load.AwaitPaid(cut)
	before := s.Epoch(0)
	had := shoptest.One[int64](s, `select count(*) from event`)

	hit := time.Now()
	s.Promote(second)
	lacking := f.judgePromoted(s, load, had)
	s.Reunite()
	if f.operator != nil {
		f.operator(s)
	}
	again := time.Now()
	paid := load.AwaitPaid(again)
	r.Opened(paid.Sub(hit))
	if took := paid.Sub(hit); took > f.within {
		t.Errorf("a confirm was persisted again after %v, at most %v is promised", took, f.within)
	}
	load.More(50)
	load.Stop()
	load.SellRest()
	s.Holds("tea", units+f.received)
	account := load.Judge(units+f.received, f.mayLose)
	if now := s.Epoch(0); f.class == "ahead" && now <= before {
		t.Errorf("the epoch is %d, it was %d before the failover", now, before)
	}
	// Within an epoch the consumers apply the tail again from the log, and nobody has to repair.
	if f.class != "" && f.class != "ledger-behind" && shoptest.One[int64](s, `select count(*) from repair where class = $1`, f.class) == 0 {
		t.Errorf("no repair is of class %s: %s", f.class, repairs(s))
	}
	if f.after != nil {
		f.after(s)
	}
	r.Note("a confirm persisted again %.1f s after the failover; %s; %s; repairs: %s", paid.Sub(hit).Seconds(), lacking, account, repairs(s))
	s.Finish()
}

// caughtUp waits until the standby has all that its primary has written up to now.
func caughtUp(s *shoptest.Shop) {
	s.T.Helper()
	lsn := shoptest.One[string](s, `select pg_current_wal_lsn()::text`)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if !shoptest.One[bool](s, `select coalesce(bool_or(replay_lsn >= $1::pg_lsn), false) from pg_stat_replication`, lsn) {
			return errors.New("the standby has not replayed " + lsn)
		}
		return nil
	})
}

// judgePromoted looks at the promoted standby before any role reaches it: what a confirm was told 200 for is in there
// if it is synchronous; if it is not, something is lacking, or the fault was none.
func (f *failover) judgePromoted(s *shoptest.Shop, load *shoptest.Traffic, had int64) string {
	s.T.Helper()
	_, states := s.Reservations("tea")
	paid, lacking := 0, 0
	for _, a := range load.Ended() {
		if a.State == "confirmed" && a.Status == http.StatusOK {
			paid++
			if states[a.Order] != "confirmed" {
				lacking++
			}
		}
	}
	has := shoptest.One[int64](s, `select count(*) from event`)
	switch {
	case f.synchronous && lacking > 0:
		s.T.Errorf("the synchronous standby lacks %d of %d orders whose confirm was told 200", lacking, paid)
	case f.synchronous && has < had:
		s.T.Errorf("the synchronous standby has %d events of %d", has, had)
	case !f.synchronous && (has >= had || lacking == 0):
		s.T.Errorf("the standby lacks %d events and %d paid orders: the fault was none", had-has, lacking)
	}
	return fmt.Sprintf("the standby lacked %d of %d events and %d of %d paid orders", max(had-has, 0), had, lacking, paid)
}

// flushAll empties Redis, so that the takeover begins a new log.
func flushAll(s *shoptest.Shop, load *shoptest.Traffic) {
	s.T.Helper()
	load.More(50) // persisted by the primary alone
	s.Drain()
	epoch := s.Epoch(0)
	shoptest.Need(s.T, s.RDB.FlushAll(s.T.Context()).Err())
	awaitSale(s, load, epoch)
}

// giveUp is the verb for a shard that is halted because entries of a closed epoch are neither in Postgres nor in the
// log: it goes on from where Postgres stands, and what lies beyond is reported lost.
func giveUp(s *shoptest.Shop) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		row, err := s.Ledger.Shard(s.T.Context(), 0)
		if err == nil && row.State != "halted" {
			err = fmt.Errorf("the shard is %s, repairs: %s", row.State, repairs(s))
		}
		return err
	})
	out, complaint, code := s.Command("takeover", "--shard", "0")
	if code != 0 {
		s.T.Errorf("takeover: exit %d: %s%s", code, out, complaint)
	}
	s.Row.Note("halted for the operator, whose takeover gave up what lay beyond")
}

// takeOver makes a takeover necessary, and waits until the shop sells under the next epoch.
func takeOver(s *shoptest.Shop, load *shoptest.Traffic) {
	s.T.Helper()
	epoch := s.Epoch(0)
	flushLibrary(s)
	awaitSale(s, load, epoch)
}

// writeDocuments makes a SKU and moves it and the other one by documents.
func writeDocuments(s *shoptest.Shop, _ *shoptest.Traffic) {
	s.T.Helper()
	s.Supply(100, "coffee")
	for _, document := range []struct {
		sku, id string
		units   int64
	}{{"coffee", "late-2", 11}, {"tea", "late-1", documentUnits}} {
		_, err := s.Patient(0).Receive(s.T.Context(), document.sku, &api.ReceiveRequest{DocumentID: document.id, Quantity: document.units})
		shoptest.Need(s.T, err)
	}
	_, err := s.Patient(0).Adjust(s.T.Context(), "coffee", &api.AdjustRequest{DocumentID: "late-3", Quantity: -4, Reason: "damaged"})
	shoptest.Need(s.T, err)
	a := s.Told(shoptest.Reserve(s.T.Context(), s.Client(0), "late-order", "coffee", 5, 3600), http.StatusCreated)
	s.Told(shoptest.Confirm(s.T.Context(), s.Client(0), a.Order), http.StatusOK)
	s.Drain()
}

// judgeDocuments wants them applied once, and answered from the table when they are sent again.
func judgeDocuments(s *shoptest.Shop) {
	s.T.Helper()
	s.Shelf("coffee", "102|0|5")
	again, err := s.Patient(0).Receive(s.T.Context(), "coffee", &api.ReceiveRequest{DocumentID: "late-2", Quantity: 11})
	if err != nil || again.State != "applied" || !again.Replayed {
		s.T.Errorf("a document sent again is told %+v, %v", again, err)
	}
	if _, err := s.Patient(0).Receive(s.T.Context(), "coffee", &api.ReceiveRequest{DocumentID: "late-2", Quantity: 12}); err == nil {
		s.T.Error("other content under the id of a document was taken")
	}
	if state := s.State("late-order"); state != "confirmed" {
		s.T.Errorf("the order for the SKU that the standby lacked is %q", state)
	}
	s.Drain()
	s.Shelf("coffee", "102|0|5")
	if n := shoptest.One[int64](s, `select count(*) from stock_document where id like 'late-%' and state = 'applied'`); n != 3 {
		s.T.Errorf("%d of 3 documents are applied", n)
	}
}
