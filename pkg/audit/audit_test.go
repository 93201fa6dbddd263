package audit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// look audits a world and answers what was found, in short.
func look(t *testing.T, w *world, o Options) (Report, []string) {
	t.Helper()
	r, err := Run(ctx, w, w, o)
	if err != nil {
		t.Fatal(err)
	}
	if w.openViews != 0 {
		t.Errorf("%d snapshots were left open", w.openViews)
	}
	found := []string{}
	for _, d := range r.Drifts {
		short := string(d.Class)
		if d.SKU != 0 {
			short += fmt.Sprintf(" sku %d", d.SKU)
		}
		if d.Buyer != "" {
			short += " buyer " + d.Buyer
		}
		if d.Order != "" {
			short += " order " + d.Order
		}
		found = append(found, short)
	}
	return r, found
}

func TestAgreementIsCleanAndCounted(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r, found := look(t, w, Options{})
	if len(found) > 0 || !r.Clean() {
		t.Fatalf("%v", r.Drifts)
	}
	want := Report{Compared: true, SKUs: 3, Orders: 16, Ended: 2, Buyers: 2, Entries: 4, Ledger: stock.Position{Epoch: epoch, Seq: applied},
		Redis: stock.Position{Epoch: epoch, Seq: 9}, LedgerSwept: true, RedisSwept: true, BoughtSwept: true, CountsSwept: true}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	for to := int64(0); to <= 9; to++ {
		w := newWorld()
		w.row.Applied, w.ledger = 0, newBook()
		w.persist(to)
		for _, page := range []int{1, 2, 3, 100} {
			if r, err := Sweep(ctx, w, w, Options{Page: page}); err != nil || len(r.Drifts) > 0 || !r.Compared {
				t.Fatalf("ledger at %d, pages of %d: %v, %v", to, page, r.Drifts, err)
			}
		}
	}
}

