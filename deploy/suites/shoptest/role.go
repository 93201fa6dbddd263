package shoptest

import (
	"bytes"
	"context"
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

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// The kinds of roles, which are also the names of their programs.
const (
	Producer   = "producer"
	Consumer   = "consumer"
	Reconciler = "reconciler"

	StopGrace = 30 * time.Second
	MostTail  = 12 // lines of a log that are shown when a row breaks
)

// A Role is one process of ours.
type Role struct {
	Shop       *Shop
	Kind       string
	Name       string // of a consumer: its --consumer-id
	Process    *sandbox.Process
	Log        *Journal
	API        string // producers only
	failpoints string // folder in which failures are armed
	Ops        string
}

// Start starts a process on ports that it finds itself, and waits until it says which.
func (s *Shop) Start(kind string, arguments ...string) *Role {
	s.T.Helper()
	return s.start(kind, func(*Role) {}, arguments)
}

// StartArmed is Start of one that fails when it first comes to a point, however soon that is.
func (s *Shop) StartArmed(kind string, at failpoint.Point, how string, arguments ...string) *Role {
	s.T.Helper()
	return s.start(kind, func(r *Role) { r.Arm(at, how) }, arguments)
}

func (s *Shop) start(kind string, before func(*Role), arguments []string) *Role {
	s.T.Helper()
	s.Mu.Lock()
	s.Started++
	name := fmt.Sprintf("%s-%d", kind, s.Started)
	s.Mu.Unlock()
	r := &Role{Shop: s, Kind: kind, Name: name, Log: &Journal{Placed: make(chan struct{})}, failpoints: s.T.TempDir()}
	before(r)
	switch kind {
	case Producer:
		arguments = slices.Concat(s.Plan.ProducerArgs, arguments, []string{"--listen", "127.0.0.1:0"})
	case Consumer:
		arguments = slices.Concat(s.Plan.ConsumerArgs, arguments, []string{"--consumer-id", name})
	case Reconciler:
		arguments = slices.Concat([]string{"serve"}, s.Plan.ReconcilerArgs, arguments)
	}
	process, err := sandbox.StartProcess(s.T.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(s.programs(kind), kind), Args: append(arguments, "--ops-listen", "127.0.0.1:0"),
		Env: append(s.Environment(kind), failpoints+"="+r.failpoints), Stdout: r.Log, Stderr: r.Log,
	})
	Need(s.T, err)
	r.Process = process
	select {
	case <-r.Log.Placed:
	case <-process.Done():
		s.T.Fatalf("%s ended at its start (%v): %s", name, process.Err(), r.Log.Tail())
	case <-time.After(Patience):
		process.Kill()
		s.T.Fatalf("%s did not say within %v where it listens: %s", name, Patience, r.Log.Tail())
	}
	r.API, r.Ops = r.Log.Place.API, r.Log.Place.Ops
	s.Mu.Lock() // callers see it from here on
	s.Roles = append(s.Roles, r)
	s.Mu.Unlock()
	return r
}

// programs is the folder of the build of a kind of role that the plan asks for.
func (s *Shop) programs(kind string) string {
	s.T.Helper()
	switch {
	case s.Plan.Folder[kind] != "":
		return s.Plan.Folder[kind]
	case s.Plan.Clocks != nil:
		return clockedPrograms(s.T)
	}
	return Programs(s.T, s.Plan.Failing)
}

// Environment is the caller's own without its settings of stockpipe, with where this shop's servers are.
func (s *Shop) Environment(kind string) []string {
	env := slices.DeleteFunc(os.Environ(), func(setting string) bool {
		return strings.HasPrefix(setting, "STOCKPIPE_") || strings.HasPrefix(setting, "TZ=")
	})
	postgres := s.URL
	if s.Plan.PostgresOf != nil {
		postgres = s.Plan.PostgresOf(kind)
	}
	link := "redis://" + s.Address + "/0"
	if s.Plan.RedisOf != nil {
		link = s.Plan.RedisOf(kind)
	}
	env = append(env, "STOCKPIPE_REDIS_URL="+link, "STOCKPIPE_POSTGRES_URL="+postgres)
	if zone := s.Plan.Zones[kind]; zone != "" {
		env = append(env, "TZ="+zone)
	}
	if clock := s.Plan.Clocks[kind]; clock != nil {
		env = append(env, clockFile+"="+clock.path)
	}
	return env
}

