package producerapp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func hold(id, sku string, quantity int64) *api.ReserveRequest {
	return &api.ReserveRequest{OrderID: id, TTL: 60, Lines: []api.Line{{SKU: sku, Quantity: quantity}}}
}

func TestAnOrderGoesThroughBothStores(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	const sku = "a/b ☕ }{|="
	doc := must[api.Document](t)(s.Create(ctx, sku, api.OpeningRequest{Opening: 10}))
	if doc.State != "applied" || doc.Level != api.Persisted {
		t.Errorf("%+v", doc)
	}
	held := must[api.Reservation](t)(s.Reserve(ctx, hold("o1", sku, 4)))
	if held.State != "held" || held.Level != api.Memory || held.ExpiresAt == "" {
		t.Errorf("%+v", held)
	}
	confirmed := must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{}))
	if confirmed.State != "confirmed" || !confirmed.IsPersisted() || confirmed.Lines[0] != (api.OrderLine{SKU: sku, Asked: 4, Quantity: 4}) {
		t.Errorf("%+v", confirmed)
	}
	must[api.Reservation](t)(s.Reserve(ctx, hold("o2", sku, 5)))
	released := must[api.Reservation](t)(s.Release(ctx, "o2", api.AttemptRequest{Ack: api.Persisted}))
	if released.State != "released" || !released.IsPersisted() {
		t.Errorf("%+v", released)
	}
	second := hold("o2", sku, 2) // an ended order, with other lines
	second.Attempt = 2
	must[api.Reservation](t)(s.Reserve(ctx, second))
	fresh := hold("o3", sku, 1) // a second attempt of which nobody knows a first
	fresh.Attempt = 2
	must[api.Reservation](t)(s.Reserve(ctx, fresh))
	_, err := s.Reserve(ctx, hold("o4", sku, 9))
	if p := problemOf(t, err); p.Code != api.CodeSoldOut || p.Lines[0].Available != 3 {
		t.Errorf("%+v", p)
	}
	must[api.Document](t)(s.Receive(ctx, sku, &api.ReceiveRequest{DocumentID: "d1", Quantity: 7}))
	refused := &api.AdjustRequest{DocumentID: "d2", Quantity: -11, Reason: "damaged"}
	for range 2 {
		_, err = s.Adjust(ctx, sku, refused)
		if p := problemOf(t, err); p.Code != api.CodeRefused || p.Lines[0].Available != 10 {
			t.Errorf("%+v", p)
		}
	}
	want := api.Quantities{Available: 10, Held: 3, Committed: 4, OnHand: 17}
	if diff := cmp.Diff(want, s.quantities(sku)); diff != "" {
		t.Error(diff)
	}
	found := must[api.Order](t)(s.Order(ctx, "o1", held.Receipt))
	if found.Standing != api.StandingPersisted || found.Matches[0].Redis.State != "confirmed" || found.Matches[0].Ledger.State != "confirmed" {
		t.Errorf("%+v", found)
	}
	_, err = s.Order(ctx, "o9", "")
	if p := problemOf(t, err); p.Code != api.CodeUnknownOrder {
		t.Errorf("%+v", p)
	}
	_, metrics, err := get(s.ops + "/metrics")
	check(t, err)
	for _, line := range []string{
		`stockpipe_http_requests_total{class="2xx",route="reserve"} 4`, `stockpipe_outcomes_total{code="sold_out"} 1`,
		`stockpipe_acks_total{level="persisted"}`, `stockpipe_desk_unclassified_total 0`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

func TestALostReplyNeitherTakesTwiceNorFails(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 100}))
	faults := map[string]func(faultproxy.Match) *faultproxy.Fault{"swallowed": s.proxy.SwallowReply, "cut": s.proxy.CutAfterExecution}
	n := 0
	for how, arm := range faults {
		id := "lost-" + how
		for _, call := range []struct {
			name string
			run  func() (api.Reservation, error)
			want string
		}{
			{"reserve", func() (api.Reservation, error) { return s.Reserve(ctx, hold(id, "tea", 3)) }, "held"},
			{"confirm", func() (api.Reservation, error) { return s.Confirm(ctx, id, api.AttemptRequest{}) }, "confirmed"},
		} {
			fault := arm(faultproxy.Contains(id))
			a, err := call.run()
			if err != nil || a.State != call.want {
				t.Errorf("%s, reply %s: %+v %v", call.name, how, a, err)
			}
			select {
			case <-fault.Done():
			default:
				t.Errorf("%s, reply %s: the fault did not happen", call.name, how)
			}
		}
		n++
	}
	if q := s.quantities("tea"); q.Committed != int64(3*n) || q.Available != int64(100-3*n) {
		t.Errorf("tea stands at %+v", q)
	}
}

