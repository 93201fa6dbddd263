package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestABatchIsPersistedAndItsReplayIsANoOp(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	w := newTeller(t, l, 0)
	a, b := w.sku(10), w.sku(20)
	batch := []event.Raw{
		w.entry(reserve("o1", 1, lines(a, 2, b, 3)), reserve("o2", 1, lines(a, 1))),
		w.entry(move(stock.Confirm, "o1", 1), stock.Operation{Kind: stock.Sale, ID: "o3", Attempt: 1, Lines: lines(b, 4)}),
		w.entry(reserve("o4", 1, lines(b, 1)), move(stock.Release, "o2", 1)),
	}
	first := w.apply(batch...)
	if first.Entries != 3 || first.Ops != 6 || first.Position != w.at || len(first.Mismatches) != 0 {
		t.Errorf("applied %+v", first)
	}
	w.same()
	moved := count(t, l, `select sum(xmin::text::bigint) from reservation`)
	again := w.apply(w.log...)
	if again.Entries != 0 || again.Ops != 0 || again.Position != w.at {
		t.Errorf("again applied %+v", again)
	}
	if now := count(t, l, `select sum(xmin::text::bigint) from reservation`); now != moved {
		t.Error("the replay wrote reservations")
	}
	w.same()
}

func TestTransitionsInLaterBatchesMoveStoredOrders(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("c", 1, lines(a, 1)), reserve("x", 1, lines(a, 2)), reserve("e", 1, lines(a, 3)), reserve("h", 1, lines(a, 4))))
	w.apply(w.entry(move(stock.Confirm, "c", 1), move(stock.Release, "x", 1), move(stock.Expire, "e", 1)))
	w.same()
	w.apply(w.entry(reserve("x", 2, lines(a, 5)), move(stock.LateConfirm, "e", 1)))
	w.same()
	if n := count(t, w.l, `select count(*) from reservation where order_id = 'e' and attempt = 2 and state = 'confirmed'`); n != 1 {
		t.Error("the late confirm is not an attempt of its own")
	}
}

func TestEntriesOutOfOrderAndDoubledAreTakenOnce(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	var batch []event.Raw
	for i := range 20 {
		batch = append(batch, w.entry(reserve(fmt.Sprint("o", i), 1, lines(a, 1))))
	}
	batch = append(batch, batch...)
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	if done := w.apply(batch...); done.Entries != 20 {
		t.Errorf("applied %d entries", done.Entries)
	}
	w.same()
}

func TestAGapStopsApplyAndThePrefixStands(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	one, two, three := w.entry(reserve("o1", 1, lines(a, 1))), w.entry(reserve("o2", 1, lines(a, 1))), w.entry(reserve("o3", 1, lines(a, 1)))
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{one, three})
	var gap *GapError
	if !errors.As(err, &gap) || gap.Next != three.ID || gap.Have.String() != one.ID || done.Entries != 1 {
		t.Fatalf("applied %+v, %v", done, err)
	}
	w.apply(two, three)
	w.same()
}

