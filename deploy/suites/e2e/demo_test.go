package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// The demo is run as its user runs it: a program in a process group of its own, seen by its output and exit code.

var demoBuild struct {
	sync.Once
	path string
	err  error
}

func demoProgram(t *testing.T) string {
	t.Helper()
	demoBuild.Do(func() {
		demoBuild.path = filepath.Join(shoptest.Programs(t, false), "demo")
		command := exec.Command("go", "build", "-o", demoBuild.path, "./deploy/demo")
		command.Dir = filepath.Join("..", "..", "..")
		if out, err := command.CombinedOutput(); err != nil {
			demoBuild.err = fmt.Errorf("build the demo: %w\n%s", err, out)
		}
	})
	shoptest.Need(t, demoBuild.err)
	return demoBuild.path
}

// demo is one run of it.
type demo struct {
	t    *testing.T
	cmd  *exec.Cmd
	said *speech
	done chan struct{}
	code int
}

// speech is output that can be read while it grows.
type speech struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *speech) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(text)
}

func (s *speech) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func startDemo(t *testing.T, arguments ...string) *demo {
	t.Helper()
	d := &demo{t: t, said: &speech{}, done: make(chan struct{})}
	d.cmd = exec.Command(demoProgram(t), append(arguments, "--programs", shoptest.Programs(t, false))...)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "STOCKPIPE_") {
			d.cmd.Env = append(d.cmd.Env, setting)
		}
	}
	d.cmd.Stdout, d.cmd.Stderr = d.said, d.said
	shoptest.Need(t, d.cmd.Start())
	var wait sync.WaitGroup
	wait.Go(func() {
		defer close(d.done)
		var exit *exec.ExitError
		if err := d.cmd.Wait(); errors.As(err, &exit) {
			d.code = exit.ExitCode()
		} else if err != nil {
			d.code = -1
		}
	})
	t.Cleanup(func() {
		d.signal(syscall.SIGKILL)
		wait.Wait()
		if t.Failed() {
			t.Logf("demo %s:\n%s", strings.Join(arguments, " "), d.said)
		}
	})
	return d
}

// signal reaches the whole group, as a terminal's would.
func (d *demo) signal(signal syscall.Signal) { _ = syscall.Kill(-d.cmd.Process.Pid, signal) }

// see waits until the output matches, and returns the first group of the match.
func (d *demo) see(pattern string) string {
	d.t.Helper()
	expression := regexp.MustCompile(pattern)
	var found string
	sandboxtest.Eventually(d.t, 2*time.Minute, func() error {
		match := expression.FindStringSubmatch(d.said.String())
		if match == nil {
			select {
			case <-d.done:
				d.t.Fatalf("the demo ended with %d and never said %q", d.code, pattern)
			default:
			}
			return fmt.Errorf("the demo has not said %q", pattern)
		}
		found = match[len(match)-1]
		return nil
	})
	return found
}

// ends waits for the end and checks the exit code.
func (d *demo) ends(code int) {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(2 * time.Minute):
		d.t.Fatal("the demo does not end")
	}
	if d.code != code {
		d.t.Fatalf("exit code %d, want %d", d.code, code)
	}
}

func TestTheDemoPlaysASaleAndLeavesNothing(t *testing.T) {
	r := shoptest.Begin(t, "demo: a sale")
	d := startDemo(t, "--buyers", "400", "--units", "80", "--lasts", "1s")
	folder := filepath.Dir(d.see(`PGPASSFILE=(\S+)`))
	d.ends(0)
	d.see(`sold = units: (80 of 80) units`)
	d.see(`Every promise was kept`)
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	r.Note("80 of 80 units, folder gone")
}

func TestTheDemoSharesFourShardsAmongConsumers(t *testing.T) {
	r := shoptest.Begin(t, "demo: 4 shards, 2 producers")
	d := startDemo(t, "--buyers", "400", "--units", "80", "--lasts", "1s", "--shards", "4", "--producers", "2")
	d.see(`consumer-1 reads shard \d, \d`)
	d.see(`consumer-2 reads shard \d, \d`)
	d.ends(0)
	r.Note("two shards each")
}

