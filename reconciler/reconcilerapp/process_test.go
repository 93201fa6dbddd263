package reconcilerapp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// process is a reconciler of its own.
type process struct {
	*sandbox.Process
	t   testing.TB
	mu  sync.Mutex
	err bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

// start runs `serve` as a process; it is killed at the test's end.
func (s *shop) start(name string, more ...string) *process {
	s.t.Helper()
	path, err := os.Executable()
	check(s.t, err)
	p := &process{t: s.t}
	p.Process, err = sandbox.StartProcess(s.t.Context(), sandbox.ProcessOptions{
		Path: path, Args: s.args(append([]string{"serve", "--reconciler-id", name, "--log-level", "info"}, more...)...), Env: append(os.Environ(), asReconciler+"=1"), Stderr: p,
	})
	check(s.t, err)
	s.t.Cleanup(func() {
		p.Kill()
		<-p.Done()
		if s.t.Failed() {
			s.t.Logf("%s wrote:\n%s", name, p.said())
		}
	})
	return p
}

// get asks the ops listener.
func (p *process) get(path string) (status int, body string) {
	p.t.Helper()
	var url string
	sandboxtest.Eventually(p.t, soon, func() error {
		for line := range strings.Lines(p.said()) {
			var fields struct{ Msg, Ops string }
			if json.Unmarshal([]byte(line), &fields) == nil && fields.Msg == "reconciler starts" {
				url = fields.Ops
			}
		}
		if url == "" {
			return fmt.Errorf("it does not say where it listens: %s", p.said())
		}
		return nil
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url + path)
	check(p.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(p.t, err)
	return answer.StatusCode, string(text)
}

func TestADeadProcessIsReplacedAndAStoppedOneEndsWell(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	first := s.start("first")
	epoch := s.opened(0, 0, soon)
	second := s.start("second")
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := second.get(path); status != http.StatusOK {
			t.Errorf("%s of a standby: %d %s", path, status, body)
		}
	}
	sandboxtest.Eventually(t, soon, func() error {
		_, body := first.get("/metrics")
		for _, want := range []string{
			`stockpipe_reconciler_takeovers_total{class="missing",result="opened"} 1`, `stockpipe_reconciler_audits_total{result="completed"}`,
			`stockpipe_reconciler_shard_state{class="healthy",shard="0"} 1`, `stockpipe_reconciler_turn{shard="0"} 1`,
		} {
			if !strings.Contains(body, want) {
				return fmt.Errorf("no %s in %s", want, body)
			}
		}
		return nil
	})
	first.Kill()
	check(t, s.rdb.FlushAll(t.Context()).Err())
	s.opened(0, epoch, soon)
	if by := s.repairs()[1].By; by != "second" {
		t.Errorf("opened by %s", by)
	}
	began := time.Now()
	check(t, second.Signal(syscall.SIGTERM))
	<-second.Done()
	if took := time.Since(began); took > 3*time.Second || second.Err() != nil {
		t.Errorf("stopped after %v: %v", took, second.Err())
	}
	began = time.Now()
	s.want(repair.ExitClean)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the turn was not given up: %v", took)
	}
}

func TestARedisThatIsAwayIsOneLineAndIsOpenedWhenItIsBack(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	p := s.start("one")
	epoch := s.opened(0, 0, soon)
	before := strings.Count(p.said(), "\n")
	check(t, s.server.Stop())
	time.Sleep(4 * time.Second)
	if lines := strings.Count(p.said(), "\n") - before; lines > 5 {
		t.Errorf("%d lines in 4 s: %s", lines, p.said())
	}
	check(t, s.server.Restart(t.Context()))
	s.opened(0, epoch, soon)
}
