package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RedisOptions shape a private redis-server. The zero value is what the
// pipeline wants of a Redis: append-only file on, nothing evicted, a limit of
// memory.
type RedisOptions struct {
	Name      string   // of its folder; empty: redis, redis-2, …
	NoAOF     bool     // keep nothing on disk
	Fsync     string   // appendfsync: always, everysec (default) or no
	MaxMemory string   // default 256mb; "0" is no limit
	Policy    string   // maxmemory-policy, default noeviction
	Password  string   // requirepass; empty: none
	ACLFile   string   // of users; the default user of it is asked with Password
	ReplicaOf string   // host:port of a master; it is asked with Password
	ExtraArgs []string // come last, so they override: "--maxmemory-policy", "allkeys-lru"
	Env       []string // NAME=value, beside the little that the server needs
}

// Redis is a redis-server (or valkey-server).
type Redis struct {
	*Server
	url string // of the user's own; empty for a private one

	password string
}

// URL is redis://127.0.0.1:port/0, or the user's own.
func (r *Redis) URL() string {
	if r.url != "" {
		return r.url
	}
	u := url.URL{Scheme: "redis", Host: r.Addr(), Path: "/0"}
	if r.password != "" {
		u.User = url.UserPassword("", r.password)
	}
	return u.String()
}

// StartRedis starts a redis-server and returns when it answers, after about
// 25 ms. In a kept folder it goes on with the data of the earlier run. With
// Config.RedisURL it starts nothing and stands for that server.
func (s *Stack) StartRedis(ctx context.Context, options RedisOptions) (*Redis, error) {
	if s.config.RedisURL != "" {
		return foreignRedis(s.config.RedisURL)
	}
	program, err := findRedis(s.config.RedisServer)
	if err != nil {
		return nil, err
	}
	var master []string
	if options.ReplicaOf != "" {
		host, port, err := net.SplitHostPort(options.ReplicaOf)
		if err != nil {
			return nil, fmt.Errorf("start a replica of %q: %w", options.ReplicaOf, err)
		}
		master = []string{"--replicaof", host, port}
		if options.Password != "" {
			master = append(master, "--masterauth", options.Password)
		}
	}
	name, err := s.claim(options.Name, "redis")
	if err != nil {
		return nil, err
	}
	dir, err := s.folderFor(name, nil)
	if err != nil {
		s.release(name, nil)
		return nil, err
	}
	server := &Server{stack: s, name: name, dir: dir, launch: &redisLauncher{program, dir, master, options}}
	if err := server.start(ctx); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	if err := s.adopt(server); err != nil {
		return nil, err
	}
	return &Redis{Server: server, password: options.Password}, nil
}

func foreignRedis(text string) (*Redis, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "redis" && u.Scheme != "rediss") {
		// The text may hold a password, so it is not quoted.
		return nil, errors.New("the Redis URL is not of the form redis://[user:password@]host:port[/db]")
	}
	return &Redis{Server: &Server{name: "redis", address: withPort(u, "6379")}, url: text}, nil
}

func withPort(u *url.URL, port string) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

type redisLauncher struct {
	program string
	dir     string
	master  []string
	set     RedisOptions
}

func (l *redisLauncher) options(port int) ProcessOptions {
	appendOnly := "yes"
	if l.set.NoAOF {
		appendOnly = "no"
	}
	args := []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", l.dir,
		"--daemonize", "no", "--save", "", "--appendonly", appendOnly,
		"--appendfsync", cmp.Or(l.set.Fsync, "everysec"),
		"--maxmemory", cmp.Or(l.set.MaxMemory, "256mb"),
		"--maxmemory-policy", cmp.Or(l.set.Policy, "noeviction"),
		// A replica's first copy begins at once; by default the master waits 5 s for more of them.
		"--repl-diskless-sync-delay", "0",
		// The arguments stay readable, so that a leftover process is known by its folder.
		"--set-proc-title", "no",
	}
	switch {
	case l.set.ACLFile != "":
		args = append(args, "--aclfile", l.set.ACLFile)
	case l.set.Password != "":
		args = append(args, "--requirepass", l.set.Password)
	}
	args = append(args, l.master...)
	args = append(args, l.set.ExtraArgs...)
	return ProcessOptions{Path: l.program, Args: args, Env: append(serverEnv(l.dir), l.set.Env...), Dir: l.dir}
}

// stop: SIGTERM writes out the append-only file and ends. While the first such
// file is being written Redis refuses, and forgets that it was asked, so it is
// asked again each second, 8 s in all.
func (l *redisLauncher) stop() []step {
	return slices.Repeat([]step{{sigTerminate, time.Second}}, 8)
}

// ready asks for PONG, and for the process id: on a port that was snatched,
// somebody else's server would answer just as well.
func (l *redisLauncher) ready(ctx context.Context, port, pid int) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", loopback(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	var ask strings.Builder
	if l.set.Password != "" {
		fmt.Fprintf(&ask, "*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n", len(l.set.Password), l.set.Password)
	}
	ask.WriteString("*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
	if _, err := conn.Write([]byte(ask.String())); err != nil {
		return err
	}
	return readPong(bufio.NewReader(conn), pid)
}

func readPong(answer *bufio.Reader, pid int) error {
	pong := false
	for {
		line, err := answer.ReadString('\n')
		if err != nil {
			return fmt.Errorf("read the answer to PING and INFO: %w", err)
		}
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "-"):
			return errors.New(strings.TrimPrefix(line, "-"))
		case line == "+PONG":
			pong = true
		case line == "process_id:"+strconv.Itoa(pid):
			if !pong {
				return errors.New("no PONG")
			}
			return nil
		case strings.HasPrefix(line, "process_id:"):
			return fmt.Errorf("another server answers there (%s)", line)
		}
	}
}

// serverEnv is all that a server needs of an environment. The caller's own may
// hold PG… and other settings that are meant for somebody else.
func serverEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + home}
}
