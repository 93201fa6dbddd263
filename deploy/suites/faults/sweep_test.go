package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A tampering edits one field of one key by hand.
type tampering struct {
	what  string // sku, order, or word of the state that is edited
	key   string // orders or state
	field string
	text  string // written there; empty: the field is deleted
	torn  bool   // the library itself refuses from the next call on
	old   string
}

func (a *tampering) String() string {
	return fmt.Sprintf("%s of %s, field %s: %q for %q", a.what, a.key, a.field, a.text, a.old)
}

// A tamperer draws tamperings of fields that nothing else moves.
type tamperer struct {
	*shoptest.Shop
	chance *rand.Rand
	orders int      // order-0 … of the bulk
	skus   []string // that nobody buys
	taken  map[string]bool
}

// draw makes up one tampering of a field that no other of this round touches.
func (d *tamperer) draw() *tampering {
	for {
		order := fmt.Sprintf("bulk-%d", d.chance.IntN(d.orders))
		sku := d.skus[d.chance.IntN(len(d.skus))]
		number := strconv.FormatInt(d.Numbers[sku], 10)
		if d.taken["orders"+order] || d.taken["state"+number] {
			continue // it is edited already, or gone: there is nothing to make another edit of
		}
		if a := d.drawOne(order, number); !d.taken[a.key+a.field] {
			d.taken[a.key+a.field] = true
			return a
		}
	}
}

func (d *tamperer) drawOne(order, number string) *tampering {
	stock := func() string { return d.read("state", number) }
	record := func() []string { return strings.Split(d.read("orders", order), "|") }
	edit := func(at int, text string) string {
		parts := record()
		parts[at] = text
		return strings.Join(parts, "|")
	}
	figure := func(at int, by int64) string {
		parts := strings.Split(stock(), "|")
		n, err := strconv.ParseInt(parts[at], 10, 64)
		shoptest.Need(d.T, err)
		parts[at] = strconv.FormatInt(n+by, 10)
		return strings.Join(parts, "|")
	}
	switch d.chance.IntN(10) {
	case 0:
		return &tampering{what: "sku", key: "state", field: number, text: figure(0, 1+d.chance.Int64N(50))}
	case 1:
		return &tampering{what: "sku", key: "state", field: number, text: figure(0, -1-d.chance.Int64N(50))}
	case 2:
		return &tampering{what: "sku", key: "state", field: number, text: figure(1+d.chance.IntN(2), 1)}
	case 3:
		return &tampering{what: "sku", key: "state", field: number}
	case 4:
		return &tampering{what: "order", key: "orders", field: order}
	case 5:
		return &tampering{what: "order", key: "orders", field: order, text: edit(2, "7")}
	case 6:
		return &tampering{what: "order", key: "orders", field: order, text: edit(3, "1")}
	case 7:
		return &tampering{what: "order", key: "orders", field: order, text: edit(5, strings.Replace(record()[5], "=1", "=9", 1))}
	case 8:
		return &tampering{what: "order", key: "orders", field: order, text: edit(0, "c")}
	}
	ghost := fmt.Sprintf("ghost-%d", d.chance.IntN(1_000_000))
	return &tampering{what: "order", key: "orders", field: ghost, text: d.read("orders", order)}
}

// drawTorn makes up one that the library notices itself.
func (d *tamperer) drawTorn() *tampering {
	switch d.chance.IntN(5) {
	case 0:
		q, err := strconv.ParseInt(d.read("state", "q"), 10, 64)
		shoptest.Need(d.T, err)
		return &tampering{what: "word", key: "state", field: "q", text: strconv.FormatInt(q+1_000_000, 10), torn: true}
	case 1:
		return &tampering{what: "word", key: "state", field: "n", text: "nonsense", torn: true}
	case 2:
		return &tampering{what: "word", key: "orders", field: "~", torn: true}
	case 3:
		return &tampering{what: "word", key: "orders", field: "~", text: "nonsense", torn: true}
	}
	return &tampering{what: "word", key: "state", field: "e", text: d.Ledger.ID() + ".1", torn: true}
}

