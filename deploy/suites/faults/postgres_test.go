package faults

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// An outage is a fault of Postgres while two producers sell one SKU, and orders are paid and given back. Redis is well,
// so nothing may be lost and no takeover may happen.
type outage struct {
	name     string
	settings map[string]string // of Postgres
	ageLimit time.Duration     // --epoch-max-age of the producers; 0: the default
	whole    bool
	closes   bool          // admission has to close meanwhile; otherwise it sells all the time
	within   time.Duration // from the fault's end until a confirm is persisted again

	prepare func(*shoptest.Shop)
	hit     func(*shoptest.Shop, *shoptest.Traffic) (ended time.Time)
}

// reopened bounds the way back after Postgres is there again: the pauses of who tries anew are up to 5 s.
const reopened = 15 * time.Second

var outages = []outage{
	{name: "restarted, fast", within: reopened, hit: func(s *shoptest.Shop, _ *shoptest.Traffic) time.Time {
		began := time.Now()
		shoptest.Need(s.T, s.Postgres.Stop())
		shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
		return began
	}},
	{name: "restarted, immediate", whole: true, within: reopened, hit: func(s *shoptest.Shop, _ *shoptest.Traffic) time.Time {
		began := time.Now()
		end(s, syscall.SIGQUIT)
		shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
		return began
	}},
	{name: "killed and restarted", whole: true, within: reopened, hit: func(s *shoptest.Shop, _ *shoptest.Traffic) time.Time {
		began := time.Now()
		shoptest.Need(s.T, s.Postgres.Kill())
		shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
		return began
	}},
	{name: "every reply 250 ms late", within: reopened, hit: late},
	{name: "down for longer than the epoch's age", ageLimit: shoptest.Size(4*time.Second, 0), closes: true, within: reopened, hit: down},
}

// TestPostgresOutages lets each outage happen.
func TestPostgresOutages(t *testing.T) {
	for _, o := range outages {
		if o.whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(o.name, " ", "_"), func(t *testing.T) { o.play(shoptest.Begin(t, "postgres: "+o.name)) })
	}
}

