package sandbox

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
)

// TestSnatchedPortIsTriedAgain holds the port that the first try is given.
func TestSnatchedPortIsTriedAgain(t *testing.T) {
	ctx := context.Background()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	stack, err := Open(ctx, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	for _, start := range []func() (*Server, error){
		func() (*Server, error) {
			r, err := stack.StartRedis(ctx, RedisOptions{})
			if err != nil {
				return nil, err
			}
			return r.Server, nil
		},
		func() (*Server, error) {
			p, err := stack.StartPostgres(ctx, PostgresOptions{NoFsync: true})
			if err != nil {
				return nil, err
			}
			return p.Server, nil
		},
	} {
		tries := 0
		stack.pick = func() (int, error) {
			if tries++; tries < startTries {
				return taken.Addr().(*net.TCPAddr).Port, nil
			}
			return freePort()
		}
		server, err := start()
		if err != nil {
			t.Fatal(err)
		}
		if tries != startTries || server.Addr() == taken.Addr().String() {
			t.Errorf("%d tries, on %s", tries, server.Addr())
		}
		stack.pick = func() (int, error) { return taken.Addr().(*net.TCPAddr).Port, nil }
		if _, err := start(); !errors.Is(err, errBusy) {
			t.Errorf("a port that stays taken: %v", err)
		}
	}
}

func TestMissingProgramIsOneSentenceWithItsRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	redis, postgres := redisFolders, postgresFolders
	defer func() { redisFolders, postgresFolders = redis, postgres }()
	redisFolders, postgresFolders = nil, nil
	_, err1 := findRedis("")
	_, err2 := findPostgres("")
	for _, err := range []error{err1, err2} {
		if !errors.Is(err, ErrNoBinary) || !strings.Contains(err.Error(), " install ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("err = %v", err)
		}
	}
}

func TestHighestVersionComesFirst(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]float64{
		"/usr/lib/postgresql/15/bin": 15, "/usr/lib/postgresql/9.6/bin": 9.6, "/usr/local/pgsql/bin": 0,
		"/opt/homebrew/opt/postgresql@17/bin": 17,
	} {
		if got := versionIn(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
