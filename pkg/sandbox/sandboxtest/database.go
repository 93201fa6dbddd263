package sandboxtest

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// Migrate brings an empty database to its schema. It closes its connections
// before it returns.
type Migrate func(ctx context.Context, url string) error

// template is a migrated database that the tests' own are copied from.
type template struct {
	once sync.Once
	name string
	err  error
}

var templates struct {
	mu    sync.Mutex
	byKey map[any]*template
}

// Database is the URL of a fresh database for this test on the binary's
// Postgres, dropped at the test's end. The migrations run once for each binary
// and migrate function, then databases are copied (60-75 ms). Closures of one
// function literal count as the same function: use NamedDatabase where they
// migrate differently. A nil function gives an empty database.
func Database(t testing.TB, migrate Migrate) (url string) {
	t.Helper()
	return database(t, Postgres(t), reflect.ValueOf(migrate).Pointer(), migrate)
}

// NamedDatabase is Database with the template kept under a name of the caller's
// choice instead of the function.
func NamedDatabase(t testing.TB, name string, migrate Migrate) (url string) {
	t.Helper()
	return database(t, Postgres(t), name, migrate)
}

func database(t testing.TB, server *sandbox.Postgres, key any, migrate Migrate) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	from := templateFor(key)
	from.once.Do(func() { from.err = from.make(ctx, server, migrate) })
	if from.err != nil {
		t.Fatalf("sandboxtest: migrate the template database: %v", from.err)
	}
	name := fmt.Sprintf("test_%d", count.Add(1))
	url, err := server.CloneDatabase(ctx, from.name, name)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() {
		if err := server.DropDatabase(context.Background(), name); err != nil {
			t.Errorf("sandboxtest: %v", err)
		}
	})
	return url
}

func templateFor(key any) *template {
	templates.mu.Lock()
	defer templates.mu.Unlock()
	if templates.byKey == nil {
		templates.byKey = map[any]*template{}
	}
	if templates.byKey[key] == nil {
		templates.byKey[key] = &template{name: fmt.Sprintf("template_%d", len(templates.byKey)+1)}
	}
	return templates.byKey[key]
}

func (d *template) make(ctx context.Context, server *sandbox.Postgres, migrate Migrate) error {
	url, err := server.CreateDatabase(ctx, d.name)
	if err != nil {
		return err
	}
	if migrate != nil {
		if err := migrate(ctx, url); err != nil {
			return err
		}
	}
	// A pool that a migration left open would make every copy fail.
	conn, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{d.name}.Sanitize()+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", d.name)
	return err
}
