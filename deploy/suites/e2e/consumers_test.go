package e2e

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestADeadAndThenAStoppedConsumerAreReplacedWithinFiveSeconds: 4 shards, 2 consumers, under load.
func TestADeadAndThenAStoppedConsumerAreReplacedWithinFiveSeconds(t *testing.T) {
	r := shoptest.Begin(t, "consumers: killed, then stopped")
	s := shoptest.Open(r, shoptest.Plan{Shards: 4, Producers: 2, Consumers: 2, Reconcilers: 1})
	skus := shoptest.Names("tea", 24)
	s.Supply(1_000_000, skus...)
	for n := range 4 {
		if shoptest.One[int64](s, `select count(*) from sku where shard = $1`, n) == 0 {
			t.Fatalf("no SKU lives in shard %d", n)
		}
	}
	load := s.Traffic(shoptest.Size(8, 24), 3*time.Millisecond, false, skus...)
	consumers := s.Living(shoptest.Consumer)
	s.Owns(consumers[0], 2)
	s.Owns(consumers[1], 2)

	consumers[0].Kill()
	dead := s.Owns(consumers[1], 4)
	fresh := s.Start(shoptest.Consumer)
	s.Owns(fresh, 2)
	consumers[1].Pause()
	stopped := s.Owns(fresh, 4)
	before := load.Reserved.Load()
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if load.Reserved.Load() < before+shoptest.Size[int64](100, 5_000) {
			return errors.New("too little load while one stands still")
		}
		return nil
	})
	load.Stop()
	s.Drain() // with the stopped one still stopped
	consumers[1].Resume()
	s.Owns(consumers[1], 2) // it takes part again
	ops := s.LogIsLedger()
	for what, took := range map[string]time.Duration{"killed": dead, "stopped": stopped} {
		if took > 5*time.Second {
			t.Errorf("the consumer that was %s was replaced after %v", what, took)
		}
	}
	accepted := shoptest.Counts(load.Answers())[http.StatusCreated]
	r.Note("killed: the other owned all 4 shards after %.1f s; stopped: after %.1f s", dead.Seconds(), stopped.Seconds())
	r.Note("%d orders accepted meanwhile, %d operations in log and ledger alike, each once", accepted, ops)
	s.Finish()
}

// TestAConfirmIsAnswered202WhileNobodyPersistsAnd200Later.
func TestAConfirmIsAnswered202WhileNobodyPersistsAnd200Later(t *testing.T) {
	r := shoptest.Begin(t, "consumers: none, confirm 202 then 200")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 2, Reconcilers: 1})
	s.Supply(10, "tea")
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "o1", "tea", 1, 600), http.StatusCreated)
	s.Drain()
	for _, c := range s.Living(shoptest.Consumer) {
		c.Stop()
	}
	if n := len(s.Living(shoptest.Consumer)); n != 0 {
		t.Fatalf("%d consumers live", n)
	}
	first := s.Told(shoptest.Confirm(t.Context(), s.Client(0), "o1"), http.StatusAccepted)
	if first.Reservation.Receipt == "" || first.Reservation.IsPersisted() || s.State("o1") != "held" {
		t.Errorf("the confirm is %s in Postgres and was answered %s", s.State("o1"), first.String())
	}
	order, err := s.Client(0).Order(t.Context(), "o1", first.Reservation.Receipt)
	shoptest.Need(t, err)
	if order.Standing != api.StandingAccepted {
		t.Errorf("the receipt stands as %s", order.Standing)
	}
	s.Start(shoptest.Consumer)
	again := s.Told(confirmUntil(s, 200, "o1"), http.StatusOK)
	if s.State("o1") != "confirmed" || again.Reservation.Receipt != first.Reservation.Receipt {
		t.Errorf("200 came while the order was %s: %s", s.State("o1"), again.String())
	}
	r.Note("202 with receipt %s after %.1f s while no consumer lived; the same receipt with 200 once one was back", first.Reservation.Receipt, first.Ended.Sub(first.Began).Seconds())
	s.Finish()
}

// confirmUntil confirms again while the answer is 202 (or none), and checks at the moment of a 200 that this very
// confirm is in Postgres.
func confirmUntil(s *shoptest.Shop, status int, order string) shoptest.Answer {
	s.T.Helper()
	var last shoptest.Answer
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		last = shoptest.Confirm(s.T.Context(), s.Client(0), order)
		if last.Status == http.StatusOK && s.State(order) != "confirmed" {
			s.T.Errorf("200 to the confirm of %s, which is %s in Postgres", order, s.State(order))
		}
		if last.Status != status {
			return errors.New(last.String())
		}
		return nil
	})
	return last
}

