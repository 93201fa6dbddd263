package faults

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// takenOver bounds the time in which another consumer goes on where one died or stands still: the assignment has to
// end, and the next heartbeat to notice it.
var takenOver = shoptest.Size(15*time.Second, ledger.DefaultAssignmentTTL+ledger.AssignmentHeartbeat+4*time.Second)

// TestConsumerKilledAtEachPoint kills the consumer that has the shard, where nobody would notice: another one goes on,
// and every operation is applied once.
func TestConsumerKilledAtEachPoint(t *testing.T) {
	for _, at := range []failpoint.Point{
		failpoint.ConsumerRead, failpoint.LedgerInside, failpoint.ConsumerCommitted, failpoint.ConsumerAcked, failpoint.ConsumerTrimming,
	} {
		if at != failpoint.LedgerInside && !shoptest.Full {
			continue
		}
		name := strings.ReplaceAll(string(at), ".", " ")
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) { killConsumer(shoptest.Begin(t, "consumer killed: "+name), at) })
	}
}

func killConsumer(r *shoptest.Row, at failpoint.Point) {
	units := shoptest.Size[int64](20_000, 100_000)
	p := shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Failing: true}
	trims := at == failpoint.ConsumerTrimming
	if trims {
		p.ConsumerArgs = []string{"--log-keep", "1s"}
	}
	s := shoptest.Open(r, p)
	s.Supply(units, "tea")
	mix := s.Mix(shoptest.MixPlan{})
	epoch := s.Epoch(0)
	load := s.Traffic(12, 60*time.Millisecond, false, "tea")
	load.Beside = mix
	load.More(50)
	victim := awaitOwner(s, nil)
	victim.Arm(at, shoptest.Kill)
	victim.AwaitFailure(at)
	hit := time.Now()
	if victim.Alive() {
		r.T.Fatalf("%s lives on after %s", victim.Name, at)
	}
	next, reached := goesOn(s, hit)
	if next == victim {
		r.T.Errorf("%s has the shard: it is dead", next.Name)
	}
	r.Opened(reached)
	if reached > takenOver {
		r.T.Errorf("Postgres went on %v after the kill, at most %v is promised", reached, takenOver)
	}
	account := closeBooks(s, load, units, epoch)
	r.Note("another consumer went on after %.1f s; %s", reached.Seconds(), account)
	r.Note("%d operations, each once", s.LogIsLedger())
	if trims {
		awaitTrimmed(s)
	}
	s.Finish()
}

// awaitTrimmed waits until the log no longer begins with the epoch's first entry: somebody trims it again.
func awaitTrimmed(s *shoptest.Shop) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		page, err := s.Shard(0).Range(s.T.Context(), stock.Position{Epoch: s.Epoch(0)}, 1)
		if err != nil || len(page) == 0 {
			return fmt.Errorf("the log has %d entries: %w", len(page), err)
		}
		if first := (stock.Position{Epoch: s.Epoch(0), Seq: 1}); page[0].ID == first.String() {
			return errors.New("the log was not trimmed")
		}
		return nil
	})
}

// awaitOwner waits until a living consumer, other than one, has the shard.
func awaitOwner(s *shoptest.Shop, other *shoptest.Role) (owner *shoptest.Role) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if owner = s.Owner(0); owner == nil || owner == other {
			return errors.New("nobody else has the shard")
		}
		return nil
	})
	return owner
}

// goesOn waits until Postgres is beyond where Redis stands at this moment, while orders come, and says who has the
// shard then, and how long after the fault that is.
func goesOn(s *shoptest.Shop, hit time.Time) (*shoptest.Role, time.Duration) {
	s.T.Helper()
	status, err := s.Shard(0).Status(s.T.Context())
	shoptest.Need(s.T, err)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		row, err := s.Ledger.Shard(s.T.Context(), 0)
		if err == nil && row.Epoch == status.Epoch && row.Applied <= status.Seq {
			err = fmt.Errorf("Postgres is at %v, Redis was at %d", row.Position(), status.Seq)
		}
		return err
	})
	reached := time.Since(hit)
	return awaitOwner(s, nil), reached
}

// openBooks is a shop whose roles can be made to fail, with orders coming in: what closeBooks judges in the end.
func openBooks(r *shoptest.Row) (s *shoptest.Shop, load *shoptest.Traffic, units, epoch int64) {
	r.T.Helper()
	units = shoptest.Size[int64](20_000, 100_000)
	s = shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Failing: true})
	s.Supply(units, "tea")
	mix := s.Mix(shoptest.MixPlan{Limits: shoptest.Full})
	epoch = s.Epoch(0)
	load = s.Traffic(12, 60*time.Millisecond, false, "tea")
	load.Beside = mix
	load.More(50)
	return s, load, units, epoch
}

