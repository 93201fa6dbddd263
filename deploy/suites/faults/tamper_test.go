package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// watchful looks often, so that a row does not wait for the next audit.
func watchful() shoptest.Plan {
	return shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, ReconcilerArgs: []string{"--audit-every", "200ms"}}
}

// A trace is what somebody with access to Redis left behind: the key and field that was edited, and the figures of
// both sides as an audit has to name them. Empty figures are not compared.
type trace struct {
	key, sku, order string
	redis, postgres string
}

// cupUnits is the opening of the SKU that is tampered with while the other one sells.
const cupUnits = 100

// A valueEdit is an edit of the keys of a shop that sells: of the SKU cup, which has an open and a confirmed order.
// One that stops cup alone leaves tea on sale; an operator then takes the shard over.
type valueEdit struct {
	name  string
	whole bool
	edit  func(v *shoptest.Victim) trace
}

var valueEdits = []valueEdit{
	{name: "stock field edited, 7 more", edit: func(v *shoptest.Victim) trace {
		v.Plant("cup", 7)
		return trace{key: stockField(v, "cup"), sku: "cup", redis: "102|2|3", postgres: "95|2|3"}
	}},
	{name: "stock field edited, 7 fewer", whole: true, edit: func(v *shoptest.Victim) trace {
		v.Plant("cup", -7)
		return trace{key: stockField(v, "cup"), sku: "cup", redis: "88|2|3", postgres: "95|2|3"}
	}},
	{name: "stock field made unreadable", whole: true, edit: func(v *shoptest.Victim) trace {
		shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), v.Keys("cup").State, number(v, "cup"), "1e3|0|0").Err())
		return trace{key: stockField(v, "cup"), sku: "cup", redis: "1e3|0|0", postgres: "95|2|3"}
	}},
	{name: "stock field deleted", whole: true, edit: func(v *shoptest.Victim) trace {
		shoptest.Need(v.T, v.RDB.HDel(v.T.Context(), v.Keys("cup").State, number(v, "cup")).Err())
		return trace{key: stockField(v, "cup"), sku: "cup", postgres: "95|2|3"}
	}},
	{name: "stock field of no SKU added", whole: true, edit: func(v *shoptest.Victim) trace {
		shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), v.Keys("cup").State, "999", "5|0|0").Err())
		return trace{key: v.Keys("cup").State + " field 999", redis: "5|0|0"}
	}},
	{name: "order record edited", edit: func(v *shoptest.Victim) trace {
		was := record(v, "cup-held")
		now := strings.Replace(was, "="+"2", "="+"1", 1)
		shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), v.Keys("cup").Orders, "cup-held", now).Err())
		return trace{key: v.Keys("cup").Orders + " field cup-held", order: "cup-held", redis: now, postgres: was}
	}},
	{name: "order record of a paid order put back to held", whole: true, edit: func(v *shoptest.Victim) trace {
		was := record(v, "cup-paid")
		now := "h" + was[1:]
		shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), v.Keys("cup").Orders, "cup-paid", now).Err())
		return trace{key: v.Keys("cup").Orders + " field cup-paid", order: "cup-paid", redis: now, postgres: was}
	}},
	{name: "order record deleted", whole: true, edit: func(v *shoptest.Victim) trace {
		was := record(v, "cup-held")
		shoptest.Need(v.T, v.RDB.HDel(v.T.Context(), v.Keys("cup").Orders, "cup-held").Err())
		return trace{key: v.Keys("cup").Orders + " field cup-held", order: "cup-held", postgres: was}
	}},
	{name: "order record added", whole: true, edit: func(v *shoptest.Victim) trace {
		v.PlantOrder("ghost", "cup")
		return trace{key: v.Keys("cup").Orders + " field ghost", order: "ghost", redis: record(v, "ghost")}
	}},
}

// TestTamperedValuesAreNamedAndStopTheirSKU edits one value at a time while another SKU sells.
func TestTamperedValuesAreNamedAndStopTheirSKU(t *testing.T) {
	for _, tampered := range valueEdits {
		if tampered.whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(tampered.name, " ", "_"), func(t *testing.T) {
			// The takeover that the trial waits for is the operator's, of a shard that is healthy but for one SKU.
			trial := shoptest.Trial{Classes: []string{"healthy"}, Plan: watchful(), Workers: true, Calm: true,
				Before: sellCups, Hit: func(v *shoptest.Victim) { nameAndTakeOver(v, tampered.edit(v)) }, After: sellCupsAgain}
			trial.Play(shoptest.Begin(t, "tampered: "+tampered.name))
		})
	}
}

