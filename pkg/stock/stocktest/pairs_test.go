package stocktest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// lifecycle is the decision whose table of states and operations the tables must cover.
const lifecycle = "../../../deploy/docs/decisions/0006-lifecycle.md"

// A pair is an order's state and what was sent to it.
type pair struct{ state, row string }

// The rows of the decision's table: which verbs of the tables belong to each. A row that is not here fails the test.
var rows = map[string][]Verb{
	"reserve, sale, same content":  {Reserve, Sale},
	"reserve, sale, other content": {Reserve, Sale},
	"reserve, sale, next attempt":  {Reserve, Sale},
	"confirm":                      {Confirm},
	"late confirm":                 {Late},
	"release":                      {Release},
	"extend":                       {Extend},
	"replace":                      {Replace},
	"expire":                       {Expire},
	"fulfil, cancel (documents)":   {Fulfil, Cancel},
}

// What a cell says, in the words of the tables. The longest come first, and what was read of a cell is cut out of it, so
// that the "refused" of "replay: refused" is not read once more. A cell that leaves something unread fails the test.
var sayings = []struct {
	text string
	word Word
}{
	{"replay: refused", Ended}, {"a sale of a hold: conflict", Conflict}, {"if the results differ", ""}, {"if a result is above what stands", ""},
	{"confirmed as the next attempt", Confirmed}, {"retake as late confirm", Confirmed}, {"as there", ""}, {"if it lasts that long already", ""},
	{"beyond 24 h from now", ""}, {"with the new lines", ""}, {"if they stand so", ""}, {"to fulfilled or cancelled when nothing is left", Done},
	{"out of bounds", Beyond}, {"held longer", Held}, {"less held", Held}, {"not due", NotDue}, {"when due", ""}, {"sold out", SoldOut},
	{"released", Released}, {"confirmed", Confirmed}, {"expired", Expired}, {"conflict", Conflict}, {"replay", Replayed},
	{"refused", Ended}, {"moved", Done}, {"takes", Held}, {"limit", OverLimit}, {"held", Held}, {"else", ""}, {"or", ""},
}

// said reads a cell.
func said(cell string) (words []Word, unread string) {
	for _, s := range sayings {
		if strings.Contains(cell, s.text) {
			cell = strings.ReplaceAll(cell, s.text, " ")
			if s.word != "" {
				words = append(words, s.word)
			}
		}
	}
	return words, strings.Trim(cell, " ,;()…")
}

