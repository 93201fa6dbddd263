package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// callPatience bounds one call: longer than any answer of a producer takes.
const callPatience = 15 * time.Second

// tap writes down the status of an answer for the caller who asks for it by its context.
type tap struct{ http.RoundTripper }

type statusKey struct{}

func (t *tap) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(request)
	if status, asked := request.Context().Value(statusKey{}).(*int); asked && err == nil {
		*status = answer.StatusCode
	}
	return answer, err
}

// An answer is what one call was told. Status 0: nothing came.
type answer struct {
	order        string
	sku          string
	units        int64
	status       int
	reservation  api.Reservation
	problem      *api.Problem
	err          error
	began, ended time.Time
	state        string // that a confirm or release was for
}

// epoch is that of the receipt.
func (a *answer) epoch() int64 {
	receipt, err := stock.ParseReceipt(a.reservation.Receipt)
	if err != nil {
		return 0
	}
	return receipt.Epoch
}

// accepted: it was told that the units are its own, now or by an earlier call.
func (a *answer) accepted() bool {
	return a.status == http.StatusCreated || a.status == http.StatusOK
}

// settled: asking again with the same id would not tell more.
func (a *answer) settled() bool {
	return a.status != 0 && a.status != http.StatusServiceUnavailable && a.status != http.StatusGatewayTimeout
}

func (a *answer) String() string {
	return fmt.Sprintf("order %s: status %d, %+v, %v", a.order, a.status, a.reservation, a.err)
}

// call makes one call with its status and times.
func call(ctx context.Context, order string, do func(context.Context) (api.Reservation, error)) answer {
	a := answer{order: order, began: time.Now()}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, statusKey{}, &a.status), callPatience)
	defer cancel()
	a.reservation, a.err = do(ctx)
	a.ended = time.Now()
	if !errors.As(a.err, &a.problem) && a.err != nil {
		a.status = 0
	}
	return a
}

func reserve(ctx context.Context, c *api.Client, order, sku string, units, ttl int64) answer {
	a := call(ctx, order, func(ctx context.Context) (api.Reservation, error) {
		return c.Reserve(ctx, &api.ReserveRequest{OrderID: order, Lines: []api.Line{{SKU: sku, Quantity: units}}, TTL: ttl})
	})
	a.sku, a.units = sku, units
	return a
}

func confirm(ctx context.Context, c *api.Client, order string) answer {
	return call(ctx, order, func(ctx context.Context) (api.Reservation, error) { return c.Confirm(ctx, order, api.AttemptRequest{}) })
}

func release(ctx context.Context, c *api.Client, order string) answer {
	return call(ctx, order, func(ctx context.Context) (api.Reservation, error) { return c.Release(ctx, order, api.AttemptRequest{}) })
}

// told checks a status.
func (s *shop) told(a answer, want int) answer {
	s.t.Helper()
	if a.status != want {
		s.t.Errorf("want status %d: %s", want, a.String())
	}
	return a
}

// counts says how often each status came.
func counts(answers []answer) map[int]int {
	found := map[int]int{}
	for _, a := range answers {
		found[a.status]++
	}
	return found
}

// A traffic is callers who come until they are told to stop. Some pay, some give back, most leave it.
type traffic struct {
	shop   *shop
	skus   []string
	leave  bool // never pay or give back
	insist bool // ask again, at another producer, until there is an answer that settles it
	cancel context.CancelFunc
	wait   sync.WaitGroup
	run    string

	reserved atomic.Int64 // 201s so far
	next     atomic.Int64
	repeats  atomic.Int64

	mu       sync.Mutex
	reserves []answer
	ends     []answer // of confirms and releases
}

// traffic starts so many callers, each of whom waits for its answer and then a moment.
func (s *shop) traffic(callers int, think time.Duration, leave bool, skus ...string) *traffic {
	return s.come(&traffic{leave: leave, skus: skus}, callers, think)
}