func TestDifferencesAreClassified(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		hurt func(*world)
		want []string
	}{
		{"a unit too many", func(w *world) { w.state["1"] = plus(w.state["1"], 1) }, []string{"tampered sku 1"}},
		{"a unit too few", func(w *world) { w.state["2"] = plus(w.state["2"], -1) }, []string{"tampered sku 2"}},
		{"a setting", func(w *world) { w.state["2"] = strings.Replace(w.state["2"], "f", "fc", 1) }, []string{"tampered sku 2"}},
		{"a field that is none", func(w *world) { w.state["1"] = "many" }, []string{"tampered sku 1"}},
		{"a SKU gone", func(w *world) { delete(w.state, "1") }, []string{"tampered sku 1"}},
		{"a SKU invented", func(w *world) { w.state["9"] = "1|0|0" }, []string{"tampered sku 9"}},
		{"a SKU written otherwise", func(w *world) { w.state["01"] = w.state["1"] }, []string{"tampered sku 1"}},
		{"a field invented", func(w *world) { w.state["x"] = "1" }, []string{"tampered"}},
		{"a record edited", func(w *world) { w.records["a"] = strings.Replace(w.records["a"], "=2", "=3", 1) }, []string{"tampered order a"}},
		{"a record of the log edited", func(w *world) { w.records["s"] += "0" }, []string{"tampered order s"}},
		{"a record gone", func(w *world) { delete(w.records, "b") }, []string{"tampered order b"}},
		{"a record gone that the ledger has not heard of is seen once it has", func(w *world) { delete(w.records, "s") }, []string{}},
		{"a record invented", func(w *world) { w.records["ghost"] = w.records["a"] }, []string{"tampered order ghost"}},
		{"a document's record gone", func(w *world) { delete(w.records, "~d1") }, []string{"tampered order ~d1"}},
		{"a document's record invented", func(w *world) { w.records["~d9"] = w.records["~d1"] }, []string{"tampered order ~d9"}},
		{"shipped units edited", func(w *world) { w.records["f"] = strings.Replace(w.records["f"], ":0:4", ":1:3", 1) }, []string{"tampered order f"}},
		{"a replaced hold edited", func(w *world) { w.records["p"] = strings.Replace(w.records["p"], "2=0:1,", "", 1) }, []string{"tampered order p"}},
		{"a hold shortened", func(w *world) { w.records["p"] = strings.Replace(w.records["p"], "|90000|", "|66000|", 1) }, []string{"tampered order p"}},
		{"a limit", func(w *world) { w.state["3"] = strings.Replace(w.state["3"], "|30", "|3", 1) }, []string{"tampered sku 3"}},
		{"a buyer's count", func(w *world) { w.buyers["3:b"] = "1" }, []string{"tampered sku 3 buyer b"}},
		{"a count with a zero before it", func(w *world) { w.buyers["3:b"] = "02" }, []string{"tampered sku 3 buyer b"}},
		{"a count that is none", func(w *world) { w.buyers["3:b"] = "-1" }, []string{"tampered sku 3 buyer b"}},
		{"a count gone", func(w *world) { delete(w.buyers, "3:b2") }, []string{"tampered sku 3 buyer b2"}},
		{"a count invented", func(w *world) { w.buyers["3:x"] = "1" }, []string{"tampered sku 3 buyer x"}},
		{"a count of nothing", func(w *world) { w.buyers["3:x"] = "0" }, []string{}},
		{"a count of a SKU without a limit", func(w *world) { w.buyers["1:b"] = "5" }, []string{}},
		{"a count of no SKU", func(w *world) { w.buyers["9:b"] = "5" }, []string{"tampered"}},
		{"a mark of a SKU without a limit", func(w *world) { w.buyers["1"] = "1" }, []string{"tampered sku 1"}},
		{"a mark that is none", func(w *world) { w.buyers["3"] = "yes" }, []string{"tampered sku 3"}},
		{"a field beside the counts", func(w *world) { w.buyers["x"] = "1" }, []string{"tampered"}},
		{"a SKU beside the counts written otherwise", func(w *world) { w.buyers["03:b"] = "1" }, []string{"tampered sku 3"}},
		{"a limit that nobody counts", func(w *world) { delete(w.buyers, "3"); w.buyers["3:b"] = "77" }, []string{"uncounted sku 3"}},
		{"two things", func(w *world) { delete(w.records, "b"); delete(w.state, "1") }, []string{"tampered sku 1", "tampered order b"}},
		{"an after-image", func(w *world) { w.log[6].After = strings.Replace(w.log[6].After, "1=", "1=1", 1) }, []string{"tampered sku 1"}},
		{"a SKU that the ledger doubts", func(w *world) {
			w.snap.Doubt[1], w.state["1"] = "both figures", plus(w.state["1"], 1)
			f := w.snap.Stock[1]
			f.Frozen = true
			w.snap.Stock[1] = f
		}, []string{"tampered sku 1"}},
		{"a SKU that the ledger froze by itself", func(w *world) {
			w.snap.Doubt[1] = "both figures"
			f := w.snap.Stock[1]
			f.Frozen = true
			w.snap.Stock[1] = f
		}, []string{}},
		{"the next entry gone", func(w *world) { w.log = slices.Delete(w.log, 5, 6) }, []string{"gap-lost"}},
		{"a later entry gone", func(w *world) { w.log = slices.Delete(w.log, 7, 8) }, []string{"gap-lost"}},
		{"the last entry gone", func(w *world) { w.log = w.log[:8] }, []string{"gap-lost"}},
		{"all entries gone but the last", func(w *world) { w.trimmed = 8 }, []string{"gap-lost"}},
		{"an old entry gone", func(w *world) { w.log = slices.Delete(w.log, 1, 2) }, []string{}},
		{"another entry at p", func(w *world) { w.log[4].At = "1" }, []string{"fork"}},
		{"an entry that cannot be read", func(w *world) { w.log[7].Version = "2" }, []string{"stuck"}},
		{"an entry that contradicts", func(w *world) { w.log[6].Ops = "X1 a" }, []string{"tampered order a"}},
		{"an operation left out", func(w *world) { w.log[6].Ops = "E1 c" }, []string{"tampered sku 1", "tampered order e"}},
		{"an operation twice", func(w *world) { w.log[5].Ops += " s2" }, []string{"tampered sku 1"}},
		{"not opened", func(w *world) { w.status.Fence = takeover.FenceAbsent }, []string{"unopened"}},
		{"torn", func(w *world) { w.status.Fence = takeover.FenceDiffers }, []string{"torn"}},
		{"flushed", func(w *world) { w.status, w.state, w.records, w.buyers, w.log = takeover.Status{}, nil, nil, nil, nil }, []string{"missing"}},
		{"rewound", func(w *world) { w.status.Seq = 4 }, []string{"rewound"}},
		{"older epoch", func(w *world) { w.status.Epoch = 6 }, []string{"rewound"}},
		{"later epoch than the ledger ever gave out", func(w *world) { w.status.Epoch = 8 }, []string{"ahead"}},
		{"foreign", func(w *world) { w.status.Ledger, w.status.Token = "theirs", "theirs.7" }, []string{"foreign"}},
		{"halted", func(w *world) { w.row.State, w.status.Mode = takeover.StateHalted, takeover.ModeClosed }, []string{"halted"}},
		{"halted, not fenced", func(w *world) { w.row.State = takeover.StateHalted }, []string{"unfenced"}},
		{"opened, not yet said", func(w *world) { w.row.State = takeover.StateRebuilding }, []string{}},
		{"ledger against itself", func(w *world) {
			w.broken = []Broken{{Class: Invariant, SKU: 1, Text: "held"}, {Class: Overdue, Order: "a"}}
		}, []string{"invariant sku 1", "overdue order a"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			c.hurt(w)
			r, found := look(t, w, Options{})
			if diff := cmp.Diff(c.want, found); diff != "" {
				t.Error(diff, r.Drifts)
			}
			for _, d := range r.Drifts {
				if d.Verb == "" || d.Text == "" && d.Class != Overdue {
					t.Errorf("no proposal or no words: %+v", d)
				}
			}
			if again, _ := look(t, w, Options{}); !cmp.Equal(again.Drifts, r.Drifts) {
				t.Errorf("two audits of the same do not agree: %v", again.Drifts)
			}
		})
	}
}