// TestALostReplyToAConfirmIsAnswered200OnlyOncePersisted loses the reply on both ways: between shop and producer,
// and between producer and Redis, while the consumer stands still.
func TestALostReplyToAConfirmIsAnswered200OnlyOncePersisted(t *testing.T) {
	r := shoptest.Begin(t, "confirm whose reply was lost")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, Proxied: true})
	s.Supply(10, "tea")
	for _, order := range []string{"client", "redis"} {
		s.Told(shoptest.Reserve(t.Context(), s.Client(0), order, "tea", 1, 600), http.StatusCreated)
	}
	s.Drain()
	worker := s.Living(shoptest.Consumer)[0]
	worker.Pause()

	// The shop's connection is cut when the reply has come as far as the path between.
	address, swallowed := s.DeafPath(strings.TrimPrefix(s.Client(0).Base, "http://"))
	if a := shoptest.Confirm(t.Context(), &api.Client{Base: "http://" + address, HTTP: s.HTTP, Tries: 1}, "client"); a.Status != 0 || a.Err == nil {
		t.Errorf("the reply was to be lost: %s", a.String())
	}
	if reply := <-swallowed; !strings.HasPrefix(reply, "HTTP/1.1 202") {
		t.Errorf("the reply that was lost is %.80q", reply)
	}

	// The reply of the library to the producer is swallowed.
	fault := s.Path.SwallowReply(shoptest.Settles("redis"))
	begun := s.Told(shoptest.Confirm(t.Context(), s.Client(0), "redis"), http.StatusAccepted)
	select {
	case <-fault.Done():
	default:
		t.Error("no reply of Redis was swallowed")
	}
	for _, order := range []string{"client", "redis"} {
		s.EventuallyInRedis(order, "confirmed")
		if a := s.Told(shoptest.Confirm(t.Context(), s.Client(0), order), http.StatusAccepted); a.Reservation.IsPersisted() || s.State(order) != "held" {
			t.Errorf("the order is %s in Postgres: %s", s.State(order), a.String())
		}
	}
	worker.Resume()
	for _, order := range []string{"client", "redis"} {
		confirmUntil(s, http.StatusOK, order)
		if n := shoptest.One[int64](s, `select count(*) from event where id = $1 and body like 'C%'`, order); n != 1 {
			t.Errorf("%s was confirmed %d times", order, n)
		}
	}
	s.Shelf("tea", "8|0|2")
	r.Note("2 replies lost (1 cut on its way to the shop, %d swallowed on its way from Redis: answered after %.1f s); 202 while the consumer stood still, 200 only with the row there; each confirmed once",
		s.Path.Fired(), begun.Ended.Sub(begun.Began).Seconds())
	s.Finish()
}

// TestADocumentSentAgainAfterItsRetentionMovesNothing lets a takeover drop the record of a document as its age would.
func TestADocumentSentAgainAfterItsRetentionMovesNothing(t *testing.T) {
	r := shoptest.Begin(t, "document sent again after retention")
	s := shoptest.Open(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1})
	s.Supply(10, "tea")
	receive := func() (api.Document, error) {
		return s.Patient(0).Receive(t.Context(), "tea", &api.ReceiveRequest{DocumentID: "delivery-1", Quantity: 5})
	}
	first, err := receive()
	shoptest.Need(t, err)
	s.Drain()
	s.Shelf("tea", "15|0|0")
	s.Exec(`update stock_document set written = written - interval '3 days', settled = settled - interval '3 days'`)
	orders := redisstock.NewKeys(shoptest.Prefix, 0).Orders
	if !s.RDB.HExists(t.Context(), orders, "~delivery-1").Val() {
		t.Error("Redis had no record of the document before its retention ended")
	}
	for _, one := range s.Living(shoptest.Reconciler) {
		one.Stop()
	}
	if out, complaint, code := s.Command("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("takeover: exit %d: %s%s", code, out, complaint)
	}
	if s.RDB.HExists(t.Context(), orders, "~delivery-1").Val() {
		t.Error("the takeover kept the record of a document beyond its retention")
	}
	s.Start(shoptest.Reconciler)
	s.AwaitReady()
	before := shoptest.One[int64](s, `select count(*) from event`)
	again, err := receive()
	shoptest.Need(t, err)
	if again.State != "applied" || !again.Replayed || again.Receipt != first.Receipt {
		t.Errorf("first %+v, after retention %+v", first, again)
	}
	s.Drain()
	if after := shoptest.One[int64](s, `select count(*) from event`); after != before {
		t.Errorf("the repeat wrote %d entries", after-before)
	}
	s.Shelf("tea", "15|0|0")
	r.Note("record dropped by a takeover; the repeat answered the original receipt %s and moved nothing (tea %s)", again.Receipt, s.InRedis("tea"))
	s.Finish()
}
