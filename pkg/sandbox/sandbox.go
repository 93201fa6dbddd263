// Package sandbox runs throwaway servers on loopback: a private redis-server,
// a private Postgres, and processes of our own binaries, each in a folder of
// one Stack. The demo and the tests stand on it; it is not a way to run
// servers for a shop.
//
// Three things are true of everything started here. Ctrl-C in a terminal
// reaches the caller alone, which then stops its children in its own order.
// When the caller is killed, even by SIGKILL, its children end too. And what a
// killed caller left on disk is removed by the next Open on that machine,
// unless it lies in a folder that the caller asked to keep.
//
// The fault proxy is in the package faultproxy; what tests need in sandboxtest.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Config says where a Stack lives and which servers it need not start. The
// zero value is a temporary folder with private servers.
type Config struct {
	// Dir is a folder whose data outlives the Stack: a later Open of the same
	// folder goes on with it. It must be new, empty or made by an earlier Open.
	// Empty means a temporary folder, removed by Close.
	Dir string

	// RedisURL and PostgresURL name servers of the user, which are then used in
	// place of private ones. They are never stopped, killed or emptied.
	RedisURL    string
	PostgresURL string

	// RedisServer is the path of redis-server or valkey-server, PostgresBin the
	// folder of initdb and postgres. Empty means PATH, then the folders where
	// distributions put them.
	RedisServer string
	PostgresBin string
}

// Stack owns a folder and the servers that run in it. It is safe for
// concurrent use.
type Stack struct {
	config Config
	folder *folder
	pick   func() (int, error) // finds a port

	mu      sync.Mutex
	names   map[string]bool // names of server folders in use
	servers []*Server       // in order of start
	closed  bool
}

// ErrClosed is returned by a Stack that was closed.
var ErrClosed = errors.New("the sandbox is closed")

// Open takes a folder and removes what crashed runs left behind: their
// temporary folders, and in a kept folder the servers that still run. It waits
// at most a few seconds for those to end. Nothing is started yet.
func Open(ctx context.Context, config Config) (*Stack, error) {
	if err := sweep(ctx); err != nil {
		return nil, fmt.Errorf("sweep the sandboxes of crashed runs: %w", err)
	}
	open := openTemporary
	if config.Dir != "" {
		open = func(ctx context.Context) (*folder, error) { return openKept(ctx, config.Dir) }
	}
	f, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return &Stack{config: config, folder: f, pick: freePort, names: map[string]bool{}}, nil
}

// Dir is the absolute path of the folder.
func (s *Stack) Dir() string { return s.folder.path }

// Kept says whether the folder outlives the Stack.
func (s *Stack) Kept() bool { return s.folder.kept }

// Close stops every server, the last started first, and removes the folder
// unless it is to be kept. Closing twice is fine.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	servers := slices.Clone(s.servers)
	s.mu.Unlock()

	var errs []error
	for _, server := range slices.Backward(servers) {
		errs = append(errs, server.Close())
	}
	errs = append(errs, s.folder.close())
	return errors.Join(errs...)
}

// claim reserves a name for a server's folder: the wanted one, or the kind
// itself, then kind-2, kind-3, so that the same order of starts finds the same
// data in a kept folder.
func (s *Stack) claim(wanted, kind string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", ErrClosed
	}
	name := wanted
	if name == "" {
		name = kind
		for n := 2; s.names[name]; n++ {
			name = fmt.Sprintf("%s-%d", kind, n)
		}
	}
	if !plainName.MatchString(name) {
		return "", fmt.Errorf("server name %q: use 1-40 of a-z, 0-9 and '-'", name)
	}
	if s.names[name] {
		return "", fmt.Errorf("server name %q is in use in %s", name, s.folder.path)
	}
	s.names[name] = true
	return name, nil
}

// adopt lists a started server for Close. A Stack that was closed meanwhile
// closes the server at once.
func (s *Stack) adopt(server *Server) error {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.servers = append(s.servers, server)
	}
	s.mu.Unlock()
	if closed {
		return errors.Join(ErrClosed, server.Close())
	}
	return nil
}

// release forgets a server and frees its name.
func (s *Stack) release(name string, server *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
	s.servers = slices.DeleteFunc(s.servers, func(other *Server) bool { return other == server })
}
