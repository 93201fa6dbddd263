package config

// Postgres says where the ledger is. Embed it with `embed:"" prefix:"postgres-"`.
type Postgres struct {
	URL          URL    `name:"url" default:"postgres://127.0.0.1:5432/stockpipe?sslmode=disable" help:"Postgres; sslmode=verify-full&sslrootcert=FILE for TLS that is verified. Put a password in the file below or in the environment, not on the command line."`
	PasswordFile string `name:"password-file" placeholder:"FILE" help:"File that holds the password of Postgres."`
	Mode         string `name:"mode" enum:"direct,pooled" default:"direct" help:"pooled where a pooler that hands out sessions by transaction (pgbouncer) stands at --postgres-url: nothing is left in a session, and notices are looked for every 50 ms. Migrations and the reconciler need direct."`
	MaxConns     int32  `name:"max-conns" default:"8" help:"Connections of the pool at most, 2 to 200."`
}

// Validate names the flag, its value and what would be accepted.
func (p Postgres) Validate() error {
	if p.MaxConns < 2 || p.MaxConns > 200 {
		return Bound("postgres-max-conns", p.MaxConns, "use 2 to 200")
	}
	_, err := p.Connection()
	return err
}

// Pooled says whether a pooler stands in between.
func (p Postgres) Pooled() bool { return p.Mode == "pooled" }

// Connection is the URL with the password of the file: a secret, for the driver alone.
func (p Postgres) Connection() (string, error) {
	parsed, err := p.URL.check("postgres-url", "postgres", "postgresql")
	if err != nil {
		return "", err
	}
	return p.URL.withPassword(parsed, "postgres-password-file", p.PasswordFile)
}
