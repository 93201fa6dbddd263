package takeover_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// Whatever Redis has when it begins, it ends with what the ledger has, at every size of a page, and the report says what
// was done.
func TestEveryPageArrivesWhateverRedisHas(t *testing.T) {
	t.Parallel()
	for _, records := range []int{0, 1, 999, 1000, 1001, 2500} {
		some := []int{0, records / 2, records - 1} // of which something is wrong
		if records < 3 {
			some = some[:min(records, 1)]
		}
		for name, c := range map[string]struct {
			hurt         func(orders map[string]string)
			put, deleted int
			asks         bool // Redis has something, so it is asked
			reads        bool // and read back
		}{
			"intact": {func(map[string]string) {}, 0, 0, true, false},
			"empty":  {func(o map[string]string) { clear(o) }, records, 0, false, records > 0},
			"differs": {func(o map[string]string) {
				for _, i := range some {
					o[recordNumber(i).ID] = "x"
				}
			}, len(some), 0, true, len(some) > 0},
			"missing": {func(o map[string]string) {
				for _, i := range some {
					delete(o, recordNumber(i).ID)
				}
			}, len(some), 0, len(some) < records, len(some) > 0},
			"extra": {func(o map[string]string) {
				for i := range 1100 {
					o[fmt.Sprint("extra-", i)] = recordNumber(0).Text
				}
			}, 0, 1100, true, true},
			"missing and as many extra": {func(o map[string]string) {
				for _, i := range some {
					delete(o, recordNumber(i).ID)
					o[fmt.Sprint("extra-", i)] = recordNumber(i).Text
				}
			}, len(some), len(some), true, len(some) > 0},
		} {
			for _, twice := range []bool{false, true} {
				w := newWorld(t).with(records).kept()
				c.hurt(w.hashes[takeover.TargetOrders])
				w.twice = twice
				r, err := w.run(takeover.Options{})
				at := fmt.Sprintf("%d records, %s, twice %v", records, name, twice)
				if err != nil {
					t.Errorf("%s: %v", at, err)
					continue
				}
				if wrong := w.differs(); len(wrong) > 0 || !w.opened {
					t.Errorf("%s: opened %v with %v", at, w.opened, wrong[:min(len(wrong), 3)])
				}
				if r.Put != c.put || r.Deleted != c.deleted || r.Same != 1+records-c.put {
					t.Errorf("%s: put %d, deleted %d, same %d", at, r.Put, r.Deleted, r.Same)
				}
				if asked := len(w.asked[takeover.TargetOrders]) > 0; asked != (c.asks && records > 0) {
					t.Errorf("%s: asked %v", at, w.asked)
				}
				if read := w.scans[takeover.TargetOrders] > 0; read != c.reads {
					t.Errorf("%s: read back %v", at, w.scans)
				}
				if slices.Max(append(w.asked[takeover.TargetOrders], 0)) > takeover.SnapshotPage {
					t.Errorf("%s: asked for %v", at, w.asked)
				}
				if w.begun != 1 || w.closed != 1 {
					t.Errorf("%s: %d snapshots begun, closed %d times", at, w.begun, w.closed)
				}
			}
		}
	}
}

func TestTheStateIsMadeWhatItHasToBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for sku := range int64(1200) {
		w.stock[sku+1] = event.Field{Quantities: stock.Quantities{Available: sku}}
	}
	w.kept()
	w.state["3"] = "77|0|0"
	delete(w.state, "4")
	w.state["5000"] = w.state["5"]
	r, err := w.run(takeover.Options{})
	if wrong := w.differs(); err != nil || len(wrong) > 0 || r.Put != 2 || r.Deleted != 1 || r.Same != 1198 {
		t.Errorf("put %d, deleted %d, same %d: %v, %v", r.Put, r.Deleted, r.Same, err, wrong)
	}
}

