package shoptest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// An Account is what the callers of a traffic were told, beside what stands in the end.
type Account struct {
	Told      int // reservations that were accepted
	Persisted int
	Lost      int // reported so by their receipts
	Unknown   int // calls without an answer that tells
	Refused   int // 503
	Confirmed int // confirms that were answered 200 and stand in Postgres
	Revoked   int // confirms that were answered 200 and are reported lost, where a Postgres without a synchronous standby failed over
}

func (a Account) String() string {
	return fmt.Sprintf("%d told 201: %d persisted, %d reported lost, 0 silent; of the confirms told 200 %d are in Postgres, %d reported lost; %d told 503, %d unknown",
		a.Told, a.Persisted, a.Lost, a.Confirmed, a.Revoked, a.Refused, a.Unknown)
}

// isLost asks with the receipt of an answer whether it is reported lost.
func (s *Shop) isLost(a *Answer) bool {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), Patience)
	defer cancel()
	standing, err := s.Patient(0).Await(ctx, a.Order, a.Reservation.Receipt)
	return err == nil && standing == api.StandingLost
}

// Judge compares the lists of a stopped traffic, which sold one SKU of so many units in all, with Postgres, once the
// shop is drained: nothing is oversold, nothing is lost in silence, and unless it may, nothing is lost at all.
func (l *Traffic) Judge(units int64, mayLose bool) Account {
	s, sku := l.Shop, l.Skus[0]
	s.T.Helper()
	reserves, ends := l.Answers(), l.Ended()
	persisted, lost := s.Standings(reserves)
	stored, states := s.Reservations(sku)
	a := Account{Persisted: len(persisted), Lost: len(lost)}
	if len(lost) > 0 && !mayLose {
		s.T.Errorf("%d orders are reported lost: nothing had to be", len(lost))
	}
	givenBack := map[string]bool{}
	for _, end := range ends {
		a.count(s, &end)
		givenBack[end.Order] = givenBack[end.Order] || end.State == "released" && (end.Accepted() || end.Status == http.StatusAccepted || !end.Settled())
		switch {
		case end.Status == http.StatusOK && end.State == "confirmed":
			switch {
			case states[end.Order] == "confirmed":
				a.Confirmed++
			case mayLose && s.isLost(&end):
				a.Revoked++
			default:
				s.T.Errorf("order %s is %q in Postgres: its confirm was told 200", end.Order, states[end.Order])
			}
		case end.Status == http.StatusOK || end.Status == http.StatusAccepted:
			if !mayLose && states[end.Order] != end.State {
				s.T.Errorf("order %s is %q in Postgres: it was told %s", end.Order, states[end.Order], end.String())
			}
		}
	}
	var taken int64
	told := map[string]bool{}
	for _, answer := range reserves {
		a.count(s, &answer)
		told[answer.Order] = answer.Accepted() || !answer.Settled()
		if answer.Accepted() {
			a.Told++
			if persisted[answer.Order] && stored[answer.Order] == "" {
				s.T.Errorf("order %s is called persisted and is not in Postgres", answer.Order)
			}
			if !lost[answer.Order] && !givenBack[answer.Order] {
				taken += answer.Units
			}
		}
	}
	if taken > units {
		s.T.Errorf("oversold: callers were told %d units of %d", taken, units)
	}
	for order := range stored {
		if !told[order] {
			s.T.Errorf("order %s is in Postgres, and nobody was told so", order)
		}
	}
	return a
}

// count sorts an answer that is no acceptance, and wants it to be one that a fault excuses.
func (a *Account) count(s *Shop, answer *Answer) {
	switch answer.Status {
	case http.StatusCreated, http.StatusOK, http.StatusAccepted:
	case http.StatusServiceUnavailable:
		a.Refused++
	case http.StatusGatewayTimeout, 0:
		a.Unknown++
	case http.StatusConflict, http.StatusNotFound:
		if answer.State == "" { // what was lost can be neither paid nor given back
			s.T.Errorf("there was enough for everybody: %s", answer.String())
		}
	default:
		s.T.Errorf("no fault excuses %s", answer.String())
	}
}

// SellRest buys what is left of the traffic's SKU, tries to buy more, and adds what was told to the traffic's lists.
func (l *Traffic) SellRest() {
	s, sku := l.Shop, l.Skus[0]
	s.T.Helper()
	s.Drain()
	rest := Available(s.T, s.InRedis(sku))
	const shares, more = 50, 20
	sell := func(n int, units int64) {
		answers := make([]Answer, n)
		Crowd(n, 16, func(i int) {
			answers[i] = Reserve(s.T.Context(), s.Patient(i), fmt.Sprintf("rest-%s-%d-%d", l.Run, units, i), sku, units, 3600)
		})
		for _, a := range answers {
			if a.Accepted() {
				rest -= a.Units
			}
		}
		l.Mu.Lock()
		defer l.Mu.Unlock()
		for _, a := range answers {
			if a.Status != http.StatusConflict {
				l.Reserves = append(l.Reserves, a)
			}
		}
	}
	if share := rest / shares; share > 1 {
		sell(shares, share)
	}
	sell(int(rest)+more, 1)
	if rest != 0 {
		s.T.Errorf("%d units were left when everything was sold, and asked for", rest)
	}
	s.Drain()
}

// Holds checks the sum of a SKU in both stores, which agree.
func (s *Shop) Holds(sku string, units int64) {
	s.T.Helper()
	redis, postgres := s.InRedis(sku), s.InPostgres(sku)
	var available, held, committed int64
	if _, err := fmt.Sscanf(postgres, "%d|%d|%d", &available, &held, &committed); err != nil {
		s.T.Errorf("%s: %v", postgres, err)
	}
	if redis != postgres || available+held+committed != units {
		s.T.Errorf("%s is %s in Redis and %s in Postgres, of %d units", sku, redis, postgres, units)
	}
}

// More waits until so many more orders were accepted.
func (l *Traffic) More(orders int64) {
	l.Shop.T.Helper()
	want := l.Reserved.Load() + orders
	sandboxtest.Eventually(l.Shop.T, Patience, func() error {
		if n := l.Reserved.Load(); n < want {
			return fmt.Errorf("%d orders accepted, want %d", n, want)
		}
		return nil
	})
}

// AwaitPaid waits for a confirm that was asked for after a moment and answered 200, and says when that was told: the
// shop sells, and Postgres persists.
func (l *Traffic) AwaitPaid(after time.Time) (told time.Time) {
	l.Shop.T.Helper()
	seen := 0
	sandboxtest.Eventually(l.Shop.T, 2*Patience, func() error {
		ends := l.Ended()
		for _, a := range ends[seen:] {
			if a.State == "confirmed" && a.Status == http.StatusOK && a.Began.After(after) {
				told = a.Ended
				return nil
			}
		}
		seen = len(ends)
		if seen == 0 {
			return errors.New("nobody paid or gave back")
		}
		return fmt.Errorf("no confirm is answered 200; the last %s", ends[seen-1].String())
	})
	return told
}
