package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// The kinds of roles, which are also the names of their programs.
const (
	producer   = "producer"
	consumer   = "consumer"
	reconciler = "reconciler"

	stopGrace = 30 * time.Second
	mostTail  = 12 // lines of a log that are shown when a row breaks
)

// A role is one process of ours.
type role struct {
	shop    *shop
	kind    string
	name    string // of a consumer: its --consumer-id
	process *sandbox.Process
	log     *journal
	api     string // producers only
	ops     string
}

// start starts a process on ports that it finds itself, and waits until it says which.
func (s *shop) start(kind string, arguments ...string) *role {
	s.t.Helper()
	s.mu.Lock()
	s.started++
	name := fmt.Sprintf("%s-%d", kind, s.started)
	s.mu.Unlock()
	r := &role{shop: s, kind: kind, name: name, log: &journal{placed: make(chan struct{})}}
	switch kind {
	case producer:
		arguments = slices.Concat(s.plan.producerArgs, arguments, []string{"--listen", "127.0.0.1:0"})
	case consumer:
		arguments = slices.Concat(s.plan.consumerArgs, arguments, []string{"--consumer-id", name})
	case reconciler:
		arguments = slices.Concat([]string{"serve"}, s.plan.reconcilerArgs, arguments)
	}
	process, err := sandbox.StartProcess(s.t.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(programs(s.t), kind), Args: append(arguments, "--ops-listen", "127.0.0.1:0"),
		Env: s.environment(kind), Stdout: r.log, Stderr: r.log,
	})
	need(s.t, err)
	r.process = process
	select {
	case <-r.log.placed:
	case <-process.Done():
		s.t.Fatalf("%s ended at its start (%v): %s", name, process.Err(), r.log.tail())
	case <-time.After(patience):
		process.Kill()
		s.t.Fatalf("%s did not say within %v where it listens: %s", name, patience, r.log.tail())
	}
	r.api, r.ops = r.log.place.API, r.log.place.Ops
	s.mu.Lock() // callers see it from here on
	s.roles = append(s.roles, r)
	s.mu.Unlock()
	return r
}

// environment is the caller's own without its settings of stockpipe, with where this shop's servers are.
func (s *shop) environment(kind string) []string {
	env := slices.DeleteFunc(os.Environ(), func(setting string) bool {
		return strings.HasPrefix(setting, "STOCKPIPE_") || strings.HasPrefix(setting, "TZ=")
	})
	postgres := s.url
	if s.plan.postgresOf != nil {
		postgres = s.plan.postgresOf(kind)
	}
	env = append(env, "STOCKPIPE_REDIS_URL=redis://"+s.address+"/0", "STOCKPIPE_POSTGRES_URL="+postgres)
	if zone := s.plan.zones[kind]; zone != "" {
		env = append(env, "TZ="+zone)
	}
	return env
}

// kill ends the process as a crash would, and makes sure that it is dead.
func (r *role) kill() {
	r.shop.t.Helper()
	r.process.Kill()
	if r.alive() || r.process.Err() == nil {
		r.shop.t.Errorf("%s was to be killed and ended with %v", r.name, r.process.Err())
	}
}

func (r *role) pause() {
	r.shop.t.Helper()
	need(r.shop.t, r.process.Pause())
	if state := r.state(); state != "T" {
		r.shop.t.Errorf("%s was to be stopped and is in state %q", r.name, state)
	}
}

func (r *role) resume() {
	r.shop.t.Helper()
	need(r.shop.t, r.process.Resume())
}

// stop ends the process in the orderly way.
func (r *role) stop() {
	r.shop.t.Helper()
	if err := r.process.Stop(stopGrace); err != nil {
		r.shop.t.Errorf("stop %s: %v: %s", r.name, err, r.log.tail())
	}
}

func (r *role) alive() bool {
	select {
	case <-r.process.Done():
		return false
	default:
		return true
	}
}

// state is the kernel's letter for the process; T is stopped by a signal.
func (r *role) state() string {
	var state string
	for range 200 { // a signal arrives a moment after it was sent
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.process.Pid()))
		if err != nil {
			return err.Error()
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if state, _, _ = strings.Cut(rest, " "); state == "T" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return state
}

// ready asks /readyz; nil when the role could do its work.
func (r *role) ready() error {
	answer, err := r.shop.http.Get(r.ops + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", r.name, text)
	}
	return nil
}

// metric sums the samples of a metric; labels, if given, must stand in the line.
func (r *role) metric(name string, labels ...string) float64 {
	r.shop.t.Helper()
	answer, err := r.shop.http.Get(r.ops + "/metrics")
	need(r.shop.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	need(r.shop.t, err)
	var sum float64
	for line := range strings.Lines(string(text)) {
		rest, is := strings.CutPrefix(line, name)
		if !is || rest[0] != ' ' && rest[0] != '{' || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		need(r.shop.t, err)
		sum += value
	}
	return sum
}

// A journal takes the log of one process and finds in it where the process listens.
type journal struct {
	placed chan struct{} // closed once place is known
	place  struct {
		API string `json:"api"`
		Ops string `json:"ops"`
	}

	mu    sync.Mutex
	text  bytes.Buffer
	begun int // of the line that is not complete
	found bool
}

func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text.Write(text)
	for !j.found {
		end := bytes.IndexByte(j.text.Bytes()[j.begun:], '\n')
		if end < 0 {
			break
		}
		line := j.text.Bytes()[j.begun : j.begun+end]
		j.begun += end + 1
		if json.Unmarshal(line, &j.place) == nil && j.place.Ops != "" {
			j.found = true
			close(j.placed)
		}
	}
	return len(text), nil
}

func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Split(strings.TrimSpace(j.text.String()), "\n")
}

// count is how many lines hold a text.
func (j *journal) count(text string) int {
	found := 0
	for _, line := range j.lines() {
		if strings.Contains(line, text) {
			found++
		}
	}
	return found
}

func (j *journal) tail() string {
	lines := j.lines()
	return "\n  " + strings.Join(lines[max(0, len(lines)-mostTail):], "\n  ")
}
