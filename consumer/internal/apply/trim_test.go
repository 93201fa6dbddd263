package apply

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func (w *world) Size(context.Context) (bus.Size, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := w.size
	size.Entries = int64(len(w.log))
	if len(w.log) > 0 {
		size.Last = w.log[len(w.log)-1].ID
	}
	return size, w.cutErr
}

func (w *world) Trim(_ context.Context, before stock.Position) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts = append(w.cuts, before)
	return 0, w.cutErr
}

// second is the time of the world's entries: 5-n was written n seconds after noon.
const noon = 1_700_000_000_000

func second(n int64) time.Time { return time.UnixMilli(noon + n*1000) }

func timed(seq int64) event.Raw {
	r := raw(5, seq)
	r.At = strconv.FormatInt(second(seq).UnixMilli(), 10)
	return r
}

// caughtUp is a loop that has just applied the entries 5-1 to 5-n; it is not running.
func caughtUp(t *testing.T, w *world, n int64, change func(*Config)) *Loop {
	t.Helper()
	for seq := int64(1); seq <= n; seq++ {
		w.append(timed(seq))
	}
	c := w.config()
	c.LogKeep, c.LogShare = time.Minute, 0.1
	if change != nil {
		change(&c)
	}
	l := newLoop(c, 0)
	l.trimmed = time.Now() // the tests say when
	if err := l.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.catchUp(t.Context()); err != nil || l.at.Seq != n {
		t.Fatalf("at %v, %v", l.at, err)
	}
	return l
}

// trimAt makes the loop think of trimming at a time.
func (w *world) trimAt(l *Loop, now time.Time) {
	w.mu.Lock()
	w.size.Now = now
	w.cuts = nil
	w.mu.Unlock()
	l.trimmed = time.Time{}
	l.trim(context.Background())
}

func (w *world) wasCut(t *testing.T, at ...int64) {
	t.Helper()
	var want []stock.Position
	for _, seq := range at {
		want = append(want, stock.Position{Epoch: 5, Seq: seq})
	}
	if diff := cmp.Diff(want, w.cuts); diff != "" {
		t.Errorf("cut (-want +got)\n%s%v", diff, w.said)
	}
}

func TestEntriesStayForTheirTimeAfterTheyWereWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := caughtUp(t, w, 300, nil)
	w.trimAt(l, second(301))
	if len(w.cuts) != 1 || w.cuts[0].Seq > 241 || w.cuts[0].Seq < 235 {
		t.Errorf("at 301 s, with 60 s to keep, the log is cut at %v", w.cuts)
	}
	w.trimAt(l, second(301))
	w.wasCut(t) // nothing new
	w.trimAt(l, second(1000))
	w.wasCut(t, 300) // and nothing after what the ledger has
}

func TestALogOutOfItsShareIsCutEarlierButNeverBeyondTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := caughtUp(t, w, 100, nil)
	w.size.Limit, w.size.Bytes = 1000, 100
	w.trimAt(l, second(100))
	if len(w.cuts) != 1 || w.cuts[0].Seq > 40 {
		t.Errorf("a log within its share is cut at %v", w.cuts)
	}
	w.size.Bytes = 200 // twice its share: 90 % of half the entries stay
	w.trimAt(l, second(100))
	w.wasCut(t, 55)
	for seq := int64(101); seq <= 1000; seq++ {
		w.append(timed(seq)) // a backlog that the ledger has not got
	}
	w.trimAt(l, second(100))
	w.wasCut(t, 100)
	w.size.Limit = 0 // no limit, no share
	w.trimAt(l, second(100))
	if len(w.cuts) != 1 || w.cuts[0].Seq > 40 {
		t.Errorf("without a limit the log is cut at %v", w.cuts)
	}
}

func TestNothingIsTrimmedOnTheWordOfAnOldOrForeignStore(t *testing.T) {
	t.Parallel()
	for fact, c := range map[string]struct {
		change func(*world, *Config)
		cut    []int64
	}{
		"all is well":              {func(*world, *Config) {}, []int64{300}},
		"trimming is off":          {func(_ *world, c *Config) { c.LogKeep = 0 }, nil},
		"the ledger lost its tail": {func(w *world, _ *Config) { w.at.Seq = 100 }, nil},
		"a takeover closed it":     {func(w *world, _ *Config) { w.at = stock.Position{Epoch: 9} }, nil},
		"the next one is far on":   {func(w *world, _ *Config) { w.at = stock.Position{Epoch: 9, Seq: 5000} }, nil},
		"it is being rebuilt":      {func(w *world, _ *Config) { w.state = ledger.StateRebuilding }, nil},
		"it is halted":             {func(w *world, _ *Config) { w.state = ledger.StateHalted }, nil},
		"Redis is another shop's":  {func(w *world, _ *Config) { w.foreign = true }, nil},
	} {
		t.Run(fact, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := caughtUp(t, w, 300, nil)
			c.change(w, &l.Config)
			w.trimAt(l, second(1000))
			w.wasCut(t, c.cut...)
			if len(w.said) > 0 {
				t.Errorf("said %v", w.said)
			}
		})
	}
}

