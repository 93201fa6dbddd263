package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

const (
	// zipfExponent is how steeply the demand falls from SKU to SKU: of 1,000 SKUs the first gets a sixth.
	zipfExponent = 1.1
	// spareTTL is how long a hold lasts that ends within the measurement.
	spareTTL = time.Second
)

// A load is what callers ask of a shop. A step is some operations of one caller, one after the other.
type load struct {
	name  string
	zipf  bool // SKUs by Zipf's law; else the shard's first one
	mixed bool
	goal  *goal // for 256 callers
}

var (
	hotLoad   = load{name: "hot", goal: atLeast(3)}
	zipfLoad  = load{name: "zipf", zipf: true, goal: atLeast(1.5)}
	mixedLoad = load{name: "mixed", zipf: true, mixed: true, goal: atLeast(1.1)}
)

// stepOps is how many operations one step has.
func (l load) stepOps() int {
	if l.mixed {
		return 6
	}
	return 1
}

func (l load) skus(b *bench) int {
	if l.zipf {
		return b.size.skus
	}
	return 1
}

// A crowd is callers that work on one shop, and what they share.
type crowd struct {
	shop  *shop
	load  load
	next  *atomic.Int64 // number of the last order
	due   []ticket      // holds whose time is over, one for each step of a mixed load
	begun atomic.Int64  // steps
}

// A caller works alone; its list is its own until all callers are done.
type caller struct {
	*crowd
	zipf *rand.Zipf
	told []ticket
}

func (c *crowd) caller(n int) *caller {
	var zipf *rand.Zipf
	if c.load.zipf {
		random := rand.New(rand.NewPCG(uint64(n), 20240501))
		zipf = rand.NewZipf(random, zipfExponent, 1, uint64(len(c.shop.skus[0])-1))
	}
	return &caller{crowd: c, zipf: zipf}
}

// gather prepares a load of so many steps. A mixed one needs holds that can end at once: they are reserved here, and
// persisted, and their time has passed when gather returns.
func (s *shop) gather(ctx context.Context, l load, steps int) (*crowd, error) {
	c := &crowd{shop: s, load: l, next: &atomic.Int64{}}
	if !l.mixed {
		return c, nil
	}
	spare := &crowd{shop: s, load: load{zipf: l.zipf}, next: c.next}
	var err error
	if _, c.due, err = spare.drive(ctx, 256, steps, func(ctx context.Context, one *caller) error { return one.reserve(ctx, spareTTL) }); err != nil {
		return nil, fmt.Errorf("reserve what is to expire: %w", err)
	}
	if err := s.catchUp(ctx); err != nil {
		return nil, err
	}
	return c, pause(ctx, spareTTL+10*time.Millisecond)
}

// drive lets so many callers take the steps, and gives how long that took and what they were told. It fails unless
// every operation is accepted.
func (c *crowd) drive(ctx context.Context, callers, steps int, step func(context.Context, *caller) error) (seconds float64, told []ticket, err error) {
	var failure atomic.Pointer[error]
	crowd := make([]*caller, callers)
	for n := range crowd {
		crowd[n] = c.caller(n)
	}
	var all sync.WaitGroup
	began := time.Now()
	for _, one := range crowd {
		all.Go(func() {
			for c.begun.Add(1) <= int64(steps) && failure.Load() == nil {
				if err := step(ctx, one); err != nil {
					failure.Store(&err)
				}
			}
		})
	}
	all.Wait()
	seconds = since(began)
	if err := failure.Load(); err != nil {
		return 0, nil, *err
	}
	for _, one := range crowd {
		told = append(told, one.told...)
	}
	return seconds, told, nil
}

// run drives the load and gives operations per second, and what all callers were told.
func (c *crowd) run(ctx context.Context, callers, steps int) (rate float64, told []ticket, err error) {
	step := func(ctx context.Context, one *caller) error {
		return one.reserve(ctx, stock.DefaultTTLMillis*time.Millisecond)
	}
	var taken atomic.Int64
	if c.load.mixed {
		step = func(ctx context.Context, one *caller) error { return one.mix(ctx, &c.due[taken.Add(1)-1]) }
	}
	seconds, told, err := c.drive(ctx, callers, steps, step)
	if err != nil {
		return 0, nil, err
	}
	return float64(steps*c.load.stepOps()) / seconds, append(told, c.due...), nil
}

// reserve reserves one unit under a new id.
func (c *caller) reserve(ctx context.Context, ttl time.Duration) error {
	n := c.next.Add(1)
	shard := int(n % int64(len(c.shop.shards)))
	sku := c.shop.skus[shard][0]
	if c.zipf != nil {
		sku = c.shop.skus[shard][c.zipf.Uint64()]
	}
	c.told = append(c.told, ticket{id: "order-" + strconv.FormatInt(n+100_000_000, 10), shard: shard, sku: sku})
	t := &c.told[len(c.told)-1]
	op := stock.Operation{Kind: stock.Reserve, ID: t.id, Attempt: 1, TTL: ttl.Milliseconds(), Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}}
	return c.shop.do(ctx, t, op, stock.Held)
}

// mix is one step of a mixed load: of three new orders one is confirmed, one released and one stays; and a hold whose
// time is over is ended, as the reconciler would.
func (c *caller) mix(ctx context.Context, due *ticket) error {
	first := len(c.told)
	for range 3 {
		if err := c.reserve(ctx, stock.DefaultTTLMillis*time.Millisecond); err != nil {
			return err
		}
	}
	if err := c.shop.move(ctx, &c.told[first], stock.Confirm, stock.Confirmed); err != nil {
		return err
	}
	if err := c.shop.move(ctx, &c.told[first+1], stock.Release, stock.Released); err != nil {
		return err
	}
	return c.shop.move(ctx, due, stock.Expire, stock.Expired)
}

func (s *shop) move(ctx context.Context, t *ticket, kind stock.Kind, to stock.State) error {
	return s.do(ctx, t, stock.Operation{Kind: kind, ID: t.id, Attempt: 1}, to)
}

// do sends one operation and notes the answer.
func (s *shop) do(ctx context.Context, t *ticket, op stock.Operation, to stock.State) error {
	out, err := s.desk.Do(ctx, t.shard, op)
	if err != nil {
		return fmt.Errorf("%c of %s: %w", op.Kind, op.ID, err)
	}
	if out.Code != stock.Accepted {
		return wrong("%c of %s was answered %s", op.Kind, op.ID, out.Code)
	}
	t.state = to
	return nil
}

// pause waits; an error means that ctx ended first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
