package takeover_test

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// connect opens the ledger in the shop's database.
func (s *shop) connect() {
	s.t.Helper()
	l, err := ledger.Open(ctx, ledger.Config{URL: s.url, Name: "test"})
	s.must(err)
	s.t.Cleanup(l.Close)
	s.ledger, s.seals = l, ledger.NewOpener(l)
}

// standby is a copy of the ledger's database as it is now, as an asynchronous standby that gets nothing more has it.
func (s *shop) standby() (copied string) {
	s.t.Helper()
	at, err := url.Parse(s.url)
	s.must(err)
	server, name := sandboxtest.Postgres(s.t), path.Base(at.Path)
	s.ledger.Close() // a database is copied while nobody is connected to it
	copied, err = server.CloneDatabase(ctx, name, name+"_standby")
	s.must(err)
	s.t.Cleanup(func() { s.must(server.DropDatabase(ctx, name+"_standby")) })
	s.connect()
	return copied
}

// failover promotes a standby: whatever the ledger has got since it was copied is gone.
func (s *shop) failover(standby string) {
	s.t.Helper()
	s.ledger.Close()
	s.url = standby
	s.connect()
	// The copy is on the timeline of its origin, a promoted standby on the next: numbers of SKUs say so.
	s.sql(`select setval('sku_number_seq', greatest(last_value, 1 << 28)) from sku_number_seq`)
}

// A tail is what happened behind a standby's back.
type tail struct {
	s        *shop
	receipts map[string]stock.Receipt
	skus     map[string]int64
	states   map[string]stock.State // of orders, in the end
	papers   map[string]ledger.DocumentState
}

func newTail(s *shop) *tail {
	return &tail{s: s, receipts: map[string]stock.Receipt{}, skus: map[string]int64{}, states: map[string]stock.State{},
		papers: map[string]ledger.DocumentState{}}
}

func (x *tail) do(op stock.Operation, state stock.State) {
	x.s.t.Helper()
	x.receipts[fmt.Sprintf("%c of %s", op.Kind, op.ID)] = x.s.accept(op)
	x.states[op.ID] = state
}

func (x *tail) move(kind stock.Kind, id string, state stock.State) {
	x.s.t.Helper()
	x.do(stock.Operation{Kind: kind, ID: id, Attempt: 1}, state)
}

// write writes a document; send has it decided.
func (x *tail) write(id, kind string, sku, units int64) ledger.Document {
	x.s.t.Helper()
	doc, _, err := x.s.ledger.WriteDocument(ctx, ledger.NewDocument{ID: id, Kind: kind, Reason: "goods", Note: "gate 4",
		Lines: []stock.Line{{SKU: sku, Asked: units}}, DeadlineMillis: x.s.now() + 60_000})
	x.s.must(err)
	return doc
}

func (x *tail) send(doc ledger.Document) {
	x.s.t.Helper()
	out, err := x.s.desk.Do(ctx, 0, doc.Operation())
	x.s.must(err)
	x.receipts["document "+doc.ID] = out.Receipt
	switch out.Code {
	case stock.Accepted:
		x.papers[doc.ID] = ledger.DocumentApplied
	case stock.NotAllowed:
		x.papers[doc.ID] = ledger.DocumentRefused
	default:
		x.s.t.Fatalf("%s: %+v", doc.ID, out)
	}
}

// play is some trade under names of its own: a new SKU, documents, holds and their ends.
func (x *tail) play(name string) {
	x.s.t.Helper()
	s := x.s
	doc, _, err := s.ledger.WriteOpening(ctx, name, 50, 0, s.now()+60_000)
	s.must(err)
	x.skus[name] = doc.Lines[0].SKU
	x.send(doc)
	x.send(x.write(name+"-in", stock.DocumentReceive, x.skus[name], 7))
	x.send(x.write(name+"-out", stock.DocumentAdjust, s.sku, -3))
	x.send(x.write(name+"-in-again", stock.DocumentReceive, s.sku, 3))
	x.send(x.write(name+"-too-much", stock.DocumentAdjust, x.skus[name], -1000))
	cart := s.order(name+"-cart", 2)
	cart.Lines = append(cart.Lines, stock.Line{SKU: x.skus[name], Asked: 4, Now: 4})
	x.do(cart, stock.Held)
	x.do(stock.Operation{Kind: stock.Sale, ID: name + "-sold", Attempt: 1, Lines: cart.Lines}, stock.Confirmed)
	for id, kind := range map[string]stock.Kind{"-kept": 0, "-paid": stock.Confirm, "-left": stock.Release} {
		x.do(s.order(name+id, 1), stock.Held)
		switch kind {
		case stock.Confirm:
			x.move(kind, name+id, stock.Confirmed)
		case stock.Release:
			x.move(kind, name+id, stock.Released)
		}
	}
	x.receipts[name+" settings"] = s.accept(stock.Operation{Kind: stock.Configure, ID: "~~settings", Lines: stock.Lines{{SKU: x.skus[name]}}, Change: stock.Change{Opens: stock.Keep, Closed: stock.On, Limit: stock.Keep}})
}

