package tidy

import (
	"slices"
	"testing"
)

// broken lists one graph per way of going wrong, in the real names of the
// house, so that loosening a table by accident fails here.
var broken = []struct {
	rule  string
	edges []edge
}{
	{"law of nouns", []edge{{from: "pkg/stock", to: "pkg/event"}}},
	{"law of nouns", []edge{{from: "pkg/stock", to: "pkg/service"}}},
	{"foreign to nouns", []edge{{from: "pkg/stock", to: "go.uber.org/zap"}}},
	{"law of entries", []edge{{from: "pkg/event", to: "pkg/redisstock"}}},
	{"law of entries", []edge{{from: "pkg/event", to: "pkg/config"}}},
	{"foreign to entries", []edge{{from: "pkg/event", to: "github.com/cespare/xxhash/v2"}}},
	{"law of parts", []edge{{from: "pkg/metrics", to: "pkg/ledger"}}},
	{"law of parts", []edge{{from: "pkg/api", to: "pkg/audit"}}},
	{"law of contracts", []edge{{from: "pkg/bus", to: "pkg/bus/streambus"}}},
	{"law of contracts", []edge{{from: "pkg/audit", to: "pkg/ledger"}}},
	{"law of contracts", []edge{{from: "pkg/audit", to: "pkg/redisstock"}}},
	{"law of contracts", []edge{{from: "pkg/takeover", to: "pkg/redisstock"}}},
	{"law of contracts", []edge{{from: "pkg/takeover", to: "pkg/strategy"}}},
	{"law of schema", []edge{{from: "migrations", to: "pkg/stock"}}},
	{"law of adapters", []edge{{from: "pkg/redisstock", to: "pkg/ledger"}}},
	{"law of adapters", []edge{{from: "pkg/ledger", to: "pkg/redisstock"}}},
	{"law of adapters", []edge{{from: "pkg/pgstock", to: "pkg/ledger"}}},
	{"law of adapters", []edge{{from: "pkg/localstock", to: "pkg/redisstock"}}},
	{"law of adapters", []edge{{from: "pkg/bus/streambus", to: "pkg/redisstock"}}},
	{"law of adapters", []edge{{from: "pkg/bus/kafkabus", to: "pkg/bus/streambus"}}},
	{"law of adapters", []edge{{from: "pkg/ledger", to: "pkg/sandbox"}}},
	{"law of adapters", []edge{{from: "pkg/ledger", to: "pkg/strategy"}}},
	{"law of strategies", []edge{{from: "pkg/strategy", to: "pkg/sandbox"}}},
	{"law of tools", []edge{{from: "pkg/sandbox", to: "pkg/ledger"}}},
	{"law of kits", []edge{{from: "pkg/stock/stocktest", to: "pkg/strategy"}}},
	{"adapters of kits", []edge{
		{from: "pkg/stock/stocktest", to: "pkg/redisstock"},
		{from: "pkg/stock/stocktest", to: "pkg/ledger"},
	}},
	{"law of inner", []edge{{from: "producer/internal/server", to: "pkg/strategy"}}},
	{"law of inner", []edge{{from: "producer/internal/server", to: "producer/producerapp"}}},
	{"adapters of inner", []edge{
		{from: "consumer/internal/apply", to: "pkg/ledger"},
		{from: "consumer/internal/apply", to: "pkg/bus/streambus"},
	}},
	{"law of apps", []edge{{from: "consumer/consumerapp", to: "pkg/sandbox"}}},
	{"law of mains", []edge{{from: "producer", to: "pkg/ledger"}}},
	{"law of mains", []edge{{from: "producer", to: "producer/internal/server"}}},
	{"law of deploy", []edge{{from: "deploy/demo", to: "deploy/suites/bench"}}},
	{"law of deploy", []edge{{from: "deploy/demo", to: "producer/internal/server"}}},
	{"law of suites", []edge{{from: "deploy/suites/e2e", to: "consumer/internal/apply"}}},
	{"roles apart", []edge{{from: "producer/producerapp", to: "consumer/consumerapp"}}},
	{"roles apart", []edge{{from: "reconciler/internal/repair", to: "consumer/internal/apply"}}},
	{"roles apart", []edge{{from: "reconciler/reconcilerapp", to: "producer/producerapp", test: true}}},
	{"pkg looks down", []edge{{from: "pkg/api", to: "producer/internal/server"}}},
	{"pkg looks down", []edge{{from: "pkg/audit", to: "reconciler/reconcilerapp", test: true}}},
	{"pkg looks down", []edge{{from: "pkg/stock/stocktest", to: "producer/producerapp"}}},
	{"pkg looks down", []edge{{from: "pkg/rehearsal", to: "deploy/demo"}}},
	{"pkg looks down", []edge{{from: "migrations", to: "deploy/demo"}}},
	{"deploy is the end", []edge{{from: "producer/producerapp", to: "deploy/demo"}}},
	{"deploy is the end", []edge{{from: "producer/producerapp", to: "deploy/demo", test: true}}},
	{"kits are for tests", []edge{{from: "pkg/ledger", to: "pkg/sandbox/sandboxtest"}}},
	{"kits are for tests", []edge{{from: "deploy/demo", to: "pkg/stock/stocktest"}}},
	{"test modules are for tests", []edge{{from: "pkg/ledger", to: "github.com/google/go-cmp/cmp"}}},
	{"test modules are for tests", []edge{{from: "pkg/audit", to: "pgregory.net/rapid"}}},
	{"test modules are for tests", []edge{{from: "deploy/demo", to: "go.uber.org/goleak"}}},
	{"test modules are for tests", []edge{{from: "consumer/consumerapp", to: "github.com/anishathalye/porcupine"}}},
	{"test modules are for tests", []edge{{from: "pkg/redisstock", to: "testing"}}},
}

