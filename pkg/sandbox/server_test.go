//go:build unix

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestRestartOfRedisKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := sandboxtest.Redis(t, sandbox.RedisOptions{Fsync: "always", Password: "a b'c"})
	rdb := newRedis(t, server.URL())
	addr := server.Addr()
	for want, end := range []func() error{func() error { return nil }, server.Stop, server.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Err(); err != nil {
			t.Errorf("an end that was asked for is an error: %v", err)
		}
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		rdb := newRedis(t, server.URL())
		if got, err := rdb.Incr(ctx, "n").Result(); err != nil || got != int64(want+1) {
			t.Fatalf("INCR = %d, %v, want %d", got, err, want+1)
		}
	}
	if server.Addr() != addr {
		t.Errorf("address %s, was %s", server.Addr(), addr)
	}
	_ = rdb
}

func TestRestartOfPostgresKeepsDataAndPort(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := sandboxtest.OwnPostgres(t)
	url := server.URL("")
	for want, end := range []func() error{func() error { return nil }, server.Stop, server.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		if got := countRound(t, url); got != want+1 {
			t.Fatalf("%d rows, want %d", got, want+1)
		}
	}
}

func TestDefaultsAreWhatThePipelineWantsAndExtraArgsOverride(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	settings := func(server *sandbox.Redis) map[string]string {
		rdb := newRedis(t, server.URL())
		got, err := rdb.ConfigGet(ctx, "append*").Result()
		if err != nil {
			t.Fatal(err)
		}
		more, err := rdb.ConfigGet(ctx, "maxmemory*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{
			"appendonly": got["appendonly"], "appendfsync": got["appendfsync"],
			"maxmemory": more["maxmemory"], "maxmemory-policy": more["maxmemory-policy"],
		}
	}
	want := map[string]string{"appendonly": "yes", "appendfsync": "everysec", "maxmemory": "268435456", "maxmemory-policy": "noeviction"}
	if diff := cmp.Diff(want, settings(sandboxtest.Redis(t))); diff != "" {
		t.Error("defaults:", diff)
	}
	wrong := sandboxtest.Redis(t, sandbox.RedisOptions{NoAOF: true, MaxMemory: "0", ExtraArgs: []string{"--maxmemory-policy", "allkeys-lru"}})
	want = map[string]string{"appendonly": "no", "appendfsync": "everysec", "maxmemory": "0", "maxmemory-policy": "allkeys-lru"}
	if diff := cmp.Diff(want, settings(wrong)); diff != "" {
		t.Error("overridden:", diff)
	}
}

func TestReplicaFollowsItsMaster(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	master := sandboxtest.Redis(t)
	replica := sandboxtest.Redis(t, sandbox.RedisOptions{ReplicaOf: master.Addr()})
	if err := newRedis(t, master.URL()).Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	rdb := newRedis(t, replica.URL())
	sandboxtest.Eventually(t, 10*time.Second, func() error { return rdb.Get(ctx, "k").Err() })
}

func TestPausedRedisAnswersAfterResume(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 7)
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(answer); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server answered %q, %v", answer[:n], err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Fatalf("answer %q, %v", answer, err)
	}
}