func TestAConfirmIs202WhileConsumersRestAnd200Later(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 100}))
	must[api.Reservation](t)(s.Reserve(ctx, hold("o1", "tea", 3)))
	s.consumer.rest(true)
	first := must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{}))
	if first.IsPersisted() || first.State != "confirmed" {
		t.Errorf("%+v", first)
	}
	found := must[api.Order](t)(s.Order(ctx, "o1", first.Receipt))
	if found.Standing != api.StandingAccepted {
		t.Errorf("%+v", found)
	}
	s.consumer.rest(false)
	standing, err := s.Await(ctx, "o1", first.Receipt)
	if standing != api.StandingPersisted || err != nil {
		t.Errorf("%s %v", standing, err)
	}
	if again := must[api.Reservation](t)(s.Confirm(ctx, "o1", api.AttemptRequest{})); !again.IsPersisted() || again.Receipt != first.Receipt {
		t.Errorf("%+v", again)
	}
}

func TestNothingIsSoldAfterAFlushUntilTheTakeoverAndLossesAreTold(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 10}))
	must[api.Reservation](t)(s.Reserve(ctx, hold("kept", "tea", 2)))
	must[api.Reservation](t)(s.Confirm(ctx, "kept", api.AttemptRequest{}))
	s.quantities("tea")
	s.consumer.rest(true)
	lost := must[api.Reservation](t)(s.Reserve(ctx, hold("lost", "tea", 3)))
	check(t, s.rdb.FlushAll(ctx).Err())
	once := *s.Client
	once.Tries = 1
	_, err := once.Reserve(ctx, hold("o3", "tea", 1))
	if p := problemOf(t, err); p.Code != api.CodeClosed || p.Reason != "missing" {
		t.Errorf("%+v", p)
	}
	_, err = once.Confirm(ctx, "lost", api.AttemptRequest{})
	if p := problemOf(t, err); p.Code != api.CodeClosed {
		t.Errorf("%+v", p)
	}
	dark := must[api.Order](t)(s.Order(ctx, "lost", ""))
	if dark.Standing != api.StandingUnknown || len(dark.Incomplete) != 1 {
		t.Errorf("%+v", dark)
	}
	s.ready(false)
	s.takeover()
	s.consumer.rest(false)
	s.ready(true)
	if standing, err := s.Await(ctx, "lost", lost.Receipt); standing != api.StandingLost || err != nil {
		t.Errorf("%s %v", standing, err)
	}
	_, err = once.Confirm(ctx, "lost", api.AttemptRequest{})
	if p := problemOf(t, err); p.Code != api.CodeUnknownOrder {
		t.Errorf("%+v", p)
	}
	again := must[api.Reservation](t)(s.Reserve(ctx, hold("lost", "tea", 3)))
	if again.Replayed || again.Receipt == lost.Receipt {
		t.Errorf("%+v", again)
	}
	if a := must[api.Reservation](t)(s.Confirm(ctx, "kept", api.AttemptRequest{})); !a.Replayed || !a.IsPersisted() {
		t.Errorf("%+v", a)
	}
	want := api.Quantities{Available: 5, Held: 3, Committed: 2, OnHand: 10}
	if diff := cmp.Diff(want, s.quantities("tea")); diff != "" {
		t.Error(diff)
	}
}

func TestFourShardsServeOrdersWithinOne(t *testing.T) {
	t.Parallel()
	s := openShop(t, 4)
	ctx := t.Context()
	byShard := map[int]string{}
	for i := range 40 {
		sku := fmt.Sprint("sku ", i)
		must[api.Document](t)(s.Create(ctx, sku, api.OpeningRequest{Opening: 5}))
		byShard[must[api.Stock](t)(s.Stock(ctx, sku)).Shard] = sku
	}
	if len(byShard) != 4 {
		t.Fatalf("40 SKUs went to %d shards", len(byShard))
	}
	for n, sku := range byShard {
		id := fmt.Sprint("o", n)
		must[api.Reservation](t)(s.Reserve(ctx, hold(id, sku, 2)))
		if a := must[api.Reservation](t)(s.Confirm(ctx, id, api.AttemptRequest{})); !a.IsPersisted() || !strings.HasPrefix(a.Receipt, fmt.Sprint(n, ".")) {
			t.Errorf("%+v", a)
		}
	}
	cart := hold("cart", byShard[0], 1)
	cart.Lines = append(cart.Lines, api.Line{SKU: byShard[1], Quantity: 1})
	_, err := s.Reserve(ctx, cart)
	if p := problemOf(t, err); p.Code != api.CodeShards {
		t.Errorf("%+v", p)
	}
	_, err = s.Confirm(ctx, "nobody", api.AttemptRequest{})
	if p := problemOf(t, err); p.Code != api.CodeUnknownOrder {
		t.Errorf("%+v", p)
	}
	s.consumer.rest(true)
	check(t, s.rdb.FlushAll(ctx).Err())
	once := *s.Client
	once.Tries = 1
	_, err = once.Confirm(ctx, "nobody", api.AttemptRequest{})
	if p := problemOf(t, err); p.Code != api.CodeClosed {
		t.Errorf("%+v", p)
	}
}

