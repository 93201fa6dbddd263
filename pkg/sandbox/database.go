package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	duplicateDatabase = "42P04"
	objectInUse       = "55006"
	// clonePatience is how long a clone waits for the last connections to its
	// template to go: a backend ends a little after its client has hung up.
	clonePatience = 10 * time.Second
)

// CreateDatabase makes an empty database, or finds it in a resumed folder, and
// returns its URL.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	err := p.execute(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if err != nil && sqlState(err) != duplicateDatabase {
		return "", fmt.Errorf("create the database %s: %w", name, err)
	}
	return p.URL(name), nil
}

// CloneDatabase makes a copy of a database and returns its URL. Nobody may be
// connected to the template; it waits up to 10 s for that.
func (p *Postgres) CloneDatabase(ctx context.Context, template, name string) (string, error) {
	statement := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s",
		pgx.Identifier{name}.Sanitize(), pgx.Identifier{template}.Sanitize())
	limit, cancel := context.WithTimeout(ctx, clonePatience)
	defer cancel()
	for {
		err := p.execute(ctx, statement)
		if err == nil {
			return p.URL(name), nil
		}
		if sqlState(err) != objectInUse || !pause(limit, pollEvery) {
			return "", fmt.Errorf("clone the database %s as %s: %w", template, name, err)
		}
	}
}

// DropDatabase removes a database and throws out who is connected to it. One
// that does not exist is fine.
func (p *Postgres) DropDatabase(ctx context.Context, name string) error {
	err := p.execute(ctx, fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", pgx.Identifier{name}.Sanitize()))
	if err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

func (p *Postgres) execute(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

func sqlState(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}
