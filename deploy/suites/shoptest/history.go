package shoptest

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// historyTime bounds one judgement; a history that takes longer is not judged, which is a fault of the suite.
const historyTime = time.Minute

// A Deed is what one operation on a SKU did, or was told.
type Deed struct {
	Units int64 // taken; below 0: given back
	Short bool  // nothing was taken: it was told that fewer than Units are there
}

func (d Deed) String() string {
	switch {
	case d.Short:
		return fmt.Sprintf("sold out for %d", d.Units)
	case d.Units < 0:
		return fmt.Sprintf("gives back %d", -d.Units)
	}
	return fmt.Sprintf("takes %d", d.Units)
}

// shelf is the sequential SKU that every history must be explained by: so many units, and nothing else.
func shelf(units int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return units },
		Step: func(state, input, _ any) (bool, any) {
			available, deed := state.(int64), input.(Deed)
			if deed.Short {
				return available < deed.Units, available
			}
			left := available - deed.Units
			return left >= 0 && left <= units, left
		},
		DescribeOperation: func(input, _ any) string { return input.(Deed).String() },
	}
}

// A History is what callers of one SKU saw, in real time.
type History struct {
	began time.Time
	units int64
	deeds []porcupine.Operation
}

// NewHistory is one of a SKU with so many units.
func NewHistory(units int64) *History { return &History{began: time.Now(), units: units} }

// Add notes a deed that took effect at one moment between two times; no end means that it may be later than all.
func (h *History) Add(d Deed, from, to time.Time) {
	last := int64(math.MaxInt64)
	if !to.IsZero() {
		last = to.Sub(h.began).Nanoseconds()
	}
	h.deeds = append(h.deeds, porcupine.Operation{Input: d, Call: from.Sub(h.began).Nanoseconds(), Return: last})
}

// Explained reports whether one order of the deeds, in which none moves out of its times, is that of a single shelf:
// no unit sold twice, and nobody told "sold out" while there was enough.
func (h *History) Explained() (bool, error) {
	switch porcupine.CheckOperationsTimeout(shelf(h.units), h.deeds, historyTime) {
	case porcupine.Ok:
		return true, nil
	case porcupine.Illegal:
		return false, nil
	}
	return false, fmt.Errorf("a history of %d deeds was not judged within %v", len(h.deeds), historyTime)
}

// JudgeHistory wants that what the callers of one SKU were told is what a single shelf could have told them. Holds that were
// lost came back before the first acceptance under a later epoch; whoever got no answer took its units at some time if
// Postgres has the order.
func (s *Shop) JudgeHistory(sku string, units int64, reserves, ends []Answer, lost map[string]bool) {
	s.T.Helper()
	h := NewHistory(units)
	_, states := s.Reservations(sku)
	opened := firstOf(reserves)
	for i := range reserves {
		a := &reserves[i]
		if a.SKU != sku {
			continue
		}
		switch {
		case a.Accepted():
			h.Add(Deed{Units: a.Units}, a.Began, a.Ended)
			if lost[a.Order] {
				h.Add(Deed{Units: -a.Units}, a.Began, opened.after(a.Epoch()))
			}
		case a.Status == http.StatusConflict && a.Problem != nil && a.Problem.Code == "sold_out":
			h.Add(Deed{Units: a.Units, Short: true}, a.Began, a.Ended)
		case states[a.Order] != "":
			h.Add(Deed{Units: a.Units}, a.Began, time.Time{})
		}
	}
	for i := range ends {
		a := &ends[i]
		if a.SKU == sku && states[a.Order] == "released" {
			to := a.Ended
			if !a.Accepted() {
				to = time.Time{}
			}
			h.Add(Deed{Units: -a.Units}, a.Began, to)
		}
	}
	explained, err := h.Explained()
	Need(s.T, err)
	if !explained {
		s.T.Errorf("no order of what %d callers were told explains it: a unit was sold twice, or somebody was told sold out while there were units", len(h.deeds))
	}
}

// epochs knows when each epoch first accepted something.
type epochs map[int64]time.Time

func firstOf(answers []Answer) epochs {
	first := epochs{}
	for i := range answers {
		a := &answers[i]
		if epoch := a.Epoch(); a.Accepted() && (first[epoch].IsZero() || a.Ended.Before(first[epoch])) {
			first[epoch] = a.Ended
		}
	}
	return first
}

// after is when the epoch after this one first accepted something; zero if none did.
func (e epochs) after(epoch int64) time.Time {
	next := int64(math.MaxInt64)
	for other := range e {
		if other > epoch {
			next = min(next, other)
		}
	}
	return e[next]
}

// ProveHistories shows that the judge of histories condemns what it should: call it once in a suite.
func ProveHistories(t *testing.T) {
	t.Helper()
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name string
		tell func(*History)
		want bool
	}{
		{"all units, then sold out", func(h *History) {
			h.Add(Deed{Units: 1}, at(0), at(10))
			h.Add(Deed{Units: 1}, at(5), at(12))
			h.Add(Deed{Units: 1, Short: true}, at(8), at(20))
		}, true},
		{"one unit too many", func(h *History) {
			for i := range 3 {
				h.Add(Deed{Units: 1}, at(i), at(10))
			}
		}, false},
		{"sold out while there is one", func(h *History) {
			h.Add(Deed{Units: 1}, at(0), at(10))
			h.Add(Deed{Units: 1, Short: true}, at(20), at(30))
		}, false},
		{"a unit sold again that came back later", func(h *History) {
			h.Add(Deed{Units: 2}, at(0), at(10))
			h.Add(Deed{Units: 1}, at(11), at(20))
			h.Add(Deed{Units: -2}, at(30), at(40))
		}, false},
		{"a unit sold again that had come back", func(h *History) {
			h.Add(Deed{Units: 2}, at(0), at(10))
			h.Add(Deed{Units: -2}, at(11), at(20))
			h.Add(Deed{Units: 1}, at(15), at(30))
		}, true},
		{"given back twice", func(h *History) {
			h.Add(Deed{Units: 1}, at(0), at(10))
			h.Add(Deed{Units: -1}, at(11), at(20))
			h.Add(Deed{Units: -1}, at(21), at(30))
		}, false},
		{"no answer, and it took a unit", func(h *History) {
			h.Add(Deed{Units: 2}, at(0), time.Time{})
			h.Add(Deed{Units: 1, Short: true}, at(5), at(10))
		}, true},
	} {
		h := &History{began: at(0), units: 2}
		c.tell(h)
		if got, err := h.Explained(); err != nil || got != c.want {
			t.Errorf("%s: explained %v (%v), want %v", c.name, got, err, c.want)
		}
	}
}