// plus changes the available units of a field.
func plus(text string, units int64) string {
	f, err := event.ParseField(text)
	if err != nil {
		panic(err)
	}
	f.Available += units
	return f.String()
}

func TestBothFiguresAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld()
	was := w.state["1"]
	w.state["1"] = plus(was, 1)
	r, _ := look(t, w, Options{})
	want := Drift{Class: Tampered, Key: "state", SKU: 1, Position: "7-9", Redis: w.state["1"], Postgres: was,
		Text: "the quantities differ", Verb: VerbFreeze}
	if diff := cmp.Diff([]Drift{want}, r.Drifts); diff != "" {
		t.Error(diff)
	}
}

// TestRacesAreNoAlarms moves the ground between the three readings, as it moves in a living shop.
func TestRacesAreNoAlarms(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		race     func(*world)
		restarts int
	}{
		{"consumer applies, then the log is trimmed", func(w *world) {
			once(&w.onRange, func() { w.persist(8); w.trimmed = 7 })
		}, 1},
		{"trimmed between two pages", func(w *world) {
			pages := 0
			w.onRange = func() {
				if pages++; pages == 2 {
					w.persist(9)
					w.trimmed = 8
				}
			}
		}, 1},
		{"trimmed without need", func(w *world) { once(&w.onRange, func() { w.persist(6); w.trimmed = 4 }) }, 0},
		{"fence between view and sample", func(w *world) {
			once(&w.onSample, func() {
				w.row.Claim, w.status.Epoch, w.status.Mode = 8, 8, takeover.ModeClosed
				once(&w.onSample, func() { w.renew() })
			})
		}, 1},
		{"takeover between sample and log", func(w *world) {
			once(&w.onRange, func() { w.row.Claim, w.row.State, w.trimmed = 8, takeover.StateRebuilding, 9 })
			w.onSample = func() {
				if w.samples > 0 {
					w.renew()
				}
			}
		}, 1},
		{"failover: the log is a shorter replica's, the old master still answers", func(w *world) {
			once(&w.onRange, func() { w.other = w.log[:7] })
			w.onSample = func() {
				if w.samples > 0 {
					w.other = nil
				}
			}
		}, 1},
		{"failover: the replica answers everything from now on", func(w *world) {
			once(&w.onRange, func() { w.log, w.status.Seq, w.status.Fence = w.log[:7], 7, takeover.FenceAbsent })
			w.onSample = func() {
				if w.samples > 0 {
					w.renew() // a takeover opened it
				}
			}
		}, 1},
		{"failover: a replica that was fenced by the same takeover is behind", func(w *world) {
			once(&w.onRange, func() { w.log, w.status.Seq = w.log[:7], 7 })
			w.onSample = func() {
				if w.samples > 0 {
					w.renew()
				}
			}
		}, 1},
		{"halt between view and sample", func(w *world) {
			once(&w.onSample, func() {
				w.row.Claim, w.status.Epoch = 9, 9
				once(&w.onSample, func() { w.renew() })
			})
		}, 1},
		{"writers go on behind q", func(w *world) {
			seen := w.status
			seen.Seq, seen.Last = 7, "7-7"
			early := newWorldAt(7)
			w.status, w.state, w.records, w.buyers = seen, early.state, early.records, early.buyers
		}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			c.race(w)
			r, found := look(t, w, Options{Page: 2})
			// Pages of 2 never see all orders, which is not what is asked here.
			if len(found) > 0 || !r.Compared || r.Restarts != c.restarts {
				t.Errorf("%d restarts, compared %v, found %v", r.Restarts, r.Compared, r.Drifts)
			}
		})
	}
}