func TestTwoAppliersAtOnceApplyEachEntryOnce(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a, b := w.sku(5000), w.sku(5000)
	for i := range 60 {
		w.entry(reserve(fmt.Sprint("o", i), 1, lines(a, 1, b, 1)), reserve(fmt.Sprint("p", i), 1, lines(b, 1)))
		w.entry(move(stock.Confirm, fmt.Sprint("o", i), 1))
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for batch := range slices.Chunk(w.log, 7) {
				if _, err := w.l.Apply(context.Background(), 0, batch); err != nil {
					if gap := (*GapError)(nil); !errors.As(err, &gap) {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	w.same()
}

func TestCartsInRandomOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	l := open(t, 4)
	var wg sync.WaitGroup
	for shard := range 4 {
		w := newTeller(t, l, shard)
		a, b := w.sku(100_000), w.sku(100_000)
		for i := range 500 {
			cart := lines(a, 1, b, 1)
			if rand.IntN(2) == 0 {
				cart = lines(b, 1, a, 1)
				slices.Reverse(cart) // canonical, as every writer of the log makes it
			}
			w.entry(reserve(fmt.Sprint("o", i), 1, cart))
		}
		for range 2 { // two consumers a shard
			wg.Go(func() {
				for batch := range slices.Chunk(w.log, 25) {
					if _, err := l.Apply(context.Background(), shard, batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
		defer w.same()
	}
	wg.Wait()
	if n := count(t, l, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func TestTheSameKeyTwiceInABatchIsASum(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	w.apply(
		w.entry(reserve("o1", 1, lines(a, 1))),
		w.entry(reserve("o2", 1, lines(a, 2))),
		w.entry(move(stock.Release, "o1", 1)),
	)
	w.same()
	if n := count(t, w.l, `select available from stock where sku = $1`, a); n != 8 {
		t.Errorf("%d available, want 8", n)
	}
	if n := count(t, w.l, `select count(*) from event where id in ('o1', 'o2')`); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	if n := count(t, w.l, `select count(*) from reservation`); n != 2 {
		t.Errorf("%d reservations, want 2: the hold and its end are one row", n)
	}
}

func TestAnEntryThatBreaksARuleHaltsAndNothingBehindItIsTaken(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	one := w.entry(reserve("o1", 1, lines(a, 1)))
	w.at.Seq += 2
	bad := event.Entry{Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq - 1}, AtMillis: w.clock, Ops: []stock.Operation{reserve("o2", 1, lines(a, 1000))}}.Raw()
	three := event.Entry{Position: w.at, AtMillis: w.clock, Ops: []stock.Operation{reserve("o3", 1, lines(a, 1))}}.Raw()
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{one, bad, three})
	halted := mustHalt(t, err)
	if done.Entries != 1 || halted.Claim.Epoch <= w.at.Epoch || halted.Claim.Nonce == "" {
		t.Errorf("applied %+v, %+v", done, halted)
	}
	if n := count(t, w.l, `select count(*) from dead_event where seq = $1 and raw->>'id' = $2`, w.at.Seq-1, bad.ID); n != 1 {
		t.Error("the entry is not kept")
	}
	_, err = w.l.Apply(context.Background(), 0, []event.Raw{three})
	if again := mustHalt(t, err); again.Claim.Epoch != 0 {
		t.Error("a shard was halted twice")
	}
	if n := count(t, w.l, `select count(*) from reservation`); n != 1 {
		t.Errorf("%d reservations, want the one before the entry", n)
	}
}

func mustHalt(t *testing.T, err error) *HaltedError {
	t.Helper()
	var halted *HaltedError
	if !errors.As(err, &halted) {
		t.Fatalf("not halted: %v", err)
	}
	return halted
}

// A constraint that only Postgres knows: the fold is content, the COPY is not.
func TestARefusalByPostgresIsIsolatedToItsEntry(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(1000)
	exec(t, w.l, `alter table reservation add check (order_id <> 'o5')`)
	var batch []event.Raw
	for i := range 9 {
		batch = append(batch, w.entry(reserve(fmt.Sprint("o", i), 1, lines(a, 1))))
	}
	done, err := w.l.Apply(context.Background(), 0, batch)
	_ = mustHalt(t, err)
	if done.Entries != 5 || done.Position.String() != batch[4].ID {
		t.Errorf("applied %+v, want the five before", done)
	}
	if n := count(t, w.l, `select count(*) from reservation`); n != 5 {
		t.Errorf("%d reservations", n)
	}
	if n := count(t, w.l, `select count(*) from dead_event where seq = $1`, w.at.Seq-3); n != 1 {
		t.Error("the wrong entry is kept")
	}
}

func TestAnUnreadableEntryHaltsBehindItsPrefix(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*event.Raw){
		"kind":    func(r *event.Raw) { r.Ops = "Z1 o2" },
		"version": func(r *event.Raw) { r.Version = "2" },
		"bytes":   func(r *event.Raw) { r.Ops = "R\x00\xff" },
		"place":   func(r *event.Raw) { r.ID = "elsewhere" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTeller(t, open(t, 1), 0)
			a := w.sku(10)
			one, bad := w.entry(reserve("o1", 1, lines(a, 1))), w.entry(reserve("o2", 1, lines(a, 1)))
			spoil(&bad)
			done, err := w.l.Apply(context.Background(), 0, []event.Raw{bad, one})
			_ = mustHalt(t, err)
			if done.Entries != 1 || done.Position.String() != one.ID {
				t.Errorf("applied %+v", done)
			}
			if n := count(t, w.l, `select count(*) from dead_event where seq = $1`, w.at.Seq); n != 1 {
				t.Error("the entry is not kept")
			}
		})
	}
}

func TestALogThatForkedHalts(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	one := w.entry(reserve("o1", 1, lines(a, 1)))
	w.apply(one)
	one.Ops = strings.Replace(one.Ops, "o1", "o9", 1)
	_, err := w.l.Apply(context.Background(), 0, []event.Raw{one})
	if halted := mustHalt(t, err); !strings.Contains(halted.Reason, "forked") {
		t.Error(halted.Reason)
	}
}

func TestAWrongAfterImageFreezesOneSKUAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a, b := w.sku(10), w.sku(10)
	one, two, three := w.entry(reserve("o1", 1, lines(a, 1))), w.entry(reserve("o2", 1, lines(b, 2))), w.entry(reserve("o3", 1, lines(a, 1)))
	one.After = fmt.Sprintf("%d=11|1|0", a)
	done := w.apply(one, two, three)
	if done.Entries != 3 || len(done.Mismatches) != 1 || done.Mismatches[0].SKU != a {
		t.Fatalf("applied %+v", done)
	}
	w.book.Settings[a] = stock.Settings{Frozen: true}
	w.same()
	var doubt string
	check(t, w.l.pool.QueryRow(context.Background(), `select doubt from stock where sku = $1`, a).Scan(&doubt))
	if !strings.Contains(doubt, "9 available, 1 held") || !strings.Contains(doubt, "11 available, 1 held") {
		t.Errorf("doubt %q names not both figures", doubt)
	}
	// Lifting it clears the doubt.
	w.apply(w.entry(stock.Operation{Kind: stock.Configure, ID: "~~thaw", Lines: stock.Lines{{SKU: a}},
		Change: stock.Change{Opens: stock.Keep, Frozen: stock.Off, Limit: stock.Keep}}))
	w.same()
	if n := count(t, w.l, `select count(*) from stock where doubt <> ''`); n != 0 {
		t.Error("the doubt outlived the freeze")
	}
}

func TestSettingsAreWritten(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	w.apply(w.entry(stock.Operation{Kind: stock.Configure, ID: "~~set", Lines: stock.Lines{{SKU: a}},
		Change: stock.Change{Opens: 5, Frozen: stock.On, Closed: stock.On, Limit: 3}}))
	w.same()
	w.apply(w.entry(stock.Operation{Kind: stock.Configure, ID: "~~set2", Lines: stock.Lines{{SKU: a}},
		Change: stock.Change{Opens: stock.Keep, Frozen: stock.Off, Limit: stock.Keep}}))
	w.same()
}

func TestADocumentIsSettledByItsEntryOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	doc, _, err := w.l.WriteDocument(ctx, NewDocument{ID: "d1", Kind: stock.DocumentReceive, Reason: "goods", Lines: lines(a, 7), DeadlineMillis: w.clock})
	check(t, err)
	no, _, err := w.l.WriteDocument(ctx, NewDocument{ID: "d2", Kind: stock.DocumentAdjust, Reason: "loss", Lines: lines(a, -99), DeadlineMillis: w.clock})
	check(t, err)
	refused := no.Operation()
	refused.Refused = true
	w.apply(w.entry(doc.Operation(), refused))
	w.same()
	for id, want := range map[string]DocumentState{"d1": DocumentApplied, "d2": DocumentRefused} {
		got, err := w.l.Document(ctx, id)
		check(t, err)
		if got.State != want || got.Receipt.Position != w.at {
			t.Errorf("%s is %s at %v", id, got.State, got.Receipt)
		}
	}
	// The same document once more, and an order's id.
	for _, id := range []string{"~d1", "d9"} {
		op := doc.Operation()
		op.ID = id
		raw := event.Entry{Position: stock.Position{Epoch: w.at.Epoch, Seq: w.at.Seq + 1}, AtMillis: w.clock, Ops: []stock.Operation{op}}.Raw()
		_, err := w.l.Apply(ctx, 0, []event.Raw{raw})
		halted := mustHalt(t, err)
		w.clock++
		check(t, w.l.Resume(ctx, halted.Claim))
	}
	w.same()
}

func TestAnOrderBegunAgainAfterItsRetentionTakesTheNextKey(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1)), stock.Operation{Kind: stock.Sale, ID: "s1", Attempt: 1, Lines: lines(a, 1)}))
	w.apply(w.entry(move(stock.Release, "o1", 1)))
	exec(t, w.l, `update reservation set moved = now() - interval '25 hours'`)
	// Redis has forgotten both: the ids begin again at attempt 1, as asked.
	delete(w.book.Orders, "o1")
	sold := w.book.Orders["s1"]
	delete(w.book.Orders, "s1")
	w.apply(w.entry(reserve("o1", 1, lines(a, 2))), w.entry(move(stock.Expire, "o1", 1)), w.entry(reserve("s1", 1, lines(a, 3))))
	w.same()
	w.apply(w.entry(reserve("o1", 2, lines(a, 4))))
	w.same()
	var got [][2]int64
	rows, err := w.l.pool.Query(context.Background(), `select attempt, asked from reservation where order_id = 'o1' order by attempt`)
	check(t, err)
	for rows.Next() {
		var pair [2]int64
		check(t, rows.Scan(&pair[0], &pair[1]))
		got = append(got, pair)
	}
	if diff := gocmp.Diff([][2]int64{{1, 1}, {2, 1}, {3, 2}}, got); diff != "" {
		t.Errorf("key and asked (-want +got):\n%s", diff)
	}
	if n := count(t, w.l, `select count(*) from reservation where order_id = 's1' and attempt = 1 and state = $1`, string(sold.State)); n != 1 {
		t.Error("the sale of the earlier life is gone")
	}
}

