package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "stockpipe"
	// initLimit bounds initdb, which takes about a second.
	initLimit = 2 * time.Minute
)

// PostgresOptions shape a private Postgres. The zero value is durable and has
// room for many test connections.
type PostgresOptions struct {
	Name           string            // of its folder; empty: postgres, postgres-2, …
	NoFsync        bool              // faster; survives kill -9, but not the loss of the machine
	MaxConnections int               // default 200
	SharedBuffers  string            // default 64MB
	Settings       map[string]string // further server settings; they override
	Env            []string          // NAME=value for the server, beside the little that it needs
}

// Postgres is a Postgres cluster with the superuser stockpipe, reachable over
// TCP on loopback with a random password.
type Postgres struct {
	*Server
	base url.URL // without the host of a private server, which is Addr

	cluster *cluster // nil for the user's own
}

// URL is the connection URL of a database, as the superuser (or as the user's
// own URL says); an empty name is the database postgres, or the user's own.
func (p *Postgres) URL(database string) string {
	u := p.base
	if p.cluster != nil {
		u.Host = p.Addr()
	}
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// StartPostgres starts a Postgres and returns when it answers: about a second
// the first time, less where a kept folder already has its data. With
// Config.PostgresURL it starts nothing and stands for that server.
func (s *Stack) StartPostgres(ctx context.Context, options PostgresOptions) (*Postgres, error) {
	if s.config.PostgresURL != "" {
		return foreignPostgres(s.config.PostgresURL)
	}
	bin, err := findPostgres(s.config.PostgresBin)
	if err != nil {
		return nil, err
	}
	name, err := s.claim(options.Name, "postgres")
	if err != nil {
		return nil, err
	}
	c := &cluster{bin: bin, dir: filepath.Join(s.folder.path, name), owner: serverOwner(), set: options}
	if err := c.prepare(ctx); err != nil {
		s.release(name, nil)
		return nil, err
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

func foreignPostgres(text string) (*Postgres, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// The text may hold a password, so it is not quoted.
		return nil, errors.New("the Postgres URL is not of the form postgres://user:password@host:port/database")
	}
	return &Postgres{Server: &Server{name: "postgres", address: withPort(u, "5432")}, base: *u}, nil
}

// cluster is a data folder and how its server is started.
type cluster struct {
	bin      string // folder of the programs
	dir      string
	closed   bool // the owner may not enter a folder above dir
	owner    *owner
	password string
	set      PostgresOptions
}

func (c *cluster) url(port int) url.URL {
	return url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, c.password),
		Host: loopback(port), Path: "/postgres", RawQuery: "sslmode=disable",
	}
}

// prepare makes the cluster unless an earlier run did. The folder is made under
// another name and renamed when complete, so that a run killed in the middle
// leaves nothing that looks like a cluster.
func (c *cluster) prepare(ctx context.Context) error {
	if blocked := blockedFolder(filepath.Dir(c.dir), c.owner); blocked != "" {
		if doorPath == "" {
			return fmt.Errorf("run by root, Postgres works as the user %s, who may not enter %s; name a folder below /tmp or /var/tmp, or allow it with chmod o+x %s",
				c.owner, blocked, blocked)
		}
		c.closed = true
	}
	secret := c.dir + ".password"
	if _, err := os.Stat(c.dir); err == nil {
		text, err := os.ReadFile(secret)
		if err != nil {
			return fmt.Errorf("read the password of the kept Postgres: %w", err)
		}
		c.password = string(text)
		// No server runs in this folder any more: its Stack holds the lock and
		// has ended the leftovers. A stale note could name a process id that has
		// since gone to somebody else, and Postgres would refuse to start.
		return remove(filepath.Join(c.dir, "postmaster.pid"))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for the kept Postgres: %w", err)
	}
	c.password = rand.Text()
	if err := os.WriteFile(secret, []byte(c.password), 0o600); err != nil {
		return fmt.Errorf("write the password of Postgres: %w", err)
	}
	unfinished := c.dir + ".new"
	if err := c.initdb(ctx, unfinished); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished), remove(secret))
	}
	if err := os.Rename(unfinished, c.dir); err != nil {
		return fmt.Errorf("make the Postgres cluster: %w", err)
	}
	return nil
}

