package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const soon = 10 * time.Second // an event that is awaited; a busy machine is slow

// watching runs a Watch for the test and waits until it knows the shards.
func watching(t testing.TB, l *Ledger, config WatchConfig) *Watch {
	t.Helper()
	w := NewWatch(l, config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-w.Ready():
	case <-time.After(soon):
		t.Fatalf("no exchange: %v", w.Err())
	}
	return w
}

// proxied is a ledger behind a fault proxy.
func proxied(t testing.TB, shards int) (*Ledger, *faultproxy.Proxy) {
	t.Helper()
	url := sandboxtest.Database(t, migrations.Up)
	addr := sandboxtest.Postgres(t).Addr()
	proxy := sandboxtest.Proxy(t, addr)
	return openURL(t, strings.Replace(url, addr, proxy.Addr(), 1), shards), proxy
}

// reach moves a shard as Apply and takeover do, and tells it as they do.
func reach(t testing.TB, l *Ledger, shard int, epoch, applied int64) {
	t.Helper()
	exec(t, l, `with s as (
			update shard set epoch = $2, applied = $3, state = 'open' where number = $1 returning number
		) select pg_notify('stockpipe_applied', format('%s %s %s', number, $2::bigint, $3::bigint)) from s`, shard, epoch, applied)
}

// closeEpoch ends the epoch of a shard where the ledger is, and begins another.
func closeEpoch(t testing.TB, l *Ledger, shard int, next int64) {
	t.Helper()
	exec(t, l, `with e as (
			insert into epoch_end (shard, epoch, last_seq) select number, epoch, applied from shard where number = $1
		), s as (
			update shard set epoch = $2, applied = 0, state = 'rebuilding' where number = $1 returning number
		) select pg_notify('stockpipe_shard', number::text) from s`, shard, next)
}

func receipt(shard int, epoch, seq int64) stock.Receipt {
	return stock.Receipt{Shard: shard, Position: stock.Position{Epoch: epoch, Seq: seq}}
}

// want is for Eventually.
func want[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

func TestWatchKnowsTheEpochsOfAllShards(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	reach(t, l, 1, 7, 3)
	exec(t, l, `update shard set library = 2 where number = 1`)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Libraries: []int64{1, 2}})
	want := []stock.Epoch{
		{Shard: 0, Ledger: l.ID(), Library: 1, Reason: "new"},
		{Shard: 1, Ledger: l.ID(), Epoch: 7, Applied: 3, Library: 2, Open: true},
		{Shard: 2, Reason: "unknown"},
	}
	if diff := cmp.Diff(want, []stock.Epoch{w.Epoch(0), w.Epoch(1), w.Epoch(2)}); diff != "" || w.Shards() != 2 || w.Newest(1) != 7 {
		t.Errorf("%d shards, newest %d: %s", w.Shards(), w.Newest(1), diff)
	}
	producers, err := l.Producers(context.Background(), time.Minute)
	if err != nil || len(producers) != 1 || producers[0].ID != "p1" || !producers[0].Carries(2) || producers[0].Carries(3) {
		t.Errorf("producers %+v, %v", producers, err)
	}
}

