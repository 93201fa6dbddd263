package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// copyLimit bounds the copying of a primary: a few MB that lie in memory.
	copyLimit = 2 * time.Minute
	// promoteLimit bounds a promotion, in which nothing is copied.
	promoteLimit = time.Minute
)

// ErrNoStandby is wrapped by Promote of a server that follows nobody.
var ErrNoStandby = errors.New("it is no standby")

// StandbyOptions shape a standby.
type StandbyOptions struct {
	PostgresOptions // as of any Postgres; max_connections must not be below the primary's

	// Upstream is the host:port at which the standby follows its primary, for a path that a test cuts; empty means
	// the primary itself. The first copy is always taken from the primary.
	Upstream string
	// KnownAs is its application_name, by which synchronous_standby_names chooses it; empty means its folder's name.
	KnownAs string
}

// StartStandby copies a running private Postgres into a folder of its own and follows it by streaming. It returns
// when the standby answers reads, about two seconds later; whether it has caught up stands in the primary's
// pg_stat_replication. The user's own Postgres is not copied: ErrForeign.
func (s *Stack) StartStandby(ctx context.Context, primary *Postgres, options StandbyOptions) (*Postgres, error) {
	if primary.cluster == nil {
		return nil, fmt.Errorf("copy a Postgres: %w", ErrForeign)
	}
	name, err := s.claim(options.Name, "standby")
	if err != nil {
		return nil, err
	}
	c := &cluster{
		bin: primary.cluster.bin, dir: filepath.Join(s.folder.path, name), owner: primary.cluster.owner,
		closed: primary.cluster.closed, password: primary.cluster.password, set: options.PostgresOptions,
	}
	if options.Upstream == "" {
		options.Upstream = primary.Addr()
	}
	if options.KnownAs == "" {
		options.KnownAs = name
	}
	if err := c.copyOf(ctx, primary.Addr(), options); err != nil {
		s.release(name, nil)
		return nil, errors.Join(err, os.RemoveAll(c.dir))
	}
	server := &Server{stack: s, name: name, dir: c.dir, launch: c}
	if err := server.start(ctx); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if err := s.adopt(server); err != nil {
		return nil, err
	}
	return &Postgres{Server: server, base: c.url(0), cluster: c}, nil
}

// Promote makes a standby a primary, on a new timeline, and returns when it takes writes. It does not touch the old
// one: kill that first, or there are two. ErrNoStandby, wrapped, of a server that follows nobody.
func (p *Postgres) Promote(ctx context.Context) error {
	if p.cluster == nil {
		return fmt.Errorf("promote a Postgres: %w", ErrForeign)
	}
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return fmt.Errorf("promote %s: %w", p.name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var follows, promoted bool
	if err := conn.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&follows); err != nil {
		return fmt.Errorf("promote %s: %w", p.name, err)
	}
	if !follows {
		return fmt.Errorf("promote %s: %w", p.name, ErrNoStandby)
	}
	if err := conn.QueryRow(ctx, "select pg_promote(true, $1)", int(promoteLimit.Seconds())).Scan(&promoted); err != nil {
		return fmt.Errorf("promote %s: %w", p.name, err)
	}
	if !promoted {
		return fmt.Errorf("promote %s: it did not become a primary within %v: %s", p.name, promoteLimit, p.tail(0))
	}
	return nil
}

// copyOf fills the cluster's folder with a copy of a running primary that will start as its standby.
func (c *cluster) copyOf(ctx context.Context, primary string, options StandbyOptions) error {
	if _, err := os.Stat(c.dir); err == nil {
		return fmt.Errorf("the folder %s of a standby is there already: name another one, or remove it", c.dir)
	}
	if err := c.makeFolder(c.dir); err != nil {
		return err
	}
	if err := c.baseBackup(ctx, primary); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(options.Upstream)
	if err != nil {
		return fmt.Errorf("the standby's upstream %q is no host:port: %w", options.Upstream, err)
	}
	conninfo := fmt.Sprintf("host=%s port=%s user=%s password=%s sslmode=disable application_name=%s",
		host, port, superuser, c.password, options.KnownAs)
	// A file and not an argument, which everybody on the machine could read.
	if err := c.write("postgresql.auto.conf", "primary_conninfo = '"+strings.ReplaceAll(conninfo, "'", "''")+"'\n"); err != nil {
		return err
	}
	return c.write("standby.signal", "")
}

// baseBackup copies the primary's files, and the log that was written meanwhile.
func (c *cluster) baseBackup(ctx context.Context, primary string) error {
	program := filepath.Join(c.bin, "pg_basebackup")
	if !executable(program) {
		return fmt.Errorf("pg_basebackup is %w beside initdb in %s: %s", ErrNoBinary, c.bin, remedy("postgresql", "postgresql"))
	}
	ctx, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	host, port, err := net.SplitHostPort(primary)
	if err != nil {
		return fmt.Errorf("the address %q of the primary: %w", primary, err)
	}
	set := c.enter(c.dir, ProcessOptions{
		Path: program, Args: []string{"-h", host, "-p", port, "-U", superuser, "-X", "stream", "-c", "fast", "--no-sync"},
	})
	set.Env = append(set.Env, "PGPASSWORD="+c.password)
	if err := c.run(ctx, set); err != nil {
		return fmt.Errorf("copy the primary: %w", err)
	}
	return nil
}

// write makes a file in the data folder, the owner's.
func (c *cluster) write(name, text string) error {
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write %s of a standby: %w", name, err)
	}
	if err := c.owner.give(path); err != nil {
		return fmt.Errorf("give %s of a standby to its user: %w", name, err)
	}
	return nil
}
