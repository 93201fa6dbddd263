package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

const (
	module = "github.com/stockpipe/stockpipe"
	// mostOutput is how much of a command's output is kept, in bytes.
	mostOutput = 4 << 20
	// commandPatience bounds one command, start to end.
	commandPatience = 60 * time.Second
)

// build makes the three programs from the sources of the module that the demo is run in.
func (p *Pipeline) build(ctx context.Context) error {
	if p.programs != "" {
		return nil
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	p.programs = filepath.Join(p.Dir(), "bin")
	if err := os.MkdirAll(p.programs, 0o755); err != nil {
		return fmt.Errorf("make the folder of programs: %w", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", p.programs+string(filepath.Separator), "./producer", "./consumer", "./reconciler")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs in %s: %w\n%s", root, errors.Join(ctx.Err(), err), bytes.TrimSpace(out))
	}
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	var complaint bytes.Buffer
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Stderr = &complaint
	out, err := list.Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return "", fmt.Errorf("find the sources of the programs: %w: run the demo inside the repository, or name built programs by --programs\n%s",
			errors.Join(ctx.Err(), err), bytes.TrimSpace(complaint.Bytes()))
	}
	return root, nil
}

// environment is the caller's own without its settings of stockpipe, which are meant for something else, and with
// where the servers are. Secrets travel here, because everybody can read a command line.
func (p *Pipeline) environment() []string {
	var env []string
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "STOCKPIPE_") {
			env = append(env, setting)
		}
	}
	return append(env,
		"STOCKPIPE_REDIS_URL="+p.redis.URL(),
		"STOCKPIPE_REDIS_PREFIX="+p.shape.Prefix,
		"STOCKPIPE_POSTGRES_URL="+p.database,
	)
}

// output is what a command said.
type output struct {
	stdout, stderr string
	code           int // exit code
}

// reconciler runs one command of the reconciler to its end. An exit code above 0 is no error here.
func (p *Pipeline) reconciler(ctx context.Context, arguments ...string) (output, error) {
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	name := "reconciler " + strings.Join(arguments, " ")
	var stdout, stderr bounded
	process, err := sandbox.StartProcess(ctx, sandbox.ProcessOptions{
		Path: filepath.Join(p.programs, "reconciler"), Args: arguments, Env: p.environment(), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return output{}, err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Kill()
		return output{}, fmt.Errorf("%s: %w", name, ctx.Err())
	}
	said := output{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	if err := process.Err(); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		said.code = exit.ExitCode()
	} else if err != nil {
		return said, fmt.Errorf("%s: %w\n%s", name, err, strings.TrimSpace(said.stderr))
	}
	return said, nil
}

// must is reconciler for a command that has to succeed.
func (p *Pipeline) must(ctx context.Context, arguments ...string) error {
	said, err := p.reconciler(ctx, arguments...)
	if err == nil && said.code != 0 {
		err = fmt.Errorf("reconciler %s: exit code %d\n%s", strings.Join(arguments, " "), said.code, strings.TrimSpace(said.stdout+said.stderr))
	}
	return err
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(text []byte) (int, error) {
	if room := mostOutput - b.Len(); room < len(text) {
		b.Buffer.Write(text[:max(room, 0)])
		return len(text), nil
	}
	return b.Buffer.Write(text)
}