func TestWatchBeforeItsFirstExchangeOpensNothing(t *testing.T) {
	t.Parallel()
	w := NewWatch(&Ledger{}, WatchConfig{})
	if e := w.Epoch(0); e.Open || e.Reason != "stale" {
		t.Errorf("%+v", e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got, err := w.Wait(ctx, receipt(0, 1, 1)); got != stock.StandingAccepted || !errors.Is(err, context.Canceled) {
		t.Errorf("%s, %v", got, err)
	}
}

func TestWatchWithoutAProducerWritesNoRow(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	watching(t, l, WatchConfig{})
	if producers, err := l.Producers(context.Background(), time.Minute); err != nil || len(producers) != 0 {
		t.Errorf("producers %+v, %v", producers, err)
	}
}

func TestProducerRowGoesWithItsWatch(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	w := NewWatch(l, WatchConfig{ProducerID: "p1"})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	<-w.Ready()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if producers, err := l.Producers(context.Background(), time.Minute); err != nil || len(producers) != 0 {
		t.Errorf("producers %+v, %v", producers, err)
	}
}

func TestKnowledgeThatGrowsOldClosesTheShard(t *testing.T) {
	t.Parallel()
	l, proxy := proxied(t, 1)
	reach(t, l, 0, 1, 5)
	w := watching(t, l, WatchConfig{ProducerID: "p1", MaxAge: 400 * time.Millisecond, Poll: 20 * time.Millisecond})
	if !w.Epoch(0).Open {
		t.Fatal("not open")
	}
	proxy.BlackHole(true)
	sandboxtest.Eventually(t, soon, func() error { return want(w.Epoch(0).Reason, "stale") })
	if w.Epoch(0).Open || w.Age() < 400*time.Millisecond {
		t.Errorf("%+v at age %v", w.Epoch(0), w.Age())
	}
	// An acceptance that arrives now may not be answered from memory, although its epoch is the newest known.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if got, err := w.Resolve(ctx, receipt(0, 1, 9)); err == nil || got != stock.StandingUnknown {
		t.Errorf("resolved to %s without asking anybody (%v)", got, err)
	}
	sandboxtest.Eventually(t, soon, func() error {
		if w.Err() == nil {
			return errors.New("no error of the exchange yet")
		}
		return nil
	})
	proxy.BlackHole(false)
	proxy.CloseAll()
	sandboxtest.Eventually(t, soon, func() error { return want(w.Epoch(0).Open, true) })
}

func TestTheExchangeIsAWrite(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	reach(t, l, 0, 1, 5)
	w := watching(t, l, WatchConfig{ProducerID: "p1", MaxAge: 400 * time.Millisecond, Poll: 20 * time.Millisecond})
	if _, err := l.Standing(context.Background(), receipt(0, 1, 1)); err != nil {
		t.Fatal(err)
	}
	// What only reads still works in this database, what writes does not: like an old primary that waits for
	// its lost standby for ever.
	exec(t, l, `alter table producer add constraint nobody check (false) not valid`)
	sandboxtest.Eventually(t, soon, func() error { return want(w.Epoch(0).Reason, "stale") })
	for seq, standing := range map[int64]stock.Standing{5: stock.StandingPersisted, 6: stock.StandingUnknown} {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if got, err := w.Resolve(ctx, receipt(0, 1, seq)); got != standing || (err == nil) != (seq == 5) {
			t.Errorf("1-%d: %s (%v), want %s: what a read says is not enough to accept", seq, got, err, standing)
		}
		cancel()
	}
}

func TestDoubtIsLookedIntoAtOnceAndTold(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	reach(t, l, 0, 1, 0)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: time.Hour, MaxAge: 3 * time.Hour})
	heard := make(chan Heard, 100)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.Listen(ctx, func(h Heard) { heard <- h }, ChannelDoubt) }()
	if h := <-heard; h != (Heard{}) {
		t.Fatalf("the first notice is %+v, want the connection's", h)
	}
	exec(t, l, `update shard set epoch = 2 where number = 0`) // nobody is told
	w.Doubt(0, "torn by hand")
	sandboxtest.Eventually(t, soon, func() error { return want(w.Newest(0), 2) })
	shard, what, ok := ParseDoubt((<-heard).Payload)
	if shard != 0 || what != "torn" || !ok {
		t.Errorf("told %d %q %v", shard, what, ok)
	}
	w.Doubt(-1, "x")
	w.Doubt(stock.MaxShards, "x")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestManyDoubtsAreFewExchanges(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	exec(t, l, `create table exchange (n bigint generated always as identity)`)
	exec(t, l, `create function count_exchange() returns trigger language plpgsql as
		$$ begin insert into exchange default values; return null; end $$`)
	exec(t, l, `create trigger count after insert or update on producer for each statement execute function count_exchange()`)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: time.Hour, MaxAge: 3 * time.Hour})
	began := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for time.Since(began) < 500*time.Millisecond {
				w.Doubt(0, "torn")
			}
		})
	}
	wg.Wait()
	var n int64
	if err := l.pool.QueryRow(context.Background(), `select count(*)/2 from exchange`).Scan(&n); err != nil {
		t.Fatal(err) // an upsert fires both kinds of statement trigger
	}
	if most := int64(time.Since(began)/doubtPause) + 3; n < 2 || n > most {
		t.Errorf("%d exchanges, want 2 to %d", n, most)
	}
}

