package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// papers are the calls that write a document: of each kind one, and one that ends refused; in the small size only those
// that are named.
func papers(smoke ...string) []*call {
	var found []*call
	for i := range calls {
		paper := strings.EqualFold(calls[i].kind, "m") || calls[i].kind == "N"
		if paper && (shoptest.Full || len(smoke) == 0 || slices.Contains(smoke, calls[i].name)) {
			found = append(found, &calls[i])
		}
	}
	return found
}

// paperOf is the id of the document in Postgres; an opening has one of ours.
func paperOf(s *shoptest.Shop, c *call, id string) string {
	s.T.Helper()
	if c.kind != "N" {
		return id
	}
	return shoptest.One[string](s, `select coalesce((select '~open:' || number from sku where sku = $1), '')`, id)
}

// shortRetention makes deadlines of documents come within a row: half of it.
var shortRetention = []string{"--retention", "10s"}

// paperShop is a shop whose roles fail where they are told to, and remember for a short time.
func paperShop(r *shoptest.Row, reconcilers int) *shoptest.Shop {
	return shoptest.Open(r, shoptest.Plan{
		Producers: 1, Consumers: 1, Reconcilers: reconcilers, Failing: true, Proxied: true,
		ProducerArgs: shortRetention, ConsumerArgs: shortRetention, ReconcilerArgs: shortRetention,
	})
}

// TestProducerKilledInADocument kills a producer at each step of a document of each kind. Its repeat at another
// producer answers how it ended, or nobody repeats it, and what was written is finished by the reconciler.
func TestProducerKilledInADocument(t *testing.T) {
	for _, at := range []failpoint.Point{failpoint.DocumentWritten, failpoint.DocumentDecided, failpoint.DocumentAnswered} {
		if at != failpoint.DocumentWritten && !shoptest.Full {
			continue
		}
		t.Run(string(at), func(t *testing.T) {
			r := shoptest.Begin(t, "documents: producer killed at "+string(at))
			r.Class = "document"
			s := paperShop(r, 1)
			type death struct {
				*call
				id    string
				again bool
			}
			var deaths []death
			all := papers("receive", "count", "fulfil", "cancel", "return")
			for _, c := range all {
				deaths = append(deaths, death{c, c.name + "-again", true}, death{c, c.name + "-never", false})
			}
			steady := s.Client(0)
			steady.Tries = 50
			shoptest.Crowd(len(deaths), 5, func(i int) {
				d := deaths[i]
				ready(s, d.call, d.id)
				dieAt(s, d.call, d.id, at)
				if d.again {
					settleAt(s, d.call, d.id, steady)
				}
			})
			for _, d := range deaths {
				awaitPaper(s, d.call, d.id)
				settleAt(s, d.call, d.id, steady)
			}
			s.Drain()
			for _, d := range deaths {
				once(s, d.call, d.id)
			}
			r.Note("%d producers killed, in documents of %d kinds; each ended once, half of them without its sender", len(deaths), len(all))
			s.Finish()
		})
	}
}

// dieAt lets a producer of its own die, or stop, in a document.
func dieAt(s *shoptest.Shop, c *call, id string, at failpoint.Point) {
	s.T.Helper()
	doomed := s.StartArmed(shoptest.Producer, at, shoptest.Kill, "--producer-id", id)
	awaitRole(s, doomed)
	if _, err := c.do(s.T.Context(), &api.Client{Base: doomed.API, HTTP: s.HTTP, Tries: 1}, id); err == nil {
		s.T.Errorf("%s: the producer that died at %s answered", id, at)
	}
	doomed.AwaitFailure(at)
	if doomed.Alive() {
		s.T.Errorf("%s: the producer lived through %s", id, at)
	}
}

// awaitRole waits until one role can do its work.
func awaitRole(s *shoptest.Shop, r *shoptest.Role) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, r.Ready)
}

// settleAt repeats a document until it is told how it ended.
func settleAt(s *shoptest.Shop, c *call, id string, client *api.Client) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		stands, err := c.do(s.T.Context(), client, id)
		if err == nil && stands != c.want {
			err = fmt.Errorf("%s stands as %q, want %q", id, stands, c.want)
		}
		return err
	})
}

