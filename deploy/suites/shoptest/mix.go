package shoptest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Bounds of a mix.
const (
	mixPatience = 10 * time.Second // how long a caller asks again for an outcome that is not known
	mixPause    = 40 * time.Millisecond
	mixLimit    = 3  // units of the limited SKU per buyer
	mixScarce   = 8  // units of the SKU of which partial orders want more than there is
	paperEvery  = 10 // visits from one with documents to the next
)

// A Mix is callers who use everything that can be done with an order, on SKUs of their own, beside the traffic that
// a row judges unit by unit: they replace, lengthen, confirm and release in part, take what is there, pay late, have
// goods shipped in parcels, cancel and bring back, and some run into a limit per buyer. What they do is drawn from a
// seed; what they were told is kept for every order, and judged by Judge.
type Mix struct {
	Shop    *Shop
	Skus    []string // of which there is plenty
	Scarce  string
	Limited string // empty: no SKU has a limit
	Run     string // the beginning of all ids
	Units   map[string]int64

	cancel  context.CancelFunc
	wait    sync.WaitGroup
	next    atomic.Int64
	repeats atomic.Int64
	every   int64

	mu      sync.Mutex
	stories []*Story
	refused map[string]int64 // answers of 503, by reason
	written int64            // documents whose movement was not decided in their call
}

// A MixPlan says how many callers there are and what they may do.
type MixPlan struct {
	Callers int           // 0: 3
	Think   time.Duration // 0: 120 ms
	Limits  bool          // one of the SKUs has a limit per buyer; that costs a takeover, before Mix returns
	Papers  int64         // every so many visits is one with documents; 0: 10
	Seed    uint64
}

// Mix supplies the SKUs of a mix and starts its callers.
func (s *Shop) Mix(p MixPlan) *Mix {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	m := &Mix{
		Shop: s, Run: "mix" + api.NewOrderID()[:13], Units: map[string]int64{}, cancel: cancel, every: max(p.Papers, 0),
		Skus: []string{"mix-cup", "mix-jug"}, Scarce: "mix-rare", refused: map[string]int64{},
	}
	if m.every == 0 {
		m.every = paperEvery
	}
	s.Supply(mixScarce, m.Scarce)
	s.Supply(1_000_000, m.Skus...)
	if p.Limits {
		m.Limited = "mix-one"
		s.Supply(1_000_000, m.Limited)
		s.Limit(m.Limited, mixLimit)
	}
	for _, sku := range m.all() {
		m.Units[sku] = 1_000_000
		if s.Homes[sku] != s.Homes[m.Skus[0]] {
			s.T.Fatalf("the SKUs of a mix live in several shards: play it in a shop of one")
		}
	}
	m.Units[m.Scarce] = mixScarce
	callers, think := p.Callers, p.Think
	if callers == 0 {
		callers = 3
	}
	if think == 0 {
		think = 120 * time.Millisecond
	}
	for n := range callers {
		c := &mixCaller{Mix: m, n: n, chance: rand.New(rand.NewPCG(p.Seed+uint64(n), 11))}
		m.wait.Go(func() {
			for ctx.Err() == nil {
				c.visit(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(think/2 + time.Duration(c.chance.Int64N(int64(think)))):
				}
			}
		})
	}
	s.T.Cleanup(m.Stop)
	return m
}

// all are the SKUs of a mix.
func (m *Mix) all() []string {
	skus := append([]string{m.Scarce}, m.Skus...)
	if m.Limited != "" {
		skus = append(skus, m.Limited)
	}
	return skus
}

// Stop ends the mix; every call has its answer then, or was given up.
func (m *Mix) Stop() {
	m.cancel()
	m.wait.Wait()
}