// expire lets a hold of a second end.
func (x *tail) expire(id string) {
	x.s.t.Helper()
	sandboxtest.Eventually(x.s.t, 10*time.Second, func() error {
		out, err := x.s.desk.Do(ctx, 0, stock.Operation{Kind: stock.Expire, ID: id, Attempt: 1})
		if err == nil && out.Code != stock.Accepted {
			err = errors.New(string(out.Code))
		}
		x.receipts["expiry of "+id] = out.Receipt
		return err
	})
	x.states[id] = stock.Expired
}

// persisted checks that the ledger has all of it.
func (x *tail) persisted() {
	x.s.t.Helper()
	for what, r := range x.receipts {
		if got := x.s.standing(r); got != stock.StandingPersisted {
			x.s.t.Errorf("%s, %s, is %s", what, r, got)
		}
	}
	for id, want := range x.states {
		found, err := x.s.ledger.Lookup(ctx, id)
		x.s.must(err)
		if len(found) != 1 || found[0].Reservation.State != want {
			x.s.t.Errorf("order %s should be %s: %+v", id, want, found)
		}
	}
	for id, want := range x.papers {
		doc, err := x.s.ledger.Document(ctx, id)
		if err != nil || doc.State != want {
			x.s.t.Errorf("document %s should be %s: %+v, %v", id, want, doc, err)
		}
	}
	for text, number := range x.skus {
		if sku, err := x.s.ledger.SKU(ctx, text); err != nil || sku.Number != number || sku.Opening != 50 {
			x.s.t.Errorf("SKU %s should have number %d: %+v, %v", text, number, sku, err)
		}
	}
}

// TestALedgerThatLostATailGetsItFromTheLog fails Postgres over to a standby that misses the newest part, while Redis
// has all of it.
func TestALedgerThatLostATailGetsItFromTheLog(t *testing.T) {
	t.Parallel()
	crashed := func(s *shop, at takeover.Step) {
		_, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{At: func(step takeover.Step) error {
			if step == at {
				return errCrash
			}
			return nil
		}})
		if !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		name       string
		unconsumed bool          // played once more with a tail that Postgres never had
		change     func(s *shop) // between two parts of the tail
		class      takeover.Class
	}{
		{"within one epoch", true, func(*shop) {}, takeover.Healthy},
		{"across a takeover", true, func(s *shop) { s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"across a restart", false, func(s *shop) { s.flushed(); s.crash(); s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"across two takeovers", false, func(s *shop) {
			s.takeover(takeover.Options{})
			s.reserve("between", 1)
			s.accept(stock.Operation{Kind: stock.Release, ID: "between", Attempt: 1})
			s.takeover(takeover.Options{})
		}, takeover.Ahead},
		{"across two takeovers at once", false, func(s *shop) { s.takeover(takeover.Options{}); s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"across an attempt that crashed after its claim", false, func(s *shop) { crashed(s, takeover.StepCheck); s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"across an attempt that crashed after the close", false, func(s *shop) { crashed(s, takeover.StepSnapshot); s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"across an attempt that crashed after the opening", false, func(s *shop) { crashed(s, takeover.StepSay); s.takeover(takeover.Options{}) }, takeover.Ahead},
		{"into a takeover that stands", false, func(s *shop) { crashed(s, takeover.StepSay) }, takeover.Ahead},
	} {
		for _, consumed := range []bool{true, false} {
			if !consumed && !row.unconsumed {
				continue
			}
			t.Run(fmt.Sprintf("%s, consumed %v", row.name, consumed), func(t *testing.T) {
				t.Parallel()
				s := newShop(t).stocked()
				x := newTail(s)
				// Of before the standby's end: what goes on in the tail.
				x.play("before")
				pending := x.write("pending", stock.DocumentReceive, s.sku, 5)
				still := x.write("still-pending", stock.DocumentReceive, s.sku, 6)
				for _, id := range []string{"early-paid", "early-left"} {
					x.do(s.order(id, 1), stock.Held)
				}
				short := s.order("early-short", 1)
				short.TTL = stock.MinTTLMillis
				x.do(short, stock.Held)
				s.consume()
				standby := s.standby()

				x.play("tail")
				x.send(pending)
				x.move(stock.Confirm, "early-paid", stock.Confirmed)
				x.move(stock.Release, "early-left", stock.Released)
				x.expire("early-short")
				lost := x.write("lost", stock.DocumentReceive, s.sku, 8) // written, and not yet sent
				if consumed {
					s.consume()
				}
				row.change(s)
				sells := s.probe().Class == takeover.Healthy
				if sells {
					x.play("later")
				}
				if consumed {
					s.consume()
				}

				s.failover(standby)
				if f := s.probe(); f.Class != row.class {
					t.Fatal(f)
				}
				r := s.takeover(takeover.Options{})
				if r.GivenUp != 0 || r.RenamedLog {
					t.Errorf("%+v", r)
				}
				x.persisted()
				s.agrees()
				// What was only in Postgres is gone with it: the shop's own repeat writes it again. What both had goes on.
				if _, err := s.ledger.Document(ctx, lost.ID); !errors.Is(err, ledger.ErrUnknownDocument) {
					t.Errorf("%v", err)
				}
				for _, doc := range []ledger.Document{still, x.write(lost.ID, stock.DocumentReceive, s.sku, 8)} {
					if doc.State != ledger.DocumentWritten {
						t.Errorf("%+v", doc)
					}
					x.send(doc)
				}
				x.play("after")
				s.consume()
				x.persisted()
				s.agrees()
			})
		}
	}
}
