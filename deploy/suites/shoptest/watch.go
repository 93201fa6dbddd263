package shoptest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Owns waits until a consumer has so many shards, and says how long that took.
func (s *Shop) Owns(r *Role, shards int) time.Duration {
	s.T.Helper()
	began := time.Now()
	sandboxtest.Eventually(s.T, Patience, func() error {
		assigned, err := s.Ledger.Assignments(s.T.Context())
		if err != nil {
			return err
		}
		has := 0
		for _, a := range assigned {
			if a.Consumer == r.Name {
				has++
			}
		}
		if has != shards {
			return fmt.Errorf("%s has %d shards of %d: %+v", r.Name, has, shards, assigned)
		}
		return nil
	})
	return time.Since(began)
}

// State is where an order stands in Postgres.
func (s *Shop) State(order string) string {
	s.T.Helper()
	return One[string](s, `select coalesce((select state from reservation where order_id = $1 order by attempt desc limit 1), '')`, order)
}

// DeafPath leads one connection to a producer and cuts it instead of passing the reply on, which it tells.
func (s *Shop) DeafPath(producer string) (address string, swallowed <-chan string) {
	s.T.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Need(s.T, err)
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
	s.T.Cleanup(func() {
		listener.Close()
		wait.Wait()
	})
	return listener.Addr().String(), lost
}

// Settles matches calls of the library that are about an order.
func Settles(order string) faultproxy.Match {
	return func(request []byte) bool {
		return faultproxy.Contains("fcall")(request) && bytes.Contains(request, []byte(order))
	}
}

// EventuallyInRedis waits until an order of shard 0 stands so in Redis.
func (s *Shop) EventuallyInRedis(order, state string) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, Patience, func() error {
		found, there, err := s.Shard(0).Record(s.T.Context(), order)
		if err == nil && (!there || string(found.State) != state) {
			err = fmt.Errorf("order %s is %q in Redis", order, found.State)
		}
		return err
	})
}

// Owner is the consumer that follows a shard, nil for none.
func (s *Shop) Owner(shard int) *Role {
	s.T.Helper()
	assigned, err := s.Ledger.Assignments(s.T.Context())
	Need(s.T, err)
	for _, a := range assigned {
		for _, r := range s.Living(Consumer) {
			if a.Shard == shard && a.Consumer == r.Name {
				return r
			}
		}
	}
	return nil
}

// TakeOver stops the reconcilers and takes shard 0 over as an operator would.
func (s *Shop) TakeOver() (stdout, stderr string, code int) {
	s.T.Helper()
	for _, r := range s.Living(Reconciler) {
		r.Stop()
	}
	return s.Command("takeover", "--shard", "0")
}

// Events counts the entries of one kind about an order.
func (s *Shop) Events(order, kind string) int64 {
	s.T.Helper()
	return One[int64](s, `select count(*) from event where id = $1 and starts_with(body, $2)`, order, kind)
}