// awaitPaper waits until a document has ended in Postgres, by whomever.
func awaitPaper(s *shoptest.Shop, c *call, id string) {
	s.T.Helper()
	paper := paperOf(s, c, id)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if state := shoptest.One[string](s, `select coalesce((select state from stock_document where id = $1), '')`, paper); state != c.want {
			return fmt.Errorf("document %s is %q, want %q", paper, state, c.want)
		}
		return nil
	})
}

// TestConsumerKilledInDocuments kills the consumer that has documents of all kinds in one hand: before its
// transaction, inside it, after it, and after it said so. The next one goes on, and each document ends once.
func TestConsumerKilledInDocuments(t *testing.T) {
	for _, at := range []failpoint.Point{failpoint.ConsumerRead, failpoint.LedgerInside, failpoint.ConsumerCommitted, failpoint.ConsumerAcked} {
		if at != failpoint.LedgerInside && !shoptest.Full {
			continue
		}
		t.Run(string(at), func(t *testing.T) {
			r := shoptest.Begin(t, "documents: consumer killed at "+string(at))
			s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1, Failing: true})
			all := papers()
			shoptest.Crowd(len(all), 4, func(i int) { ready(s, all[i], all[i].name) })
			s.Supply(1000, "late")
			s.Drain()
			// The shard stays the dead one's for some seconds. Until then the next one has nothing to read, and then all.
			awaitOwner(s, nil).Kill()
			doomed := s.StartArmed(shoptest.Consumer, at, shoptest.Kill)
			shoptest.Crowd(len(all), len(all), func(i int) {
				ctx, cancel := context.WithTimeout(t.Context(), shoptest.CallPatience)
				defer cancel()
				_, _ = all[i].do(ctx, s.Client(i), all[i].name) // it has no answer, or one by a consumer that died
			})
			if at == failpoint.ConsumerAcked {
				sellUntil(s, "late", func() bool { return doomed.Failed(at) })
			}
			doomed.AwaitFailure(at)
			hit := time.Now()
			left := shoptest.One[int](s, `select count(*) from stock_document where id = any($1) and state = 'written'`, written(s, all))
			before := at == failpoint.ConsumerRead || at == failpoint.LedgerInside
			if before && left != len(all) || !before && left == len(all) {
				t.Errorf("%d of %d documents are not settled at %s", left, len(all), at)
			}
			s.Start(shoptest.Consumer)
			s.Drain()
			r.Opened(time.Since(hit))
			for _, c := range all {
				awaitPaper(s, c, c.name)
				settleAt(s, c, c.name, s.Patient(0))
				once(s, c, c.name)
			}
			r.Note("%d documents of all kinds: %d not settled when it died, each once in the end; %d operations, each once", len(all), left, s.LogIsLedger())
			s.Finish()
		})
	}
}

// sellUntil sells one unit after the other: what came before a consumer had the shard it reads from the ledger's
// position, and has nothing to acknowledge.
func sellUntil(s *shoptest.Shop, sku string, over func() bool) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		if over() {
			return nil
		}
		shoptest.Reserve(s.T.Context(), s.Client(0), api.NewOrderID(), sku, 1, 1)
		return errors.New("one more is sold")
	})
}

// written are the ids of documents in Postgres.
func written(s *shoptest.Shop, all []*call) []string {
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = paperOf(s, c, c.name)
	}
	return ids
}

// TestReconcilerKilledInADocument kills the reconciler that finishes a document whose sender died: before it sends,
// after it gave a new deadline, and after Redis decided. The next one finishes it, once.
func TestReconcilerKilledInADocument(t *testing.T) {
	for _, at := range []failpoint.Point{failpoint.FinishingRead, failpoint.FinishingDecided, failpoint.FinishingRenewed} {
		t.Run(string(at), func(t *testing.T) {
			r := shoptest.Begin(t, "documents: reconciler killed at "+string(at))
			r.Class = "document"
			s := paperShop(r, 1)
			for _, one := range s.Living(shoptest.Reconciler) {
				one.Stop()
			}
			all := papers("cancel")
			for _, c := range all {
				ready(s, c, c.name)
				s.Drain()
				dieAt(s, c, c.name, failpoint.DocumentWritten)
				if at == failpoint.FinishingRenewed {
					awaitDeadline(s, paperOf(s, c, c.name))
				}
				reader := s.Living(shoptest.Consumer)[0]
				if at == failpoint.FinishingDecided {
					reader.Pause() // so that the entry is there and the table says "written" to whoever comes next
				}
				doomed := s.StartArmed(shoptest.Reconciler, at, shoptest.Kill)
				doomed.AwaitFailure(at)
				again := awaitMovement(s, paperOf(s, c, c.name))
				next := s.Start(shoptest.Reconciler)
				again()
				reader.Resume()
				awaitPaper(s, c, c.name)
				s.Drain()
				once(s, c, c.name)
				next.Stop() // so that the next document finds nobody but its own
			}
			r.Note("%d reconcilers killed, one in each kind of document; each document ended once", len(all))
			s.Start(shoptest.Reconciler)
			s.Finish()
		})
	}
}

