package shoptest

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

// CallPatience bounds one call: longer than any answer of a producer takes.
const CallPatience = 15 * time.Second

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

// An Answer is what one call was told. Status 0: nothing came.
type Answer struct {
	Order        string
	SKU          string
	Units        int64
	Status       int
	Reservation  api.Reservation
	Problem      *api.Problem
	Err          error
	Began, Ended time.Time
	State        string // that a confirm or release was for
}

// Epoch is that of the receipt.
func (a *Answer) Epoch() int64 {
	receipt, err := stock.ParseReceipt(a.Reservation.Receipt)
	if err != nil {
		return 0
	}
	return receipt.Epoch
}

// Accepted says that it was told that the units are its own, now or by an earlier call.
func (a *Answer) Accepted() bool {
	return a.Status == http.StatusCreated || a.Status == http.StatusOK
}

// Settled says that asking again with the same id would not tell more.
func (a *Answer) Settled() bool {
	return a.Status != 0 && a.Status != http.StatusServiceUnavailable && a.Status != http.StatusGatewayTimeout
}

func (a *Answer) String() string {
	return fmt.Sprintf("order %s: status %d, %+v, %v", a.Order, a.Status, a.Reservation, a.Err)
}

// Call makes one call with its status and times.
func Call(ctx context.Context, order string, do func(context.Context) (api.Reservation, error)) Answer {
	a := Answer{Order: order, Began: time.Now()}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, statusKey{}, &a.Status), CallPatience)
	defer cancel()
	a.Reservation, a.Err = do(ctx)
	a.Ended = time.Now()
	if !errors.As(a.Err, &a.Problem) && a.Err != nil {
		a.Status = 0
	}
	return a
}

// Reserve asks for units of one SKU, once.
func Reserve(ctx context.Context, c *api.Client, order, sku string, units, ttl int64) Answer {
	a := Call(ctx, order, func(ctx context.Context) (api.Reservation, error) {
		return c.Reserve(ctx, &api.ReserveRequest{OrderID: order, Lines: []api.Line{{SKU: sku, Quantity: units}}, TTL: ttl})
	})
	a.SKU, a.Units = sku, units
	return a
}

// Confirm confirms the first attempt of an order, once.
func Confirm(ctx context.Context, c *api.Client, order string) Answer {
	return Call(ctx, order, func(ctx context.Context) (api.Reservation, error) { return c.Confirm(ctx, order, api.AttemptRequest{}) })
}

// Release gives back the first attempt of an order, once.
func Release(ctx context.Context, c *api.Client, order string) Answer {
	return Call(ctx, order, func(ctx context.Context) (api.Reservation, error) { return c.Release(ctx, order, api.AttemptRequest{}) })
}

// Told checks a status.
func (s *Shop) Told(a Answer, want int) Answer {
	s.T.Helper()
	if a.Status != want {
		s.T.Errorf("want status %d: %s", want, a.String())
	}
	return a
}

// Counts says how often each status came.
func Counts(answers []Answer) map[int]int {
	found := map[int]int{}
	for _, a := range answers {
		found[a.Status]++
	}
	return found
}

// A Traffic is callers who come until they are told to stop. Some pay, some give back, most leave it.
type Traffic struct {
	Shop   *Shop
	Skus   []string
	Leave  bool // never pay or give back
	Insist bool // ask again, at another producer, until there is an answer that settles it
	Cancel context.CancelFunc
	Wait   sync.WaitGroup
	Run    string
	Beside *Mix // everything else that can be done with an order, on SKUs of its own; nil: nothing

	Reserved atomic.Int64 // 201s so far
	Epoch    atomic.Int64 // the newest under which one was told
	Next     atomic.Int64
	Repeats  atomic.Int64

	Mu       sync.Mutex
	Reserves []Answer
	Ends     []Answer // of confirms and releases
}

// Traffic starts so many callers, each of whom waits for its answer and then a moment.
func (s *Shop) Traffic(callers int, think time.Duration, leave bool, skus ...string) *Traffic {
	return s.Come(&Traffic{Leave: leave, Skus: skus}, callers, think)
}

// Come starts the callers of a traffic.
func (s *Shop) Come(l *Traffic, callers int, think time.Duration) *Traffic {
	ctx, cancel := context.WithCancel(s.T.Context())
	l.Shop, l.Cancel, l.Run = s, cancel, api.NewOrderID()[:12]
	for n := range callers {
		l.Wait.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(n), 7))
			for ctx.Err() == nil {
				l.Visit(chance, n)
				select {
				case <-ctx.Done():
				case <-time.After(think/2 + time.Duration(chance.Int64N(int64(think)+1))):
				}
			}
		})
	}
	s.T.Cleanup(l.Stop)
	return l
}