// Kill ends the process as a crash would, and makes sure that it is dead.
func (r *Role) Kill() {
	r.Shop.T.Helper()
	r.Process.Kill()
	if r.Alive() || r.Process.Err() == nil {
		r.Shop.T.Errorf("%s was to be killed and ended with %v", r.Name, r.Process.Err())
	}
}

// Pause stops the process by SIGSTOP, and makes sure that it stands.
func (r *Role) Pause() {
	r.Shop.T.Helper()
	Need(r.Shop.T, r.Process.Pause())
	if state := r.State(); state != "T" {
		r.Shop.T.Errorf("%s was to be stopped and is in state %q", r.Name, state)
	}
}

// Resume lets it go on.
func (r *Role) Resume() {
	r.Shop.T.Helper()
	Need(r.Shop.T, r.Process.Resume())
}

// Stop ends the process in the orderly way.
func (r *Role) Stop() {
	r.Shop.T.Helper()
	if err := r.Process.Stop(StopGrace); err != nil {
		r.Shop.T.Errorf("stop %s: %v: %s", r.Name, err, r.Log.Tail())
	}
}

// Alive says whether the process runs, stopped or not.
func (r *Role) Alive() bool {
	select {
	case <-r.Process.Done():
		return false
	default:
		return true
	}
}

// State is the kernel's letter for the process; T is stopped by a signal.
func (r *Role) State() string {
	var state string
	for range 200 { // a signal arrives a moment after it was sent
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Process.Pid()))
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

// Ready asks /readyz; nil when the role could do its work.
func (r *Role) Ready() error {
	answer, err := r.Shop.HTTP.Get(r.Ops + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", r.Name, text)
	}
	return nil
}

// Metric sums the samples of a metric; labels, if given, must stand in the line.
func (r *Role) Metric(name string, labels ...string) float64 {
	r.Shop.T.Helper()
	found, err := r.scrape(r.Shop.T.Context(), labels...)
	Need(r.Shop.T, err)
	return found[name]
}

// Scrape reads all metrics, each the sum over its labels. The role may be dead or stopped: then it is an error.
func (r *Role) Scrape(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return r.scrape(ctx)
}

func (r *Role) scrape(ctx context.Context, labels ...string) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Ops+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := r.Shop.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		end := strings.IndexAny(line, " {")
		if line[0] == '#' || end < 0 || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line[end:], l) }) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		sums[line[:end]] += value
	}
	return sums, nil
}

// A Journal takes the log of one process and finds in it where the process listens.
type Journal struct {
	Placed chan struct{} // closed once place is known
	Place  struct {
		API string `json:"api"`
		Ops string `json:"ops"`
	}

	Mu    sync.Mutex
	Text  bytes.Buffer
	Begun int // of the line that is not complete
	Found bool
}

func (j *Journal) Write(text []byte) (int, error) {
	j.Mu.Lock()
	defer j.Mu.Unlock()
	j.Text.Write(text)
	for !j.Found {
		end := bytes.IndexByte(j.Text.Bytes()[j.Begun:], '\n')
		if end < 0 {
			break
		}
		line := j.Text.Bytes()[j.Begun : j.Begun+end]
		j.Begun += end + 1
		if json.Unmarshal(line, &j.Place) == nil && j.Place.Ops != "" {
			j.Found = true
			close(j.Placed)
		}
	}
	return len(text), nil
}

// Lines are all that was written so far.
func (j *Journal) Lines() []string {
	j.Mu.Lock()
	defer j.Mu.Unlock()
	return strings.Split(strings.TrimSpace(j.Text.String()), "\n")
}

// Count is how many lines hold a text.
func (j *Journal) Count(text string) int {
	found := 0
	for _, line := range j.Lines() {
		if strings.Contains(line, text) {
			found++
		}
	}
	return found
}

// Tail is the last of them, for whoever asks why a row broke.
func (j *Journal) Tail() string {
	lines := j.Lines()
	return "\n  " + strings.Join(lines[max(0, len(lines)-MostTail):], "\n  ")
}
