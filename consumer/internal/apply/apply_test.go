package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/stockpipe/stockpipe/pkg/bus"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one shard: a log, a ledger that takes the contiguous prefix, and what the loop said. It stands for both
// sides, so that a test can break either.
type world struct {
	t testing.TB

	mu      sync.Mutex
	log     []event.Raw // nil and gone: no log
	gone    bool
	state   string
	at      stock.Position
	poison  string // id of the entry that halts
	applied []string
	calls   int
	said    []string
	doubts  []string
	fenced  []ledger.Claim
	left    int
	errs    []error       // returned by the next calls of Apply
	held    chan struct{} // if set, Apply waits for it
	inside  chan struct{} // if set, Apply tells that it began
	next    int           // how much of the log the group has given out
	arrived chan struct{}

	size    bus.Size         // what is measured, beside the entries
	cuts    []stock.Position // what was asked to be trimmed
	cutErr  error
	foreign bool // Redis is another ledger's
}

func newWorld(t testing.TB) *world {
	return &world{t: t, state: ledger.StateOpen, at: stock.Position{Epoch: 5}, arrived: make(chan struct{}, 1)}
}

func (w *world) config() Config {
	return Config{
		Ledger: w, Open: func(int) Reader { return w }, Batch: 3, Metrics: NewMetrics(metrics.New("test")),
		Doubt: func(_ context.Context, _ int, what string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.doubts = append(w.doubts, what)
			return nil
		},
		Fence: func(_ context.Context, _ int, c ledger.Claim) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fenced = append(w.fenced, c)
			return nil
		},
		Owns: func(_ context.Context, _ int, epoch int64) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.foreign && epoch == w.at.Epoch, nil
		},
		Tell: func(_ int, word string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = append(w.said, fmt.Sprint(word, ": ", err))
		},
	}
}

func raw(epoch, seq int64) event.Raw {
	return event.Raw{ID: stock.Position{Epoch: epoch, Seq: seq}.String(), Version: "1", Ops: "C1 a"}
}

func (w *world) append(raws ...event.Raw) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, raws...)
	w.ring()
}

func (w *world) ring() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

func (w *world) Shard(context.Context, int) (ledger.Shard, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return ledger.Shard{Writer: "redis", State: w.state, Epoch: w.at.Epoch, Applied: w.at.Seq}, nil
}

func (w *world) EndStalledHolder(context.Context, int) (bool, error) { return true, nil }

func (w *world) Apply(ctx context.Context, shard int, batch []event.Raw) (ledger.Applied, error) {
	if w.inside != nil {
		w.inside <- struct{}{}
	}
	if w.held != nil {
		select {
		case <-w.held:
		case <-ctx.Done():
			return ledger.Applied{}, ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if len(w.errs) > 0 {
		err := w.errs[0]
		w.errs = w.errs[1:]
		return ledger.Applied{}, err
	}
	done := ledger.Applied{Position: w.at}
	for _, r := range batch {
		p, err := stock.ParsePosition(r.ID)
		switch {
		case err != nil || r.ID == w.poison:
			w.state = ledger.StateHalted
			return done, &ledger.HaltedError{Shard: shard, Reason: "poison", Claim: ledger.Claim{Shard: shard, Epoch: 77, Nonce: "n"}}
		case p.Epoch > w.at.Epoch:
			return done, &ledger.AheadError{Shard: shard, Have: w.at, Next: r.ID}
		case p.Seq <= w.at.Seq:
		case p.Seq == w.at.Seq+1:
			w.at = p
			w.applied = append(w.applied, r.ID)
			done.Entries++
			done.Position = p
		default:
			return done, &ledger.GapError{Shard: shard, Have: w.at, Next: r.ID}
		}
	}
	return done, nil
}

func (w *world) From(_ context.Context, after stock.Position) ([]event.Raw, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var page []event.Raw
	for _, r := range w.log {
		if p, err := stock.ParsePosition(r.ID); err != nil || p.Epoch > after.Epoch || p.Epoch == after.Epoch && p.Seq > after.Seq {
			page = append(page, r)
		}
	}
	w.next = len(w.log)
	return page[:min(len(page), 4)], nil
}

func (w *world) Next(ctx context.Context, _ stock.Position) ([]event.Raw, error) {
	w.mu.Lock()
	if w.gone {
		w.mu.Unlock()
		return nil, bus.ErrMissing
	}
	page := w.log[w.next:]
	w.next = len(w.log)
	w.mu.Unlock()
	if len(page) > 0 {
		return page, nil
	}
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-w.arrived:
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, nil
}

func (w *world) Last(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.log) == 0 {
		return "", nil
	}
	return w.log[len(w.log)-1].ID, nil
}

func (w *world) Leave(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left++
	return nil
}

// see reads the world until a condition holds.
func (w *world) see(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		ok := holds()
		w.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s (at %v, said %v)", what, w.at, w.said)
		}
	}
}

