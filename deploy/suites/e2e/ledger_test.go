package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestASlowPostgresAppliesEachOrderOnce: field case B5. Two consumers get at the same entries while every reply of
// Postgres is late.
func TestASlowPostgresAppliesEachOrderOnce(t *testing.T) {
	t.Run("1.2s", func(t *testing.T) {
		// Whoever has the shard is stopped, so that the other takes over in the middle; then both go on.
		slowPostgres(begin(t, "B5 Postgres 1.2 s late, shard passed on"), 1200*time.Millisecond, func(s *shop) {
			owner := s.owner(0)
			owner.pause()
			sandboxtest.Eventually(t, 2*patience, func() error {
				if now := s.owner(0); now == nil || now == owner {
					return errors.New("nobody else has the shard")
				}
				return nil
			})
			owner.resume()
		})
	})
	if !full {
		return
	}
	t.Run("3s", func(t *testing.T) {
		// No heartbeat comes through in its time: after 30 s the reconciler reads the log itself, beside the consumer.
		slowPostgres(begin(t, "B5 Postgres 3 s late"), 3*time.Second, func(s *shop) {
			sandboxtest.Eventually(t, 4*patience, func() error {
				if n := one[int64](s, `select count(*) from event where starts_with(body, 'R')`); n == 0 {
					return errors.New("nothing is persisted")
				}
				return nil
			})
			s.row.note("the reconciler stepped in %d times meanwhile", one[int64](s, `select count(*) from repair where class = 'gap-log'`))
		})
	})
}

func slowPostgres(r *row, delay time.Duration, meanwhile func(*shop)) {
	const orders = 500
	t := r.t
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1, slow: true})
	s.supply(10_000, "tea")
	s.ledgerPath.Delay(delay)
	crowd(orders, 32, func(i int) {
		s.told(reserve(t.Context(), s.client(i), fmt.Sprintf("o-%d", i), "tea", 1, 3600), http.StatusCreated)
	})
	if lag, err := s.lag(t.Context()); err != nil || lag == 0 {
		t.Errorf("a lag of %d entries (%v): Postgres was not slow", lag, err)
	}
	meanwhile(s)
	healed := time.Now()
	s.ledgerPath.Delay(0)
	s.drain()
	took := time.Since(healed)
	if took > 10*time.Second {
		t.Errorf("Postgres had everything %v after the fault's end", took)
	}
	if n := one[int64](s, `select count(distinct id) from event where starts_with(body, 'R')`); n != orders {
		t.Errorf("%d orders in Postgres", n)
	}
	ops := s.logIsLedger()
	s.shelf("tea", "9500|500|0")
	r.note("%d orders, %d operations, each once; lag 0 %.1f s after the fault's end", orders, ops, took.Seconds())
	s.finish()
}

// owner is the consumer that follows a shard, nil for none.
func (s *shop) owner(shard int) *role {
	s.t.Helper()
	assigned, err := s.ledger.Assignments(s.t.Context())
	need(s.t, err)
	for _, a := range assigned {
		for _, r := range s.living(consumer) {
			if a.Shard == shard && a.Consumer == r.name {
				return r
			}
		}
	}
	return nil
}