// More waits until so many more stories were begun.
func (m *Mix) More(stories int64) {
	m.Shop.T.Helper()
	want := m.next.Load() + stories
	// No answer of the shop is judged by it: a busy machine may take its time over many.
	sandboxtest.Eventually(m.Shop.T, Patience+time.Duration(stories)*100*time.Millisecond, func() error {
		if n := m.next.Load(); n < want {
			return fmt.Errorf("%d stories of the mix, want %d", n, want)
		}
		return nil
	})
}

// A mixCaller does one thing after the other, so that it knows how what it touched must stand.
type mixCaller struct {
	*Mix
	n      int
	chance *rand.Rand
	visits int64
	buyers int // so many it has been
}

// Refused is how often a caller was answered 503 with a reason; without a mix that is never.
func (m *Mix) Refused(reason string) int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[reason]
}

// Written is how often a document was answered as written: whatever its movement was refused for, its caller is told no more.
// Without a mix that is never.
func (m *Mix) Written() int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written
}

// begin opens the story of an order; buyer is empty where it does not matter.
func (c *mixCaller) begin(buyer string) *Story {
	s := &Story{Order: fmt.Sprintf("%s-%d", c.Run, c.next.Add(1)), Buyer: buyer, caller: c.n}
	c.mu.Lock()
	c.stories = append(c.stories, s)
	c.mu.Unlock()
	return s
}

// step makes a call until it is settled, notes it, and says whether it was done.
func (c *mixCaller) step(s *Story, step Step, do func(context.Context, *api.Client, *Step) error) bool {
	give := time.Now().Add(mixPatience)
	for try := 0; ; try++ {
		step.Status, step.Problem = 0, nil
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), statusKey{}, &step.Status), CallPatience)
		err := do(ctx, c.Shop.Client(c.n+try), &step)
		cancel()
		if !errors.As(err, &step.Problem) && err != nil {
			step.Status = 0
		}
		if step.Status == http.StatusServiceUnavailable && step.Problem != nil {
			c.mu.Lock()
			c.refused[step.Problem.Reason]++
			c.mu.Unlock()
		}
		if step.Document.State == "written" {
			c.mu.Lock()
			c.written++
			c.mu.Unlock()
		}
		if step.settled() || time.Now().After(give) {
			break
		}
		c.repeats.Add(1)
		time.Sleep(mixPause) // as any client does before it asks again
	}
	step.At = time.Now()
	s.mu.Lock()
	s.Steps = append(s.Steps, &step)
	s.mu.Unlock()
	return step.done()
}

// again makes a call, and one time in four the same once more, which must change nothing.
func (c *mixCaller) again(s *Story, step Step, do func(context.Context, *api.Client, *Step) error) bool {
	if !c.step(s, step, do) {
		return false
	}
	if c.chance.IntN(4) > 0 {
		return true
	}
	step.Repeat = true
	return c.step(s, step, do)
}

func (c *mixCaller) reserve(s *Story, ttl int64, policy string, lines ...api.Line) bool {
	verb := "reserve"
	if ttl == 0 {
		verb = "sale"
	}
	return c.again(s, Step{Verb: verb, Lines: lines, Policy: policy, TTL: ttl}, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Told, err = client.Reserve(ctx, &api.ReserveRequest{OrderID: s.Order, Buyer: s.Buyer, Lines: lines, TTL: ttl, Sale: ttl == 0, Policy: policy})
		return err
	})
}

func (c *mixCaller) replace(s *Story, lines ...api.Line) bool {
	return c.again(s, Step{Verb: "replace", Lines: lines}, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Told, err = client.Replace(ctx, s.Order, api.ReplaceRequest{Lines: lines})
		return err
	})
}

func (c *mixCaller) extend(s *Story, by time.Duration) bool {
	until := time.Now().Add(by).UTC().Format(time.RFC3339)
	return c.again(s, Step{Verb: "extend", Until: until}, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Told, err = client.Extend(ctx, s.Order, api.ExtendRequest{Until: until})
		return err
	})
}