func TestWaitersAreWokenByTheNotice(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	reach(t, l, 0, 3, 10)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: time.Hour, MaxAge: 3 * time.Hour})
	sandboxtest.Eventually(t, soon, func() error { return want(listening(t, l), 1) })
	if got, err := w.Wait(context.Background(), receipt(0, 3, 10)); got != stock.StandingPersisted || err != nil {
		t.Fatal(got, err)
	}
	const waiters = 2000
	results := make([]chan stock.Standing, waiters)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range results {
		results[i] = make(chan stock.Standing, 1)
		go func() {
			got, _ := w.Wait(ctx, receipt(0, 3, int64(11+i)))
			results[i] <- got
		}()
	}
	sandboxtest.Eventually(t, soon, func() error { return want(crowd(w, 0), waiters) })
	reach(t, l, 0, 3, 10+waiters/2)
	for i := range waiters / 2 {
		if got := <-results[i]; got != stock.StandingPersisted {
			t.Fatalf("waiter %d: %s", i, got)
		}
	}
	if got := crowd(w, 0); got != waiters/2 {
		t.Errorf("%d wait still, want %d", got, waiters/2)
	}
	if got := w.Epoch(0).Applied; got != 10+waiters/2 {
		t.Errorf("applied %d", got)
	}
	cancel()
	for i := waiters / 2; i < waiters; i++ {
		if got := <-results[i]; got != stock.StandingAccepted {
			t.Fatalf("waiter %d: %s", i, got)
		}
	}
	if got := crowd(w, 0); got != 0 {
		t.Errorf("%d are left in the room", got)
	}
}

func crowd(w *Watch, shard int) int {
	s := w.shard(shard)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.count
}

