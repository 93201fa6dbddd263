package faults

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A commit is one whose sender never learns what became of it.
type commit struct {
	name  string
	kind  string // of the role that commits
	after string // text of a statement of that transaction
	class string // of the repair that the trigger makes necessary
	whole bool
	// trigger makes the role commit; nil: the load does.
	trigger func(*shoptest.Shop)
	paper   string // the document that it writes
	brings  int64  // units of tea by it
}

var commits = []commit{
	{name: "a batch of the consumer", kind: shoptest.Consumer, after: "copy "},
	{name: "a document", kind: shoptest.Producer, after: "insert into stock_document", trigger: receive, paper: "delivery-1", brings: documentUnits, whole: true},
	{name: "a document of an order", kind: shoptest.Producer, after: "insert into stock_document", trigger: cancel, paper: "cancellation-1", whole: true},
	{name: "the claim of a takeover", kind: shoptest.Reconciler, after: "set claim_nonce", class: "unopened", trigger: flushLibrary, whole: true},
	{name: "the end of an epoch", kind: shoptest.Reconciler, after: "insert into epoch_end", class: "unopened", trigger: flushLibrary, whole: true},
	{name: "the end of a takeover", kind: shoptest.Reconciler, after: "set state = 'open'", class: "unopened", trigger: flushLibrary, whole: true},
}

// A fate is what becomes of the commit.
type fate struct {
	name  string
	whole bool
	// meet makes sure that the commit meets it, and gives what is closed once it has.
	meet func(*shoptest.Shop, *faultproxy.Proxy, faultproxy.Match) <-chan struct{}
	dies bool // Postgres ends by it
}

var fates = []fate{
	{name: "done, its reply cut", meet: cutReply},
	{name: "done, its reply cut and Postgres killed", dies: true, whole: true, meet: func(s *shoptest.Shop, path *faultproxy.Proxy, match faultproxy.Match) <-chan struct{} {
		over := make(chan struct{})
		fault := path.CutAfterExecution(match)
		go func() { // ends with the row at the latest: the fault is awaited there
			defer close(over)
			select {
			case <-fault.Done():
				_ = s.Postgres.Kill()
			case <-s.T.Context().Done():
			}
		}()
		return over
	}},
	{name: "never arrived: Postgres killed", dies: true, whole: true, meet: func(s *shoptest.Shop, path *faultproxy.Proxy, match faultproxy.Match) <-chan struct{} {
		return killAt(s, path, match, false)
	}},
	{name: "under way: Postgres killed", dies: true, whole: true, meet: func(s *shoptest.Shop, path *faultproxy.Proxy, match faultproxy.Match) <-chan struct{} {
		return killAt(s, path, match, true)
	}},
}

// cutReply lets the commit happen and its sender lose the connection.
func cutReply(_ *shoptest.Shop, path *faultproxy.Proxy, match faultproxy.Match) <-chan struct{} {
	return path.CutAfterExecution(match).Done()
}

// killAt ends Postgres while the commit is on its way there: before it arrives, or at the same moment.
func killAt(s *shoptest.Shop, path *faultproxy.Proxy, match faultproxy.Match, meanwhile bool) <-chan struct{} {
	over := make(chan struct{})
	var met atomic.Bool
	kill := func() {
		_ = s.Postgres.Kill()
		close(over)
	}
	path.CutAfterExecution(func(request []byte) bool {
		switch {
		case met.Load() || !match(request) || !met.CompareAndSwap(false, true):
		case meanwhile:
			go kill() // over is awaited by the row
		default:
			kill()
		}
		return false // the reply is not touched: Postgres itself is gone
	})
	return over
}

// TestPostgresKilledInsideACommit lets the outcome of each kind of commit be unknown. Whoever sent it reads it again,
// or begins anew.
func TestPostgresKilledInsideACommit(t *testing.T) {
	for _, c := range commits {
		for _, f := range fates {
			if (c.whole || f.whole) && !shoptest.Full {
				continue
			}
			name := fmt.Sprintf("commit of %s %s", c.name, f.name)
			t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) { c.play(shoptest.Begin(t, name), f) })
		}
	}
}

