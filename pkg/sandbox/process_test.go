//go:build unix

package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func shell(t *testing.T, script string, out *bytes.Buffer) *sandbox.Process {
	t.Helper()
	options := sandbox.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", script}}
	if out != nil {
		options.Stdout = out
	}
	process, err := sandbox.StartProcess(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return process
}

func TestProcessHasAGroupOfItsOwnAndItsOutputIsKept(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	process := shell(t, "echo hello; exit 3", &out)
	<-process.Done()
	var exit *exec.ExitError
	if !errors.As(process.Err(), &exit) || exit.ExitCode() != 3 || out.String() != "hello\n" {
		t.Errorf("err %v, output %q", process.Err(), out.String())
	}
	waiting := shell(t, "sleep 600", nil)
	if group, err := syscall.Getpgid(waiting.Pid()); err != nil || group != waiting.Pid() {
		t.Errorf("group %d, %v, want %d", group, err, waiting.Pid())
	}
}

func TestStopIsGentleFirstAndKillsAfterTheGrace(t *testing.T) {
	t.Parallel()
	ready := t.TempDir() + "/ready"
	wait := func() {
		sandboxtest.Eventually(t, 10*time.Second, func() error { _, err := os.Stat(ready); return err })
	}
	gentle := shell(t, "trap 'exit 0' TERM; touch "+ready+"; while :; do sleep 0.01; done", nil)
	wait()
	if err := gentle.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := gentle.Stop(10 * time.Second); err != nil {
		t.Error(err)
	}
	if err := os.Remove(ready); err != nil {
		t.Fatal(err)
	}
	deaf := shell(t, "trap '' TERM; touch "+ready+"; while :; do sleep 0.01; done", nil)
	wait()
	if err := deaf.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop = %v", err)
	}
	if err := deaf.Signal(os.Interrupt); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to the dead: %v", err)
	}
}

func TestProcessOutlivesTheContextOfItsStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	process, err := sandbox.StartProcess(ctx, sandbox.ProcessOptions{Path: "sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Kill()
	cancel()
	select {
	case <-process.Done():
		t.Error("the process ended with the context of its start")
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := sandbox.StartProcess(ctx, sandbox.ProcessOptions{Path: "sleep"}); !errors.Is(err, context.Canceled) {
		t.Errorf("start with an ended context: %v", err)
	}
	if _, err := sandbox.StartProcess(context.Background(), sandbox.ProcessOptions{Path: "/no/such/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start of nothing: %v", err)
	}
}