// cells reads the table out of the decision.
func cells(t *testing.T) map[pair]string {
	t.Helper()
	text, err := os.ReadFile(lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	all, columns := map[pair]string{}, []string(nil)
	for line := range strings.Lines(string(text)) {
		parts := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		switch {
		case len(parts) == 7 && parts[0] == "" && parts[1] == "held":
			columns = parts
		case columns == nil || len(parts) != 7 || strings.HasPrefix(parts[0], "---"):
		default:
			for i := 1; i < 7; i++ {
				all[pair{columns[i], parts[0]}] = parts[i]
			}
		}
	}
	if len(all) < 6*len(rows) {
		t.Fatalf("only %d cells were read of %s: has the table another form now?", len(all), lifecycle)
	}
	return all
}

// pairs is a Counter that notes which operation met which state, and what it was told.
type pairs struct {
	*Counter
	met map[pair]map[Verb][]Word
}

func (p *pairs) Do(ctx context.Context, s Step) (Answer, error) {
	p.mu.Lock()
	row, state := p.row(s)
	p.mu.Unlock()
	a, err := p.Counter.Do(ctx, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if row != "" {
		at := pair{state, row}
		if p.met[at] == nil {
			p.met[at] = map[Verb][]Word{}
		}
		p.met[at][s.Verb] = append(p.met[at][s.Verb], a.Word)
	}
	return a, err
}

// row finds which row of the table a step is about, and the state that it meets. Attempts that are not meant by the table
// are rows of their own.
func (p *pairs) row(s Step) (row, state string) {
	id := s.ID
	if s.Verb == Fulfil || s.Verb == Cancel {
		id = s.Order
		if _, again := p.papers[stock.DocumentID(s.ID)]; again {
			return "", "" // a repeat is about the document
		}
	}
	r, stands := p.desk.Orders[id]
	for name, verbs := range rows {
		if slices.Contains(verbs, s.Verb) {
			row = name
		}
	}
	if row == "" {
		return "", ""
	}
	taking := s.Verb == Reserve || s.Verb == Sale
	switch {
	case !stands:
		if _, dropped := p.ledger.Orders[id]; dropped {
			return "no record: " + string(s.Verb), "dropped"
		}
		return "no record: " + string(s.Verb), "none"
	case s.Attempt < r.Attempt:
		return "lower attempt: " + string(s.Verb), string(r.State)
	case s.Attempt > r.Attempt && !taking:
		return "higher attempt: " + string(s.Verb), string(r.State)
	case s.Attempt > r.Attempt:
		row = "reserve, sale, next attempt"
	case taking && s.Buyer == r.Buyer && sameAsked(r.Lines, p.operation(s).Lines):
		row = "reserve, sale, same content"
	case taking:
		row = "reserve, sale, other content"
	}
	return row, string(r.State)
}

// playAll plays every table and tells what met what.
func playAll(t *testing.T) map[pair]map[Verb][]Word {
	t.Helper()
	c := &pairs{Counter: NewCounter(), met: map[pair]map[Verb][]Word{}}
	for _, s := range scripts(t) {
		c.Counter = NewCounter()
		if err := Play(t.Context(), c, s); err != nil {
			t.Fatal(err)
		}
	}
	return c.met
}

// Every state meets every operation somewhere in the tables: a pair that nobody wrote down is a pair that nobody
// decided. And whatever the decision says of a pair was seen, and nothing else.
func TestTheTablesMeetEveryPairOfTheDecision(t *testing.T) {
	t.Parallel()
	met := playAll(t)
	for at, cell := range cells(t) {
		verbs, known := rows[at.row]
		if !known {
			t.Fatalf("the decision has a row %q that this test does not know: say which verbs it is about", at.row)
		}
		for _, why := range uncovered(at, cell, verbs, met[at]) {
			t.Error(why)
		}
	}
}

// bySKU are answers about a SKU, which any operation that takes units may get, whatever the order.
var bySKU = []Word{Frozen, Closed, Unopened, Missing, NoBuyer, Uncounted, OverLimit, SoldOut, Shortfall}

// uncovered says what of a cell no table shows, and what the tables show that the cell does not say.
func uncovered(at pair, cell string, verbs []Verb, met map[Verb][]Word) (why []string) {
	wanted, unread := said(cell)
	if unread != "" || len(wanted) == 0 {
		return []string{fmt.Sprintf("%s of %s: %q is not understood: %q", at.row, at.state, cell, unread)}
	}
	var all []Word
	for _, verb := range verbs {
		if len(met[verb]) == 0 {
			why = append(why, fmt.Sprintf("no table sends %s (%s) to an order that is %s: %s", verb, at.row, at.state, cell))
		}
		for _, word := range met[verb] {
			switch {
			case word == Confirmed && verb == Sale:
				word = Held // it takes, too
			case word == Replayed && verb == Late && slices.Contains(wanted, Ended):
				word = Ended // it is sent as an operation, and nobody says what the replay means for a buyer
			}
			all = append(all, word)
		}
	}
	for _, word := range wanted {
		short := word == SoldOut && slices.Contains(all, Shortfall)
		if !slices.Contains(all, word) && !short {
			why = append(why, fmt.Sprintf("%s of an order that is %s: no table comes to %q (%s)", at.row, at.state, word, cell))
		}
	}
	for _, word := range all {
		lacks := word == Lacking && slices.Contains(wanted, Done) // more of it than there is
		if !slices.Contains(wanted, word) && !slices.Contains(bySKU, word) && !lacks {
			why = append(why, fmt.Sprintf("%s of an order that is %s came to %q, and the decision says: %s", at.row, at.state, word, cell))
		}
	}
	return why
}

// Attempts besides the one that stands, and orders without a record, are the same for every state.
func TestTheTablesMeetEveryOtherAttempt(t *testing.T) {
	t.Parallel()
	met := playAll(t)
	for _, verb := range []Verb{Reserve, Sale, Confirm, Release, Extend, Replace, Expire, Late} {
		for _, state := range []string{"held", "confirmed", "released", "expired", "cancelled", "fulfilled"} {
			if verb != Reserve && verb != Sale && len(met[pair{state, "higher attempt: " + string(verb)}][verb]) == 0 {
				t.Errorf("no table sends %s of a higher attempt to an order that is %s", verb, state)
			}
		}
		lower := met[pair{"held", "lower attempt: " + string(verb)}][verb]
		if lower = append(lower, met[pair{"confirmed", "lower attempt: " + string(verb)}][verb]...); len(lower) == 0 {
			t.Errorf("no table sends %s of an attempt that is over", verb)
		}
		for _, state := range []string{"none", "dropped"} {
			if len(met[pair{state, "no record: " + string(verb)}][verb]) == 0 && (verb != Expire && verb != Late || state == "none") {
				t.Errorf("no table sends %s to an order without a record (%s)", verb, state)
			}
		}
	}
}

// A check that cannot fail is none: cells with one thing wrong, or one thing missing from the tables, are found.
func TestACellThatTheTablesDoNotShowIsFound(t *testing.T) {
	t.Parallel()
	at := pair{"held", "release"}
	full := map[Verb][]Word{Release: {Released, Held, Conflict}}
	cell := "released, or less held; conflict if a result is above what stands"
	if why := uncovered(at, cell, rows[at.row], full); len(why) > 0 {
		t.Fatal(why)
	}
	for name, c := range map[string]struct {
		cell string
		met  map[Verb][]Word
	}{
		"no table":              {cell, nil},
		"a word is missing":     {cell, map[Verb][]Word{Release: {Released, Held}}},
		"a word too many":       {cell, map[Verb][]Word{Release: {Released, Held, Conflict, Replayed}}},
		"another cell":          {"replay: refused", full},
		"a cell of other words": {"melts", full},
		"an empty cell":         {"", full},
	} {
		if why := uncovered(at, c.cell, rows[at.row], c.met); len(why) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}