func TestExactlyTheStockIsSoldThroughTwoProducers(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 300}))
	other := *s
	other.config.API.Addr, other.config.Ops.Addr = freeAddress(t), freeAddress(t)
	other.Client, other.ops = api.NewClient("http://"+other.config.API.Addr), "http://"+other.config.Ops.Addr
	other.HTTP = s.HTTP
	other.run()
	var sold, refused atomic.Int64
	var callers sync.WaitGroup
	for n := range 64 {
		callers.Go(func() {
			for i := range 10 {
				client := []*api.Client{s.Client, other.Client}[i%2]
				_, err := client.Reserve(ctx, hold(fmt.Sprintf("o-%d-%d", n, i), "tea", 1))
				var p *api.Problem
				switch {
				case err == nil:
					sold.Add(1)
				case errors.As(err, &p) && p.Code == api.CodeSoldOut:
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	if sold.Load() != 300 || refused.Load() != 340 {
		t.Errorf("%d sold, %d refused", sold.Load(), refused.Load())
	}
	if q := s.quantities("tea"); q.Held != 300 || q.Available != 0 {
		t.Errorf("tea stands at %+v", q)
	}
}

func TestWhatIsMissingAtTheStartIsNamedWithItsRemedy(t *testing.T) {
	t.Parallel()
	good := sandboxtest.Redis(t)
	migrated := sandboxtest.Database(t, migrations.Up)
	empty := sandboxtest.Database(t, nil)
	l := must[*ledger.Ledger](t)(ledger.Open(t.Context(), ledger.Config{URL: migrated, Name: "test"}))
	defer l.Close()
	noShards := sandboxtest.Database(t, migrations.Up)
	check(t, l.Init(t.Context(), 1))
	nobody := "redis://" + freeAddress(t) + "/0"
	for _, row := range []struct {
		name, redis, postgres string
		want                  []string
	}{
		{"no Postgres", good.URL(), "postgres://" + freeAddress(t) + "/stockpipe", []string{"Postgres", "start it"}},
		{"an empty database", good.URL(), empty, []string{"stockpipe-reconciler migrate"}},
		{"no shards", good.URL(), noShards, []string{"stockpipe-reconciler init"}},
		{"no Redis", nobody, migrated, []string{"Redis at", "start it"}},
		{"eviction", redisWith(t, sandbox.RedisOptions{Policy: "allkeys-lru"}), migrated, []string{"maxmemory-policy", "allkeys-lru", "redis-cli CONFIG SET maxmemory-policy noeviction"}},
		{"no AOF", redisWith(t, sandbox.RedisOptions{NoAOF: true}), migrated, []string{"appendonly", "redis-cli CONFIG SET appendonly yes"}},
		{"no memory bound", redisWith(t, sandbox.RedisOptions{MaxMemory: "0"}), migrated, []string{"maxmemory", "redis-cli CONFIG SET maxmemory"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := Run(ctx, settings(t, row.redis, row.postgres))
		cancel()
		if err == nil {
			t.Errorf("%s: it starts", row.name)
			continue
		}
		for _, part := range row.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", row.name, err, part)
			}
		}
	}
}

func redisWith(t *testing.T, o sandbox.RedisOptions) string {
	t.Helper()
	return sandboxtest.Redis(t, o).URL()
}

func TestARequestInFlightIsFinishedByTheStop(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	ctx := t.Context()
	must[api.Document](t)(s.Create(ctx, "tea", api.OpeningRequest{Opening: 10}))
	must[api.Reservation](t)(s.Reserve(ctx, hold("o1", "tea", 1)))
	other := *s
	other.config.API.Addr, other.config.Ops.Addr = freeAddress(t), freeAddress(t)
	stopped := make(chan error, 1)
	life, stop := context.WithCancel(context.Background())
	go func() { stopped <- Run(life, other.config) }()
	client := api.NewClient("http://" + other.config.API.Addr)
	client.HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	sandboxtest.Eventually(t, 10*time.Second, func() error { _, err := client.Stock(ctx, "tea"); return err })
	s.consumer.rest(true)
	answered := make(chan api.Reservation, 1)
	go func() {
		a, err := client.Confirm(ctx, "o1", api.AttemptRequest{}) // waits 2 s for its level
		if err != nil {
			t.Error(err)
		}
		answered <- a
	}()
	sandboxtest.Eventually(t, 5*time.Second, func() error {
		o, err := s.Order(ctx, "o1", "")
		if err == nil && o.Matches[0].Redis.State != "confirmed" {
			err = errors.New("not confirmed yet")
		}
		return err
	})
	stop()
	if a := <-answered; a.State != "confirmed" || a.IsPersisted() {
		t.Errorf("%+v", a)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	producers := must[[]ledger.Producer](t)(s.ledger.Producers(ctx, time.Minute))
	if len(producers) != 1 {
		t.Errorf("%d producers stand in the table after the stop of one of two", len(producers))
	}
}
