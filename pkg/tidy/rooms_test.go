package tidy

// A layer is how far a package stands from the nouns. Imports point towards
// the nouns only.
type layer string

const (
	nouns      layer = "nouns"
	entries    layer = "entries"
	parts      layer = "parts"
	contracts  layer = "contracts"
	schema     layer = "schema"
	adapters   layer = "adapters"
	strategies layer = "strategies"
	tools      layer = "tools"
	kits       layer = "kits"
	inner      layer = "inner"
	apps       layer = "apps"
	mains      layer = "mains"
	deployment layer = "deploy"
	suites     layer = "suites"
)

// topLevel is everything that may stand beside go.mod; names that begin with a
// dot are settings of tools and always welcome.
var topLevel = []string{
	"producer", "consumer", "reconciler", "migrations", "pkg", "deploy",
	"go.mod", "go.sum", "docker-compose.yml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md",
}

// roles are the three processes. They meet in Redis and Postgres, never in Go.
var roles = []string{"producer", "consumer", "reconciler"}

// A room is a place in the tree. A path ending in /... covers the folder and
// all below it; the longest matching path wins. Folders whose name ends in
// "test" are kits wherever they stand, unless a line here says otherwise.
type room struct {
	path  string
	layer layer
	holds string
}

var rooms = []room{
	{"pkg/stock/...", nouns, "nouns, errors and contracts of stock"},
	{"pkg/event/...", entries, "the log entry: schema and codec"},

	{"pkg/failpoint", parts, "moments at which tests end a process; empty in what is shipped"},
	{"pkg/lock/...", parts, "the Redis lock, for every strategy that locks"},
	{"pkg/api/...", parts, "JSON types and the Go client"},
	{"pkg/access/...", parts, "who may come to a listener: tokens, certificates"},
	{"pkg/service/...", parts, "run parts, stop them in order"},
	{"pkg/metrics/...", parts, "the metric registry"},
	{"pkg/config/...", parts, "flags, environment, secrets from files"},

	{"pkg/bus", contracts, "how entries travel"},
	{"pkg/audit/...", contracts, "the equation and the classes of drift"},
	{"pkg/takeover/...", contracts, "claim, fence, rebuild, open"},
	{"pkg/order/...", contracts, "an order's way to the desk: look-ups, late confirms, levels"},

	{"migrations", schema, "the SQL schema, embedded"},

	{"pkg/redisstock/...", adapters, "strategies that decide in Redis, and their Lua library"},
	{"pkg/pgstock/...", adapters, "strategies that decide in Postgres"},
	{"pkg/localstock/...", adapters, "leases decided in memory"},
	{"pkg/ledger/...", adapters, "the system of record in Postgres"},
	{"pkg/bus/streambus/...", adapters, "the bus on Redis Streams"},
	{"pkg/bus/kafkabus/...", adapters, "the bus on Kafka"},

	{"pkg/strategy/...", strategies, "a name becomes a strategy"},

	{"pkg/sandbox/...", tools, "throwaway servers on loopback"},
	{"pkg/rehearsal/...", tools, "simulated sales"},
	{"pkg/tidy", tools, "this package"},

	{"producer/internal/...", inner, "server, relay, intake"},
	{"consumer/internal/...", inner, "apply"},
	{"reconciler/internal/...", inner, "repair, console"},

	{"producer/producerapp/...", apps, "wiring of the producer"},
	{"consumer/consumerapp/...", apps, "wiring of the consumer"},
	{"reconciler/reconcilerapp/...", apps, "wiring of the reconciler"},

	{"producer", mains, "flags in, exit code out"},
	{"consumer", mains, "flags in, exit code out"},
	{"reconciler", mains, "flags in, exit code out"},

	{"deploy/...", deployment, "demo, rehearsals, images, pages"},
	{"deploy/suites/shoptest", suites, "a whole shop, for the suites"},
	{"deploy/suites/...", suites, "test programs that are too big for go test"},
}