// Visit is one order. It is finished even when the traffic is stopped meanwhile.
func (l *Traffic) Visit(chance *rand.Rand, n int) {
	ctx := context.Background()
	order := fmt.Sprintf("%s-%d", l.Run, l.Next.Add(1))
	units := int64(1)
	if !l.Leave {
		units += chance.Int64N(2)
	}
	sku := l.Skus[chance.IntN(len(l.Skus))]
	a := l.Settle(n, func(c *api.Client) Answer { return Reserve(ctx, c, order, sku, units, 0) })
	l.Mu.Lock()
	l.Reserves = append(l.Reserves, a)
	l.Mu.Unlock()
	if !a.Accepted() {
		return
	}
	l.Reserved.Add(1)
	for epoch := a.Epoch(); ; {
		if newest := l.Epoch.Load(); newest >= epoch || l.Epoch.CompareAndSwap(newest, epoch) {
			break
		}
	}
	if l.Leave {
		return
	}
	switch p := chance.IntN(10); {
	case p < 4:
		a = l.Settle(n, func(c *api.Client) Answer { return Confirm(ctx, c, order) })
		a.State = "confirmed"
	case p < 7:
		a = l.Settle(n, func(c *api.Client) Answer { return Release(ctx, c, order) })
		a.State = "released"
	default:
		return
	}
	l.Mu.Lock()
	l.Ends = append(l.Ends, a)
	l.Mu.Unlock()
}

// Settle makes a call, and makes it again if this traffic insists.
func (l *Traffic) Settle(n int, do func(*api.Client) Answer) Answer {
	for try := 0; ; try++ {
		a := do(l.Shop.Client(n + try))
		if !l.Insist || a.Settled() || try == 100 {
			return a
		}
		l.Repeats.Add(1)
		time.Sleep(10 * time.Millisecond) // as any client does before it asks again
	}
}

// Stop ends the traffic; every call has its answer then.
func (l *Traffic) Stop() {
	l.Cancel()
	l.Wait.Wait()
	if l.Beside != nil {
		l.Beside.Stop()
	}
}

// Answers are those to reservations so far.
func (l *Traffic) Answers() []Answer {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return append([]Answer(nil), l.Reserves...)
}

// Standings asks with the receipt of every 201 what became of it: order → persisted or lost. Anything else is an
// order that disappeared silently.
func (s *Shop) Standings(answers []Answer) (persisted, lost map[string]bool) {
	s.T.Helper()
	persisted, lost = map[string]bool{}, map[string]bool{}
	var mu sync.Mutex
	Crowd(len(answers), 16, func(i int) {
		a := answers[i]
		if !a.Accepted() {
			return
		}
		ctx, cancel := context.WithTimeout(s.T.Context(), Patience)
		defer cancel()
		standing, err := s.Patient(i).Await(ctx, a.Order, a.Reservation.Receipt)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			s.T.Errorf("order %s was accepted, and its receipt %s is %q: %v", a.Order, a.Reservation.Receipt, standing, err)
		case standing == api.StandingPersisted:
			persisted[a.Order] = true
		case standing == api.StandingLost:
			lost[a.Order] = true
		}
	})
	return persisted, lost
}

// Reservations are the orders of a SKU in Postgres: id → receipt of the last change, and the state.
func (s *Shop) Reservations(sku string) (receipts, states map[string]string) {
	s.T.Helper()
	rows, err := s.Pool.Query(s.T.Context(), `select r.order_id, concat_ws('.', r.shard, r.epoch, r.seq, r.idx), r.state
		from reservation r join reservation_line l using (shard, order_id, attempt) where l.sku = $1`, s.Numbers[sku])
	Need(s.T, err)
	defer rows.Close()
	receipts, states = map[string]string{}, map[string]string{}
	for rows.Next() {
		var order, receipt, state string
		Need(s.T, rows.Scan(&order, &receipt, &state))
		if receipts[order] != "" {
			s.T.Errorf("order %s stands twice in Postgres", order)
		}
		receipts[order], states[order] = receipt, state
	}
	Need(s.T, rows.Err())
	return receipts, states
}

// Names makes SKU texts.
func Names(stem string, n int) []string {
	skus := make([]string, n)
	for i := range skus {
		skus[i] = fmt.Sprintf("%s-%d", stem, i)
	}
	return skus
}

// Shorten puts a text on one line.
func Shorten(text string) string { return strings.Join(strings.Fields(text), " ") }
