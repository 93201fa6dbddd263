package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const (
	pace        = 4_000  // orders a second, whatever the answers take; in the small size twice as many
	mostBehind  = 50_000 // entries that Postgres may be behind before callers wait for it
	measure     = 250 * time.Millisecond
	shelves     = 50 // SKUs
	comers      = 512
	flatness    = 1.05 // floor of the last third of the time against that of the middle one
	spentAtLast = 0.2  // of what was used at the peak, beside what was used before, that may be left when all is dropped
)

// TestMemoryOfRedisIsFlatWhileOrdersComeAndEnd lets orders come at a steady pace and end in every way, while what has
// ended is forgotten, the log is trimmed and audits run one after the other. STOCKPIPE_ORDERS says how many.
func TestMemoryOfRedisIsFlatWhileOrdersComeAndEnd(t *testing.T) {
	r := shoptest.Begin(t, "retention: memory of Redis")
	orders := coming(t)
	s := openForgetful(r, shoptest.Plan{
		Producers: 1, Consumers: 1, Reconcilers: 1, Patience: 15 * time.Minute,
		ReconcilerArgs: []string{"--audit-every", "2s"},
		Redis:          sandbox.RedisOptions{MaxMemory: "2gb"},
	})
	skus := shoptest.Names("tea", shelves)
	s.Supply(stock.MaxMovementQuantity, skus...)
	c := &arrivals{shop: s, counter: s.Counter(), skus: skus, orders: orders}
	before := used(s)

	bound := time.Duration(orders/pace)*3*time.Second + 2*time.Minute
	ctx, cancel := context.WithTimeoutCause(t.Context(), bound, fmt.Errorf("%d orders did not come and end within %v", orders, bound))
	defer cancel()
	came := make(chan struct{})
	var beside sync.WaitGroup
	watch := &gauge{shop: s}
	beside.Go(func() { watch.run(came) })
	auditor := &auditor{shop: s}
	beside.Go(func() { auditor.run(came) })
	beside.Go(func() { c.ship(ctx, came) })
	took, err := c.run(ctx)
	close(came)
	beside.Wait()
	shoptest.Need(t, err)

	peak := watch.most()
	if shoptest.Full {
		middle, last := watch.floors()
		if !isFlat(middle, last) {
			t.Errorf("memory of Redis grows: floor %s in the middle third, %s in the last", megabytes(middle), megabytes(last))
		}
		r.Note("floor of used memory %s in the middle third, %s in the last (%.3f), most %s, by tenths of the time%s",
			megabytes(middle), megabytes(last), float64(last)/float64(middle), megabytes(peak), watch.tenths())
	}
	rests := c.rest()
	after := used(s)
	if float64(after-before) > spentAtLast*float64(peak-before) && after-before > 1<<20 {
		t.Errorf("Redis used %s before, %s at most, and %s when everything was dropped", megabytes(before), megabytes(peak), megabytes(after))
	}
	r.Note("%d orders and %d papers in %.0f s (%.0f/s); records at most %d, all dropped %.0f s after the last; %s used before, %s behind",
		orders, c.papers, took.Seconds(), float64(orders)/took.Seconds(), watch.records, rests.Seconds(), megabytes(before), megabytes(after))
	if auditor.compared == 0 || auditor.ended == 0 {
		t.Errorf("no audit compared what had ended: %+v", auditor)
	}
	r.Note("%d sweeps clean meanwhile: %d records compared, %d of them ended; %d rightly gone, %d left out by age; %d sweeps found no still ground",
		auditor.compared, auditor.records, auditor.ended, auditor.dropped, auditor.aged, auditor.unsettled)
	c.prune()
	finishForgetful(s)
}

// coming is how many orders come.
func coming(t *testing.T) int {
	t.Helper()
	text := os.Getenv("STOCKPIPE_ORDERS")
	if text == "" {
		return shoptest.Size(20_000, 300_000)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1_000 {
		t.Fatalf("STOCKPIPE_ORDERS is %q: use a whole number from 1000", text)
	}
	return n
}

// arrivals is the orders that come.
type arrivals struct {
	shop    *shoptest.Shop
	counter *shoptest.Counter
	skus    []string
	orders  int
	papers  int
	behind  atomic.Bool
}

// run lets all orders come and says how long that took.
func (c *arrivals) run(ctx context.Context) (time.Duration, error) {
	s := c.shop
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	beside.Go(func() {
		for wait(watching, measure) {
			lag, err := s.Lag(watching)
			c.behind.Store(err == nil && lag > mostBehind)
		}
	})
	began := time.Now()
	var mu sync.Mutex
	var failed error
	shoptest.Crowd(c.orders, comers, func(i int) {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(shoptest.Size(2*pace, pace)))
		for ctx.Err() == nil && (time.Now().Before(due) || c.behind.Load()) {
			wait(ctx, max(time.Until(due), 10*time.Millisecond))
		}
		err := context.Cause(ctx)
		if err == nil {
			err = c.order(ctx, i)
		}
		if err != nil {
			mu.Lock()
			failed = err
			mu.Unlock()
		}
	})
	took := time.Since(began)
	stop()
	beside.Wait()
	return took, failed
}