func (o *outage) play(r *shoptest.Row) {
	t := r.T
	units := shoptest.Size[int64](20_000, 200_000)
	p := shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Watched: true, Postgres: &sandbox.PostgresOptions{Settings: o.settings}}
	if o.ageLimit > 0 {
		p.ProducerArgs = []string{"--epoch-max-age", o.ageLimit.String()}
	}
	s := shoptest.Found(r, p)
	if o.prepare != nil {
		o.prepare(s)
		// It may have restarted Postgres: the row's own connections learn of it one by one.
		sandboxtest.Eventually(t, shoptest.Patience, func() error {
			for range 8 {
				if _, err := s.Ledger.Shards(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	s.StartAll()
	s.AwaitReady()
	s.Supply(units, "tea")
	mix := s.Mix(shoptest.MixPlan{})
	epoch := s.Epoch(0)
	load := s.Traffic(12, shoptest.Size(80*time.Millisecond, 40*time.Millisecond), false, "tea")
	load.Beside = mix
	load.More(100)
	load.AwaitPaid(r.Began)

	hit := time.Now()
	ended := o.hit(s, load)
	paid := load.AwaitPaid(ended)
	r.Opened(paid.Sub(ended))
	if took := paid.Sub(ended); took > o.within {
		t.Errorf("a confirm was persisted again after %v, at most %v is promised", took, o.within)
	}
	load.More(50)
	load.Stop()
	load.SellRest()
	s.Holds("tea", units)
	account := load.Judge(units, false)
	r.Note("%v", mix.Judge())
	if now := s.Epoch(0); now != epoch {
		t.Errorf("there was a takeover, from epoch %d to %d: Redis was well", epoch, now)
	}
	if !o.closes && account.Refused > 0 {
		t.Errorf("%d calls were told 503: Redis could have decided them", account.Refused)
	}
	ops := s.LogIsLedger()
	r.Note("a confirm persisted again after %.1f s; %s; %d operations, each once", paid.Sub(ended).Seconds(), account, ops)
	r.Note("from the fault on the slowest reservation took %.1f s", shoptest.Slowest(load.Answers(), hit, time.Now()).Seconds())
	s.Finish()
}

// end sends a signal to Postgres and waits for its end.
func end(s *shoptest.Shop, signal syscall.Signal) {
	s.T.Helper()
	over := s.Postgres.Done()
	shoptest.Need(s.T, syscall.Kill(s.Postgres.Pid(), signal))
	select {
	case <-over:
	case <-time.After(shoptest.Patience):
		s.T.Fatalf("Postgres did not end by %v", signal)
	}
}

// late holds every reply of Postgres back. Orders are taken at the speed of Redis; confirms wait for the ledger, and
// those that it does not reach in time are told 202.
func late(s *shoptest.Shop, load *shoptest.Traffic) time.Time {
	const delay = 250 * time.Millisecond
	began := time.Now()
	s.LedgerPath.Delay(delay)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if lasted := time.Since(began); lasted < shoptest.Size(4*time.Second, 20*time.Second) {
			return fmt.Errorf("it lasted %v", lasted)
		}
		return nil
	})
	ended := time.Now()
	s.LedgerPath.Delay(0)
	confirmed, accepted := 0, 0
	var slowest time.Duration
	for _, a := range load.Ended() {
		if a.Began.Before(began) || a.Ended.After(ended) {
			continue
		}
		switch a.Status {
		case http.StatusOK:
			confirmed++
			slowest = max(slowest, a.Ended.Sub(a.Began))
		case http.StatusAccepted:
			accepted++
		}
	}
	if slowest < delay && accepted == 0 {
		s.T.Errorf("the slowest of %d calls that wait for Postgres took %v: it was not slow", confirmed, slowest)
	}
	quick := 0
	for _, a := range load.Answers() {
		if a.Began.After(began) && a.Ended.Before(ended) && a.Ended.Sub(a.Began) < delay {
			quick++
		}
	}
	if quick == 0 {
		s.T.Error("no reservation was taken at the speed of Redis")
	}
	s.Row.Note("meanwhile %d reservations at the speed of Redis, %d confirms and releases told 200, %d told 202", quick, confirmed, accepted)
	return ended
}

// down stops Postgres for longer than an epoch may age. Orders are taken until then and not after; what was taken is
// kept by Redis and its log.
func down(s *shoptest.Shop, load *shoptest.Traffic) time.Time {
	limit := shoptest.Size(4*time.Second, 10*time.Second)
	lasting := shoptest.Size(15*time.Second, 5*time.Minute)
	hit := time.Now()
	shoptest.Need(s.T, s.Postgres.Stop())
	sandboxtest.Eventually(s.T, lasting+shoptest.Patience, func() error {
		if lasted := time.Since(hit); lasted < lasting {
			return fmt.Errorf("it lasted %v", lasted)
		}
		return nil
	})
	shoptest.Need(s.T, s.Postgres.Restart(s.T.Context()))
	back := time.Now()
	var last time.Time // acceptance while it was down
	taken, refused := 0, 0
	for _, a := range load.Answers() {
		switch {
		case a.Began.Before(hit) || a.Ended.After(back.Add(-time.Second)):
		case a.Status == http.StatusCreated:
			taken++
			last = a.Ended
		case a.Status == http.StatusServiceUnavailable && a.Problem != nil && a.Problem.Reason == "stale":
			refused++
		default:
			s.T.Errorf("while Postgres was down: %s", a.String())
		}
	}
	if taken == 0 || refused == 0 {
		s.T.Errorf("while Postgres was down %d orders were taken and %d refused: want some of both", taken, refused)
	}
	if open := last.Sub(hit); open > limit+2*time.Second || open < limit-2*time.Second {
		s.T.Errorf("orders were taken for %v without Postgres, the epoch's age is limited to %v", open, limit)
	}
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		answers := load.Answers()
		if a := answers[len(answers)-1]; a.Began.Before(back) || a.Status != http.StatusCreated {
			return errors.New(a.String())
		}
		return nil
	})
	s.Row.Note("down for %v: orders taken for %.1f s, then %d told 503; sold again %.1f s after it was back", lasting, last.Sub(hit).Seconds(), refused, time.Since(back).Seconds())
	return back
}
