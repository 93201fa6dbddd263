package stocktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An expectation is what stands behind "->". Clauses are joined by commas:
//
//	held 4                      the step's word, with the order's units if a number follows
//	replayed confirmed          …or the state in which it stands
//	shortfall or confirmed      one of several words
//	attempt 2                   the attempt that the order stands at
//	shipped 2                   units of the order that were fulfilled
//	has 2 of 3                  beside limit: what the buyer has, of how much
//	left tea 3                  what was available, beside sold out, shortfall and refused…
//	left tea 3 of 4             …and what had been asked
//	available 6  (held, committed)     after the step, of the SKU that it or its order is about
//	tea available 6                    of a SKU
//	19 sold out                 of a crowd: so many got that word
//
// A step with nothing behind it must simply have worked.
type expectation struct {
	words   []Word
	state   stock.State
	units   *int64
	attempt int64
	shipped *int64
	has     *Short
	left    map[string]int64
	asked   map[string]int64
	shelf   []shelfClause
	counts  map[Word]int // of a crowd
}

type shelfClause struct {
	sku, quantity string
	units         int64
}

// states that a word may be followed by.
var states = []stock.State{stock.Held, stock.Confirmed, stock.Released, stock.Expired, stock.Cancelled, stock.Fulfilled, stock.Done, stock.Refused}

// parseCounts reads the clauses of a crowd.
func parseCounts(text string) (expectation, error) {
	want := expectation{counts: map[Word]int{}}
	for clause := range strings.SplitSeq(text, ",") {
		number, word, _ := strings.Cut(strings.TrimSpace(clause), " ")
		n, err := strconv.Atoi(number)
		if err != nil || !slices.Contains(words, Word(word)) {
			return want, fmt.Errorf("%q: write how many got which word, `1 held, 19 sold out`", strings.TrimSpace(clause))
		}
		want.counts[Word(word)] += n
	}
	return want, nil
}

func parseExpectation(verb Verb, subject, text string, wanted bool) (expectation, error) {
	var want expectation
	if !wanted {
		if verb == Look || verb == Standing {
			return want, fmt.Errorf("%s must expect something", verb)
		}
		want.words = []Word{verb.done()}
		return want, nil
	}
	for i, clause := range strings.Split(text, ",") {
		f := strings.Fields(clause)
		var ok bool
		if i == 0 && verb != Look {
			ok = want.first(strings.TrimSpace(clause))
		} else {
			ok = want.further(subject, f)
		}
		if !ok {
			return want, fmt.Errorf("cannot read the expectation %q", strings.TrimSpace(clause))
		}
	}
	return want, nil
}

// first reads the word of the step, and the units or state behind it.
func (e *expectation) first(clause string) bool {
	alternatives := strings.Split(clause, " or ")
	for _, text := range alternatives {
		i := slices.IndexFunc(words, func(w Word) bool { return text == string(w) || strings.HasPrefix(text, string(w)+" ") })
		if i < 0 {
			return false
		}
		e.words = append(e.words, words[i])
		rest := strings.TrimSpace(strings.TrimPrefix(text, string(words[i])))
		if rest == "" {
			continue
		}
		if len(alternatives) > 1 {
			return false // which of them would it be about?
		}
		if n, err := strconv.ParseInt(rest, 10, 64); err == nil {
			e.units = &n
			continue
		}
		e.state = stock.State(rest)
		return slices.Contains(states, e.state)
	}
	return true
}

func (e *expectation) further(subject string, f []string) bool {
	if len(f) < 2 {
		return false
	}
	n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
	if err != nil {
		return false
	}
	if len(f) == 5 && f[0] == "left" && f[3] == "of" {
		if e.asked == nil {
			e.asked = map[string]int64{}
		}
		e.asked[f[1]] = n
		return e.further(subject, f[:3])
	}
	switch {
	case len(f) == 2 && f[0] == "attempt":
		e.attempt = n
	case len(f) == 2 && f[0] == "shipped":
		e.shipped = &n
	case len(f) == 4 && f[0] == "has" && f[2] == "of":
		has, err := strconv.ParseInt(f[1], 10, 64)
		e.has = &Short{Asked: n, Available: has}
		return err == nil
	case len(f) == 3 && f[0] == "left":
		if e.left == nil {
			e.left = map[string]int64{}
		}
		e.left[f[1]] = n
	case len(f) == 2 && subject != "":
		e.shelf = append(e.shelf, shelfClause{subject, f[0], n})
	case len(f) == 3:
		e.shelf = append(e.shelf, shelfClause{f[0], f[1], n})
	default:
		return false
	}
	if len(e.shelf) == 0 {
		return true
	}
	_, ok := quantity(stock.Quantities{}, e.shelf[len(e.shelf)-1].quantity)
	return ok
}

func quantity(q stock.Quantities, name string) (int64, bool) {
	switch name {
	case "available":
		return q.Available, true
	case "held":
		return q.Held, true
	case "committed":
		return q.Committed, true
	}
	return 0, false
}

// met compares an answer.
func (e *expectation) met(a Answer) error {
	switch {
	case len(e.words) > 0 && !slices.Contains(e.words, a.Word):
		return fmt.Errorf("it was %q: %+v", a.Word, a)
	case e.state != "" && a.State != e.state:
		return fmt.Errorf("it stands %s, not %s", a.State, e.state)
	case e.units != nil && a.Units != *e.units:
		return fmt.Errorf("it has %d units, not %d", a.Units, *e.units)
	case e.attempt != 0 && a.Attempt != e.attempt:
		return fmt.Errorf("it stands at attempt %d, not %d", a.Attempt, e.attempt)
	case e.shipped != nil && a.Shipped != *e.shipped:
		return fmt.Errorf("%d units of it were shipped, not %d", a.Shipped, *e.shipped)
	case e.has != nil && a.Has != *e.has:
		return fmt.Errorf("the buyer has %d of %d, not %d of %d", a.Has.Available, a.Has.Asked, e.has.Available, e.has.Asked)
	}
	return e.metShort(a)
}

// metShort compares what is said of the lines of a refusal.
func (e *expectation) metShort(a Answer) error {
	left, asked := map[string]int64{}, map[string]int64{}
	for sku, s := range a.Left {
		left[sku] = s.Available
		if _, wanted := e.asked[sku]; wanted {
			asked[sku] = s.Asked
		}
	}
	if e.left != nil && !maps.Equal(left, e.left) {
		return fmt.Errorf("%v were left, not %v", left, e.left)
	}
	if e.asked != nil && !maps.Equal(asked, e.asked) {
		return fmt.Errorf("%v were asked, not %v", asked, e.asked)
	}
	return nil
}

// shelves compares quantities after the step.
func (e *expectation) shelves(ctx context.Context, shop Shop) error {
	for _, c := range e.shelf {
		q, err := shop.Look(ctx, c.sku)
		if err != nil {
			return fmt.Errorf("look at %s: %w", c.sku, err)
		}
		if got, _ := quantity(q, c.quantity); got != c.units {
			return fmt.Errorf("%s has %s, not %s %d", c.sku, q, c.quantity, c.units)
		}
	}
	return nil
}
