package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestASlowPostgresAppliesEachOrderOnce: field case B5. Two consumers get at the same entries while every reply of
// Postgres is late.
func TestASlowPostgresAppliesEachOrderOnce(t *testing.T) {
	t.Run("1.2s", func(t *testing.T) {
		// Whoever has the shard is stopped, so that the other takes over in the middle; then both go on.
		slowPostgres(shoptest.Begin(t, "B5 Postgres 1.2 s late, shard passed on"), 1200*time.Millisecond, func(s *shoptest.Shop) {
			owner := s.Owner(0)
			owner.Pause()
			sandboxtest.Eventually(t, 2*shoptest.Patience, func() error {
				if now := s.Owner(0); now == nil || now == owner {
					return errors.New("nobody else has the shard")
				}
				return nil
			})
			owner.Resume()
		})
	})
	if !shoptest.Full {
		return
	}
	t.Run("3s", func(t *testing.T) {
		// No heartbeat comes through in its time: after 30 s the reconciler reads the log itself, beside the consumer.
		slowPostgres(shoptest.Begin(t, "B5 Postgres 3 s late"), 3*time.Second, func(s *shoptest.Shop) {
			sandboxtest.Eventually(t, 4*shoptest.Patience, func() error {
				if n := shoptest.One[int64](s, `select count(*) from event where starts_with(body, 'R')`); n == 0 {
					return errors.New("nothing is persisted")
				}
				return nil
			})
			s.Row.Note("the reconciler stepped in %d times meanwhile", shoptest.One[int64](s, `select count(*) from repair where class = 'gap-log'`))
		})
	})
}

func slowPostgres(r *shoptest.Row, delay time.Duration, meanwhile func(*shoptest.Shop)) {
	const orders = 500
	t := r.T
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, Slow: true})
	s.Supply(10_000, "tea")
	s.LedgerPath.Delay(delay)
	shoptest.Crowd(orders, 32, func(i int) {
		s.Told(shoptest.Reserve(t.Context(), s.Client(i), fmt.Sprintf("o-%d", i), "tea", 1, 3600), http.StatusCreated)
	})
	if lag, err := s.Lag(t.Context()); err != nil || lag == 0 {
		t.Errorf("a lag of %d entries (%v): Postgres was not slow", lag, err)
	}
	meanwhile(s)
	healed := time.Now()
	s.LedgerPath.Delay(0)
	s.Drain()
	took := time.Since(healed)
	if took > 10*time.Second {
		t.Errorf("Postgres had everything %v after the fault's end", took)
	}
	if n := shoptest.One[int64](s, `select count(distinct id) from event where starts_with(body, 'R')`); n != orders {
		t.Errorf("%d orders in Postgres", n)
	}
	ops := s.LogIsLedger()
	s.Shelf("tea", "9500|500|0")
	r.Note("%d orders, %d operations, each once; lag 0 %.1f s after the fault's end", orders, ops, took.Seconds())
	s.Finish()
}