// awaitMovement watches the path to Redis from now on; arrived waits until the movement of a document came by.
func awaitMovement(s *shoptest.Shop, paper string) (arrived func()) {
	seen := make(chan struct{})
	var first sync.Once
	watch := s.Path.CutAfterExecution(func(request []byte) bool {
		if faultproxy.Contains("fcall")(request) && bytes.Contains(request, []byte("~"+paper)) {
			first.Do(func() { close(seen) })
		}
		return false // nothing is cut
	})
	return func() {
		s.T.Helper()
		defer watch.Disarm()
		select {
		case <-seen:
		case <-time.After(shoptest.Patience):
			s.T.Errorf("nobody sent the movement of document %s again", paper)
		}
	}
}

// awaitDeadline waits until Redis' clock is past the deadline of a document.
func awaitDeadline(s *shoptest.Shop, id string) {
	s.T.Helper()
	deadline := shoptest.One[int64](s, `select deadline_ms from stock_document where id = $1`, id)
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		now, err := s.RDB.Time(s.T.Context()).Result()
		if err == nil && now.UnixMilli() <= deadline {
			err = fmt.Errorf("the deadline of document %s comes in %d ms", id, deadline-now.UnixMilli())
		}
		return err
	})
}

// A waker is a way in which a document's movement arrives after its deadline.
type waker struct {
	name  string
	whole bool
	// sleep has a document written and its movement on the way; wake lets it arrive.
	sleep func(s *shoptest.Shop, c *call, id string) (wake func())
}

var wakers = []waker{
	{name: "stopped before it sends", sleep: func(s *shoptest.Shop, c *call, id string) func() {
		sleeper := s.StartArmed(shoptest.Producer, failpoint.DocumentWritten, shoptest.Stop, "--producer-id", id)
		awaitRole(s, sleeper)
		answered := sendAside(s, c, id, sleeper)
		sleeper.AwaitFailure(failpoint.DocumentWritten)
		return func() {
			sleeper.Resume()
			answered()
		}
	}},
	{name: "packet held on its way", whole: true, sleep: func(s *shoptest.Shop, c *call, id string) func() {
		path := sandboxtest.Proxy(s.T, s.Redis.Addr()) // its own
		sleeper := s.StartArmed(shoptest.Producer, failpoint.DocumentWritten, shoptest.Stop, "--producer-id", id, "--redis-url", "redis://"+path.Addr()+"/0")
		awaitRole(s, sleeper)
		// On a connection that is made only now, nothing but its greeting would be on the way.
		warm := shoptest.Reserve(s.T.Context(), &api.Client{Base: sleeper.API, HTTP: s.HTTP}, api.NewOrderID(), "warm", 1, 1)
		if !warm.Accepted() {
			s.T.Errorf("a sleeper for document %s cannot sell: %v", id, warm)
		}
		answered := sendAside(s, c, id, sleeper)
		sleeper.AwaitFailure(failpoint.DocumentWritten)
		path.BlackHole(true) // from here on its bytes leave it and go nowhere
		sleeper.Resume()
		arrival := path.CutAfterExecution(func(request []byte) bool {
			return faultproxy.Contains("fcall")(request) && bytes.Contains(request, []byte("~"+paperOf(s, c, id)))
		})
		return func() {
			answered()
			path.BlackHole(false)
			select {
			case <-arrival.Done(): // Redis has had it
			case <-time.After(shoptest.Patience):
				s.T.Errorf("the movement of document %s never arrived", id)
			}
		}
	}},
	{name: "sent by whoever kept it", whole: true, sleep: func(s *shoptest.Shop, c *call, id string) func() {
		dieAt(s, c, id, failpoint.DocumentWritten)
		doc, err := s.Ledger.Document(s.T.Context(), paperOf(s, c, id))
		shoptest.Need(s.T, err)
		return func() { // with nothing but the document's own deadline between it and the stock
			out, err := s.Counter().Do(s.T.Context(), s.Homes[id], doc.Operation())
			if err != nil || out.Code != stock.Overdue && out.Code != stock.Replayed {
				s.T.Errorf("document %s sent after its deadline is answered %v (%v)", id, out.Code, err)
			}
		}
	}},
}