// sellCups leaves 95 cups on the shelf, 2 held and 3 sold, all of it in Postgres.
func sellCups(v *shoptest.Victim) {
	v.T.Helper()
	v.Supply(cupUnits, "cup")
	v.Told(shoptest.Reserve(v.T.Context(), v.Client(0), "cup-held", "cup", 2, 3600), http.StatusCreated)
	v.Told(shoptest.Reserve(v.T.Context(), v.Client(1), "cup-paid", "cup", 3, 3600), http.StatusCreated)
	v.Told(shoptest.Confirm(v.T.Context(), v.Client(0), "cup-paid"), http.StatusOK)
	v.Shelf("cup", "95|2|3")
}

func sellCupsAgain(v *shoptest.Victim) {
	v.T.Helper()
	v.Told(shoptest.Reserve(v.T.Context(), v.Patient(0), "cup-next", "cup", 1, 3600), http.StatusCreated)
	v.Drain()
	v.Shelf("cup", "94|3|3")
}

// nameAndTakeOver waits until the edit is found, wants it named, and does what the finding tells an operator to do.
func nameAndTakeOver(v *shoptest.Victim, edited trace) {
	v.T.Helper()
	v.Row.Class = "tampered"
	epoch, named := v.Epoch(0), false
	var found shoptest.Verdict
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		found = v.Reconcile("--plan")
		for _, a := range found.Acts() {
			named = named || edited.is(v, a)
		}
		if !named {
			return fmt.Errorf("want %+v named, found %+v", edited, found.Acts())
		}
		return nil
	})
	for _, a := range found.Acts() {
		if a.Class != "tampered" && a.Class != "overdue" || !edited.is(v, a) {
			v.T.Errorf("named besides: %+v", a)
		}
	}
	if edited.sku != "" || edited.order != "" && edited.order != "ghost" {
		frozen := func() error {
			if shoptest.One[string](v.Shop, `select doubt from stock where sku = $1`, v.Numbers["cup"]) == "" {
				return errors.New("cup is not frozen")
			}
			return nil
		}
		sandboxtest.Eventually(v.T, shoptest.Patience, frozen)
		if a := shoptest.Reserve(v.T.Context(), v.Client(0), "cup-doubt", "cup", 1, 3600); a.Accepted() {
			v.T.Errorf("cup is in doubt and was sold: %s", a.String())
		}
	}
	v.More(20)
	if now := v.Epoch(0); now != epoch {
		v.T.Errorf("tea was stopped for a doubt about cup: epoch %d became %d", epoch, now)
	}
	operate(v, "takeover", "--shard", "0")
}

// operate runs an operator's command, which ends well.
func operate(v *shoptest.Victim, command ...string) {
	v.T.Helper()
	if out, complaint, code := v.Command(command...); code != 0 {
		v.T.Errorf("%v: exit %d: %s%s", command, code, out, complaint)
	}
	v.Row.Note("operator: %s", strings.Join(command, " "))
}

// is reports whether an act names what was edited, with both figures.
func (e trace) is(v *shoptest.Victim, a shoptest.Act) bool {
	v.T.Helper()
	return a.Class == "tampered" && a.Key == e.key && a.SKU == e.sku && a.Order == e.order && figure(a.Redis, e.redis) && figure(a.Postgres, e.postgres)
}

// figure compares a figure; settings that follow the three quantities are the freeze's.
func figure(found, want string) bool {
	return found == want || want != "" && strings.HasPrefix(found, want+"|")
}

func number(v *shoptest.Victim, sku string) string { return strconv.FormatInt(v.Numbers[sku], 10) }

func stockField(v *shoptest.Victim, sku string) string {
	return v.Keys(sku).State + " field " + number(v, sku)
}

func record(v *shoptest.Victim, order string) string {
	v.T.Helper()
	text, err := v.RDB.HGet(v.T.Context(), v.Keys("cup").Orders, order).Result()
	shoptest.Need(v.T, err)
	return text
}

// evidence waits for the repair of a class that a row ends in, and gives what was written down before it.
func evidence(v *shoptest.Victim, class, verb string) (drift struct{ Key, Position, Text string }) {
	v.T.Helper()
	var text string
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		text = shoptest.One[string](v.Shop, `select coalesce((select before::text from repair where class = $1 and verb = $2 order by id limit 1), '')`, class, verb)
		if text == "" {
			return fmt.Errorf("no repair of class %s by %s", class, verb)
		}
		return nil
	})
	var before struct {
		Drift *struct{ Key, Position, Text string }
	}
	if json.Unmarshal([]byte(text), &before) == nil && before.Drift != nil {
		return *before.Drift
	}
	drift.Text = text
	return drift
}