// sound lists imports that the house is built of; a rule that forbids one of
// them is too strict.
var sound = []edge{
	{from: "pkg/stock", to: "strings"},
	{from: "pkg/stock", to: "pgregory.net/rapid", test: true},
	{from: "pkg/stock", to: "pkg/stock/stocktest", test: true},
	{from: "pkg/event", to: "pkg/stock"},
	{from: "pkg/bus", to: "pkg/event"},
	{from: "pkg/audit", to: "pkg/event"},
	{from: "pkg/audit", to: "pkg/ledger", test: true},
	{from: "pkg/audit", to: "pkg/redisstock", test: true},
	{from: "pkg/ledger", to: "migrations"},
	{from: "pkg/ledger", to: "pkg/ledger/internal/rows"},
	{from: "pkg/ledger", to: "github.com/jackc/pgx/v5"},
	{from: "pkg/bus/streambus", to: "pkg/bus"},
	{from: "pkg/pgstock", to: "pkg/lock"},
	{from: "pkg/strategy", to: "pkg/redisstock"},
	{from: "pkg/strategy", to: "pkg/pgstock"},
	{from: "pkg/sandbox/sandboxtest", to: "pkg/sandbox"},
	{from: "pkg/sandbox/sandboxtest", to: "testing"},
	{from: "pkg/bus/bustest", to: "github.com/google/go-cmp/cmp"},
	{from: "producer", to: "producer/producerapp"},
	{from: "producer/producerapp", to: "producer/internal/server"},
	{from: "producer/producerapp", to: "pkg/strategy"},
	{from: "consumer/consumerapp", to: "pkg/ledger"},
	{from: "consumer/consumerapp", to: "pkg/bus/streambus"},
	{from: "consumer/internal/apply", to: "pkg/ledger"},
	{from: "reconciler/reconcilerapp", to: "pkg/takeover"},
	{from: "deploy/demo", to: "pkg/sandbox"},
	{from: "deploy/suites/bench", to: "pkg/stock/stocktest"},
	{from: "deploy/suites/faults", to: "github.com/anishathalye/porcupine"},
	{from: "deploy/suites/e2e", to: "producer/producerapp", test: true},
}

