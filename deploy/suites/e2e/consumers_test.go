package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestADeadAndThenAStoppedConsumerAreReplacedWithinFiveSeconds: 4 shards, 2 consumers, under load.
func TestADeadAndThenAStoppedConsumerAreReplacedWithinFiveSeconds(t *testing.T) {
	r := begin(t, "consumers: killed, then stopped")
	s := open(r, plan{shards: 4, producers: 2, consumers: 2, reconcilers: 1})
	skus := names("tea", 24)
	s.supply(1_000_000, skus...)
	for n := range 4 {
		if one[int64](s, `select count(*) from sku where shard = $1`, n) == 0 {
			t.Fatalf("no SKU lives in shard %d", n)
		}
	}
	load := s.traffic(size(8, 24), 3*time.Millisecond, false, skus...)
	consumers := s.living(consumer)
	s.owns(consumers[0], 2)
	s.owns(consumers[1], 2)

	consumers[0].kill()
	dead := s.owns(consumers[1], 4)
	fresh := s.start(consumer)
	s.owns(fresh, 2)
	consumers[1].pause()
	stopped := s.owns(fresh, 4)
	before := load.reserved.Load()
	sandboxtest.Eventually(t, patience, func() error {
		if load.reserved.Load() < before+size[int64](100, 5_000) {
			return errors.New("too little load while one stands still")
		}
		return nil
	})
	load.stop()
	s.drain() // with the stopped one still stopped
	consumers[1].resume()
	s.owns(consumers[1], 2) // it takes part again
	ops := s.logIsLedger()
	for what, took := range map[string]time.Duration{"killed": dead, "stopped": stopped} {
		if took > 5*time.Second {
			t.Errorf("the consumer that was %s was replaced after %v", what, took)
		}
	}
	accepted := counts(load.answers())[http.StatusCreated]
	r.note("killed: the other owned all 4 shards after %.1f s; stopped: after %.1f s", dead.Seconds(), stopped.Seconds())
	r.note("%d orders accepted meanwhile, %d operations in log and ledger alike, each once", accepted, ops)
	s.finish()
}

// owns waits until a consumer has so many shards, and says how long that took.
func (s *shop) owns(r *role, shards int) time.Duration {
	s.t.Helper()
	began := time.Now()
	sandboxtest.Eventually(s.t, patience, func() error {
		assigned, err := s.ledger.Assignments(s.t.Context())
		if err != nil {
			return err
		}
		has := 0
		for _, a := range assigned {
			if a.Consumer == r.name {
				has++
			}
		}
		if has != shards {
			return fmt.Errorf("%s has %d shards of %d: %+v", r.name, has, shards, assigned)
		}
		return nil
	})
	return time.Since(began)
}

// TestAConfirmIsAnswered202WhileNobodyPersistsAnd200Later.
func TestAConfirmIsAnswered202WhileNobodyPersistsAnd200Later(t *testing.T) {
	r := begin(t, "consumers: none, confirm 202 then 200")
	s := open(r, plan{producers: 1, consumers: 2, reconcilers: 1})
	s.supply(10, "tea")
	s.told(reserve(t.Context(), s.client(0), "o1", "tea", 1, 600), http.StatusCreated)
	s.drain()
	for _, c := range s.living(consumer) {
		c.stop()
	}
	if n := len(s.living(consumer)); n != 0 {
		t.Fatalf("%d consumers live", n)
	}
	first := s.told(confirm(t.Context(), s.client(0), "o1"), http.StatusAccepted)
	if first.reservation.Receipt == "" || first.reservation.IsPersisted() || s.state("o1") != "held" {
		t.Errorf("the confirm is %s in Postgres and was answered %s", s.state("o1"), first.String())
	}
	order, err := s.client(0).Order(t.Context(), "o1", first.reservation.Receipt)
	need(t, err)
	if order.Standing != api.StandingAccepted {
		t.Errorf("the receipt stands as %s", order.Standing)
	}
	s.start(consumer)
	again := s.told(s.confirmUntil(200, "o1"), http.StatusOK)
	if s.state("o1") != "confirmed" || again.reservation.Receipt != first.reservation.Receipt {
		t.Errorf("200 came while the order was %s: %s", s.state("o1"), again.String())
	}
	r.note("202 with receipt %s after %.1f s while no consumer lived; the same receipt with 200 once one was back", first.reservation.Receipt, first.ended.Sub(first.began).Seconds())
	s.finish()
}

// state is where an order stands in Postgres.
func (s *shop) state(order string) string {
	s.t.Helper()
	return one[string](s, `select coalesce((select state from reservation where order_id = $1 order by attempt desc limit 1), '')`, order)
}

// confirmUntil confirms again while the answer is 202 (or none), and checks at the moment of a 200 that this very
// confirm is in Postgres.
func (s *shop) confirmUntil(status int, order string) answer {
	s.t.Helper()
	var last answer
	sandboxtest.Eventually(s.t, patience, func() error {
		last = confirm(s.t.Context(), s.client(0), order)
		if last.status == http.StatusOK && s.state(order) != "confirmed" {
			s.t.Errorf("200 to the confirm of %s, which is %s in Postgres", order, s.state(order))
		}
		if last.status != status {
			return errors.New(last.String())
		}
		return nil
	})
	return last
}