// closeBooks ends the load, sells the rest, and judges: no takeover, each operation once, nothing oversold or lost.
func closeBooks(s *shoptest.Shop, load *shoptest.Traffic, units, epoch int64) shoptest.Account {
	s.T.Helper()
	load.More(50)
	load.Stop()
	load.SellRest()
	s.Holds("tea", units)
	account := load.Judge(units, false)
	if now := s.Epoch(0); now != epoch {
		s.T.Errorf("there was a takeover, from epoch %d to %d: Redis was well", epoch, now)
	}
	if account.Refused > 0 {
		s.T.Errorf("%d calls were told 503: no consumer is needed to sell", account.Refused)
	}
	s.Row.Note("%v", load.Beside.Judge())
	return account
}

// TestZombieConsumerAmongTwoOwners stops a consumer between a read and its transaction until its shard is another's,
// and then lets both work: the one that was stopped goes on in the middle of a batch that is long applied.
func TestZombieConsumerAmongTwoOwners(t *testing.T) {
	r := shoptest.Begin(t, "consumer: two owners and a zombie")
	s, load, units, epoch := openBooks(r)
	slowest := time.Duration(0)
	for range shoptest.Size(1, 5) {
		zombie := awaitOwner(s, nil)
		zombie.Arm(failpoint.ConsumerRead, shoptest.Stop)
		zombie.AwaitFailure(failpoint.ConsumerRead)
		hit := time.Now()
		at, err := s.Ledger.Shard(t.Context(), 0)
		shoptest.Need(t, err)
		next := awaitOwner(s, zombie)
		_, reached := goesOn(s, hit)
		slowest = max(slowest, reached)
		if reached > takenOver {
			t.Errorf("Postgres went on %v after the stop, at most %v is promised", reached, takenOver)
		}
		load.More(20)
		if now, err := s.Ledger.Shard(t.Context(), 0); err != nil || now.Applied <= at.Applied {
			t.Errorf("%s applied nothing while %s stood still: %v, %v", next.Name, zombie.Name, now.Position(), err)
		}
		// Both say that the shard is theirs: the zombie until its next heartbeat, the other by the ledger.
		zombie.Resume()
		load.More(100)
		s.Owns(next, 1)
		if err := zombie.Ready(); err != nil {
			t.Errorf("the zombie does not recover: %v", err)
		}
	}
	r.Opened(slowest)
	account, ops := closeBooks(s, load, units, epoch), s.LogIsLedger()
	if n := shoptest.One[int64](s, `select count(*) from dead_event`); n != 0 {
		t.Errorf("%d entries were called poison", n)
	}
	r.Note("the other went on after %.1f s; the zombie woke in the middle of a batch that was applied; %d operations, each once; %s", slowest.Seconds(), ops, account)
	s.Finish()
}

// TestBacklogIsDrainedInTime lets orders pile up while no consumer lives, and then times two of them.
func TestBacklogIsDrainedInTime(t *testing.T) {
	r := shoptest.Alone(t, "consumer: backlog")
	orders := shoptest.Size(20_000, 1_000_000)
	bound := shoptest.Size(15*time.Second, 30*time.Second)
	p := shoptest.Plan{Producers: 1, Consumers: 2, Reconcilers: 1, Patience: 10 * time.Minute} // the audit compares every order
	p.Redis.MaxMemory = "4gb"
	s := shoptest.Open(r, p)
	skus := shoptest.Names("tea", 20)
	s.Supply(int64(orders), skus...)
	s.Drain()
	s.KillAll(shoptest.Consumer)
	// The reconciler would help once Postgres stands still for long, and this is about the consumers.
	for _, one := range s.Living(shoptest.Reconciler) {
		one.Stop()
	}
	s.Counter().Hold(orders, "o", 24*time.Hour, skus...)
	entries, err := s.Lag(t.Context())
	shoptest.Need(t, err)
	if each := orders / int(max(entries, 1)); each < 20 {
		t.Errorf("%d orders in %d entries: at least 20 in each are meant", orders, entries)
	}
	if n := shoptest.One[int64](s, `select count(*) from reservation`); n != 0 {
		t.Errorf("%d orders are persisted although no consumer lives", n)
	}
	began := time.Now()
	s.Start(shoptest.Consumer)
	s.Start(shoptest.Consumer)
	sandboxtest.Eventually(t, 10*time.Minute, func() error {
		lag, err := s.Lag(t.Context())
		if err == nil && lag != 0 {
			err = fmt.Errorf("Postgres is %d entries behind", lag)
		}
		return err
	})
	took := time.Since(began)
	r.Opened(took)
	if took > bound {
		t.Errorf("%d operations were drained in %v, at most %v is promised", orders, took, bound)
	}
	if n := shoptest.One[int](s, `select count(*) from reservation`); n != orders {
		t.Errorf("%d of %d orders are persisted", n, orders)
	}
	ops := s.LogIsLedger()
	r.Note("%d orders in %d entries (%d each) drained in %.1f s by 2 consumers, their start included: %.0f operations/s; %d operations, each once",
		orders, entries, orders/int(max(entries, 1)), took.Seconds(), float64(orders)/took.Seconds(), ops)
	s.Finish()
}