// TestAColumnIsAddedToEveryTableUnderLoad: field case E7.
func TestAColumnIsAddedToEveryTableUnderLoad(t *testing.T) {
	r := begin(t, "E7 a column for every table under load")
	s := open(r, plan{producers: 2, consumers: 2, reconcilers: 1, reconcilerArgs: []string{"--audit-every", "200ms"}})
	skus := names("tea", 8)
	s.supply(1_000_000, skus...)
	load := s.traffic(8, 40*time.Millisecond, false, skus...)
	reach := func(orders int64) {
		t.Helper()
		want := load.reserved.Load() + orders
		sandboxtest.Eventually(t, patience, func() error {
			if load.reserved.Load() < want {
				return fmt.Errorf("%d of %d orders", load.reserved.Load(), want)
			}
			return nil
		})
	}
	reach(50)
	rows, err := s.pool.Query(t.Context(), `select tablename from pg_tables where schemaname = 'public' and tablename not like 'goose%'`)
	need(t, err)
	var tables []string
	for rows.Next() {
		var table string
		need(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	need(t, rows.Err())
	for _, table := range tables {
		s.exec(fmt.Sprintf("alter table %q add column suite_note text not null default ''", table))
	}
	if n := one[int64](s, `select count(*) from information_schema.columns where column_name = 'suite_note'`); n != int64(len(tables)) || n == 0 {
		t.Errorf("%d of %d tables have the column", n, len(tables))
	}
	reach(size[int64](200, 2_000))
	load.stop()
	for status, n := range counts(load.answers()) {
		if status != http.StatusCreated {
			t.Errorf("%d reservations were answered %d", n, status)
		}
	}
	failures := 0.0
	for _, c := range s.living(consumer) {
		n := c.metric("stockpipe_consumer_errors_total")
		if n > 1 {
			t.Errorf("%s had %v failed batches: %s", c.name, n, c.log.tail())
		}
		failures += n
	}
	for _, c := range s.living(reconciler) {
		if n := c.metric("stockpipe_reconciler_failures_total"); n > 1 {
			t.Errorf("%s had %v failed rounds: %s", c.name, n, c.log.tail())
		}
	}
	// A takeover reads what neither consumers nor audits do.
	if out, complaint, code := s.takeOver(); code != 0 {
		t.Errorf("a takeover afterwards: exit %d: %s%s", code, out, complaint)
	}
	r.note("%d tables altered while %d orders came: %v failed batches, every reservation 201, a takeover afterwards opened", len(tables), load.reserved.Load(), failures)
	s.finish()
}

// takeOver stops the reconcilers and takes shard 0 over as an operator would.
func (s *shop) takeOver() (stdout, stderr string, code int) {
	s.t.Helper()
	for _, r := range s.living(reconciler) {
		r.stop()
	}
	return s.command("takeover", "--shard", "0")
}

// TestManyProcessesMigrateAtOnce: field case F1. Here a command migrates and the roles check; so as many run it at
// once as would start together, one of them is killed, and then all roles come at the same time.
func TestManyProcessesMigrateAtOnce(t *testing.T) {
	r := begin(t, "F1 replicas migrate and start at once")
	rounds := size(1, 5)
	applied := ""
	for range rounds {
		applied = migrateAndStart(r)
	}
	r.note("%d rounds of 5 migrations at once on an empty database, one killed; versions applied: %s; 3 consumers and 2 reconcilers started at once became ready", rounds, applied)
}

func migrateAndStart(r *row) string {
	t := r.t
	s := found(r, plan{bare: true})
	killed, err := sandbox.StartProcess(t.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(programs(t), reconciler), Args: []string{"migrate"}, Env: s.environment(reconciler),
	})
	need(t, err)
	var wait sync.WaitGroup
	codes := make([]int, 5)
	complaints := make([]string, len(codes))
	for i := range codes {
		wait.Go(func() { _, complaints[i], codes[i] = s.command("migrate") })
	}
	sandboxtest.Eventually(t, patience, func() error { // the moment at which somebody is at it
		if one[int64](s, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`) == 0 {
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
	if n := one[int64](s, `select count(*) from goose_db_version where version_id > 0`); n != one[int64](s, `select count(distinct version_id) from goose_db_version where version_id > 0`) {
		t.Error("a version was applied twice")
	}
	s.openLedger()
	for i := range 2 {
		wait.Go(func() {
			if _, complaint, code := s.command("init", "--shards", "1"); code != 0 {
				t.Errorf("init %d: exit %d: %s", i, code, complaint)
			}
		})
	}
	wait.Wait()
	for range 3 {
		wait.Go(func() { s.start(consumer) })
	}
	for range 2 {
		wait.Go(func() { s.start(reconciler) })
	}
	wait.Wait()
	s.start(producer)
	s.awaitReady()
	if n := len(s.living(consumer)); n != 3 {
		t.Errorf("%d consumers live", n)
	}
	s.supply(10, "tea")
	s.told(reserve(t.Context(), s.client(0), "o1", "tea", 1, 3600), http.StatusCreated)
	s.finish()
	return one[string](s, `select string_agg(version_id::text, ',' order by version_id) from goose_db_version where version_id > 0`)
}