// TestALostReplyToAConfirmIsAnswered200OnlyOncePersisted loses the reply on both ways: between shop and producer,
// and between producer and Redis, while the consumer stands still.
func TestALostReplyToAConfirmIsAnswered200OnlyOncePersisted(t *testing.T) {
	r := begin(t, "confirm whose reply was lost")
	s := open(r, plan{producers: 1, consumers: 1, reconcilers: 1, proxied: true})
	s.supply(10, "tea")
	for _, order := range []string{"client", "redis"} {
		s.told(reserve(t.Context(), s.client(0), order, "tea", 1, 600), http.StatusCreated)
	}
	s.drain()
	worker := s.living(consumer)[0]
	worker.pause()

	// The shop's connection is cut when the reply has come as far as the path between.
	address, swallowed := s.deafPath(strings.TrimPrefix(s.client(0).Base, "http://"))
	if a := confirm(t.Context(), &api.Client{Base: "http://" + address, HTTP: s.http, Tries: 1}, "client"); a.status != 0 || a.err == nil {
		t.Errorf("the reply was to be lost: %s", a.String())
	}
	if reply := <-swallowed; !strings.HasPrefix(reply, "HTTP/1.1 202") {
		t.Errorf("the reply that was lost is %.80q", reply)
	}

	// The reply of the library to the producer is swallowed.
	fault := s.path.SwallowReply(settles("redis"))
	begun := s.told(confirm(t.Context(), s.client(0), "redis"), http.StatusAccepted)
	select {
	case <-fault.Done():
	default:
		t.Error("no reply of Redis was swallowed")
	}
	for _, order := range []string{"client", "redis"} {
		s.eventuallyInRedis(order, "confirmed")
		if a := s.told(confirm(t.Context(), s.client(0), order), http.StatusAccepted); a.reservation.IsPersisted() || s.state(order) != "held" {
			t.Errorf("the order is %s in Postgres: %s", s.state(order), a.String())
		}
	}
	worker.resume()
	for _, order := range []string{"client", "redis"} {
		s.confirmUntil(http.StatusOK, order)
		if n := one[int64](s, `select count(*) from event where id = $1 and body like 'C%'`, order); n != 1 {
			t.Errorf("%s was confirmed %d times", order, n)
		}
	}
	s.shelf("tea", "8|0|2")
	r.note("2 replies lost (1 cut on its way to the shop, %d swallowed on its way from Redis: answered after %.1f s); 202 while the consumer stood still, 200 only with the row there; each confirmed once",
		s.path.Fired(), begun.ended.Sub(begun.began).Seconds())
	s.finish()
}

// deafPath leads one connection to a producer and cuts it instead of passing the reply on, which it tells.
func (s *shop) deafPath(producer string) (address string, swallowed <-chan string) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need(s.t, err)
	lost := make(chan string, 1)
	var wait sync.WaitGroup
	wait.Go(func() {
		defer close(lost)
		shop, err := listener.Accept()
		if err != nil {
			return
		}
		defer shop.Close()
		server, err := net.Dial("tcp", producer)
		if err != nil {
			return
		}
		defer server.Close()
		wait.Go(func() { _, _ = io.Copy(server, shop) })
		reply := make([]byte, 4096)
		if n, err := server.Read(reply); err == nil {
			lost <- string(reply[:n])
		}
	})
	s.t.Cleanup(func() {
		listener.Close()
		wait.Wait()
	})
	return listener.Addr().String(), lost
}

// settles matches calls of the library that are about an order.
func settles(order string) faultproxy.Match {
	return func(request []byte) bool {
		return faultproxy.Contains("fcall")(request) && bytes.Contains(request, []byte(order))
	}
}

// eventuallyInRedis waits until an order of shard 0 stands so in Redis.
func (s *shop) eventuallyInRedis(order, state string) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, patience, func() error {
		found, there, err := s.shard(0).Record(s.t.Context(), order)
		if err == nil && (!there || string(found.State) != state) {
			err = fmt.Errorf("order %s is %q in Redis", order, found.State)
		}
		return err
	})
}

// TestADocumentSentAgainAfterItsRetentionMovesNothing lets a takeover drop the record of a document as its age would.
func TestADocumentSentAgainAfterItsRetentionMovesNothing(t *testing.T) {
	r := begin(t, "document sent again after retention")
	s := open(r, plan{producers: 1, consumers: 1, reconcilers: 1})
	s.supply(10, "tea")
	receive := func() (api.Document, error) {
		return s.patient(0).Receive(t.Context(), "tea", &api.ReceiveRequest{DocumentID: "delivery-1", Quantity: 5})
	}
	first, err := receive()
	need(t, err)
	s.drain()
	s.shelf("tea", "15|0|0")
	s.exec(`update stock_document set written = written - interval '3 days', settled = settled - interval '3 days'`)
	orders := redisstock.NewKeys(prefix, 0).Orders
	if !s.rdb.HExists(t.Context(), orders, "~delivery-1").Val() {
		t.Error("Redis had no record of the document before its retention ended")
	}
	for _, one := range s.living(reconciler) {
		one.stop()
	}
	if out, complaint, code := s.command("takeover", "--shard", "0"); code != 0 {
		t.Fatalf("takeover: exit %d: %s%s", code, out, complaint)
	}
	if s.rdb.HExists(t.Context(), orders, "~delivery-1").Val() {
		t.Error("the takeover kept the record of a document beyond its retention")
	}
	s.start(reconciler)
	s.awaitReady()
	before := one[int64](s, `select count(*) from event`)
	again, err := receive()
	need(t, err)
	if again.State != "applied" || !again.Replayed || again.Receipt != first.Receipt {
		t.Errorf("first %+v, after retention %+v", first, again)
	}
	s.drain()
	if after := one[int64](s, `select count(*) from event`); after != before {
		t.Errorf("the repeat wrote %d entries", after-before)
	}
	s.shelf("tea", "15|0|0")
	r.note("record dropped by a takeover; the repeat answered the original receipt %s and moved nothing (tea %s)", again.Receipt, s.inRedis("tea"))
	s.finish()
}