// confirm and release name what shall stand; nothing named is the whole order.
func (c *mixCaller) confirm(s *Story, results ...api.Result) bool {
	return c.again(s, Step{Verb: "confirm", Results: results}, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Told, err = client.Confirm(ctx, s.Order, api.AttemptRequest{Lines: results})
		return err
	})
}

func (c *mixCaller) release(s *Story, results ...api.Result) bool {
	return c.again(s, Step{Verb: "release", Results: results}, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Told, err = client.Release(ctx, s.Order, api.AttemptRequest{Lines: results})
		return err
	})
}

// amend writes a document of the order: fulfil, cancel, return or scrap; no lines are all that is left.
func (c *mixCaller) amend(s *Story, verb string, lines ...api.Line) bool {
	step := Step{Verb: verb, Lines: lines, Paper: fmt.Sprintf("%s.d%d", s.Order, len(s.Steps))}
	return c.again(s, step, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		switch verb {
		case "fulfil":
			step.Document, err = client.Fulfil(ctx, s.Order, &api.AmendRequest{DocumentID: step.Paper, Lines: lines})
		case "cancel":
			step.Document, err = client.Cancel(ctx, s.Order, &api.AmendRequest{DocumentID: step.Paper, Lines: lines})
		default:
			step.Document, err = client.Return(ctx, s.Order, &api.ReturnRequest{DocumentID: step.Paper, Lines: lines, Scrap: verb == "scrap"})
		}
		return err
	})
}

// move writes a document of a SKU: receive, adjust or back, with signed units.
func (c *mixCaller) move(s *Story, verb, sku string, units int64) bool {
	step := Step{Verb: verb, SKU: sku, Paper: s.Order + ".d"}
	return c.again(s, step, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		switch verb {
		case "receive":
			step.Document, err = client.Receive(ctx, sku, &api.ReceiveRequest{DocumentID: step.Paper, Quantity: units})
		case "adjust":
			step.Document, err = client.Adjust(ctx, sku, &api.AdjustRequest{DocumentID: step.Paper, Quantity: units, Reason: "found"})
		default:
			step.Document, err = client.TakeBack(ctx, sku, &api.StockReturnRequest{DocumentID: step.Paper, Quantity: units})
		}
		return err
	})
}

// count looks at a SKU and posts a stocktake as of that look, which found some units more or less.
func (c *mixCaller) count(s *Story, sku string, off int64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), CallPatience)
	look, err := c.Shop.Client(c.n).Stock(ctx, sku)
	cancel()
	if err != nil || look.Ledger == nil {
		return false // a fault of the row; nothing was asked for
	}
	step := Step{Verb: "count", SKU: sku, Paper: s.Order + ".d"}
	return c.again(s, step, func(ctx context.Context, client *api.Client, step *Step) (err error) {
		step.Document, err = client.Count(ctx, sku, &api.CountRequest{DocumentID: step.Paper, Counted: look.Ledger.OnHand + off, Position: look.Ledger.Position})
		return err
	})
}

// awaitExpired waits until Postgres says that a hold ended, or for as long as that takes where all is well.
func (c *mixCaller) awaitExpired(ctx context.Context, s *Story) {
	for give := time.Now().Add(5 * time.Second); time.Now().Before(give) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		call, cancel := context.WithTimeout(context.Background(), CallPatience)
		order, err := c.Shop.Client(c.n).Order(call, s.Order, "")
		cancel()
		if err == nil && len(order.Matches) > 0 && order.Matches[0].Ledger != nil && order.Matches[0].Ledger.State != "held" {
			return
		}
	}
}

// done says that a step was carried out.
func (s *Step) done() bool { return s.Status >= 200 && s.Status < 300 && s.settled() }

// settled says that asking again would not tell more. What a document's entry did is final only once Postgres has it.
func (s *Step) settled() bool {
	switch s.Status {
	case 0, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	case http.StatusAccepted:
		return s.Paper == ""
	}
	return true
}