// start runs a loop; the function stops it and waits.
func (w *world) start() (*Loop, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l := newLoop(w.config(), 0)
	over := make(chan struct{})
	go func() { defer close(over); l.run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-over })
	w.t.Cleanup(stop)
	return l, stop
}

func TestALoopCatchesUpThenFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for seq := int64(1); seq <= 10; seq++ {
		w.append(raw(5, seq))
	}
	_, stop := w.start()
	w.see("10 applied", func() bool { return w.at.Seq == 10 })
	w.append(raw(5, 11), raw(5, 12))
	w.see("12 applied", func() bool { return w.at.Seq == 12 })
	stop()
	if len(w.applied) != 12 || len(w.said) != 0 || w.left != 1 {
		t.Errorf("applied %v, said %v, left %d times", w.applied, w.said, w.left)
	}
}

func TestAnEntryThatAnotherReaderTookIsFoundAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.append(raw(5, 1))
	w.start()
	w.see("1 applied", func() bool { return w.at.Seq == 1 })
	w.mu.Lock()
	w.log = append(w.log, raw(5, 2))
	w.next = 2 // another one of the group has it, and does nothing with it
	w.mu.Unlock()
	w.see("2 applied", func() bool { return w.at.Seq == 2 })
	w.mu.Lock()
	w.log = append(w.log, raw(5, 3), raw(5, 4))
	w.next = 3 // the gap shows with the next entry
	w.ring()
	w.mu.Unlock()
	w.see("4 applied", func() bool { return w.at.Seq == 4 })
	if len(w.said) != 0 {
		t.Errorf("said %v", w.said)
	}
}

func TestAGapInTheLogIsReportedAndWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.append(raw(5, 1), raw(5, 3))
	w.start()
	w.see("a doubt", func() bool { return len(w.doubts) > 1 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.Seq != 1 || w.doubts[0] != "gap" || !strings.HasPrefix(w.said[0], "gap: ") || w.calls > 20 {
		t.Errorf("at %v, doubts %v, said %v, %d calls", w.at, w.doubts, w.said, w.calls)
	}
}

func TestALogOfAnUnknownEpochIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.append(raw(6, 1))
	w.start()
	w.see("a doubt", func() bool { return len(w.doubts) > 0 && w.doubts[0] == "ahead" })
}

func TestAnAbsentLogIsReportedWithoutAHotLoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.gone = true
	l, stop := w.start()
	w.see("three reports", func() bool { return len(w.doubts) >= 3 })
	w.mu.Lock()
	w.gone, w.log, w.at = false, []event.Raw{raw(6, 1)}, stock.Position{Epoch: 6}
	w.mu.Unlock()
	l.wake()
	w.see("applied after the takeover", func() bool { return w.at.Seq == 1 })
	stop()
	for _, d := range w.doubts {
		if d != "missing" {
			t.Errorf("doubts %v", w.doubts)
		}
	}
}

func TestPausesGrowAndKeepAFloor(t *testing.T) {
	t.Parallel()
	var b backoff
	var total time.Duration
	for i := range 20 {
		p := b.next()
		if p < firstPause/2 || p > longestPause || i > 8 && p < longestPause/2 {
			t.Errorf("pause %d is %v", i, p)
		}
		total += p
	}
	if total < 30*time.Second {
		t.Errorf("20 tries in %v", total)
	}
	b.reset()
	if p := b.next(); p > firstPause {
		t.Errorf("%v after a success", p)
	}
}