// order is one life: half are given back, some sold, some sold at once, and some run out.
func (c *arrivals) order(ctx context.Context, i int) error {
	sku := c.skus[i%len(c.skus)]
	op := stock.Operation{
		Kind: stock.Reserve, ID: fmt.Sprintf("order-%d", i), Attempt: 1, TTL: stock.DefaultTTLMillis,
		Lines: stock.Lines{{SKU: c.shop.Numbers[sku], Asked: 1, Now: 1}},
	}
	var then stock.Kind
	switch i % 10 {
	case 0:
		op.TTL = 1_000
	case 1:
		op.Kind, op.TTL = stock.Sale, 0
	case 2, 3, 4:
		then = stock.Confirm
	default:
		then = stock.Release
	}
	if err := c.do(ctx, sku, op); err != nil || then == 0 {
		return err
	}
	return c.do(ctx, sku, stock.Operation{Kind: then, ID: op.ID, Attempt: 1})
}

func (c *arrivals) do(ctx context.Context, sku string, op stock.Operation) error {
	out, err := c.counter.Do(ctx, c.shop.Homes[sku], op)
	if err == nil && out.Code != stock.Accepted {
		err = fmt.Errorf("answered %s", out.Code)
	}
	if err != nil {
		return fmt.Errorf("%v of %s: %w", op.Kind, op.ID, err)
	}
	return nil
}

// ship sells, ships, and takes back over HTTP, one order after the other, so that papers come and go, too.
func (c *arrivals) ship(ctx context.Context, came <-chan struct{}) {
	s := c.shop
	client := s.Patient(0)
	for i := 0; ; i++ {
		select {
		case <-came:
			return
		case <-ctx.Done():
			return
		default:
		}
		order := fmt.Sprintf("parcel-%d", i)
		_, err := client.Reserve(ctx, &api.ReserveRequest{OrderID: order, Lines: []api.Line{{SKU: c.skus[0], Quantity: 2}}, Sale: true})
		if err == nil {
			_, err = client.Fulfil(ctx, order, &api.AmendRequest{DocumentID: order + "-f"})
		}
		if err == nil {
			_, err = client.Return(ctx, order, &api.ReturnRequest{DocumentID: order + "-r", Lines: []api.Line{{SKU: c.skus[0], Quantity: 1}}})
		}
		if err != nil {
			s.T.Errorf("%s: %v", order, err)
			return
		}
		c.papers += 2
	}
}

// rest waits until Redis has nothing of all that, and says how long that took.
func (c *arrivals) rest() time.Duration {
	s := c.shop
	s.T.Helper()
	began := time.Now()
	s.Drain()
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		n, log := records(s), s.RDB.XLen(s.T.Context(), s.Keys(c.skus[0]).Log).Val()
		if n > 0 || log > 1_000 {
			return fmt.Errorf("Redis has %d records and %d entries of the log", n, log)
		}
		return nil
	})
	return time.Since(began)
}

// prune deletes from Postgres what has ended, and wants the audit and the history to be as true as before.
func (c *arrivals) prune() {
	s := c.shop
	s.T.Helper()
	// What ended last is older than that by now: Redis has dropped it.
	arguments := append([]string{"prune", "--older-than", "11s", "--json"}, retention...)
	// What is as new as the last that was forgotten stays for the next time.
	over := shoptest.One[int64](s, `select count(*) from reservation r join forgetting f on f.shard = r.shard
		where r.state in ('released', 'expired', 'cancelled', 'fulfilled') and r.moved < f.reached`)
	all := shoptest.One[int64](s, `select count(*) from reservation`)
	events := shoptest.One[int64](s, `select count(*) from event`)
	planned := c.pruned(append(arguments, "--plan")...)
	pruned := c.pruned(arguments...)
	left := shoptest.One[int64](s, `select count(*) from reservation`)
	if planned != over || pruned != over || over == 0 || all-left != over {
		s.T.Errorf("%d attempts are over, %d were planned to go, %d are said to be gone, and %d are", over, planned, pruned, all-left)
	}
	if n := shoptest.One[int64](s, `select count(*) from reservation_line l where not exists (select from reservation r where (r.shard, r.order_id, r.attempt) = (l.shard, l.order_id, l.attempt))`); n != 0 {
		s.T.Errorf("%d lines are left of orders that are gone", n)
	}
	if n := shoptest.One[int64](s, `select count(*) from event`); n < events {
		s.T.Errorf("%d events are gone", events-n)
	}
	out, complaint, code := s.Command(append([]string{"verify"}, retention...)...)
	if code != 0 {
		s.T.Errorf("the history is not what it was (exit %d): %s%s", code, out, complaint)
	}
	if c.papers > 0 { // a paper answers for ever, whatever became of its order
		d, err := s.Patient(0).Fulfil(s.T.Context(), "parcel-0", &api.AmendRequest{DocumentID: "parcel-0-f"})
		if err != nil || !d.Replayed || d.State != "applied" {
			s.T.Errorf("a paper of an order that is gone: %+v, %v", d, err)
		}
	}
	s.Row.Note("pruned %d of %d attempts, then verified: %s", pruned, all, strings.TrimSpace(strings.Split(out, "\n")[0]))
}