func TestAnOrderBegunAgainInsideItsRetentionHalts(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(100)
	w.apply(w.entry(reserve("o1", 1, lines(a, 1))))
	w.apply(w.entry(move(stock.Release, "o1", 1)))
	w.book.Forgetful = true
	ok, bad := w.entry(reserve("o2", 1, lines(a, 1))), w.entry(reserve("o1", 1, lines(a, 2)))
	done, err := w.l.Apply(context.Background(), 0, []event.Raw{ok, bad})
	_ = mustHalt(t, err)
	if done.Entries != 1 {
		t.Errorf("applied %+v", done)
	}
}

func TestHugeNumbersPass(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	rows, err := l.pool.Query(ctx, `select quote_ident(relname) from pg_class where relkind = 'S' and relnamespace = 'public'::regnamespace and relname not like 'goose%'`)
	check(t, err)
	var name string
	var names []string
	for rows.Next() {
		check(t, rows.Scan(&name))
		names = append(names, name)
	}
	if len(names) == 0 {
		t.Fatal("no sequence found")
	}
	for _, name := range names {
		exec(t, l, `select setval($1::text::regclass, 2147483646)`, name)
	}
	w := newTeller(t, l, 0)
	w.sku(1)
	a := w.sku(0)
	if a <= 1<<31-1 {
		t.Fatalf("SKU number %d is not beyond int4", a)
	}
	for i := range 4 {
		doc, _, err := l.WriteDocument(ctx, NewDocument{ID: fmt.Sprint("d", i), Kind: stock.DocumentReceive, Reason: "goods", Lines: lines(a, 750_000_000), DeadlineMillis: w.clock})
		check(t, err)
		w.apply(w.entry(doc.Operation()))
	}
	for i := range 10 {
		w.apply(w.entry(reserve(fmt.Sprint("o", i), 1, lines(a, 1_000_000))))
	}
	w.same()
	if n := count(t, l, `select available + held from stock where sku = $1`, a); n != 3_000_000_000 {
		t.Errorf("%d units, want 3,000,000,000", n)
	}
}

// The reserve is old and dropped, so the order that the confirm moves has to be read all the same.
func TestARepeatedReserveDoesNotHideTheStoredOrder(t *testing.T) {
	t.Parallel()
	w := newTeller(t, open(t, 1), 0)
	a := w.sku(10)
	old := w.entry(reserve("o1", 1, lines(a, 1)))
	w.apply(old)
	w.apply(w.entry(move(stock.Confirm, "o1", 1)), old)
	w.same()
}
