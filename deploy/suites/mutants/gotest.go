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
	"slices"
	"strings"
	"time"
)

// buildTime is what compiling and linking may take on top of the tests; waitTime is how long a go command that was
// told to end may take to do so.
const (
	buildTime = 3 * time.Minute
	waitTime  = 15 * time.Second
)

// A sighting is what go test told about some tests.
type sighting struct {
	passed  []string // test functions
	failed  []string
	unbuilt bool // it did not get to the tests
	timeout bool // it ended the tests, because they did not
	ok      bool // it was content
	output  []string
}

// wanting are those of the tests that neither passed nor failed visibly.
func (s *sighting) wanting(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(s.passed, name) })
}

// tail is the end of what was printed, for an error.
func (s *sighting) tail() string {
	const most = 30
	return strings.Join(s.output[max(0, len(s.output)-most):], "")
}

// ask runs tests of a package, reading what the overlay says in place of files, if there is one. An error means
// that go test could not be asked; how the tests ended is in the sighting. Tests share the machine with other
// mutants, so neither vet nor the linker is asked for what nobody reads, and a mutant's tests stop at the first
// failure.
func (r *runner) ask(ctx context.Context, pkg string, names []string, overlay string, limit time.Duration) (*sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+buildTime)
	defer cancel()
	args := []string{
		"test", "-json", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout", limit.String(), "-run", "^(" + strings.Join(names, "|") + ")$",
	}
	if overlay != "" {
		args = append(args, "-failfast", "-overlay", overlay)
	}
	args = append(args, "./"+pkg)
	if overlay != "" && r.recordsFailures(pkg) {
		args = append(args, "-rapid.nofailfile")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	// An interrupt lets the tests take their servers down; the go command waits for them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = waitTime
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("go test did not end within %s: %w", limit+buildTime, ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	s := read(out.Bytes())
	s.ok = err == nil
	return s, nil
}

// recordsFailures reports whether a package has property tests: they keep the input that broke them beside the code, to
// try it again for ever, and what breaks a mutant has no place there.
func (r *runner) recordsFailures(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(r.root, pkg, "*_test.go")) // the pattern is a good one
	return slices.ContainsFunc(files, func(name string) bool {
		text, err := os.ReadFile(name)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

// read makes sense of go test's events. Lines that are no events come from the go command itself.
func read(out []byte) *sighting {
	s := &sighting{}
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			s.output = append(s.output, string(line))
			continue
		}
		test := e.Test != "" && !strings.Contains(e.Test, "/")
		switch {
		case e.Action == "build-fail":
			s.unbuilt = true
		case e.Action == "pass" && test:
			s.passed = append(s.passed, e.Test)
		case e.Action == "fail" && test:
			s.failed = append(s.failed, e.Test)
		case e.Action == "output" || e.Action == "build-output":
			s.output = append(s.output, e.Output)
			s.timeout = s.timeout || strings.HasPrefix(e.Output, "panic: test timed out after")
		}
	}
	return s
}
