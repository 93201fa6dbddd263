package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// PoolerOptions shape a private pgbouncer.
type PoolerOptions struct {
	Name string // of its folder; empty: pooler, pooler-2, …

	// Target is the Postgres behind it.
	Target *Postgres
	// Users may come in beside the superuser, with their passwords, which are
	// those that Postgres knows.
	Users map[string]string
	// Settings are further lines of the section pgbouncer; they override.
	Settings map[string]string
}

// Pooler is a pgbouncer that hands out sessions by transaction.
type Pooler struct {
	*Server
	target *Postgres
}

// URL is that of a database of the target, through the pooler, as the
// superuser.
func (p *Pooler) URL(database string) string {
	u, err := url.Parse(p.target.URL(database))
	if err != nil { // it was made by URL.String
		return err.Error()
	}
	u.Host = p.Addr()
	return u.String()
}

// StartPooler starts a pgbouncer and returns when Postgres answers through it.
// The error wraps ErrNoBinary where it is not installed.
func (s *Stack) StartPooler(ctx context.Context, options PoolerOptions) (*Pooler, error) {
	program, err := findPooler()
	if err != nil {
		return nil, err
	}
	name, err := s.claim(options.Name, "pooler")
	if err != nil {
		return nil, err
	}
	user := serverOwner() // it refuses root, as Postgres does
	dir, err := s.folderFor(name, user)
	if err != nil {
		s.release(name, nil)
		return nil, err
	}
	server := &Server{stack: s, name: name, dir: dir, launch: &poolerLauncher{program, dir, user, options}}
	if err := server.start(ctx); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if err := s.adopt(server); err != nil {
		return nil, err
	}
	return &Pooler{Server: server, target: options.Target}, nil
}

func findPooler() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	for _, path := range []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"} {
		if executable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("pgbouncer is %w: %s", ErrNoBinary, remedy("pgbouncer", "pgbouncer"))
}

type poolerLauncher struct {
	program string
	dir     string
	owner   *owner
	set     PoolerOptions
}

// options writes the settings, too, which have the port. Where that fails the
// program says what it cannot read.
func (l *poolerLauncher) options(port int) ProcessOptions {
	file := filepath.Join(l.dir, "pgbouncer.ini")
	_ = errors.Join(
		os.WriteFile(filepath.Join(l.dir, "users"), []byte(l.users()), 0o600), l.owner.give(filepath.Join(l.dir, "users")),
		os.WriteFile(file, []byte(l.settings(port)), 0o600), l.owner.give(file),
	)
	return ProcessOptions{Path: l.program, Args: []string{file}, Env: serverEnv(l.dir), Dir: l.dir, owner: l.owner}
}

func (l *poolerLauncher) settings(port int) string {
	host, at, _ := net.SplitHostPort(l.set.Target.Addr())
	lines := []string{
		"[databases]", "* = host=" + host + " port=" + at,
		"[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(port), "unix_socket_dir =",
		"auth_type = scram-sha-256", "auth_file = " + filepath.Join(l.dir, "users"),
		"pool_mode = transaction", "max_client_conn = 500", "default_pool_size = 20",
	}
	for name, value := range l.set.Settings {
		lines = append(lines, name+" = "+value)
	}
	return strings.Join(lines, "\n") + "\n"
}

func (l *poolerLauncher) users() string {
	line := func(name, password string) string { return fmt.Sprintf("%q %q\n", name, password) }
	text := ""
	if super := l.set.Target.base.User; super != nil {
		password, _ := super.Password()
		text = line(super.Username(), password)
	}
	for name, password := range l.set.Users {
		text += line(name, password)
	}
	return text
}

// stop: until version 1.22 SIGTERM ends it at once, from then on SIGQUIT does.
func (l *poolerLauncher) stop() []step {
	return []step{{sigTerminate, time.Second}, {sigQuit, 3 * time.Second}}
}

// ready asks Postgres through it; the random password tells our server from
// one that took the port before it.
func (l *poolerLauncher) ready(ctx context.Context, port, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u := l.set.Target.base
	u.Host = loopback(port)
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return errors.New("the URL of the Postgres behind it cannot be read")
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "select 1")
	return errors.Join(err, conn.Close(ctx))
}