func TestPausedServersStopInOrder(t *testing.T) {
	t.Parallel()
	for _, server := range []*sandbox.Server{sandboxtest.Redis(t).Server, sandboxtest.OwnPostgres(t).Server} {
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestServerThatEndsByItselfIsAnError(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	done := server.Done()
	if err := syscall.Kill(server.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := server.Err(); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("Err() = %v", err)
	}
	if server.Pid() != 0 {
		t.Errorf("Pid() = %d", server.Pid())
	}
}

func TestServerThatRefusesItsSettingsSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := sandboxtest.Stack(t).StartRedis(context.Background(), sandbox.RedisOptions{ExtraArgs: []string{"--no-such-setting", "1"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("err = %v", err)
	}
}

func TestKeptFolderIsRefusedWhenInUseOrForeign(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	folder := emptyFolder(t)
	stack, err := sandbox.Open(ctx, sandbox.Config{Dir: folder})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	if _, err := sandbox.Open(ctx, sandbox.Config{Dir: folder}); err == nil || !strings.Contains(err.Error(), "in use by another run") {
		t.Errorf("in use: %v", err)
	}
	foreign := emptyFolder(t)
	if err := os.WriteFile(filepath.Join(foreign, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Open(ctx, sandbox.Config{Dir: foreign}); err == nil || !strings.Contains(err.Error(), "neither empty nor") {
		t.Errorf("foreign: %v", err)
	}
}

func TestLeftoverServerIsEndedAndAShellInTheFolderIsNot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	folder := emptyFolder(t)
	stack, err := sandbox.Open(ctx, sandbox.Config{Dir: folder})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stack.StartRedis(ctx, sandbox.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := first.Dir()
	if err := stack.Close(); err != nil {
		t.Fatal(err)
	}
	leftover := exec.Command("redis-server", "--port", "0", "--unixsocket", "s", "--dir", dir)
	bystander := exec.Command("sleep", "600")
	for _, cmd := range []*exec.Cmd{leftover, bystander} {
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- leftover.Wait() }()
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		_, err := os.Stat(filepath.Join(dir, "s"))
		return err
	})

	stack, err = sandbox.Open(ctx, sandbox.Config{Dir: folder})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	t.Logf("it ended: %v", <-ended)
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander: %v", err)
	}
	_ = bystander.Process.Kill()
	_ = bystander.Wait()
}

func TestKeptFolderThatTheServersUserMayNotEnter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	folder := filepath.Join(emptyFolder(t), "closed", "kept")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for round := 1; round <= 2; round++ {
		stack, err := sandbox.Open(ctx, sandbox.Config{Dir: folder})
		if err != nil {
			t.Fatal(err)
		}
		server, err := stack.StartPostgres(ctx, sandbox.PostgresOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := countRound(t, server.URL("")); got != round {
			t.Errorf("round %d: %d rows", round, got)
		}
		if err := errors.Join(server.Kill(), server.Restart(ctx)); err != nil {
			t.Error(err)
		}
		if err := stack.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServersOfTheUserAreUsedAndLeftAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own := sandboxtest.Redis(t)
	database := sandboxtest.Database(t, nil)
	stack, err := sandbox.Open(ctx, sandbox.Config{RedisURL: own.URL(), PostgresURL: database})
	if err != nil {
		t.Fatal(err)
	}
	r, err := stack.StartRedis(ctx, sandbox.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := stack.StartPostgres(ctx, sandbox.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := []string{r.URL(), r.Addr(), p.URL("")}; !cmp.Equal(got, []string{own.URL(), own.Addr(), database}) {
		t.Errorf("addresses %v", got)
	}
	for _, err := range []error{r.Stop(), r.Kill(), p.Pause(), p.Restart(ctx)} {
		if !errors.Is(err, sandbox.ErrForeign) {
			t.Errorf("control of a foreign server: %v", err)
		}
	}
	if err := stack.Close(); err != nil {
		t.Error(err)
	}
	if err := newRedis(t, own.URL()).Ping(ctx).Err(); err != nil {
		t.Error(err)
	}
	if _, err := stack.StartRedis(ctx, sandbox.RedisOptions{}); err != nil {
		t.Errorf("a foreign server needs no folder: %v", err)
	}
}

func TestDatabaseIsClonedFromItsTemplateOnce(t *testing.T) {
	t.Parallel()
	runs, template := 0, sandboxtest.Prefix(t)
	migrate := func(_ context.Context, url string) error {
		runs++
		countRound(t, url)
		return nil
	}
	for range 3 {
		if got := countRound(t, sandboxtest.NamedDatabase(t, template, migrate)); got != 2 {
			t.Errorf("%d rows, want the template's and one more", got)
		}
	}
	if runs != 1 {
		t.Errorf("%d migrations", runs)
	}
}