// Calls are filled across pages, and none is larger than what Redis is held up for.
func TestPutsAreBoundedInFieldsAndBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t).with(2500)
	_, err := w.run(takeover.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fieldsOf(w.puts, takeover.TargetOrders); !slices.Equal(got, []int{512, 512, 512, 512, 452}) {
		t.Errorf("fields of calls: %v", got)
	}
	w = newWorld(t).with(20)
	for i := range w.records {
		w.records[i].Text = strings.Repeat("x", 100_000)
	}
	if _, err = w.run(takeover.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := fieldsOf(w.puts, takeover.TargetOrders); !slices.Equal(got, []int{3, 3, 3, 3, 3, 3, 2}) {
		t.Errorf("fields of calls with 100,000 bytes each: %v", got)
	}
}

func fieldsOf(puts []takeover.Put, target string) (fields []int) {
	for _, p := range puts {
		if p.Target == target {
			fields = append(fields, len(p.Args)/2)
		}
	}
	return fields
}

// Of SKUs with a limit what buyers have comes page by page, too, and of others nothing does.
func TestBuyersComeInPages(t *testing.T) {
	t.Parallel()
	for _, buyers := range []int{0, 1, 999, 1000, 1001, 2500} {
		for _, kept := range []bool{false, true} {
			w := newWorld(t)
			w.stock = map[int64]event.Field{1: {Settings: stock.Settings{Limit: 9}}, 2: {}, 3: {Settings: stock.Settings{Limit: 1}}}
			for i := range buyers {
				w.bought = append(w.bought, takeover.Bought{BuyerKey: event.BuyerKey{SKU: 1, Buyer: fmt.Sprint("b", i)}, Units: int64(i%9) + 1})
			}
			if kept {
				w.kept()
			}
			whole := w.bought
			for i := range 1500 {
				w.bought = append(w.bought, takeover.Bought{BuyerKey: event.BuyerKey{SKU: 2, Buyer: fmt.Sprint("b", i)}, Units: 1})
			}
			r, err := w.run(takeover.Options{})
			w.bought = whole
			if wrong := w.differs(); err != nil || len(wrong) > 0 {
				t.Errorf("%d buyers, kept %v: %v, %v", buyers, kept, err, wrong)
			}
			if kept && r.Put+r.Deleted > 0 || !kept && r.Put != buyers+2+3 {
				t.Errorf("%d buyers, kept %v: put %d, deleted %d", buyers, kept, r.Put, r.Deleted)
			}
		}
	}
}

// Whatever somebody does to a closed shard between the put and the reading back ends the attempt, and by name if it has
// one.
func TestWhatIsEditedBetweenPutAndReadBackNeverOpens(t *testing.T) {
	t.Parallel()
	one := recordNumber(7).ID
	for name, c := range map[string]struct {
		edit  func(orders map[string]string)
		names string
	}{
		"a text":           {func(o map[string]string) { o[one] = "x" }, one},
		"an extra":         {func(o map[string]string) { o["extra"] = "x" }, "extra"},
		"a copy":           {func(o map[string]string) { o["extra"] = o[one] }, "extra"},
		"one gone":         {func(o map[string]string) { delete(o, one) }, "1 of 1500"},
		"one for another":  {func(o map[string]string) { o["extra"] = o[one]; delete(o, one) }, "extra"},
		"two texts change": {func(o map[string]string) { two := recordNumber(8).ID; o[one], o[two] = o[two], o[one] }, one},
		"all gone":         {func(o map[string]string) { clear(o) }, "1500 of 1500"},
	} {
		for _, twice := range []bool{false, true} {
			w := newWorld(t).with(1500)
			w.twice = twice
			_, err := w.run(takeover.Options{At: func(at takeover.Step) error {
				if at == takeover.StepVerify {
					c.edit(w.hashes[takeover.TargetOrders])
				}
				return nil
			}})
			if !errors.Is(err, takeover.ErrDisagrees) || w.opened || !strings.Contains(err.Error(), c.names) {
				t.Errorf("%s, twice %v: opened %v, %v", name, twice, w.opened, err)
			}
			if w.twice = false; name == "a text" {
				if _, err := w.run(takeover.Options{}); err != nil || len(w.differs()) > 0 {
					t.Errorf("the next attempt: %v, %v", err, w.differs())
				}
			}
		}
	}
}

func TestASnapshotIsClosedHoweverTheAttemptEnds(t *testing.T) {
	t.Parallel()
	for _, at := range takeover.Steps[7:] {
		w := newWorld(t).with(1500)
		_, err := w.run(takeover.Options{At: func(step takeover.Step) error {
			if step == at {
				return errCrash
			}
			return nil
		}})
		if !errors.Is(err, errCrash) || w.begun != 1 || w.closed != 1 {
			t.Errorf("ended before %s: %v, closed %d times", at, err, w.closed)
		}
	}
	w := newWorld(t).with(2500)
	w.breaks = 2
	if _, err := w.run(takeover.Options{}); !errors.Is(err, errCrash) || w.closed != 1 || w.opened {
		t.Errorf("ended between two pages: %v, closed %d times", err, w.closed)
	}
	w.panics, w.begun, w.closed = true, 0, 0
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not panic")
			}
		}()
		_, _ = w.run(takeover.Options{})
	}()
	if w.begun != 1 || w.closed != 1 {
		t.Errorf("after a panic: %d begun, closed %d times", w.begun, w.closed)
	}
}

// A Redis that has room for what is wanted, but not for that and what is extra: the attempt that finds it out makes the
// room.
func TestWhatIsExtraGoesAlthoughThereIsNoRoomForWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t).with(2500)
	for i := range 2500 {
		w.hashes[takeover.TargetOrders][fmt.Sprint("extra-", i)] = "x"
	}
	for i := range 900 {
		r := recordNumber(i)
		w.hashes[takeover.TargetOrders][r.ID] = r.Text
	}
	w.room = 3500
	r, err := w.run(takeover.Options{})
	var refused *takeover.RefusedError
	if !errors.As(err, &refused) || refused.Class != takeover.ClassMemory || w.opened || r.Deleted != 2500 || w.closed != 1 {
		t.Errorf("opened %v, put %d, deleted %d: %v", w.opened, r.Put, r.Deleted, err)
	}
	if r, err = w.run(takeover.Options{}); err != nil || len(w.differs()) > 0 || r.Deleted != 0 {
		t.Errorf("the next attempt: put %d, deleted %d: %v", r.Put, r.Deleted, err)
	}
}