func once(hook *func(), do func()) {
	*hook = func() { *hook = nil; do() }
}

// newWorldAt is what Redis was at an earlier seq.
func newWorldAt(seq int) *world {
	w := newWorld()
	book := newBook()
	for _, raw := range w.log[:seq] {
		e, err := raw.Parse()
		if err != nil {
			panic(err)
		}
		if _, err := book.Apply(&e, nil); err != nil {
			panic(err)
		}
	}
	for _, number := range []int64{1, 2, 3} {
		w.state[fmt.Sprint(number)] = event.Field{Quantities: book.Stock[number], Settings: book.Settings[number]}.String()
	}
	w.records = map[string]string{"~": "nonce"}
	for id, r := range book.Orders {
		w.records[id] = event.FormatRecord(r)
	}
	w.buyers = counts(book)
	return w
}

func TestShardThatNeverSettlesIsAnErrorOfTheAudit(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(*world){
		"rebuilding": func(w *world) { w.row.State, w.status.Mode = takeover.StateRebuilding, takeover.ModeClosed },
		"fenced":     func(w *world) { w.row.Claim, w.status.Epoch, w.status.Mode = 8, 8, takeover.ModeClosed },
		"trimmed too fast": func(w *world) {
			w.trimmed = 9
			w.onRange = func() { w.row.Applied = 9 }
			w.onView = func() { w.row.Applied = 5 }
		},
	} {
		w := newWorld()
		hurt(w)
		r, err := Run(ctx, w, w, Options{Restarts: 2})
		if !errors.Is(err, ErrUnsettled) || r.Restarts != 2 || len(r.Drifts) > 0 || r.Compared {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestRecordsNearTheirRetentionAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld()
	age := func(id string, moved time.Duration) {
		o := w.snap.Orders[id]
		o.Moved = clock.Add(-moved)
		w.snap.Orders[id] = o
	}
	age("a", 54*time.Minute)  // confirmed, at nine tenths
	age("~d1", 2*time.Hour)   // a document beyond
	age("b", 59*time.Minute)  // released, but the log begins it again
	age("c", 100*time.Minute) // held, and so never too old
	delete(w.records, "a")
	delete(w.records, "~d1")
	if r, found := look(t, w, Options{}); len(found) > 0 || r.Aged != 1 || r.Dropped != 1 {
		t.Errorf("%d left out, %d dropped, found %v", r.Aged, r.Dropped, r.Drifts)
	}
	w.records["~d1"] = newWorld().records["~d1"] // not dropped yet
	if r, found := look(t, w, Options{}); len(found) > 0 || r.Aged != 1 || r.Dropped != 0 {
		t.Errorf("%d left out, %d dropped, found %v", r.Aged, r.Dropped, r.Drifts)
	}
	w.records["~d1"] += "0"
	if _, found := look(t, w, Options{}); !slices.Equal(found, []string{"tampered order ~d1"}) {
		t.Errorf("found %v", found)
	}
	age("~d1", 65*time.Minute) // it may be gone or not, and is not looked at yet
	if r, found := look(t, w, Options{}); len(found) > 0 || r.Aged != 2 || r.Dropped != 0 {
		t.Errorf("%d left out, %d dropped, found %v", r.Aged, r.Dropped, r.Drifts)
	}
	age("~d1", 67*time.Minute)
	if _, found := look(t, w, Options{}); !slices.Equal(found, []string{"tampered order ~d1"}) {
		t.Errorf("found %v", found)
	}
	delete(w.records, "~d1")
	age("a", 53*time.Minute)
	delete(w.records, "b")
	delete(w.records, "c")
	if _, found := look(t, w, Options{}); !slices.Equal(found, []string{"tampered order a", "tampered order b", "tampered order c"}) {
		t.Errorf("found %v", found)
	}
	w = newWorld()
	w.persist(9)
	age("b", 100*time.Hour) // a hold that nobody moves any more
	delete(w.records, "b")
	if _, found := look(t, w, Options{}); !slices.Equal(found, []string{"tampered order b"}) {
		t.Errorf("found %v", found)
	}
}

// A document of an order whose record may be gone says that it counts on none: it changes the order's row and no record.
func TestADocumentOfAnOrderWhoseRecordMayBeGoneIsNoDrift(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		moved time.Duration
		gone  bool
		late  bool // the documents count on no record
		want  []string
	}{
		{moved: 2 * time.Hour, gone: true, late: true}, {moved: 2 * time.Hour, late: true},
		{moved: time.Hour, gone: true, late: true}, {moved: time.Hour, late: true},
		{moved: 2 * time.Hour}, {moved: 30 * time.Minute},
		{moved: 2 * time.Hour, gone: true, want: []string{"tampered order f", "tampered order g"}},
		{moved: 30 * time.Minute, gone: true, want: []string{"tampered order f", "tampered order g"}},
	} {
		w := newWorld()
		if c.late {
			w.log[7].Ops = strings.NewReplacer("|f|1|1", "|f|1|0", "|g|1|1", "|g|1|0").Replace(w.log[7].Ops)
		}
		for _, id := range []string{"f", "g"} {
			o := w.snap.Orders[id]
			o.Moved = clock.Add(-c.moved)
			w.snap.Orders[id] = o
			if c.late {
				w.records[id] = event.FormatRecord(&o.Reservation)
			}
			if c.gone {
				delete(w.records, id)
			}
		}
		if _, found := look(t, w, Options{}); !slices.Equal(found, c.want) && len(found)+len(c.want) > 0 {
			t.Errorf("%+v: found %v", c, found)
		}
		if !c.late || c.gone || c.moved < 2*time.Hour {
			continue
		}
		// And once the ledger has them: the rows of the orders have changed, all but their positions.
		for _, hurt := range []bool{false, true} {
			for _, id := range []string{"f", "g"} {
				o := w.snap.Orders[id]
				o.State, o.Lines = stock.Cancelled, slices.Clone(o.Lines)
				o.Lines[0].Now = 0
				if hurt {
					o.Receipt.Seq--
				}
				w.snap.Orders[id] = o
			}
			want := map[bool][]string{true: {"tampered order f", "tampered order g"}, false: {}}[hurt]
			if _, found := look(t, w, Options{}); !slices.Equal(found, want) {
				t.Errorf("%+v, hurt %v: found %v", c, hurt, found)
			}
		}
	}
}

func TestLimitsThatChangeBetweenLedgerAndRedisAreNoDrift(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		marks map[string]string
		ops   []stock.Operation
		want  []string
	}{
		{"switched off", nil, []stock.Operation{set(3, stock.Change{Opens: stock.Keep})}, nil},
		{"switched off and on", nil, []stock.Operation{set(3, stock.Change{Opens: stock.Keep}), set(3, stock.Change{Opens: stock.Keep, Limit: 2})}, []string{"uncounted sku 3"}},
		{"switched on, which the ledger has not heard of", map[string]string{"3": "1"}, []stock.Operation{set(1, stock.Change{Opens: stock.Keep, Limit: 2})}, nil},
	}
	for _, c := range cases {
		w := newWorld()
		e := event.Entry{Position: stock.Position{Epoch: epoch, Seq: int64(len(w.log) + 1)}, AtMillis: 20_000, Ops: c.ops}
		if _, err := w.redis.Apply(&e, nil); err != nil {
			t.Fatal(err)
		}
		w.log = append(w.log, e.Raw())
		w.status.Seq, w.status.Last = w.status.Seq+1, e.Position.String()
		for number, q := range w.redis.Stock {
			w.state[fmt.Sprint(number)] = event.Field{Quantities: q, Settings: w.redis.Settings[number]}.String()
		}
		delete(w.buyers, "3")
		maps.Copy(w.buyers, c.marks)
		if _, found := look(t, w, Options{}); !slices.Equal(found, c.want) && len(found)+len(c.want) > 0 {
			t.Errorf("%s: found %v", c.name, found)
		}
		if len(c.marks) == 0 || c.name == "switched off" {
			continue
		}
		w.persist(w.status.Seq) // and once it has
		if _, found := look(t, w, Options{}); !slices.Equal(found, []string{"uncounted sku 1"}) {
			t.Errorf("%s, persisted: found %v", c.name, found)
		}
	}
}

