// Package compose holds docker-compose.yml and the Dockerfile to what the programs accept: a flag that is renamed, a
// bound that moves or a check of the servers that is added breaks a test here before it breaks a start. It needs no
// container engine.
package compose

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/consumer/consumerapp"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/producer/producerapp"
	"github.com/stockpipe/stockpipe/reconciler/reconcilerapp"
)

// root is the top of the repository, seen from this package.
const root = "../.."

// TestMain keeps the settings of whoever runs the tests out of them.
func TestMain(m *testing.M) {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "STOCKPIPE_") {
			os.Unsetenv(name)
		}
	}
	sandboxtest.Main(m)
}

// project is the file as the engine reads it, with what a user must export.
func project(t testing.TB) *types.Project {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(root, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(file), ConfigFiles: []types.ConfigFile{{Filename: file}},
		Environment: types.Mapping{"REDIS_PASSWORD": "of-redis", "POSTGRES_PASSWORD": "of-postgres"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// role is one of the programs, as its main knows it.
type role struct {
	name, description string
	settings          func() any
}

var roles = []role{
	{producerapp.Name, producerapp.Description, func() any { return &producerapp.Config{} }},
	{consumerapp.Name, consumerapp.Description, func() any { return &consumerapp.Config{} }},
	{reconcilerapp.Name, reconcilerapp.Description, func() any { return &reconcilerapp.Config{} }},
}

// programs is where the image has its programs.
const programs = "/usr/local/bin/"

// roleOf is the program that a service of ours runs.
func roleOf(t testing.TB, command []string) role {
	t.Helper()
	for _, r := range roles {
		if len(command) > 0 && command[0] == programs+r.name {
			return r
		}
	}
	t.Fatalf("%v is none of the programs in %s", command, programs)
	return role{}
}

// ours are the services that run a program of ours, by name.
func ours(p *types.Project) (names []string) {
	for name, s := range p.Services {
		if s.Build != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestTheServicesArePlanned(t *testing.T) {
	t.Parallel()
	p := project(t)
	want := []string{"consumer-1", "consumer-2", "init", "migrate", "producer", "reconciler"}
	if diff := cmp.Diff(want, ours(p)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"postgres", "redis"}, slices.Sorted(func(yield func(string) bool) {
		for name, s := range p.Services {
			if s.Build == nil && !yield(name) {
				return
			}
		}
	})); diff != "" {
		t.Error(diff)
	}
}

// started is a role as a service starts it.
type started struct {
	service  string
	command  string
	settings any
}

// start parses the command and the environment of a service with the role's own parser, as its main would.
func start(t *testing.T, name string, s types.ServiceConfig, command []string) (started, error) {
	t.Helper()
	r := roleOf(t, command)
	var help bytes.Buffer
	if _, err := config.ParseArgs(r.name, r.description, r.settings(), []string{"--help"}, &help); !errors.Is(err, config.ErrHelp) {
		t.Fatal(err)
	}
	for variable, value := range s.Environment {
		if !strings.HasPrefix(variable, "STOCKPIPE_") || value == nil {
			return started{}, fmt.Errorf("%s: %s is no setting with a value", name, variable)
		}
		if !strings.Contains(help.String(), "$"+variable+")") {
			return started{}, fmt.Errorf("%s: %s has no setting %s", name, r.name, variable)
		}
		t.Setenv(variable, secret(t, s, *value))
	}
	settings := r.settings()
	chosen, err := config.ParseArgs(r.name, r.description, settings, command[1:], &help)
	for variable := range s.Environment {
		os.Unsetenv(variable)
	}
	return started{name, chosen, settings}, err
}

// secret is the file that stands in for one that the engine would mount; every other value stays.
func secret(t testing.TB, s types.ServiceConfig, value string) string {
	t.Helper()
	name, ok := strings.CutPrefix(value, "/run/secrets/")
	if !ok {
		return value
	}
	if !slices.ContainsFunc(s.Secrets, func(c types.ServiceSecretConfig) bool { return c.Source == name }) {
		t.Fatalf("%s reads %s, which it is not given", s.Name, value)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("of-"+strings.TrimSuffix(name, "_password")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEveryCommandAndSettingIsAcceptedByItsProgram(t *testing.T) {
	p := project(t)
	listeners := map[string]string{}
	for _, name := range ours(p) {
		s := p.Services[name]
		got, err := start(t, name, s, s.Command)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var postgres config.Postgres
		var redis config.Redis
		var addresses []string
		switch c := got.settings.(type) {
		case *producerapp.Config:
			postgres, redis, addresses = c.Postgres, c.Redis, []string{c.API.Addr, c.Ops.Addr}
		case *consumerapp.Config:
			postgres, redis, addresses = c.Postgres, c.Redis, []string{c.Ops.Addr}
		case *reconcilerapp.Config:
			postgres, redis = c.Postgres, c.Redis
			if want := name; want != "reconciler" && got.command != want || want == "reconciler" && got.command != "serve" {
				t.Errorf("%s runs the command %q", name, got.command)
			}
			if got.command == "serve" {
				addresses = []string{c.Ops.Addr}
			}
		}
		for _, a := range addresses {
			if other, taken := listeners[a]; taken {
				t.Errorf("%s and %s both listen on %s of the machine", name, other, a)
			}
			listeners[a] = name
		}
		if url, err := postgres.Connection(); err != nil || url != "postgres://stockpipe:of-postgres@127.0.0.1:5432/stockpipe?sslmode=disable" {
			t.Errorf("%s goes to %s, %v", name, url, err)
		}
		if url, err := redis.Connection(); len(addresses) > 0 && (err != nil || url != "redis://:of-redis@127.0.0.1:6379/0") {
			t.Errorf("%s goes to %s, %v", name, url, err)
		}
	}
}

func TestASettingThatNoProgramHasIsFound(t *testing.T) {
	p := project(t)
	s := p.Services["producer"]
	name, value := "STOCKPIPE_RENAMED", "1"
	s.Environment = types.MappingWithEquals{name: &value}
	if _, err := start(t, "producer", s, s.Command); err == nil {
		t.Error("a variable that no flag reads passes")
	}
	s.Environment = nil
	if _, err := start(t, "producer", s, append(slices.Clone(s.Command), "--renamed")); err == nil {
		t.Error("a flag that does not exist passes")
	}
}

func TestHealthIsAskedOfTheProgramItself(t *testing.T) {
	p := project(t)
	for _, name := range ours(p) {
		s := p.Services[name]
		if name == "migrate" || name == "init" {
			if s.HealthCheck != nil {
				t.Errorf("%s ends: it has no health", name)
			}
			continue
		}
		if s.HealthCheck == nil || len(s.HealthCheck.Test) < 2 || s.HealthCheck.Test[0] != "CMD" {
			t.Errorf("%s: the image has no shell, the health check is %+v", name, s.HealthCheck)
			continue
		}
		if s.HealthCheck.Test[1] != s.Command[0] {
			t.Errorf("%s asks %s for its health", name, s.HealthCheck.Test[1])
		}
		asked, err := start(t, name, s, s.HealthCheck.Test[1:])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		running, err := start(t, name, s, s.Command)
		if err != nil {
			t.Fatal(err)
		}
		if on, of := health(asked.settings); !on || of == "" || of != second(health(running.settings)) {
			t.Errorf("%s: the health check is %t, of %q", name, on, of)
		}
	}
	for _, name := range []string{"redis", "postgres"} {
		if h := p.Services[name].HealthCheck; h == nil || len(h.Test) < 2 {
			t.Errorf("%s has no health check", name)
		}
	}
}

// health is whether the settings ask for health, and of whom.
func health(settings any) (on bool, of string) {
	switch c := settings.(type) {
	case *producerapp.Config:
		return c.Healthcheck, c.Ops.Addr
	case *consumerapp.Config:
		return c.Healthcheck, c.Ops.Addr
	case *reconcilerapp.Config:
		return c.Healthcheck, c.Ops.Addr
	}
	return false, ""
}

func second(_ bool, of string) string { return of }

func TestTheJobsEndBeforeWhatNeedsThemStarts(t *testing.T) {
	t.Parallel()
	const healthy, ended, begun = types.ServiceConditionHealthy, types.ServiceConditionCompletedSuccessfully, types.ServiceConditionStarted
	afterInit := map[string]string{"redis": healthy, "init": ended}
	want := map[string]map[string]string{
		"redis": {}, "postgres": {},
		"migrate": {"postgres": healthy}, "init": {"migrate": ended},
		"reconciler": afterInit, "consumer-1": afterInit, "consumer-2": afterInit,
		"producer": {"redis": healthy, "init": ended, "reconciler": begun},
	}
	got := map[string]map[string]string{}
	for name, s := range project(t).Services {
		got[name] = map[string]string{}
		for on, d := range s.DependsOn {
			got[name][on] = d.Condition
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The engine makes files of the two variables, and refuses to start what needs one that is not set.
func TestPasswordsAreTheUsersAndReachContainersAsFiles(t *testing.T) {
	t.Parallel()
	p := project(t)
	got := map[string]string{}
	for name, s := range p.Secrets {
		got[name] = s.Environment
	}
	if diff := cmp.Diff(map[string]string{"redis_password": "REDIS_PASSWORD", "postgres_password": "POSTGRES_PASSWORD"}, got); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"redis": "redis_password", "postgres": "postgres_password"} {
		if s := p.Services[name]; len(s.Secrets) != 1 || s.Secrets[0].Source != want {
			t.Errorf("%s is given %+v", name, s.Secrets)
		}
	}
	if file := p.Services["postgres"].Environment["POSTGRES_PASSWORD_FILE"]; file == nil || *file != "/run/secrets/postgres_password" {
		t.Errorf("Postgres takes its password from %v", file)
	}
}

func TestTheScriptOfRedisHandsOnItsWordsAndRefusesAnEmptyPassword(t *testing.T) {
	t.Parallel()
	command := slices.Clone(project(t).Services["redis"].Command)
	words := redisWords(t, project(t))
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// It stands for the server, and prints what it was started with.
	write("redis-server", "#!/bin/sh\nprintf '<%s>' \"$@\"\n")
	command[2] = strings.ReplaceAll(command[2], "/run/secrets", folder)
	run := func(password string) (string, error) {
		write("redis_password", password)
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Env = []string{"PATH=" + folder + string(os.PathListSeparator) + os.Getenv("PATH")}
		said, err := cmd.Output()
		return string(said), err
	}
	want := "<" + strings.Join(append(slices.Clone(words), "--requirepass", "of redis"), "><") + ">"
	if said, err := run("of redis\n"); err != nil || said != want {
		t.Errorf("it starts %s, %v, want %s", said, err, want)
	}
	if said, err := run(""); err == nil {
		t.Errorf("without a password it starts %s", said)
	}
}

func TestNoSecretReachesACommandAnEnvironmentOrAnImage(t *testing.T) {
	t.Parallel()
	text, err := project(t).MarshalYAML()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("of-redis")) || bytes.Contains(text, []byte("of-postgres")) {
		t.Errorf("a password shows in\n%s", text)
	}
}

func TestNothingListensBeyondLoopback(t *testing.T) {
	t.Parallel()
	p := project(t)
	for name, s := range p.Services {
		if s.NetworkMode != "host" || len(s.Ports) > 0 {
			t.Errorf("%s has the network %q and publishes %v: the programs meet on the machine's loopback", name, s.NetworkMode, s.Ports)
		}
	}
	if command := p.Services["postgres"].Command; !slices.Contains(command, "listen_addresses=127.0.0.1") {
		t.Errorf("Postgres starts with %v", command)
	}
	initdb := p.Services["postgres"].Environment["POSTGRES_INITDB_ARGS"]
	if initdb == nil || !strings.Contains(*initdb, "--auth-host=scram-sha-256") {
		t.Errorf("Postgres trusts whoever is on the machine: %v", initdb)
	}
}

// redisWords are the arguments that the script of the service hands to redis-server.
func redisWords(t testing.TB, p *types.Project) []string {
	t.Helper()
	command := p.Services["redis"].Command
	if len(command) < 5 || command[0] != "sh" || command[1] != "-c" || !strings.Contains(command[2], `exec redis-server "$@" `) {
		t.Fatalf("the command of redis is %q", command)
	}
	return command[4:]
}

// lax is a Redis on which every check fails that the command could forget.
var lax = sandbox.RedisOptions{NoAOF: true, MaxMemory: "0", Policy: "allkeys-lru", Password: "of-redis"}

func TestRedisStartsWithWhatTheChecksAskFor(t *testing.T) {
	t.Parallel()
	words := redisWords(t, project(t))
	settings := map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		settings[words[i]] = words[i+1]
	}
	want := map[string]string{
		"--bind": "127.0.0.1", "--port": "6379", "--dir": "/data", "--save": "", "--appendonly": "yes",
		"--appendfsync": "everysec", "--maxmemory": "1gb", "--maxmemory-policy": "noeviction",
	}
	if diff := cmp.Diff(want, settings); diff != "" || len(words) != 2*len(want) {
		t.Fatalf("%q: %s", words, diff)
	}
	// Where it listens and writes is the sandbox's; everything else is taken as it stands.
	options := lax
	for i := 0; i < len(words); i += 2 {
		if words[i] != "--port" && words[i] != "--dir" {
			options.ExtraArgs = append(options.ExtraArgs, words[i], words[i+1])
		}
	}
	if err := checked(t, options); err != nil {
		t.Error(err)
	}
}

func TestARedisWithoutTheCommandsWordsIsRefused(t *testing.T) {
	t.Parallel()
	err := checked(t, lax)
	for _, want := range []string{"appendonly", "maxmemory-policy", `maxmemory is "0"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// checked starts a server and asks what a producer asks before it sells.
func checked(t testing.TB, options sandbox.RedisOptions) error {
	t.Helper()
	server := sandboxtest.Redis(t, options)
	rdb, err := redisstock.Connect(redisstock.Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	return redisstock.CheckServer(t.Context(), rdb, redisstock.Unsafe{})
}
