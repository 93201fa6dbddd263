package shoptest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// A Step is one call of a caller and what it was told in the end, after as many tries as it took.
type Step struct {
	Verb    string // reserve, sale, replace, extend, confirm, release, fulfil, cancel, return, scrap, receive, adjust, count
	Paper   string // id of its document, if it is one
	SKU     string // of a document of a SKU
	Lines   []api.Line
	Results []api.Result
	Policy  string
	TTL     int64
	Until   string
	Repeat  bool // of the step before it

	Status   int // 0: no answer
	Problem  *api.Problem
	Told     api.Reservation
	Document api.Document
	At       time.Time // when it was told

	lost bool // its receipt says so
}

func (s *Step) String() string {
	what := fmt.Sprintf("%s %v%v%s: %d", s.Verb, s.Lines, s.Results, s.Paper, s.Status)
	switch {
	case s.Problem != nil:
		return what + " " + s.Problem.Code
	case s.Paper != "":
		return fmt.Sprintf("%s %s %d, receipt %s, lost %v", what, s.Document.State, s.Document.Quantity, s.Document.Receipt, s.lost)
	}
	return fmt.Sprintf("%s %s %v as attempt %d, receipt %s, lost %v", what, s.Told.State, s.Told.Lines, s.Told.Attempt, s.Told.Receipt, s.lost)
}

// receipt is that of the answer; empty for a refusal.
func (s *Step) receipt() string {
	if s.Paper != "" {
		return s.Document.Receipt
	}
	return s.Told.Receipt
}

// A Story is all that one caller did with one order, or one document of a SKU.
type Story struct {
	Order, Buyer string
	caller       int

	mu    sync.Mutex
	Steps []*Step
}

func (s *Story) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "order %s of %q", s.Order, s.Buyer)
	for _, step := range s.Steps {
		b.WriteString("\n    " + step.String())
	}
	return b.String()
}

// A standing is how an order must stand; no state: nobody has it.
type standing struct {
	state   string
	attempt int64
	lines   map[string]units
}

// units of one SKU of an order. now is 0 where the order ended.
type units struct{ asked, now, fulfilled, returned int64 }

func (s standing) clone() standing {
	s.lines = maps.Clone(s.lines)
	return s
}

// String is what two standings are compared by.
func (s standing) String() string {
	if s.state == "" {
		return "none"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", s.state, s.attempt)
	for _, sku := range slices.Sorted(maps.Keys(s.lines)) {
		if l := s.lines[sku]; l != (units{}) {
			fmt.Fprintf(&b, " %s=%d:%d:%d:%d", sku, l.asked, l.now, l.fulfilled, l.returned)
		}
	}
	return b.String()
}

// taken is what the order has of a SKU, shipped units included.
func (s standing) taken(sku string) int64 { return s.lines[sku].now + s.lines[sku].fulfilled }

// end gives everything back.
func (s *standing) end(state string) {
	s.state = state
	for sku, l := range s.lines {
		l.now = 0
		s.lines[sku] = l
	}
}

// after is how an order stands once a step was carried out, by the rules alone; from the answer comes only what a
// partial reserve found, and whether a confirm came after the end of its hold.
func (s standing) after(step *Step) standing {
	next := s.clone()
	switch step.Verb {
	case "reserve", "sale":
		if s.state != "" {
			return next // a repeat
		}
		next = standing{state: "held", attempt: 1, lines: map[string]units{}}
		if step.Verb == "sale" {
			next.state = "confirmed"
		}
		for _, l := range step.Lines {
			next.lines[l.SKU] = units{asked: l.Quantity, now: l.Quantity}
		}
		if step.Policy == "partial" {
			for _, l := range step.Told.Lines {
				next.lines[l.SKU] = units{asked: next.lines[l.SKU].asked, now: min(l.Quantity, next.lines[l.SKU].asked)}
			}
		}
	case "replace":
		for sku, l := range next.lines {
			l.now = 0
			next.lines[sku] = l
		}
		for _, l := range step.Lines {
			next.lines[l.SKU] = units{asked: next.lines[l.SKU].asked, now: l.Quantity}
		}
	case "confirm":
		if s.state == "confirmed" {
			return next
		}
		next.state = "confirmed"
		if step.Told.Attempt == s.attempt+1 {
			next.attempt++ // late: the hold had ended
		}
		if len(step.Results) > 0 {
			next.leave(step.Results, 0)
		}
	case "release":
		if len(step.Results) == 0 {
			next.end("released")
			return next
		}
		next.leave(step.Results, -1)
	case "fulfil", "cancel", "return", "scrap":
		next.amend(step)
	}
	return next
}

// leave is what results leave of a hold. Lines that are not named become rest; below 0 they stay.
func (s *standing) leave(results []api.Result, rest int64) {
	named := map[string]int64{}
	for _, r := range results {
		named[r.SKU] = r.Quantity
	}
	for sku, l := range s.lines {
		if n, ok := named[sku]; ok {
			l.now = n
		} else if rest >= 0 {
			l.now = rest
		}
		s.lines[sku] = l
	}
}

// amend moves the units of a document of the order.
func (s *standing) amend(step *Step) {
	moved := map[string]int64{}
	for _, l := range step.Lines {
		moved[l.SKU] = l.Quantity
	}
	left, shipped := int64(0), int64(0)
	for sku, l := range s.lines {
		n := moved[sku]
		switch whole := len(step.Lines) == 0; step.Verb {
		case "fulfil", "cancel":
			if whole {
				n = l.now
			}
			l.now -= n
			if step.Verb == "fulfil" {
				l.fulfilled += n
			}
		default:
			if whole {
				n = l.fulfilled - l.returned
			}
			l.returned += n
		}
		left, shipped = left+l.now, shipped+l.fulfilled
		s.lines[sku] = l
	}
	switch {
	case left > 0 || step.Verb == "return" || step.Verb == "scrap":
	case shipped > 0:
		s.state = "fulfilled"
	default:
		s.state = "cancelled"
	}
}

// told is how an answer says that the order stands. What came back is not in it.
func (s *Step) told() standing {
	out := standing{state: s.Told.State, attempt: s.Told.Attempt, lines: map[string]units{}}
	for _, l := range s.Told.Lines {
		out.lines[l.SKU] = units{asked: l.Asked, now: l.Quantity, fulfilled: l.Fulfilled}
	}
	if isOver(out.state) {
		out.end(out.state)
	}
	return out
}

func isOver(state string) bool {
	return state == "released" || state == "expired" || state == "cancelled"
}
