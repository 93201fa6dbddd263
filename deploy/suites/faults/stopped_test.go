package faults

import (
	"errors"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// endedHolder is how long a session may stand still inside a transaction before it is ended.
const endedHolder = 5 * time.Second

// TestConsumerStoppedInsideItsTransaction stops the consumer that has the shard's row locked. Its session is ended, and
// another one goes on; the one that was stopped finds its transaction gone.
func TestConsumerStoppedInsideItsTransaction(t *testing.T) {
	r := shoptest.Begin(t, "consumer stopped inside its transaction")
	s, load, units, epoch := openBooks(r)
	slowest := time.Duration(0)
	for range shoptest.Size(1, 3) {
		stopped := awaitOwner(s, nil)
		stopped.Arm(failpoint.LedgerInside, shoptest.Stop)
		stopped.AwaitFailure(failpoint.LedgerInside)
		hit := time.Now()
		wantLocked(s)
		next, reached := goesOn(s, hit)
		slowest = max(slowest, reached)
		if next == stopped {
			t.Errorf("%s has the shard: it stands still", next.Name)
		}
		if limit := endedHolder + takenOver; reached > limit {
			t.Errorf("Postgres went on %v after the stop, at most %v is promised", reached, limit)
		}
		stopped.Resume()
		load.More(50)
		if err := stopped.Ready(); err != nil {
			t.Errorf("the one that was stopped does not recover: %v", err)
		}
	}
	r.Opened(slowest)
	account, ops := closeBooks(s, load, units, epoch), s.LogIsLedger()
	r.Note("Postgres went on after %.1f s; orders were taken all the time; %d operations, each once; %s", slowest.Seconds(), ops, account)
	s.Finish()
}

// wantLocked makes sure that somebody holds the shard's row.
func wantLocked(s *shoptest.Shop) {
	s.T.Helper()
	_, err := s.Pool.Exec(s.T.Context(), `select from shard where number = 0 for no key update nowait`)
	if err == nil {
		s.T.Error("nobody holds the shard's row: the stop was not inside a transaction")
	}
}

// TestReconcilerStoppedInsideItsTransaction stops a reconciler that applies the log's tail in a takeover. Its session
// is ended, another one takes over, and the one that was stopped finds its claim outdated.
func TestReconcilerStoppedInsideItsTransaction(t *testing.T) {
	r := shoptest.Begin(t, "reconciler stopped inside its transaction")
	r.Class = "unopened"
	units := shoptest.Size[int64](20_000, 100_000)
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 2, Failing: true})
	s.Supply(units, "tea")
	epoch := s.Epoch(0)
	load := s.Traffic(12, 60*time.Millisecond, false, "tea")
	load.More(50)
	s.KillAll(shoptest.Consumer) // so that the takeover has a tail to apply
	load.More(20)
	for _, one := range s.Living(shoptest.Reconciler) {
		one.Arm(failpoint.LedgerInside, shoptest.Stop)
	}
	hit := time.Now()
	shoptest.Need(t, s.RDB.FunctionFlush(t.Context()).Err())
	stopped := awaitStopped(s)
	wantLocked(s)
	for _, one := range s.Living(shoptest.Reconciler) {
		if one != stopped {
			one.Disarm(failpoint.LedgerInside)
		}
	}
	awaitSale(s, load, epoch)
	opened := time.Since(hit)
	r.Opened(opened)
	if limit := ledger.DefaultTurnTTL + endedHolder + shoptest.AutoOpen; opened > limit {
		t.Errorf("it sold again after %v, at most %v is promised", opened, limit)
	}
	now := s.Epoch(0)
	s.Start(shoptest.Consumer)
	stopped.Resume()
	load.More(100)
	sandboxtest.Eventually(t, shoptest.Patience, stopped.Ready)
	if later := s.Epoch(0); later != now {
		t.Errorf("the one that was stopped moved the shop from epoch %d to %d", now, later)
	}
	load.Stop()
	load.SellRest()
	s.Holds("tea", units)
	account := load.Judge(units, false)
	if n := shoptest.One[int64](s, `select count(*) from repair where class = 'unopened' and verb = 'takeover'`); n == 0 {
		t.Errorf("no takeover for class unopened: %v", repairs(s))
	}
	r.Note("sold again after %.1f s, without anybody; %s", opened.Seconds(), account)
	s.Finish()
}

// awaitStopped is the reconciler that met its point.
func awaitStopped(s *shoptest.Shop) (stopped *shoptest.Role) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		for _, one := range s.Living(shoptest.Reconciler) {
			if one.Failed(failpoint.LedgerInside) {
				stopped = one
				return nil
			}
		}
		return errors.New("no reconciler is inside a transaction")
	})
	stopped.AwaitFailure(failpoint.LedgerInside)
	return stopped
}

// awaitSale waits until an order is taken under an epoch after the given one.
func awaitSale(s *shoptest.Shop, load *shoptest.Traffic, epoch int64) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		if load.Epoch.Load() <= epoch {
			return errors.New("nothing is sold under a newer epoch")
		}
		return nil
	})
}