func TestAHandOnTheStockIsFoundByTheDemo(t *testing.T) {
	r := shoptest.Begin(t, "demo: HSET by hand")
	d := startDemo(t, "--buyers", "400", "--units", "80", "--lasts", "4s")
	port := d.see(`redis-cli -p (\d+)`)
	d.see(`HGET '(sp:\{0\}:state)' 1`)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer rdb.Close()
	// The last article: the rush does not depend on it.
	const addOne = `local v = redis.call('HGET', KEYS[1], ARGV[1]); local n = tonumber(string.match(v, '^%d+'))
		return redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(v, '^%d+', string.format('%d', n + 1), 1)))`
	shoptest.Need(t, rdb.Eval(context.Background(), addOne, []string{"sp:{0}:state"}, 8).Err())
	d.ends(1)
	d.see(`✗ the callers' lists, Redis and Postgres agree on every SKU`)
	d.see(`tampered: SKU \S+ \(number 8\)`)
	d.see(`A promise was BROKEN`)
	r.Note("exit code 1, the SKU is named")
}

func TestAReplayIsResumedAfterKillsAndInterrupts(t *testing.T) {
	r := shoptest.Begin(t, "demo: a replay, killed and interrupted")
	file := filepath.Join(t.TempDir(), "orders.csv")
	shoptest.Need(t, os.WriteFile(file, []byte(orderFile(800, 150)), 0o600))
	folder := filepath.Join(keptBase(t), "kept")
	arguments := []string{"--orders", file, "--keep", folder}

	d := startDemo(t, arguments...)
	d.see(`SKUs [\d,]+/800`)
	d.signal(syscall.SIGKILL)
	d.ends(-1)

	d = startDemo(t, arguments...)
	d.see(`resuming`)
	d.see(`known [1-9]`)
	d.signal(syscall.SIGINT)
	d.ends(130)
	d.see(`Resume it with the same --orders`)

	other := filepath.Join(t.TempDir(), "other.csv")
	shoptest.Need(t, os.WriteFile(other, []byte(orderFile(2, 2)), 0o600))
	d = startDemo(t, "--orders", other, "--keep", folder)
	d.ends(2)
	d.see(`keeps the replay of orders.csv`)

	d = startDemo(t, arguments...)
	d.ends(0)
	d.see(`every SKU's on_hand and available are opening minus net: 800 of 800 in Redis, 800 of 800 in Postgres`)
	d.see(`Every promise was kept`)
	r.Note("killed once, interrupted once, 150 orders on 800 SKUs")
}

func TestAMalformedOrderFileStartsNothing(t *testing.T) {
	r := shoptest.Begin(t, "demo: a malformed order file")
	file := filepath.Join(t.TempDir(), "orders.csv")
	shoptest.Need(t, os.WriteFile(file, []byte(orderFile(3, 3)+"9,x,,0\n"), 0o600))
	d := startDemo(t, "--orders", file)
	d.ends(2)
	if got := d.see(`(line \d+, Quantity "0")`); strings.Contains(d.said.String(), "starting") {
		t.Errorf("something was started: %s", got)
	}
	d = startDemo(t, "--orders", file, "--shards", "4")
	d.ends(64)
	d.see(`leave out --shards with --orders`)
	r.Note("line and value named, exit codes 2 and 64")
}

// keptBase is a folder that the user of a private Postgres can enter.
func keptBase(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(sandboxtest.Stack(t).Dir()), "stockpipe-kept-")
	shoptest.Need(t, err)
	shoptest.Need(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// orderFile has a sale for every number up to orders, of 10 SKUs each, and credits and adjustments.
func orderFile(skus, orders int) string {
	var b strings.Builder
	b.WriteString("InvoiceNo,StockCode,Description,Quantity\r\n")
	for s := range skus {
		fmt.Fprintf(&b, "O%d,sku %d,\"a, b\",%d\r\n", s%orders, s, 1+s%7)
	}
	for o := range orders {
		for s := range 10 {
			fmt.Fprintf(&b, "O%d,sku %d,,%d\r\n", o, (o*7+s)%skus, 1+o%3)
		}
		switch {
		case o%5 == 0:
			fmt.Fprintf(&b, "CO%d,sku %d,,-2\r\nCO%d,sku %d,,-1\r\n", o, o%skus, o, o%skus)
		case o%11 == 0:
			fmt.Fprintf(&b, "A%d,sku %d,,-3\r\n", o, o%skus)
		}
	}
	return b.String()
}