// TestAColumnIsAddedToEveryTableUnderLoad: field case E7.
func TestAColumnIsAddedToEveryTableUnderLoad(t *testing.T) {
	r := shoptest.Begin(t, "E7 a column for every table under load")
	s := shoptest.Open(r, shoptest.Plan{Producers: 2, Consumers: 2, Reconcilers: 1, ReconcilerArgs: []string{"--audit-every", "200ms"}})
	skus := shoptest.Names("tea", 8)
	s.Supply(1_000_000, skus...)
	load := s.Traffic(8, 40*time.Millisecond, false, skus...)
	reach := func(orders int64) {
		t.Helper()
		want := load.Reserved.Load() + orders
		sandboxtest.Eventually(t, shoptest.Patience, func() error {
			if load.Reserved.Load() < want {
				return fmt.Errorf("%d of %d orders", load.Reserved.Load(), want)
			}
			return nil
		})
	}
	reach(50)
	rows, err := s.Pool.Query(t.Context(), `select tablename from pg_tables where schemaname = 'public' and tablename not like 'goose%'`)
	shoptest.Need(t, err)
	var tables []string
	for rows.Next() {
		var table string
		shoptest.Need(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	shoptest.Need(t, rows.Err())
	for _, table := range tables {
		s.Exec(fmt.Sprintf("alter table %q add column suite_note text not null default ''", table))
	}
	if n := shoptest.One[int64](s, `select count(*) from information_schema.columns where column_name = 'suite_note'`); n != int64(len(tables)) || n == 0 {
		t.Errorf("%d of %d tables have the column", n, len(tables))
	}
	reach(shoptest.Size[int64](200, 2_000))
	load.Stop()
	for status, n := range shoptest.Counts(load.Answers()) {
		if status != http.StatusCreated {
			t.Errorf("%d reservations were answered %d", n, status)
		}
	}
	failures := 0.0
	for _, c := range s.Living(shoptest.Consumer) {
		n := c.Metric("stockpipe_consumer_errors_total")
		if n > shoptest.Size(5.0, 1) { // beside other suites a machine may be too slow for a heartbeat
			t.Errorf("%s had %v failed batches: %s", c.Name, n, c.Log.Tail())
		}
		failures += n
	}
	for _, c := range s.Living(shoptest.Reconciler) {
		if n := c.Metric("stockpipe_reconciler_failures_total"); n > shoptest.Size(5.0, 1) {
			t.Errorf("%s had %v failed rounds: %s", c.Name, n, c.Log.Tail())
		}
	}
	// A takeover reads what neither consumers nor audits do.
	if out, complaint, code := s.TakeOver(); code != 0 {
		t.Errorf("a takeover afterwards: exit %d: %s%s", code, out, complaint)
	}
	r.Note("%d tables altered while %d orders came: %v failed batches, every reservation 201, a takeover afterwards opened", len(tables), load.Reserved.Load(), failures)
	s.Finish()
}

// TestManyProcessesMigrateAtOnce: field case F1. Here a command migrates and the roles check; so as many run it at
// once as would start together, one of them is killed, and then all roles come at the same time.
func TestManyProcessesMigrateAtOnce(t *testing.T) {
	r := shoptest.Begin(t, "F1 replicas migrate and start at once")
	rounds := shoptest.Size(1, 5)
	applied := ""
	for range rounds {
		applied = migrateAndStart(r)
	}
	r.Note("%d rounds of 5 migrations at once on an empty database, one killed; versions applied: %s; 3 consumers and 2 reconcilers started at once became ready", rounds, applied)
}

func migrateAndStart(r *shoptest.Row) string {
	t := r.T
	s := shoptest.Found(r, shoptest.Plan{Bare: true})
	killed, err := sandbox.StartProcess(t.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(shoptest.Programs(t, false), shoptest.Reconciler), Args: []string{"migrate"}, Env: s.Environment(shoptest.Reconciler),
	})
	shoptest.Need(t, err)
	var wait sync.WaitGroup
	codes := make([]int, 5)
	complaints := make([]string, len(codes))
	for i := range codes {
		wait.Go(func() { _, complaints[i], codes[i] = s.Command("migrate") })
	}
	sandboxtest.Eventually(t, shoptest.Patience, func() error { // the moment at which somebody is at it
		if shoptest.One[int64](s, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`) == 0 {
			return errors.New("nobody migrates")
		}
		return nil
	})
	killed.Kill()
	wait.Wait()
	for i, code := range codes {
		if code != 0 {
			t.Errorf("migration %d: exit %d: %s", i, code, complaints[i])
		}
	}
	if n := shoptest.One[int64](s, `select count(*) from goose_db_version where version_id > 0`); n != shoptest.One[int64](s, `select count(distinct version_id) from goose_db_version where version_id > 0`) {
		t.Error("a version was applied twice")
	}
	s.OpenLedger()
	for i := range 2 {
		wait.Go(func() {
			if _, complaint, code := s.Command("init", "--shards", "1"); code != 0 {
				t.Errorf("init %d: exit %d: %s", i, code, complaint)
			}
		})
	}
	wait.Wait()
	for range 3 {
		wait.Go(func() { s.Start(shoptest.Consumer) })
	}
	for range 2 {
		wait.Go(func() { s.Start(shoptest.Reconciler) })
	}
	wait.Wait()
	s.Start(shoptest.Producer)
	s.AwaitReady()
	if n := len(s.Living(shoptest.Consumer)); n != 3 {
		t.Errorf("%d consumers live", n)
	}
	s.Supply(10, "tea")
	s.Told(shoptest.Reserve(t.Context(), s.Client(0), "o1", "tea", 1, 3600), http.StatusCreated)
	s.Finish()
	return shoptest.One[string](s, `select string_agg(version_id::text, ',' order by version_id) from goose_db_version where version_id > 0`)
}