func (d *tamperer) where(key string) string {
	if key == "state" {
		return d.Keys(d.skus[0]).State
	}
	return d.Keys(d.skus[0]).Orders
}

func (d *tamperer) read(key, field string) string {
	d.T.Helper()
	return d.RDB.HGet(d.T.Context(), d.where(key), field).Val()
}

func (d *tamperer) write(key, field, text string) {
	d.T.Helper()
	if text == "" {
		shoptest.Need(d.T, d.RDB.HDel(d.T.Context(), d.where(key), field).Err())
		return
	}
	shoptest.Need(d.T, d.RDB.HSet(d.T.Context(), d.where(key), field, text).Err())
}

func (d *tamperer) apply(a *tampering) {
	d.T.Helper()
	a.old = d.read(a.key, a.field)
	d.write(a.key, a.field, a.text)
}

// named reports whether an audit names the key and field.
func (d *tamperer) named(r *audit.Report, a *tampering) bool {
	return slices.ContainsFunc(r.Drifts, func(x audit.Drift) bool {
		if x.Class != audit.Tampered || x.Key != a.key {
			return false
		}
		if a.what == "order" {
			return x.Order == a.field
		}
		return strconv.FormatInt(x.SKU, 10) == a.field
	})
}

// TestTamperingsAreNamedWithinOneSweep edits fields of shops that sell, and wants each named with its key by the next
// sweep over all records, or refused as torn and taken over. What callers buy stays: a shop that sold through ten rounds
// would have twice the records that the sweep is promised for, so a new one is opened every two rounds.
func TestTamperingsAreNamedWithinOneSweep(t *testing.T) {
	if !shoptest.Full { // then nothing runs beside it: its time is a promise
		t.Parallel()
	}
	seed := shoptest.Seed(t)
	for i := range shoptest.Size(1, 5) {
		t.Run(fmt.Sprintf("shop %d", i+1), func(t *testing.T) {
			tamperings(shoptest.Part(t, fmt.Sprintf("tamper: random edits, two sweeps, shop %d", i+1)), seed, uint64(i+1))
		})
	}
}

func tamperings(r *shoptest.Row, seed, shop uint64) {
	t := r.T
	r.Class = "tampered"
	records := shoptest.Size(4_000, 300_000)
	const rounds, each = 2, 9 // and one that is torn
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, ReconcilerArgs: []string{"--audit-every", "24h"}})
	hot, cold := shoptest.Names("hot", 8), shoptest.Names("cold", 40)
	s.Supply(1_000_000, append(slices.Clone(hot), cold...)...)
	s.Counter().Hold(records, "bulk", 12*time.Hour, cold...)
	s.Drain()
	d := &tamperer{Shop: s, chance: rand.New(rand.NewPCG(seed, shop)), orders: records, skus: cold}
	load := s.Traffic(16, 20*time.Millisecond, false, hot...)
	var slowest time.Duration // of a sweep
	var compared, fewest int  // by the longest and the shortest sweep; a record on two pages of one audit counts once
	found, torn := 0, 0
	for range rounds {
		d.taken = map[string]bool{}
		planted := make([]*tampering, each)
		for i := range planted {
			planted[i] = d.draw()
			d.apply(planted[i])
		}
		began := time.Now()
		report, err := s.Sweep(audit.Options{})
		shoptest.Need(t, err)
		slowest, compared = max(slowest, time.Since(began)), max(compared, report.Orders)
		if fewest == 0 || report.Orders < fewest {
			fewest = report.Orders
		}
		for _, a := range planted {
			if d.named(&report, a) {
				found++
				continue
			}
			t.Errorf("seed %d, shop %d: not named by the sweep: %v; it found %v", seed, shop, a, report.Drifts)
		}
		if n := len(report.Drifts) + report.More; n > 2*each { // an order's edit may be seen from its SKU, too
			t.Errorf("seed %d, shop %d: %d drifts named for %d edits: %v", seed, shop, n, each, report.Drifts)
		}
		for _, a := range planted {
			d.write(a.key, a.field, a.old)
		}
		r.Opened(d.tear(load))
		torn++
	}
	load.Stop()
	if limit := time.Minute; slowest > limit {
		t.Errorf("a sweep of %d records and the callers' orders took %v, at most %v is promised", records, slowest, limit)
	}
	if fewest < records {
		t.Errorf("a sweep compared %d records, the shop has %d at least", fewest, records)
	}
	r.Note("%d of %d edits named with their key within one sweep, %d refused as torn and taken over (seed %d)", found, rounds*each, torn, seed)
	r.Note("slowest sweep %.1f s, with %d to %d comparisons, from both sides, under load", slowest.Seconds(), fewest, compared)
	s.Drain()
	s.Finish()
}