// A law says what the code of one layer may import from this module, besides
// its own room. Test files are free of laws, not of bans.
type law struct {
	layer    layer
	knows    []layer
	foreign  bool // may import modules of others
	adapters int  // how many adapters one package may know, at most
	why      string
}

// many is a bound for packages whose business it is to know the adapters.
const many = 100

var laws = []law{
	{nouns, nil, false, 0,
		"everything speaks in these words, so they may hang on nothing"},
	{entries, []layer{nouns}, false, 0,
		"an entry must be readable for years, by any tool, without a server or a library"},
	{parts, []layer{nouns, entries, parts}, true, 0,
		"a part serves every adapter and role, so it may prefer none"},
	{contracts, []layer{nouns, entries, parts, contracts}, true, 0,
		"what proves the stores right must work through contracts, or it repeats their mistakes"},
	{schema, nil, true, 0,
		"a migration means today what it meant when it was written; code that moves may not change it"},
	{adapters, []layer{nouns, entries, parts, contracts, schema}, true, 0,
		"an adapter can be replaced only while no other leans on it"},
	{strategies, []layer{nouns, entries, parts, contracts, schema, adapters}, true, many,
		"one place turns a name into a strategy, and that place must know them all"},
	{tools, []layer{nouns, entries, parts, contracts, schema, tools}, true, 0,
		"a sandbox serves the tests of every adapter, so knowing one would be a circle"},
	{kits, []layer{nouns, entries, parts, contracts, schema, adapters, tools, kits}, true, 1,
		"a conformance suite that knows two adapters is a comparison, and belongs in a test file"},
	{inner, []layer{nouns, entries, parts, contracts, adapters}, true, 1,
		"a room of a role does one thing; joining technologies is the app's work"},
	{apps, []layer{nouns, entries, parts, contracts, schema, adapters, strategies, inner}, true, many,
		"the wiring stands in one place per role and is read from top to bottom"},
	{mains, []layer{parts, apps}, true, 0,
		"a main that decides anything can not be tested"},
	{deployment, []layer{nouns, entries, parts, contracts, schema, adapters, strategies, tools, apps, deployment}, true, many,
		"the demo and the rehearsals drive the whole product"},
	{suites, []layer{nouns, entries, parts, contracts, schema, adapters, strategies, tools, kits, apps, deployment, suites}, true, many,
		"the suites are tests, only bigger; nothing of them is shipped"},
}

// A ban holds across all layers. Some bind test files too.
type ban struct {
	name   string
	tests  bool
	broken func(from, to string) bool
	why    string
}

// testModules are for tests only, the testing package of Go included: it adds
// its flags to whatever program links it.
var testModules = []string{
	"testing",
	"github.com/google/go-cmp",
	"pgregory.net/rapid",
	"go.uber.org/goleak",
	"github.com/anishathalye/porcupine",
	"github.com/compose-spec/compose-go",
}

var bans = []ban{
	{"roles apart", true,
		func(from, to string) bool {
			return isRole(top(from)) && isRole(top(to)) && top(from) != top(to)
		},
		"roles are started, stopped and upgraded one by one; what two of them need belongs in pkg"},
	{"pkg looks down", true,
		func(from, to string) bool {
			return (top(from) == "pkg" || top(from) == "migrations") && (isRole(top(to)) || top(to) == "deploy")
		},
		"a library that knows a program can not be used without it"},
	{"deploy is the end", true,
		func(from, to string) bool { return isRole(top(from)) && top(to) == "deploy" },
		"what runs in production may not need what shows it off"},
	{"kits are for tests", false,
		func(from, to string) bool { return !isTestCode(from) && layerOf(to) == kits },
		"suites and fixtures never reach a binary"},
	{"test modules are for tests", false,
		func(from, to string) bool { return !isTestCode(from) && within(to, testModules) },
		"test-only dependencies never reach a binary"},
}
