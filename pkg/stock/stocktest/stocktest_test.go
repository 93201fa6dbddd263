package stocktest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func scripts(t *testing.T) []Script {
	t.Helper()
	all, err := Scripts()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheModelFollowsTheTables(t *testing.T) {
	t.Parallel()
	for _, s := range scripts(t) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			c := NewCounter()
			Run(t, c, s)
			c.apply() // the ledger has the forgotten orders, too
			if why := c.ledger.Broken(); why != "" {
				t.Error(why)
			}
		})
	}
}

func TestAMistakeInATableIsNamedByItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"stock tea 1":               "t:1: begin with a comment that says the rule",
		"#":                         "t:1: begin with a comment that says the rule",
		"# rule":                    "t: no step",
		"# rule\nsteal tea 1":       `t:2: "steal tea 1": unknown verb "steal"`,
		"# rule\n\nstock tea":       `t:3: "stock tea": stock needs a SKU and units`,
		"# rule\nstock tea one":     `t:2: "stock tea one": tea: strconv.ParseInt: parsing "one": invalid syntax`,
		"# rule\nconfirm A B":       `t:2: "confirm A B": confirm does not take "B"`,
		"# rule\nconfirm A#0":       `t:2: "confirm A#0": "0" is no attempt, write A#2`,
		"# rule\ntick soon":         `t:2: "tick soon": "soon" is no time, write 15m`,
		"# rule\nlook tea":          `t:2: "look tea": look must expect something`,
		"# rule\nconfirm A -> fine": `t:2: "confirm A -> fine": cannot read the expectation "fine"`,
		"# rule\nconfirm A -> held 4 or sold out":      `t:2: "confirm A -> held 4 or sold out": cannot read the expectation "held 4 or sold out"`,
		"# rule\nlook tea -> sold 3":                   `t:2: "look tea -> sold 3": cannot read the expectation "sold 3"`,
		"# rule\ncrowd 1 confirm A -> 1 held":          `t:2: "crowd 1 confirm A -> 1 held": a crowd has 2 to 1000 callers`,
		"# rule\ncrowd 5 confirm A -> some held":       `t:2: "crowd 5 confirm A -> some held": "some held": write how many got which word, ` + "`1 held, 19 sold out`",
		"# rule\nreserve A tea 1 by bob ttl 1m cup ->": `t:2: "reserve A tea 1 by bob ttl 1m cup ->": reserve does not take "cup"`,
	} {
		_, err := ParseScript("t", text)
		if err == nil {
			t.Errorf("%q was read", text)
			continue
		}
		if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("%q:\n%s", text, diff)
		}
	}
}

func TestAFailingLineIsNamedWithWhatCameInstead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"stock tea 3\nreserve A tea 4 -> held 4":                              `t:3: reserve A tea 4 -> held 4: it was "sold out"`,
		"stock tea 3\nreserve A tea 2 -> held 2, available 2":                 "t:3: reserve A tea 2 -> held 2, available 2: tea has 1 available, 2 held, 0 committed, not available 2",
		"stock tea 3\nreserve A tea 4 -> sold out, left tea 2":                "map[tea:3] were left, not map[tea:2]",
		"stock tea 3\nreserve A tea 1 -> held, attempt 2":                     "it stands at attempt 1, not 2",
		"stock tea 3\nreserve A tea 1\nrelease A -> released 2":               "it has 1 units, not 2",
		"stock tea 3\ncrowd 5 reserve A* tea 1 -> 5 held":                     "the crowd got map[held:3 sold out:2]",
		"stock tea 3\nreserve A tea 1\nreserve A tea 1 -> replayed confirmed": "it stands held, not confirmed",
	} {
		s, err := ParseScript("t", "# rule\n"+text)
		if err != nil {
			t.Fatal(err)
		}
		if err := Play(t.Context(), NewCounter(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