// listening counts connections of this database that listen.
func listening(t testing.TB, l *Ledger) (n int) {
	t.Helper()
	err := l.pool.QueryRow(context.Background(), `select count(*) from pg_stat_activity
		where datname = current_database() and query ilike 'listen%shard%'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWaitersAreWokenByThePollWithoutANotice(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	reach(t, l, 0, 3, 10)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: 20 * time.Millisecond})
	told := make(chan stock.Standing, 1)
	go func() {
		got, _ := w.Wait(context.Background(), receipt(0, 3, 12))
		told <- got
	}()
	sandboxtest.Eventually(t, soon, func() error { return want(crowd(w, 0), 1) })
	exec(t, l, `update shard set applied = 12 where number = 0`)
	if got := <-told; got != stock.StandingPersisted {
		t.Error(got)
	}
}

func TestLostListenConnectionIsMadeAnew(t *testing.T) {
	t.Parallel()
	l, proxy := proxied(t, 1)
	reach(t, l, 0, 3, 10)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: time.Hour, MaxAge: 3 * time.Hour})
	for applied := int64(11); applied < 14; applied++ {
		sandboxtest.Eventually(t, soon, func() error { return want(listening(t, l), 1) })
		sandboxtest.Eventually(t, soon, func() error { // the connections of the pool were cut in the round before
			_, err := l.pool.Exec(context.Background(), `update shard set applied = $1 where number = 0`, applied)
			return err
		})
		proxy.CloseAll()
		// No notice was sent: the exchange that follows the new connection finds it.
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		if got, err := w.Wait(ctx, receipt(0, 3, applied)); got != stock.StandingPersisted {
			t.Errorf("%s, %v; the newest exchange: %v", got, err, w.Err())
		}
		cancel()
	}
}

func TestAnExchangeThatFailedIsMadeAgain(t *testing.T) {
	t.Parallel()
	l, proxy := proxied(t, 1)
	w := watching(t, l, WatchConfig{ProducerID: "asks-in-vain", Poll: time.Hour, MaxAge: 3 * time.Hour})
	for range 3 { // two may be asked for: by the listener that has just connected, and by a doubt
		proxy.CutAfterExecution(faultproxy.Contains("asks-in-vain"))
	}
	w.Doubt(0, "torn")
	sandboxtest.Eventually(t, soon, func() error { return want(proxy.Fired(), 3) })
	sandboxtest.Eventually(t, soon, w.Err)
}

func TestClosedEpochTellsItsWaitersApart(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	reach(t, l, 0, 3, 10)
	w := watching(t, l, WatchConfig{ProducerID: "p1", Poll: 50 * time.Millisecond})
	type answer struct {
		seq int64
		got stock.Standing
		err error
	}
	answers := make(chan answer, 20)
	for seq := int64(11); seq <= 20; seq++ {
		go func() {
			got, err := w.Wait(context.Background(), receipt(0, 3, seq))
			answers <- answer{seq, got, err}
		}()
	}
	// An epoch that the ledger does not know yet, with low numbers: never to be confused with epoch 3.
	ctx, cancel := context.WithCancel(context.Background())
	early := make(chan stock.Standing, 1)
	go func() {
		got, _ := w.Wait(ctx, receipt(0, 9, 2))
		early <- got
	}()
	sandboxtest.Eventually(t, soon, func() error { return want(crowd(w, 0), 11) })
	exec(t, l, `update shard set applied = 15 where number = 0`) // the drain of a takeover
	closeEpoch(t, l, 0, 9)
	for range 10 {
		a := <-answers
		standing := stock.StandingLost
		if a.seq <= 15 {
			standing = stock.StandingPersisted
		}
		if a.got != standing || a.err != nil {
			t.Errorf("3-%d: %s (%v), want %s", a.seq, a.got, a.err, standing)
		}
	}
	if got := crowd(w, 0); got != 1 {
		t.Errorf("%d wait, want the one of epoch 9", got)
	}
	// Who asks now is answered without waiting.
	for seq, standing := range map[int64]stock.Standing{15: stock.StandingPersisted, 16: stock.StandingLost} {
		if got, err := w.Wait(context.Background(), receipt(0, 3, seq)); got != standing || err != nil {
			t.Errorf("3-%d: %s, %v", seq, got, err)
		}
	}
	reach(t, l, 0, 9, 2)
	if got := <-early; got != stock.StandingPersisted {
		t.Errorf("9-2: %s", got)
	}
	cancel()
}

func TestAnAcceptanceIsAnsweredOnlyUnderTheNewestEpoch(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	reach(t, l, 0, 3, 10)
	w := watching(t, l, WatchConfig{ProducerID: "p1"})
	ask := func(epoch, seq int64) stock.Standing {
		t.Helper()
		got, err := w.Resolve(context.Background(), receipt(0, epoch, seq))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for seq, standing := range map[int64]stock.Standing{10: stock.StandingPersisted, 11: stock.StandingAccepted} {
		if got := ask(3, seq); got != standing {
			t.Errorf("3-%d: %s", seq, got)
		}
	}
	if got := ask(4, 1); got != stock.StandingUnknown {
		t.Errorf("an epoch that the ledger does not know: %s", got)
	}
	closeEpoch(t, l, 0, 5)
	sandboxtest.Eventually(t, soon, func() error { return want(w.Newest(0), 5) })
	if e := w.Epoch(0); e.Open || e.Reason != StateRebuilding {
		t.Errorf("%+v", e)
	}
	if got := ask(3, 11); got != stock.StandingLost {
		t.Errorf("accepted by a server that was replaced: %s, want lost", got)
	}
	if got := ask(3, 10); got != stock.StandingPersisted {
		t.Errorf("3-10: %s", got)
	}
}

func TestTheLedgerMayGoBack(t *testing.T) {
	t.Parallel()
	s := &watchedShard{}
	began := time.Now()
	s.learn(stock.Epoch{Epoch: 3, Applied: 10}, began)
	s.advance(3, 12) // while the next exchange is under way, which read 11
	s.learn(stock.Epoch{Epoch: 3, Applied: 11}, began)
	if s.epoch.Applied != 12 {
		t.Errorf("an older reading won: %d", s.epoch.Applied)
	}
	s.learn(stock.Epoch{Epoch: 3, Applied: 11}, time.Now())
	if s.epoch.Applied != 11 {
		t.Errorf("the ledger's own word did not win: %d", s.epoch.Applied)
	}
	s.learn(stock.Epoch{Epoch: 2, Applied: 40}, time.Now())
	if s.epoch.Epoch != 2 || s.epoch.Applied != 40 {
		t.Errorf("%+v", s.epoch)
	}
	if s.advance(3, 50) || s.epoch.Applied != 40 {
		t.Errorf("a notice of another epoch was taken: %+v", s.epoch)
	}
}

func TestSilentConnectionIsTested(t *testing.T) {
	t.Parallel()
	l, proxy := proxied(t, 1)
	conn, err := l.dialListener(context.Background(), []string{ChannelDoubt})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if notice, err := nextNotice(context.Background(), conn, 20*time.Millisecond); notice != nil || err != nil {
		t.Fatalf("silence is %v, %v", notice, err)
	}
	exec(t, l, `select pg_notify('stockpipe_doubt', '0 torn')`)
	if notice, err := nextNotice(context.Background(), conn, soon); err != nil || notice.Payload != "0 torn" {
		t.Fatalf("after a silence: %v, %v", notice, err)
	}
	proxy.CloseAll()
	if _, err := nextNotice(context.Background(), conn, 20*time.Millisecond); err == nil {
		t.Error("a cut connection passes for silence")
	}
}

func TestARoomHasABound(t *testing.T) {
	t.Parallel()
	var room waitroom
	for i := range maxWaiters {
		if _, err := room.enter(1, int64(i%100)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := room.enter(1, 1); !errors.Is(err, ErrCrowded) {
		t.Errorf("got %v", err)
	}
	room.reached(1, 100)
	if room.count != 0 || len(room.lines) != 0 {
		t.Errorf("%d left in %d lines", room.count, len(room.lines))
	}
}

func TestPayloadsAreReadStrictly(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"", "1", "1 2", "1 2 3 4", "a 2 3", "1 -2 3", "1  3", "-1 2 3"} {
		if _, _, _, ok := parseApplied(payload); ok {
			t.Errorf("%q was read", payload)
		}
	}
	if s, e, a, ok := parseApplied("1 2 3"); !ok || s != 1 || e != 2 || a != 3 {
		t.Error(s, e, a, ok)
	}
	for what, word := range map[string]string{
		"": "unnamed", "torn": "torn", " torn apart ": "torn", "a\x00b\xff": "a?b?", strings.Repeat("x", 100): strings.Repeat("x", 64),
	} {
		shard, got, ok := ParseDoubt(doubtPayload(3, what))
		if shard != 3 || got != word || !ok {
			t.Errorf("%q became %d %q %v", what, shard, got, ok)
		}
	}
	for _, payload := range []string{"", "x", "x torn", "-1 torn"} {
		if _, _, ok := ParseDoubt(payload); ok {
			t.Errorf("%q was read", payload)
		}
	}
	if strings.Join([]string{ChannelApplied, ChannelShard, ChannelDoubt}, " ") != "stockpipe_applied stockpipe_shard stockpipe_doubt" {
		t.Error("the names of the channels are a contract")
	}
}