// sendAside sends a document; answered waits for whatever comes of that.
func sendAside(s *shoptest.Shop, c *call, id string, to *shoptest.Role) (answered func()) {
	var wait sync.WaitGroup
	wait.Go(func() {
		ctx, cancel := context.WithTimeout(s.T.Context(), 2*shoptest.Patience)
		defer cancel()
		_, _ = c.do(ctx, &api.Client{Base: to.API, HTTP: s.HTTP, Tries: 1}, id) // its caller is long gone
	})
	return wait.Wait
}

// TestSenderWakesAfterTheDeadline lets the movement of a document of each kind arrive after its deadline: while
// nobody finished it, and after the reconciler did and Redis forgot. Nothing moves by it, and it ends once.
func TestSenderWakesAfterTheDeadline(t *testing.T) {
	for _, w := range wakers {
		for _, finished := range []bool{false, true} {
			name := w.name + ", nobody finished it"
			if finished {
				name = w.name + ", it was finished and is forgotten"
			}
			if (w.whole || finished) && !shoptest.Full {
				continue
			}
			t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
				r := shoptest.Begin(t, "documents: sender wakes too late: "+name)
				r.Class = "document"
				w.play(r, finished)
			})
		}
	}
}

func (w *waker) play(r *shoptest.Row, finished bool) {
	s := paperShop(r, 1)
	all := papers("adjust", "cancel", "return")
	shoptest.Crowd(len(all), 4, func(i int) { ready(s, all[i], all[i].name) })
	s.Supply(1000, "warm")
	s.Drain()
	// Nobody finishes anything until it is said.
	for _, one := range s.Living(shoptest.Reconciler) {
		one.Stop()
	}
	before := shelvesOf(s, all)
	wakes := make([]func(), len(all))
	shoptest.Crowd(len(all), 4, func(i int) { wakes[i] = w.sleep(s, all[i], all[i].name) })
	for _, c := range all {
		awaitDeadline(s, paperOf(s, c, c.name))
	}
	if finished {
		s.Start(shoptest.Reconciler)
		for _, c := range all {
			awaitPaper(s, c, c.name)
		}
		awaitForgotten(s, all)
		before = shelvesOf(s, all)
	}
	for _, wake := range wakes {
		wake()
	}
	s.Drain()
	if after := shelvesOf(s, all); !slices.Equal(before, after) {
		r.T.Errorf("senders that woke after the deadline moved something: %v, and then %v", before, after)
	}
	if !finished {
		for _, c := range all {
			if n := shoptest.One[int64](s, `select count(*) from event where id = '~' || $1`, paperOf(s, c, c.name)); n != 0 {
				r.T.Errorf("document %s was decided %d times by a sender that came too late", c.name, n)
			}
		}
		s.Start(shoptest.Reconciler)
	}
	for _, c := range all {
		awaitPaper(s, c, c.name)
	}
	s.Drain()
	for _, c := range all {
		once(s, c, c.name)
	}
	r.Note("%d senders of documents of all kinds woke after the deadline and moved nothing; each document ended once", len(all))
	s.Finish()
}

// shelvesOf are the SKUs of documents in Redis.
func shelvesOf(s *shoptest.Shop, all []*call) []string {
	s.T.Helper()
	found := make([]string, len(all))
	for i, c := range all {
		found[i] = c.name + " " + s.InRedis(c.name)
	}
	return found
}

// awaitForgotten waits until Redis has no record of the documents any more, by which a repeat would be known.
func awaitForgotten(s *shoptest.Shop, all []*call) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		for _, c := range all {
			there, err := s.RDB.HExists(s.T.Context(), s.Keys(c.name).Orders, "~"+paperOf(s, c, c.name)).Result()
			if err != nil || there {
				return errors.Join(err, fmt.Errorf("Redis knows document %s", c.name))
			}
		}
		return nil
	})
}