// tear applies a tampering that the library notices, and says how long it took until it sold again.
func (d *tamperer) tear(load *shoptest.Traffic) time.Duration {
	d.T.Helper()
	epoch := d.Epoch(0)
	a := d.drawTorn()
	hit := time.Now()
	d.apply(a)
	sandboxtest.Eventually(d.T, 2*shoptest.Patience, func() error {
		if load.Epoch.Load() <= epoch {
			return fmt.Errorf("nothing is sold after %v", a)
		}
		return nil
	})
	if class := shoptest.One[string](d.Shop, `select class from repair where verb = 'takeover' order by id desc limit 1`); !slices.Contains([]string{"torn", "missing", "rewound", "unopened"}, class) {
		d.T.Errorf("%v was taken over as %q", a, class)
	}
	return time.Since(hit)
}

// TestAThousandAuditsUnderLoadRaiseNoFalseAlarm audits back to back while orders come, are confirmed and given back.
func TestAThousandAuditsUnderLoadRaiseNoFalseAlarm(t *testing.T) {
	r := shoptest.Alone(t, "audit: back to back under load, no false alarm")
	audits := shoptest.Size(20, 1_000)
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, ReconcilerArgs: []string{"--audit-every", "24h"},
		Patience: 10 * time.Minute}) // a million orders come meanwhile, and the last pass compares them all
	skus := shoptest.Names("tea", 20)
	s.Supply(1_000_000, skus...)
	s.Counter().Hold(shoptest.Size(500, 50_000), "bulk", 12*time.Hour, skus...)
	load := s.Traffic(shoptest.Size(8, 32), time.Millisecond, false, skus...)
	rate := func(work func() bool) float64 { // of acceptances while work goes on
		before, began := load.Reserved.Load(), time.Now()
		for work() {
		}
		return float64(load.Reserved.Load()-before) / time.Since(began).Seconds()
	}
	calm := func() float64 {
		until := time.NewTimer(shoptest.Size(500*time.Millisecond, 5*time.Second))
		defer until.Stop()
		return rate(func() bool { <-until.C; return false })
	}
	var alone, beside []float64
	var cursor audit.Cursor
	done, restarts, orders, entries := 0, 0, 0, 0
	const parts = 5
	for range parts {
		alone = append(alone, calm())
		left := audits / parts
		beside = append(beside, rate(func() bool {
			report, err := s.Audit(audit.Options{Cursor: cursor, SkipInvariants: done%10 != 0})
			if err != nil && !errors.Is(err, audit.ErrUnsettled) {
				shoptest.Need(t, err)
			}
			if !report.Clean() {
				t.Errorf("audit %d: %v (%v)", done, report.Drifts, err)
			}
			cursor = report.Cursor
			restarts, orders, entries = restarts+report.Restarts, orders+report.Orders, entries+report.Entries
			done, left = done+1, left-1
			return left > 0 && !t.Failed()
		}))
	}
	load.Stop()
	slices.Sort(alone)
	slices.Sort(beside)
	if alone[parts/2] < 50 {
		t.Errorf("only %.0f acceptances a second: nobody came", alone[parts/2])
	}
	r.Note("%d audits, %d orders and %d entries compared, %d restarts, 0 false alarms", done, orders, entries, restarts)
	r.Note("writers: %.0f acceptances/s alone, %.0f beside audits (%.2f)", alone[parts/2], beside[parts/2], beside[parts/2]/alone[parts/2])
	s.Finish()
}