// come starts the callers of a traffic.
func (s *shop) come(l *traffic, callers int, think time.Duration) *traffic {
	ctx, cancel := context.WithCancel(s.t.Context())
	l.shop, l.cancel, l.run = s, cancel, api.NewOrderID()[:12]
	for n := range callers {
		l.wait.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(n), 7))
			for ctx.Err() == nil {
				l.visit(chance, n)
				select {
				case <-ctx.Done():
				case <-time.After(think/2 + time.Duration(chance.Int64N(int64(think)+1))):
				}
			}
		})
	}
	s.t.Cleanup(l.stop)
	return l
}

// visit is one order. It is finished even when the traffic is stopped meanwhile.
func (l *traffic) visit(chance *rand.Rand, n int) {
	ctx := context.Background()
	order := fmt.Sprintf("%s-%d", l.run, l.next.Add(1))
	units := int64(1)
	if !l.leave {
		units += chance.Int64N(2)
	}
	sku := l.skus[chance.IntN(len(l.skus))]
	a := l.settle(n, func(c *api.Client) answer { return reserve(ctx, c, order, sku, units, 0) })
	l.mu.Lock()
	l.reserves = append(l.reserves, a)
	l.mu.Unlock()
	if !a.accepted() {
		return
	}
	l.reserved.Add(1)
	if l.leave {
		return
	}
	switch p := chance.IntN(10); {
	case p < 4:
		a = l.settle(n, func(c *api.Client) answer { return confirm(ctx, c, order) })
		a.state = "confirmed"
	case p < 7:
		a = l.settle(n, func(c *api.Client) answer { return release(ctx, c, order) })
		a.state = "released"
	default:
		return
	}
	l.mu.Lock()
	l.ends = append(l.ends, a)
	l.mu.Unlock()
}

// settle makes a call, and makes it again if this traffic insists.
func (l *traffic) settle(n int, do func(*api.Client) answer) answer {
	for try := 0; ; try++ {
		a := do(l.shop.client(n + try))
		if !l.insist || a.settled() || try == 100 {
			return a
		}
		l.repeats.Add(1)
		time.Sleep(10 * time.Millisecond) // as any client does before it asks again
	}
}

// stop ends the traffic; every call has its answer then.
func (l *traffic) stop() {
	l.cancel()
	l.wait.Wait()
}

// answers are those to reservations so far.
func (l *traffic) answers() []answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]answer(nil), l.reserves...)
}

// standings asks with the receipt of every 201 what became of it: order → persisted or lost. Anything else is an
// order that disappeared silently.
func (s *shop) standings(answers []answer) (persisted, lost map[string]bool) {
	s.t.Helper()
	persisted, lost = map[string]bool{}, map[string]bool{}
	var mu sync.Mutex
	crowd(len(answers), 16, func(i int) {
		a := answers[i]
		if !a.accepted() {
			return
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		standing, err := s.patient(i).Await(ctx, a.order, a.reservation.Receipt)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			s.t.Errorf("order %s was accepted, and its receipt %s is %q: %v", a.order, a.reservation.Receipt, standing, err)
		case standing == api.StandingPersisted:
			persisted[a.order] = true
		case standing == api.StandingLost:
			lost[a.order] = true
		}
	})
	return persisted, lost
}

// reservations are the orders of a SKU in Postgres: id → receipt of the last change, and the state.
func (s *shop) reservations(sku string) (receipts, states map[string]string) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `select r.order_id, concat_ws('.', r.shard, r.epoch, r.seq, r.idx), r.state
		from reservation r join reservation_line l using (shard, order_id, attempt) where l.sku = $1`, s.numbers[sku])
	need(s.t, err)
	defer rows.Close()
	receipts, states = map[string]string{}, map[string]string{}
	for rows.Next() {
		var order, receipt, state string
		need(s.t, rows.Scan(&order, &receipt, &state))
		if receipts[order] != "" {
			s.t.Errorf("order %s stands twice in Postgres", order)
		}
		receipts[order], states[order] = receipt, state
	}
	need(s.t, rows.Err())
	return receipts, states
}

// names makes SKU texts.
func names(stem string, n int) []string {
	skus := make([]string, n)
	for i := range skus {
		skus[i] = fmt.Sprintf("%s-%d", stem, i)
	}
	return skus
}

func shorten(text string) string { return strings.Join(strings.Fields(text), " ") }
