package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

const (
	module = "github.com/stockpipe/stockpipe"
	// speakTime is how long a role may take until it says where it listens, stopTime how long it may take to stop.
	speakTime = 20 * time.Second
	stopTime  = 20 * time.Second
	// mostSaid bounds what is kept of a role's log, in bytes; the rest is dropped.
	mostSaid = 64 << 10
)

// The roles that run as processes of their own, which are also the names of their programs.
const (
	consumer   = "consumer"
	reconciler = "reconciler"
)

// withRoles works while the named roles run on the shop, and stops them after it.
func (s *shop) withRoles(ctx context.Context, server *sandbox.Redis, work func() error, kinds ...string) (err error) {
	if err := s.bench.build(ctx); err != nil {
		return err
	}
	for _, kind := range kinds {
		r, startErr := s.startRole(ctx, server, kind)
		if startErr != nil {
			return startErr
		}
		defer func() {
			if stopErr := r.process.Stop(stopTime); stopErr != nil {
				err = errors.Join(err, fmt.Errorf("stop the %s: %w: %s", kind, stopErr, r.said.text()))
			}
		}()
	}
	return work()
}

// A role is one process.
type role struct {
	process *sandbox.Process
	said    *journal
}

// startRole starts a process on a port that it finds itself, and waits until it says which.
func (s *shop) startRole(ctx context.Context, server *sandbox.Redis, kind string) (*role, error) {
	r := &role{said: &journal{placed: make(chan struct{})}}
	args := []string{"--ops-listen", "127.0.0.1:0"}
	if kind == reconciler {
		args = append([]string{"serve"}, args...)
		if s.bench.aof == "off" {
			args = append(args, "--unsafe-aof")
		}
	}
	var env []string
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "STOCKPIPE_") {
			env = append(env, setting)
		}
	}
	env = append(env, "STOCKPIPE_REDIS_URL="+server.URL(), "STOCKPIPE_REDIS_PREFIX="+prefix, "STOCKPIPE_POSTGRES_URL="+s.url)
	var err error
	r.process, err = sandbox.StartProcess(ctx, sandbox.ProcessOptions{Path: filepath.Join(s.bench.programs, kind), Args: args, Env: env, Stdout: r.said, Stderr: r.said})
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(speakTime)
	defer timer.Stop()
	select {
	case <-r.said.placed:
		return r, nil
	case <-r.process.Done():
		return nil, fmt.Errorf("the %s ended at its start: %s", kind, r.said.text())
	case <-timer.C:
		err = fmt.Errorf("the %s did not say within %v where it listens: %s", kind, speakTime, r.said.text())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.process.Kill()
	return nil, err
}

// build makes the programs from the sources of the module, once.
func (b *bench) build(ctx context.Context) error {
	if b.programs != "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return fmt.Errorf("find the sources of the programs: %w: run this inside the repository", errors.Join(ctx.Err(), err))
	}
	programs := filepath.Join(b.stack.Dir(), "bin")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return fmt.Errorf("make the folder of programs: %w", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", programs+string(filepath.Separator), "./"+consumer, "./"+reconciler)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", errors.Join(ctx.Err(), err), bytes.TrimSpace(out))
	}
	b.programs = programs
	return nil
}

// A journal keeps the beginning of a role's log, and finds in it that the role listens.
type journal struct {
	placed chan struct{} // closed once it does

	mu    sync.Mutex
	kept  bytes.Buffer
	begun int // of the line that is not complete
	found bool
}

func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.kept.Write(text[:max(0, min(len(text), mostSaid-j.kept.Len()))])
	for !j.found {
		end := bytes.IndexByte(j.kept.Bytes()[j.begun:], '\n')
		if end < 0 {
			break
		}
		var place struct {
			Ops string `json:"ops"`
		}
		if json.Unmarshal(j.kept.Bytes()[j.begun:j.begun+end], &place) == nil && place.Ops != "" {
			j.found = true
			close(j.placed)
		}
		j.begun += end + 1
	}
	return len(text), nil
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.TrimSpace(j.kept.String())
}
