//go:build unix

package sandbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// The test binary started with this variable is a process that owns servers,
// for its test to kill.
const (
	ownerRole   = "STOCKPIPE_SANDBOX_OWNER"
	ownerFolder = "STOCKPIPE_SANDBOX_FOLDER"
)

// owned is what the owner tells its test, as one line of JSON.
type owned struct {
	Dir         string
	Pids        []int
	RedisURL    string
	PostgresURL string
}

func beOwner(role string) {
	signal.Ignore(syscall.SIGHUP)
	ctx := context.Background()
	stack := must(sandbox.Open(ctx, sandbox.Config{Dir: os.Getenv(ownerFolder)}))
	r := must(stack.StartRedis(ctx, sandbox.RedisOptions{Fsync: "always"}))
	p := must(stack.StartPostgres(ctx, sandbox.PostgresOptions{}))
	child := must(sandbox.StartProcess(ctx, sandbox.ProcessOptions{Path: "sleep", Args: []string{"600"}}))
	if role == "paused" {
		for _, err := range []error{r.Pause(), p.Pause(), child.Pause()} {
			if err != nil {
				panic(err)
			}
		}
	}
	line := must(json.Marshal(owned{stack.Dir(), []int{r.Pid(), p.Pid(), child.Pid()}, r.URL(), p.URL("")}))
	fmt.Println(string(line))
	<-child.Done()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// startOwner starts an owner in a process group of its own.
func startOwner(t *testing.T, role, folder string) (owned, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerRole+"="+role, ownerFolder+"="+folder)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killOwner(cmd) })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("read the owner's line: %v", err)
	}
	var told owned
	if err := json.Unmarshal(line, &told); err != nil {
		t.Fatal(err)
	}
	return told, cmd
}

func killOwner(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
}

// gone says whether a process has ended; one that waits to be collected has.
func gone(pid int) error {
	if syscall.Kill(pid, 0) != nil {
		return nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		return nil
	}
	return fmt.Errorf("process %d lives: %s", pid, stat)
}

func allGone(pids []int) func() error {
	return func() error {
		for _, pid := range pids {
			if err := gone(pid); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestServersDieWithTheirKilledOwnerAndTheNextOpenSweeps(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"plain", "paused"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			told, cmd := startOwner(t, role, "")
			killOwner(cmd)
			sandboxtest.Eventually(t, 10*time.Second, allGone(told.Pids))

			stack, err := sandbox.Open(context.Background(), sandbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer stack.Close()
			// Another sweep, of a test beside this one, may be the one at work.
			sandboxtest.Eventually(t, 10*time.Second, func() error {
				if _, err := os.Stat(told.Dir); !os.IsNotExist(err) {
					return fmt.Errorf("the folder of the killed owner is there: %s", fmt.Sprint(err))
				}
				return nil
			})
		})
	}
}

func TestKeptFolderGoesOnAfterKillOfTheWholeGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	folder := emptyFolder(t)
	// Runs when the last owner is dead and its servers may still be ending.
	t.Cleanup(func() { endLeftovers(t, folder) })
	for round := 1; round <= 3; round++ {
		told, cmd := startOwner(t, "plain", folder)
		rdb := newRedis(t, told.RedisURL)
		if got, err := rdb.Incr(ctx, "rounds").Result(); err != nil || got != int64(round) {
			t.Fatalf("round %d: INCR = %d, %v", round, got, err)
		}
		if got := countRound(t, told.PostgresURL); got != round {
			t.Fatalf("round %d: %d rows", round, got)
		}
		// The next round starts at once, while the servers may still be ending.
		killOwner(cmd)
	}
}

// endLeftovers ends the servers that a killed owner left in a kept folder, as
// every Open of it does.
func endLeftovers(t *testing.T, folder string) {
	t.Helper()
	stack, err := sandbox.Open(context.Background(), sandbox.Config{Dir: folder})
	if err != nil {
		t.Error(err)
		return
	}
	if err := stack.Close(); err != nil {
		t.Error(err)
	}
}

// countRound adds a row and counts.
func countRound(t *testing.T, url string) (rows int) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, statement := range []string{"CREATE TABLE IF NOT EXISTS rounds (n int)", "INSERT INTO rounds VALUES (1)"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM rounds").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func newRedis(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// emptyFolder is a folder that the server's user may enter, unlike t.TempDir.
func emptyFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandbox-kept-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
