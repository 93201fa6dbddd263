package access

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Producers and consumers come through a pgbouncer that hands out sessions by transaction, as their own users.
func TestAShopBehindAPooler(t *testing.T) {
	r := shoptest.Begin(t, "producer and consumers behind pgbouncer")
	pooled := []string{"--postgres-mode", "pooled"}
	k := found(r, shoptest.Plan{Producers: 1, Consumers: 2, Reconcilers: 1, ProducerArgs: pooled, ConsumerArgs: pooled})
	users := map[string]string{}
	for _, kind := range kinds {
		users["stockpipe_"+kind] = passwordOf(kind)
	}
	pooler := sandboxtest.Pooler(t, sandbox.PoolerOptions{Target: k.Postgres, Users: users, Settings: map[string]string{"default_pool_size": "4"}})
	direct := k.Plan.PostgresOf
	through := func(kind string) string {
		u, err := url.Parse(direct(kind))
		shoptest.Need(t, err)
		u.Host = pooler.Addr()
		return u.String()
	}
	k.Plan.PostgresOf = func(kind string) string {
		if kind == shoptest.Reconciler {
			return direct(kind)
		}
		return through(kind)
	}
	k.StartAll()
	k.AwaitReady()
	k.Supply(1000, "tea")
	hold(k.Shop, "first", 600)
	began := time.Now()
	confirm(k.Shop, "first")
	r.Note("a confirm takes %v", time.Since(began).Round(time.Millisecond))
	state(k.Shop, "first", "confirmed")

	// Many at once over few sessions, each confirmed in Postgres.
	shoptest.Crowd(100, 16, func(i int) {
		order := fmt.Sprintf("crowd-%d", i)
		hold(k.Shop, order, 600)
		confirm(k.Shop, order)
	})
	if n := shoptest.One[int](k.Shop, `select count(*) from pg_stat_activity where usename in ('stockpipe_producer', 'stockpipe_consumer')`); n > 8 {
		t.Errorf("%d sessions are open: the pooler stands aside", n)
	}

	// A dead consumer is replaced; one that is stopped is, too.
	owner := k.Owner(0)
	owner.Kill()
	began = time.Now()
	hold(k.Shop, "second", 600)
	confirm(k.Shop, "second")
	r.Note("after a consumer died, %v", time.Since(began).Round(100*time.Millisecond))
	k.Start(shoptest.Consumer)
	k.AwaitReady()
	owner = k.Owner(0)
	owner.Pause()
	hold(k.Shop, "third", 600)
	confirm(k.Shop, "third")
	owner.Resume()

	// A restart of the pooler costs a moment.
	shoptest.Need(t, pooler.Restart(t.Context()))
	hold(k.Shop, "fourth", 600)
	confirm(k.Shop, "fourth")
	k.Finish()
	k.Shelf("tea", fmt.Sprintf("%d|0|%d", 1000-2*104, 2*104))
	k.noRefusals()
	k.refusesThePooler(through)
}

// refusesThePooler: what needs a session of its own says so, whether the mode is named or not.
func (k *keptShop) refusesThePooler(through func(string) string) {
	k.T.Helper()
	out, said, code := k.Command("serve", "--postgres-mode", "pooled")
	if code != 64 || !strings.Contains(said, "postgres-mode") || !strings.Contains(said, "Postgres itself") {
		k.T.Errorf("serve --postgres-mode=pooled ends with %d: %s%s", code, out, said)
	}
	k.Plan.PostgresOf = through
	for _, command := range []string{"serve", "migrate"} {
		out, said, code := k.Command(command)
		if code != 1 || !strings.Contains(said, "pooler") || !strings.Contains(said, "Postgres itself") {
			k.T.Errorf("%s through a pooler ends with %d: %s%s", command, code, out, said)
		}
	}
}