func TestAfterTheLedgerWentBackOnlyWhatItHasIsTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := caughtUp(t, w, 300, nil)
	w.at.Seq = 200
	w.trimAt(l, second(1000)) // notices
	w.wasCut(t)
	w.trimAt(l, second(2000)) // this loop still stands at 5-300
	w.wasCut(t)
	if err := l.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.trimAt(l, second(3000))
	w.trimAt(l, second(3061))
	w.wasCut(t, 200)
}

func TestTroublesOfTrimmingAreToldAndStopNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := caughtUp(t, w, 300, nil)
	w.cutErr = errors.New("READONLY")
	w.trimAt(l, second(1000))
	if len(w.said) != 1 || !strings.HasPrefix(w.said[0], "trim: ") {
		t.Errorf("said %v", w.said)
	}
	w.append(timed(301))
	if err := l.catchUp(t.Context()); err != nil || l.at.Seq != 301 {
		t.Errorf("at %v, %v", l.at, err)
	}
	w.cutErr = nil
	w.trimAt(l, second(1000))
	w.wasCut(t, 301)
}

func TestAnIdleLogIsTrimmedAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.at.Seq = 300 // by an earlier process
	l := caughtUp(t, w, 300, nil)
	w.trimAt(l, second(400))
	w.wasCut(t) // nobody knows how old they are: no newer than now
	w.trimAt(l, second(461))
	w.wasCut(t, 300)
}

func TestARunningLoopTrimsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.size.Now = second(1000)
	for seq := int64(1); seq <= 300; seq++ {
		w.append(timed(seq))
	}
	c := w.config()
	c.LogKeep = time.Minute
	l, ctx := newLoop(c, 0), t.Context()
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { defer close(over); l.run(ctx) }()
	defer func() { cancel(); <-over }()
	w.see("a cut", func() bool { return len(w.cuts) > 0 })
}

// Whatever is applied, lost again and asked for: what is due was applied, is of the ledger's epoch, is old enough, and
// little that is old enough is missed.
func TestMarksNeverGoBeyondWhatWasNoted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const keep = 60_000
		m := marks{apart: 2 * keep / maxMarks}
		at, millis := stock.Position{Epoch: 1}, int64(noon)
		written := map[stock.Position]int64{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch rapid.IntRange(0, 39).Draw(t, "step") {
			case 0:
				at = stock.Position{Epoch: at.Epoch + 1}
				if rapid.Bool().Draw(t, "looked") {
					m.back(at)
				} else { // the ledger crossed it within a batch
					at.Seq, written[stock.Position{Epoch: at.Epoch, Seq: 1}] = 1, millis
					m.note(at, millis)
				}
			case 1:
				at.Seq = rapid.Int64Range(0, at.Seq).Draw(t, "back")
				m.back(at)
			default:
				millis += rapid.Int64Range(0, 5000).Draw(t, "passed")
				at.Seq++
				written[at] = millis
				m.note(at, millis)
			}
			if len(m.kept) > maxMarks {
				t.Fatalf("%d marks", len(m.kept))
			}
			due := m.due(millis - keep)
			if due == (stock.Position{}) {
				continue
			}
			if due.Epoch != at.Epoch || due.Seq > at.Seq || written[due] > millis-keep {
				t.Fatalf("%v is due at %v; it was written %d ms ago", due, at, millis-written[due])
			}
		}
	})
}

func TestMarksOfAnEarlierEpochAreForgotten(t *testing.T) {
	t.Parallel()
	m := marks{apart: 1000}
	for seq := int64(1); seq <= 50; seq++ {
		m.note(stock.Position{Epoch: 1, Seq: seq}, seq*1000)
	}
	m.note(stock.Position{Epoch: 2, Seq: 1}, 51_000)
	if due := m.due(50_000); due != (stock.Position{}) {
		t.Errorf("in epoch 2, %v is due", due)
	}
	if due := m.due(51_000); due != (stock.Position{Epoch: 2, Seq: 1}) {
		t.Errorf("%v is due", due)
	}
}

func TestMarksTellTheAgeWithinAFewPercent(t *testing.T) {
	t.Parallel()
	const keep = 60_000
	m := marks{apart: 2 * keep / maxMarks}
	for seq := int64(1); seq <= 1_000_000; seq++ { // one a millisecond
		m.note(stock.Position{Epoch: 1, Seq: seq}, seq)
		if seq%1000 == 0 && seq > 2*keep {
			if due := m.due(seq - keep); due.Seq > seq-keep || due.Seq < seq-keep*107/100 {
				t.Fatalf("at %d, %d is due", seq, due.Seq)
			}
		}
	}
}