func TestEveryBrokenGraphIsCaughtByItsRule(t *testing.T) {
	t.Parallel()
	for _, c := range broken {
		found := breaches(nil, c.edges)
		if !slices.ContainsFunc(found, func(b breach) bool { return b.rule == c.rule }) {
			t.Errorf("%v: want a breach of %q, got %v", c.edges, c.rule, found)
		}
	}
}

func TestASoundGraphIsNotAccused(t *testing.T) {
	t.Parallel()
	for _, b := range breaches(nil, sound) {
		t.Errorf("%s: %s", b.rule, b.text)
	}
	for _, e := range sound {
		if _, ok := roomOf(e.from); !ok {
			t.Errorf("%s has no room, so nothing was judged", e.from)
		}
	}
}

func TestEveryRuleHasABrokenGraph(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, c := range broken {
		shown[c.rule] = true
	}
	var rules []string
	for _, b := range bans {
		rules = append(rules, b.name)
	}
	for _, l := range laws {
		rules = append(rules, "law of "+string(l.layer))
		if !l.foreign {
			rules = append(rules, "foreign to "+string(l.layer))
		}
		if l.adapters > 0 && l.adapters < many {
			rules = append(rules, "adapters of "+string(l.layer))
		}
	}
	for _, r := range rules {
		if !shown[r] {
			t.Errorf("rule %q is never seen to catch anything: add a case to `broken`", r)
		}
	}
	for r := range shown {
		if !slices.Contains(rules, r) {
			t.Errorf("rule %q is shown broken but no longer exists", r)
		}
	}
}

// A layer that may not know another must be caught for every pair of rooms,
// not only for the pairs that somebody thought of.
func TestEveryForbiddenPairOfRoomsIsCaught(t *testing.T) {
	t.Parallel()
	pairs := 0
	for _, from := range samples() {
		for _, to := range samples() {
			a, b := layerOf(from), layerOf(to)
			if from == to || slices.Contains(lawOf(a).knows, b) {
				continue
			}
			pairs++
			if len(breaches(nil, []edge{{from: from, to: to}})) == 0 {
				t.Errorf("%s (%s) imports %s (%s) and nothing objects", from, a, to, b)
			}
		}
	}
	if pairs < 300 {
		t.Errorf("only %d forbidden pairs were tried: the tables have lost their walls", pairs)
	}
}

func TestAPackageWithoutARoomIsCaught(t *testing.T) {
	t.Parallel()
	for _, p := range []string{".", "pkg", "pkg/cart", "pkg/bus/natsbus", "producer/server", "consumer/producerapp", "cmd/stockpipe"} {
		if found := breaches([]string{p}, nil); len(found) != 1 || found[0].rule != "room" {
			t.Errorf("%s: want one breach of \"room\", got %v", p, found)
		}
	}
}

func TestTheTablesAreWhole(t *testing.T) {
	t.Parallel()
	for _, r := range rooms {
		lawOf(r.layer) // panics for a layer without a law
		if r.holds == "" {
			t.Errorf("room %s does not say what it holds", r.path)
		}
	}
	for _, l := range laws {
		if l.why == "" {
			t.Errorf("the law of %s gives no reason", l.layer)
		}
	}
	for _, b := range bans {
		if b.why == "" {
			t.Errorf("the ban %q gives no reason", b.name)
		}
	}
}

// samples is one package per room, and one kit.
func samples() []string {
	paths := []string{"pkg/stock/stocktest"}
	for _, r := range rooms {
		paths = append(paths, sample(r))
	}
	return paths
}

func sample(r room) string {
	const deep = "/..."
	if n := len(r.path) - len(deep); n > 0 && r.path[n:] == deep {
		return r.path[:n]
	}
	return r.path
}
