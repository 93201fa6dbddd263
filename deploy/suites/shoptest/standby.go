package shoptest

import (
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// A Standby follows the shop's Postgres along a path that a row can cut.
type Standby struct {
	*sandbox.Postgres
	Path *faultproxy.Proxy // from the primary
}

// Standby makes one and waits until it streams; a synchronous one is waited for by every commit from then on. The
// shop's Plan has a Postgres of its own and says Watched, so that the roles can be led to the standby later.
func (s *Shop) Standby(synchronous bool) *Standby {
	s.T.Helper()
	if s.Plan.Postgres == nil || !s.Plan.Watched {
		s.T.Fatal("a shop with a standby has a Postgres of its own, and roles that reach it through LedgerPath: say Postgres and Watched in its plan")
	}
	second := &Standby{Path: sandboxtest.Proxy(s.T, s.Postgres.Addr())}
	second.Postgres = sandboxtest.Standby(s.T, s.Postgres, sandbox.StandbyOptions{
		PostgresOptions: *s.Plan.Postgres, Upstream: second.Path.Addr(), KnownAs: "second",
	})
	want := "async"
	if synchronous {
		want = "sync"
		s.Exec(`alter system set synchronous_standby_names = 'second'`)
		s.Exec(`select pg_reload_conf()`)
	}
	sandboxtest.Eventually(s.T, Patience, func() error {
		var state, sync string
		err := s.Pool.QueryRow(s.T.Context(), `select state, sync_state from pg_stat_replication where application_name = 'second'`).Scan(&state, &sync)
		if err == nil && (state != "streaming" || sync != want) {
			err = fmt.Errorf("the standby is %s, %s", state, sync)
		}
		return err
	})
	return second
}

// Promote ends the shop's Postgres and makes the standby its successor. From here on the row itself looks there; the
// roles still look for the old one, until Reunite.
func (s *Shop) Promote(second *Standby) {
	s.T.Helper()
	Need(s.T, s.Postgres.Kill())
	Need(s.T, second.Promote(s.T.Context()))
	s.Postgres, s.URL = second.Postgres, second.URL(s.Pool.Config().ConnConfig.Database)
	pool, err := pgxpool.New(s.T.Context(), s.URL)
	Need(s.T, err)
	s.T.Cleanup(pool.Close)
	s.Pool = pool
	s.OpenLedger()
}

// Reunite leads the roles to the Postgres that the row itself looks at.
func (s *Shop) Reunite() {
	s.LedgerPath.Retarget(s.Postgres.Addr())
	s.LedgerPath.CloseAll()
}

// LedgerPaths gives each kind of role a path of its own to Postgres. To be called before the first role starts.
func (s *Shop) LedgerPaths() map[string]*faultproxy.Proxy {
	s.T.Helper()
	config := s.Pool.Config().ConnConfig
	paths := map[string]*faultproxy.Proxy{}
	for _, kind := range []string{Producer, Consumer, Reconciler} {
		paths[kind] = sandboxtest.Proxy(s.T, s.Postgres.Addr())
	}
	s.Plan.PostgresOf = func(kind string) string {
		return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", config.User, config.Password, paths[kind].Addr(), config.Database)
	}
	return paths
}

// Renew replaces all roles of a kind by fresh processes, which have prepared no statement yet.
func (s *Shop) Renew(kind string) {
	s.T.Helper()
	old := s.Living(kind)
	for range old {
		s.Start(kind)
	}
	for _, r := range old {
		r.Stop()
	}
	s.AwaitReady()
}

// Ended are the answers to confirms and releases so far.
func (l *Traffic) Ended() []Answer {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return slices.Clone(l.Ends)
}