func TestOrderThatBeginsAgainAfterItsRetentionIsNoPoison(t *testing.T) {
	t.Parallel()
	w := newWorld()
	// Before this shop's log began, e was confirmed, long ago.
	w.late["e"] = Order{Moved: clock.Add(-3 * time.Hour), Reservation: stock.Reservation{ID: "e", State: stock.Confirmed, Attempt: 1,
		Lines: stock.Lines{{SKU: 1, Asked: 9, Now: 9}}}}
	if _, found := look(t, w, Options{}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestLedgerThatStandsStillIsNamedWhenAsked(t *testing.T) {
	t.Parallel()
	w := newWorld()
	if _, found := look(t, w, Options{StuckAfter: 94 * time.Second}); !slices.Equal(found, []string{"gap-log"}) {
		t.Errorf("found %v", found)
	}
	if _, found := look(t, w, Options{StuckAfter: 95 * time.Second}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// TestSweepMissesNoCount damages one count after the other and looks for it in small pages.
func TestSweepMissesNoCount(t *testing.T) {
	t.Parallel()
	for field := range maps.Clone(newWorld().buyers) {
		if field == sentinel {
			continue
		}
		for _, page := range []int{1, 2, 50} {
			for _, hurt := range []func(map[string]string){
				func(m map[string]string) { delete(m, field) },
				func(m map[string]string) { m[field] += "7" },
				func(m map[string]string) { m[field+"x"] = "4" },
			} {
				w := newWorld()
				w.persist(9)
				hurt(w.buyers)
				if r, err := Sweep(ctx, w, w, Options{Page: page}); err != nil || len(r.Drifts) != 1 || !r.Compared {
					t.Errorf("%s, pages of %d: %v, %v", field, page, r.Drifts, err)
				}
			}
		}
	}
}

// TestSweepMissesNothing damages one record after the other and looks for it in small pages.
func TestSweepMissesNothing(t *testing.T) {
	t.Parallel()
	for id := range maps.Clone(newWorld().records) {
		if id == sentinel {
			continue
		}
		for _, page := range []int{1, 3, 50} {
			w := newWorld()
			w.persist(9)
			delete(w.records, id)
			r, err := Sweep(ctx, w, w, Options{Page: page})
			if err != nil || len(r.Drifts) != 1 || r.Drifts[0].Order != id {
				t.Errorf("%s gone, pages of %d: %v, %v", id, page, r.Drifts, err)
			}
			w = newWorld()
			w.records[id] += ",77=1"
			r, err = Sweep(ctx, w, w, Options{Page: page})
			if err != nil || len(r.Drifts) != 1 || r.Drifts[0].Order != id {
				t.Errorf("%s edited, pages of %d: %v, %v", id, page, r.Drifts, err)
			}
		}
	}
}

func TestDriftsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for i := range 2 * MaxDrifts {
		w.state[fmt.Sprint(1000+i)] = "1|0|0"
	}
	if r, _ := look(t, w, Options{}); len(r.Drifts) != MaxDrifts || r.More != MaxDrifts || r.Unlisted[Tampered] != MaxDrifts {
		t.Errorf("%d named, %d more: %v", len(r.Drifts), r.More, r.Unlisted)
	}
}

// TestLateHoldsHideNoTamperedRecord has more late holds than a report names, and a record that somebody edited on a
// page that comes after them.
func TestLateHoldsHideNoTamperedRecord(t *testing.T) {
	t.Parallel()
	for _, page := range []int{1, 100} {
		w := newWorld()
		for i := range 10 * MaxDrifts {
			w.broken = append(w.broken, Broken{Class: Overdue, Order: fmt.Sprint("late", i), Text: "late"})
		}
		delete(w.records, "e")
		w.persist(9)
		r, err := Sweep(ctx, w, w, Options{Page: page})
		named := slices.ContainsFunc(r.Drifts, func(d Drift) bool { return d.Class == Tampered && d.Order == "e" })
		if err != nil || !named || len(r.Drifts) != MaxDrifts || r.Unlisted[Tampered] != 0 || r.Unlisted[Overdue] != 9*MaxDrifts+1 || r.More != 9*MaxDrifts+1 {
			t.Errorf("pages of %d: named %v of %d drifts, %d more: %v, %v", page, named, len(r.Drifts), r.More, r.Unlisted, err)
		}
	}
}

func TestADriftIsNamedOnceHoweverItsFiguresMove(t *testing.T) {
	t.Parallel()
	var all Report
	seen := map[Drift]bool{}
	for _, page := range []Report{
		{Drifts: []Drift{{Class: Tampered, Key: "state", SKU: 5, Redis: "8|0|0", Postgres: "7|0|0"}}},
		{Drifts: []Drift{{Class: Tampered, Key: "state", SKU: 5, Redis: "6|2|0", Postgres: "5|2|0"}, {Class: Tampered, Key: "orders", Order: "o1", Redis: "x"}}},
		{Drifts: []Drift{{Class: Tampered, Key: "orders", Order: "o1", Redis: "y"}, {Class: Tampered, Key: "state", SKU: 6, Redis: "1|0|0"}}},
	} {
		all.add(&page, seen)
	}
	if len(all.Drifts) != 3 || all.Drifts[0].Redis != "8|0|0" || all.Drifts[1].Order != "o1" || all.Drifts[2].SKU != 6 {
		t.Errorf("named %+v", all.Drifts)
	}
}