func (c *commit) play(r *shoptest.Row, f fate) {
	t := r.T
	r.Class = c.class
	units := shoptest.Size[int64](20_000, 100_000)
	s := shoptest.Found(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Postgres: &sandbox.PostgresOptions{}})
	paths := s.LedgerPaths()
	s.StartAll()
	s.AwaitReady()
	s.Supply(units, "tea")
	s.Supply(100, soldBefore)
	sold(s, soldBefore)
	s.Renew(c.kind) // nothing is prepared yet on its connections
	var mix *shoptest.Mix
	if c.paper == "" { // else another document's commit might meet the fault
		mix = s.Mix(shoptest.MixPlan{})
	}
	epoch := s.Epoch(0)
	load := s.Traffic(12, 60*time.Millisecond, false, "tea")
	load.Beside = mix
	load.More(50)

	met := f.meet(s, paths[c.kind], shoptest.CommitAfter(c.after))
	hit := time.Now()
	done := make(chan struct{})
	go func() { // waited for below
		defer close(done)
		if c.trigger != nil {
			c.trigger(s)
		}
	}()
	select {
	case <-met:
	case <-time.After(shoptest.Patience):
		t.Fatalf("no commit after %q came by", c.after)
	}
	if f.dies {
		shoptest.Need(t, s.Postgres.Restart(t.Context()))
	}
	<-done
	paid := load.AwaitPaid(time.Now())
	r.Opened(paid.Sub(hit))
	load.More(50)
	load.Stop()
	load.SellRest()
	s.Drain()
	before := "98|0|2"
	if c.paper != "" && c.brings == 0 {
		before = "100|0|0"
	}
	s.Shelf(soldBefore, before)
	if c.paper != "" {
		if n := shoptest.One[int64](s, `select count(*) from event where id = '~' || $1`, c.paper); n != 1 {
			t.Errorf("the document was applied %d times", n)
		}
	}
	s.Holds("tea", units+c.brings)
	account := load.Judge(units+c.brings, false)
	if mix != nil {
		r.Note("%v", mix.Judge())
	}
	switch now := s.Epoch(0); {
	case c.class == "" && now != epoch:
		t.Errorf("there was a takeover, from epoch %d to %d: Redis was well", epoch, now)
	case c.class != "" && now <= epoch:
		t.Errorf("there was no takeover")
	}
	if c.class != "" {
		if n := shoptest.One[int64](s, `select count(*) from repair where class = $1 and verb = 'takeover'`, c.class); n == 0 {
			t.Errorf("no takeover for class %q: %v", c.class, repairs(s))
		}
	}
	s.LogIsLedger()
	r.Note("a confirm persisted again after %.1f s; %s", paid.Sub(hit).Seconds(), account)
	s.Finish()
}

// flushLibrary makes a takeover necessary that loses nothing.
func flushLibrary(s *shoptest.Shop) {
	if err := s.RDB.FunctionFlush(s.T.Context()).Err(); err != nil {
		s.T.Error(err)
	}
}

const documentUnits = 7

func receive(s *shoptest.Shop) {
	insist(s, func(c *api.Client) (api.Document, error) {
		return c.Receive(s.T.Context(), "tea", &api.ReceiveRequest{DocumentID: "delivery-1", Quantity: documentUnits})
	})
}

// cancel takes back an order of a SKU of its own, which was sold before the fault.
func cancel(s *shoptest.Shop) {
	insist(s, func(c *api.Client) (api.Document, error) {
		return c.Cancel(s.T.Context(), soldBefore, &api.AmendRequest{DocumentID: "cancellation-1"})
	})
}

// soldBefore is a SKU, and an order of 2 units of it.
const soldBefore = "sold-before"

// insist sends a document until it is told to have been applied.
func insist(s *shoptest.Shop, send func(*api.Client) (api.Document, error)) {
	sandboxtest.Eventually(s.T, 2*shoptest.Patience, func() error {
		document, err := send(s.Patient(0))
		var problem *api.Problem
		switch {
		case err == nil && document.State == "applied":
			return nil
		case errors.As(err, &problem) && problem.Status != http.StatusServiceUnavailable && problem.Status != http.StatusGatewayTimeout:
			s.T.Errorf("the document was told %v", err)
		}
		return fmt.Errorf("the document is %q: %w", document.State, err)
	})
}

// repairs lists classes and verbs in order.
func repairs(s *shoptest.Shop) string {
	s.T.Helper()
	return shoptest.One[string](s, `select coalesce(string_agg(class || ' ' || verb, ', ' order by id), 'none') from repair`)
}