func TestPoisonHaltsFencesAndWaitsForTheOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.poison = "5-2"
	w.append(raw(5, 1), raw(5, 2), raw(5, 3))
	l, stop := w.start()
	w.see("fenced", func() bool { return len(w.fenced) == 1 })
	w.mu.Lock()
	calls := w.calls
	w.poison, w.state = "", ledger.StateOpen // retry
	w.mu.Unlock()
	l.wake()
	w.see("3 applied", func() bool { return w.at.Seq == 3 })
	stop()
	if calls > 1 || w.fenced[0].Epoch != 77 || len(w.fenced) != 1 {
		t.Errorf("%d calls before the retry, fenced %v", calls, w.fenced)
	}
}

func TestAnEntryThatCannotBeReadReachesTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.append(event.Raw{ID: "what", Version: "foreign", Ops: "x"})
	w.start()
	w.see("halted", func() bool { return w.state == ledger.StateHalted && len(w.fenced) == 1 })
}

func TestAShardThatIsNotOpenIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.state = ledger.StateRebuilding
	w.append(raw(5, 1))
	l, stop := w.start()
	w.mu.Lock()
	w.state = ledger.StateOpen
	w.mu.Unlock()
	l.wake()
	w.see("applied", func() bool { return w.at.Seq == 1 })
	stop()
	if len(w.said) != 0 || len(w.doubts) != 0 {
		t.Errorf("said %v, doubts %v", w.said, w.doubts)
	}
}

func TestAHeldShardGetsHalfTheBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.errs = []error{&ledger.HeldError{}, errors.New("cut")}
	w.append(raw(5, 1), raw(5, 2))
	w.start()
	w.see("applied in the end", func() bool { return w.at.Seq == 2 })
	w.mu.Lock()
	defer w.mu.Unlock()
	want := []string{
		"held: " + (&ledger.HeldError{}).Error(), "ended a stalled holder: <nil>", "postgres: cut",
	}
	if diff := cmp.Diff(want, w.said); diff != "" {
		t.Error(diff)
	}
}

func TestAStopFinishesTheBatchInHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.held, w.inside = make(chan struct{}), make(chan struct{}, 10)
	w.append(raw(5, 1), raw(5, 2), raw(5, 3), raw(5, 4))
	_, stop := w.start()
	<-w.inside
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	close(w.held)
	<-stopped
	if w.at.Seq != 3 && w.at.Seq != 4 || w.left != 1 {
		t.Errorf("at %v, left %d times", w.at, w.left)
	}
}

func TestTwoLoopsOnOneShardApplyEachEntryOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stopA := w.start()
	_, stopB := w.start()
	for seq := int64(1); seq <= 200; seq++ {
		w.append(raw(5, seq))
	}
	w.see("200 applied", func() bool { return w.at.Seq == 200 })
	stopA()
	stopB()
	if len(w.applied) != 200 || len(w.said) != 0 {
		t.Errorf("%d applied, said %v", len(w.applied), w.said)
	}
}

func TestChunksAreBoundedByEntriesAndOperations(t *testing.T) {
	t.Parallel()
	big := event.Raw{Ops: strings.Repeat(" x", 256)}
	many := make([]event.Raw, 100)
	for i := range many {
		many[i] = big
	}
	for _, c := range []struct {
		page []event.Raw
		most int
		want int
	}{
		{many[:1], 1000, 1}, {many, 1000, maxChunkOps / 256}, {many, 10, 10}, {many[:5], 1000, 5}, {many, 1, 1},
		{[]event.Raw{{Ops: strings.Repeat(" x", 2*maxChunkOps)}, big}, 1000, 1},
	} {
		if got := chunk(c.page, c.most); got != c.want {
			t.Errorf("chunk of %d entries, at most %d: %d, want %d", len(c.page), c.most, got, c.want)
		}
	}
}

func TestDistanceCountsWhatLiesBeyond(t *testing.T) {
	t.Parallel()
	at := stock.Position{Epoch: 5, Seq: 7}
	for last, want := range map[string]int64{"": 0, "5-7": 0, "5-9": 2, "5-3": 0, "4-99": 0, "6-3": 3, "6-0": 1, "x": 1} {
		if got := distance(at, last); got != want {
			t.Errorf("distance to %q is %d, want %d", last, got, want)
		}
	}
}