// pruned runs the command and says how many attempts it tells of.
func (c *arrivals) pruned(arguments ...string) int64 {
	s := c.shop
	s.T.Helper()
	out, complaint, code := s.Command(arguments...)
	var told struct {
		Prunings []struct {
			Attempts int64 `json:"attempts"`
		} `json:"prunings"`
	}
	if err := json.Unmarshal([]byte(out), &told); err != nil || code != 0 || len(told.Prunings) != 1 {
		s.T.Fatalf("reconciler %v (exit %d): %v\n%s%s", arguments, code, err, out, complaint)
	}
	return told.Prunings[0].Attempts
}

// A gauge measures Redis.
type gauge struct {
	shop    *shoptest.Shop
	seen    []int64
	records int64
}

func (g *gauge) run(came <-chan struct{}) {
	tick := time.NewTicker(measure)
	defer tick.Stop()
	for {
		select {
		case <-came:
			return
		case <-tick.C:
			g.seen = append(g.seen, used(g.shop))
			g.records = max(g.records, records(g.shop))
		}
	}
}

func (g *gauge) most() (most int64) {
	for _, n := range g.seen {
		most = max(most, n)
	}
	return most
}

// floors are the least that was used in the middle third of the time, and in the last.
func (g *gauge) floors() (middle, last int64) {
	n := len(g.seen) / 3
	if n == 0 {
		g.shop.T.Fatal("nothing was measured")
	}
	return floor(g.seen[n : 2*n]), floor(g.seen[2*n:])
}

// tenths prints the floor of each tenth of the time.
func (g *gauge) tenths() (text string) {
	for part := range slices.Chunk(g.seen, max(1, (len(g.seen)+9)/10)) {
		text += fmt.Sprintf(" %.1f", float64(floor(part))/1e6)
	}
	return text
}

func floor(seen []int64) int64 { return slices.Min(seen) }

func isFlat(middle, last int64) bool { return float64(last) <= flatness*float64(middle) }

// TestFlatIsWhatDoesNotGrow: the judge of the row above, on memory that leaks, and on memory that does not.
func TestFlatIsWhatDoesNotGrow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		used func(i int64) int64
		want bool
	}{
		{"it fills and stays", func(i int64) int64 { return 1000 + min(i, 50)*10 }, true},
		{"it is trimmed now and then", func(i int64) int64 { return 1000 + min(i, 50)*10 + i%20*30 }, true},
		{"nothing is forgotten", func(i int64) int64 { return 1000 + i*10 }, false},
		{"the log is trimmed, the records stay", func(i int64) int64 { return 1000 + i*2 + i%20*30 }, false},
	} {
		g := &gauge{}
		for i := range int64(300) {
			g.seen = append(g.seen, c.used(i))
		}
		if middle, last := g.floors(); isFlat(middle, last) != c.want {
			t.Errorf("%s: floors %d and %d, flat %v", c.name, middle, last, !c.want)
		}
	}
}

// An auditor sweeps both stores again and again.
type auditor struct {
	shop                                               *shoptest.Shop
	compared, unsettled, records, ended, dropped, aged int
}

func (a *auditor) run(came <-chan struct{}) {
	s := a.shop
	for {
		select {
		case <-came:
			return
		default:
		}
		report, err := s.Sweep(audit.Options{Page: 5_000, SkipInvariants: a.compared > 0})
		switch {
		case errors.Is(err, audit.ErrUnsettled):
			a.unsettled++
			continue
		case err != nil || !report.Clean():
			s.T.Errorf("a sweep while orders came: %+v, %v", report, err)
			return
		}
		a.compared++
		a.records += report.Orders
		a.ended += report.Ended
		a.dropped += report.Dropped
		a.aged += report.Aged
	}
}

// used is the memory that Redis says it uses.
func used(s *shoptest.Shop) int64 {
	s.T.Helper()
	text := s.RDB.Info(s.T.Context(), "memory").Val()
	_, rest, found := strings.Cut(text, "used_memory:")
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !found || err != nil {
		s.T.Errorf("Redis does not say what it uses: %q", shoptest.Shorten(text))
	}
	return n
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// wait passes a time, or is false when the context ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
