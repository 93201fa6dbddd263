// Package sandboxtest gives tests real servers: one Redis and one Postgres for
// each test binary, started when the first test asks, ended with the binary;
// and servers of a test's own where it restarts or kills them.
//
// A test package calls Main from its TestMain. A missing server program fails
// the tests with the command that installs it; only a missing pgbouncer skips
// those that need it, loudly. The servers that STOCKPIPE_… variables name are never touched by tests.
package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"go.uber.org/goleak"
)

// startLimit bounds the start of a server, with many test binaries on few cores.
const startLimit = 2 * time.Minute

// stack is the binary's own; what it holds is made at the first use.
var stack struct {
	mu       sync.Mutex
	opened   *sandbox.Stack
	redis    *sandbox.Redis
	postgres *sandbox.Postgres
}

var count atomic.Int64 // of prefixes and databases handed out

// TestingM is *testing.M, or one that does more around it.
type TestingM interface{ Run() int }

// Main runs the tests, ends the servers, fails the binary if a goroutine is
// left, and exits. Call it from TestMain.
func Main(m TestingM, options ...goleak.Option) {
	code := m.Run()
	if err := closeStack(); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxtest: stop the servers:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "sandboxtest: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func closeStack() error {
	stack.mu.Lock()
	defer stack.mu.Unlock()
	if stack.opened == nil {
		return nil
	}
	err := stack.opened.Close()
	stack.opened, stack.redis, stack.postgres = nil, nil, nil
	return err
}

// Stack is the binary's stack, for servers with options of their own. The
// caller closes what it starts there.
func Stack(t testing.TB) *sandbox.Stack {
	t.Helper()
	stack.mu.Lock()
	defer stack.mu.Unlock()
	return lockedStack(t)
}

func lockedStack(t testing.TB) *sandbox.Stack {
	t.Helper()
	if stack.opened == nil {
		opened, err := sandbox.Open(context.Background(), sandbox.Config{})
		if err != nil {
			t.Fatalf("sandboxtest: %v", err)
		}
		stack.opened = opened
	}
	return stack.opened
}

// Redis is a redis-server of the test's own, which it may kill, flush and
// restart; it is closed at the test's end. The options may be left out.
func Redis(t testing.TB, options ...sandbox.RedisOptions) *sandbox.Redis {
	t.Helper()
	own := Stack(t)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	var chosen sandbox.RedisOptions
	for _, chosen = range options {
	}
	server, err := own.StartRedis(ctx, chosen)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() { closed(t, server) })
	return server
}

// SharedRedis is the address of the binary's Redis. It is nobody's to flush:
// each test keeps to keys with a Prefix of its own.
func SharedRedis(t testing.TB) (addr string) {
	t.Helper()
	stack.mu.Lock()
	defer stack.mu.Unlock()
	if stack.redis == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		server, err := lockedStack(t).StartRedis(ctx, sandbox.RedisOptions{Name: "shared-redis"})
		if err != nil {
			t.Fatalf("sandboxtest: %v", err)
		}
		stack.redis = server
	}
	return stack.redis.Addr()
}

// Prefix is a key prefix that no other test of this binary has. It holds
// letters, digits and '-' only.
func Prefix(t testing.TB) string {
	t.Helper()
	plain := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("%.40s-%d", plain, count.Add(1))
}

// Postgres is the binary's Postgres, for tests that need more than one database
// of it. It runs without fsync and is not to be stopped.
func Postgres(t testing.TB) *sandbox.Postgres {
	t.Helper()
	stack.mu.Lock()
	defer stack.mu.Unlock()
	if stack.postgres == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		server, err := lockedStack(t).StartPostgres(ctx, sandbox.PostgresOptions{Name: "shared-postgres", NoFsync: true})
		if err != nil {
			t.Fatalf("sandboxtest: %v", err)
		}
		stack.postgres = server
	}
	return stack.postgres
}

// OwnPostgres is a Postgres of the test's own, which it may kill and restart,
// with fsync on unless the options say otherwise; it takes about a second.
func OwnPostgres(t testing.TB, options ...sandbox.PostgresOptions) *sandbox.Postgres {
	t.Helper()
	own := Stack(t)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	var chosen sandbox.PostgresOptions
	for _, chosen = range options {
	}
	server, err := own.StartPostgres(ctx, chosen)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() { closed(t, server) })
	return server
}

// Standby is a standby of a Postgres of the test's own, which it may promote; it
// takes about two seconds. Promote does not end the primary.
func Standby(t testing.TB, primary *sandbox.Postgres, options sandbox.StandbyOptions) *sandbox.Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := Stack(t).StartStandby(ctx, primary, options)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() { closed(t, server) })
	return server
}

// Proxy is a fault proxy in front of a target (host:port), closed at the test's
// end.
func Proxy(t testing.TB, target string) *faultproxy.Proxy {
	t.Helper()
	proxy, err := faultproxy.Listen(target)
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() { closed(t, proxy) })
	return proxy
}

func closed(t testing.TB, what interface{ Close() error }) {
	t.Helper()
	if err := what.Close(); err != nil && !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("sandboxtest: close: %v", err)
	}
}

// Eventually asks again every few milliseconds until the condition holds, and
// fails the test with its last error when the timeout is over. At least one
// check is made.
func Eventually(t testing.TB, timeout time.Duration, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not so after %v: %v", timeout, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Pooler is a pgbouncer of the test's own before a Postgres. It is the one
// server that not every machine has: without it the test is skipped, and says
// what installs it.
func Pooler(t testing.TB, options sandbox.PoolerOptions) *sandbox.Pooler {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	pooler, err := Stack(t).StartPooler(ctx, options)
	if errors.Is(err, sandbox.ErrNoBinary) {
		t.Skipf("NOTHING IS SHOWN BEHIND A POOLER: %v", err)
	}
	if err != nil {
		t.Fatalf("sandboxtest: %v", err)
	}
	t.Cleanup(func() { closed(t, pooler) })
	return pooler
}
