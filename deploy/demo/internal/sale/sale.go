package sale

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

const (
	buyersAtOnce = 64               // that talk to the shop
	answerTime   = 20 * time.Second // for one answer, beyond which it is asked again
	pressTime    = 45 * time.Second // for a button, with all its tries, and until Postgres has it
	leaveTTL     = 3                // seconds of a hold that is left to expire
	expiryTime   = 30 * time.Second // within which holds have ended: 3 s, and 5 s after, and patience
	lookEvery    = 100 * time.Millisecond
	mostUnits    = 2 // of a side article in one order

	// mostTrouble is how many requests may end without an answer, each after many tries, before the rest of the
	// buyers stay away: the shop is closed, and the verdict says so.
	mostTrouble = 32
)

// A Plan is the size of a sale.
type Plan struct {
	Run    string        // begins every order id and ends every SKU of a later run
	Buyers int           // orders
	Units  int           // of the hot article
	SKUs   int           // side articles
	Lasts  time.Duration // over which the buyers arrive, most of them early
}

// A Sale is one that is played once. Its counters may be read while it runs.
type Sale struct {
	plan     Plan
	clients  []*api.Client
	articles []Article

	Decided   atomic.Int64 // orders that got a final answer to their reservation
	Accepted  atomic.Int64
	Refused   atomic.Int64
	Sold      atomic.Int64 // units of the hot article that were confirmed
	Confirmed atomic.Int64 // orders
	Released  atomic.Int64
	Left      atomic.Int64
	Repeats   atomic.Int64
	Unknown   atomic.Int64

	trouble atomic.Int64 // answers that were no answers

	Reserves Times // of reservations, as the buyers saw them
	Confirms Times

	mu      sync.Mutex
	orders  []*Order
	waiting []*buyer // that were refused the hot article and would come again
}

// An Article is a SKU of the sale.
type Article struct {
	SKU     string
	Opening int64
	Shard   int
}

// New prepares a sale at producers.
func New(plan Plan, producers []string) *Sale {
	s := &Sale{plan: plan}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxIdleConns = 2*buyersAtOnce, 0
	for _, url := range producers {
		c := api.NewClient(url)
		c.HTTP = &http.Client{Transport: transport, Timeout: answerTime}
		s.clients = append(s.clients, c)
	}
	return s
}

// Close gives the connections back.
func (s *Sale) Close() { s.clients[0].HTTP.CloseIdleConnections() }

// Stock creates the articles. The first one is the hot one.
func (s *Sale) Stock(ctx context.Context) ([]Article, error) {
	for n := range s.plan.SKUs + 1 {
		a := Article{SKU: s.name(n), Opening: int64(s.plan.Units)}
		if n > 0 {
			// Enough for everybody: buyers shall be refused for the hot article alone.
			a.Opening = mostUnits * int64(s.plan.Buyers)
		}
		if _, err := s.clients[0].Create(ctx, a.SKU, api.OpeningRequest{Opening: a.Opening}); err != nil {
			return nil, fmt.Errorf("create the SKU %s: %w", a.SKU, err)
		}
		stock, err := s.clients[0].Stock(ctx, a.SKU)
		if err != nil {
			return nil, fmt.Errorf("ask for the SKU %s: %w", a.SKU, err)
		}
		a.Shard = stock.Shard
		s.articles = append(s.articles, a)
	}
	return s.articles, nil
}

var names = [...]string{"espresso-machine", "grinder", "kettle", "scale", "tamper", "cup", "saucer", "beans"}

func (s *Sale) name(n int) string {
	name := names[n%len(names)]
	if n >= len(names) {
		name = fmt.Sprintf("%s-%d", name, n/len(names)+1)
	}
	return name + "." + s.plan.Run
}

// Hot is the SKU of the rush.
func (s *Sale) Hot() string { return s.articles[0].SKU }

// Orders is the callers' own list. Read it when Rush and Second have returned.
func (s *Sale) Orders() []*Order { return s.orders }

// Rush lets all buyers arrive: many at first, then fewer. It returns when each has done what it came for.
func (s *Sale) Rush(ctx context.Context) error {
	arrivals := make(chan *buyer)
	var wait sync.WaitGroup
	for range buyersAtOnce {
		wait.Go(func() {
			for b := range arrivals {
				s.serve(ctx, b)
			}
		})
	}
	began := time.Now()
	for n := range s.plan.Buyers {
		if !sleepUntil(ctx, began.Add(arrival(n, s.plan.Buyers, s.plan.Lasts))) || s.over() {
			break
		}
		arrivals <- s.buyer(n)
	}
	close(arrivals)
	wait.Wait()
	return ctx.Err()
}

// over says that the shop does not sell any more.
func (s *Sale) over() bool { return s.trouble.Load() >= mostTrouble }

// arrival is when a buyer comes: three quarters of them in the first half.
func arrival(n, of int, lasts time.Duration) time.Duration {
	share := float64(n) / float64(of)
	return time.Duration(float64(lasts) * (0.5*share + 0.5*share*share*share))
}

// Second waits until the holds of those who left have expired, and lets those who were refused come again until the
// hot article is sold out for good.
func (s *Sale) Second(ctx context.Context) error {
	if s.over() {
		return nil
	}
	if err := s.awaitHolds(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	slices.SortFunc(waiting, func(a, b *buyer) int { return a.number - b.number })
	var (
		wait sync.WaitGroup
		next atomic.Int64
		over atomic.Bool // nothing comes back any more, so one refusal is the end
	)
	for range buyersAtOnce {
		wait.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(waiting) {
					return
				}
				b := waiting[n]
				b.intent = pay
				s.serve(ctx, b)
				over.CompareAndSwap(false, b.order.Told != Confirmed)
			}
		})
	}
	wait.Wait()
	return ctx.Err()
}

// awaitHolds waits until nothing is held. A hold that does not end is for the verdict to tell.
func (s *Sale) awaitHolds(ctx context.Context) error {
	deadline := time.Now().Add(expiryTime)
	for _, a := range s.articles {
		for time.Now().Before(deadline) {
			stock, err := s.clients[0].Stock(ctx, a.SKU)
			if err == nil && stock.Redis != nil && stock.Redis.Held == 0 {
				break
			}
			if !sleepUntil(ctx, time.Now().Add(lookEvery)) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// Standing asks what became of the last thing that an order was told.
func (s *Sale) Standing(ctx context.Context, o *Order) (string, error) {
	answer, err := s.clients[0].Order(ctx, o.ID, o.Receipt)
	return answer.Standing, err
}

// sleepUntil waits, and says whether it waited to the end.
func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