func (c *cluster) initdb(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, initLimit)
	defer cancel()
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove an unfinished Postgres cluster: %w", err)
	}
	if err := c.makeFolder(dir); err != nil {
		return err
	}
	pwfile, err := c.passwordFile()
	if err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	defer os.Remove(pwfile)
	err = c.run(ctx, c.enter(dir, ProcessOptions{
		Path: filepath.Join(c.bin, "initdb"),
		Args: []string{
			"-U", superuser, "--pwfile=" + pwfile,
			"--auth-local=trust", "--auth-host=scram-sha-256",
			"-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions",
		},
	}))
	if err != nil {
		return fmt.Errorf("make the Postgres cluster: %w", err)
	}
	return nil
}

// makeFolder makes a data folder that is not there yet, the owner's.
func (c *cluster) makeFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of Postgres: %w", err)
	}
	if err := c.owner.give(dir); err != nil {
		return fmt.Errorf("give the folder of Postgres to its user: %w", err)
	}
	return nil
}

// run runs one of Postgres' programs to its end. The error has what it said.
func (c *cluster) run(ctx context.Context, options ProcessOptions) error {
	var output strings.Builder
	options.Stdout, options.Stderr = &output, &output
	process, err := StartProcess(ctx, options)
	if err != nil {
		return err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Kill()
		return ctx.Err()
	}
	if process.Err() != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(options.Path), process.Err(), strings.TrimSpace(output.String()))
	}
	return nil
}

func (c *cluster) options(port int) ProcessOptions {
	settings := map[string]string{
		"listen_addresses": "127.0.0.1",
		// No socket file: a path over 107 bytes is refused, and TCP is enough.
		"unix_socket_directories": "",
		"max_connections":         strconv.Itoa(max(c.set.MaxConnections, 0)),
		"shared_buffers":          c.set.SharedBuffers,
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if c.set.MaxConnections <= 0 {
		settings["max_connections"] = "200"
	}
	if c.set.SharedBuffers == "" {
		settings["shared_buffers"] = "64MB"
	}
	if c.set.NoFsync {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	maps.Copy(settings, c.set.Settings)
	args := []string{"-p", strconv.Itoa(port)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	options := c.enter(c.dir, ProcessOptions{
		Path: filepath.Join(c.bin, "postgres"), Args: args, deathSignal: sigInterrupt,
	})
	options.Env = append(options.Env, c.set.Env...)
	return options
}

// enter completes options so that a program works in a data folder as the
// owner. Where the owner may not walk there (a kept folder in root's home), the
// folder is handed over opened, and named by its file descriptor.
func (c *cluster) enter(dir string, options ProcessOptions) ProcessOptions {
	options.owner = c.owner
	options.Dir = dir
	if c.closed {
		options.Dir, options.door = "/", dir
		dir = doorPath
	}
	options.Args = append([]string{"-D", dir}, options.Args...)
	options.Env = serverEnv(dir)
	return options
}

// passwordFile is for initdb, to be removed after it. It lies where the owner
// can read it; initdb wants the data folder itself empty.
func (c *cluster) passwordFile() (string, error) {
	file, err := os.CreateTemp(temporaryBase(), passwordPrefix+"*")
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(c.password)
	return file.Name(), errors.Join(err, file.Close(), c.owner.give(file.Name()))
}

// stop: SIGINT is a fast shutdown, SIGQUIT an immediate one.
func (c *cluster) stop() []step {
	return []step{{sigInterrupt, 8 * time.Second}, {sigQuit, 3 * time.Second}}
}

// ready connects. The random password tells our server from one that took the
// port before it.
func (c *cluster) ready(ctx context.Context, port, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u := c.url(port)
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
