package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A runner asks the tests.
type runner struct {
	root     string
	limit    time.Duration // of the tests of one mutant
	parallel int
}

// baseline runs every test that the mutants name without a mutation. A test that fails, is skipped or is not
// there kills nothing, and would look as if it did.
func (r *runner) baseline(ctx context.Context, mutants []mutant) error {
	tests := map[string][]string{}
	var pkgs []string
	for _, m := range mutants {
		if tests[m.pkg] == nil {
			pkgs = append(pkgs, m.pkg)
		}
		tests[m.pkg] = append(tests[m.pkg], m.by...)
	}
	problems := make([]error, len(pkgs))
	var group errgroup.Group
	group.SetLimit(r.parallel)
	for i, pkg := range pkgs {
		group.Go(func() error {
			problems[i] = r.passes(ctx, pkg, tests[pkg])
			return nil // one that fails does not hide the others
		})
	}
	_ = group.Wait()
	return errors.Join(problems...)
}

// passes wants all of the tests of a package to pass.
func (r *runner) passes(ctx context.Context, pkg string, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	seen, err := r.ask(ctx, pkg, names, "", 2*r.limit)
	if err != nil {
		return fmt.Errorf("%s: %w", pkg, err)
	}
	if lost := seen.wanting(names); len(lost) > 0 || !seen.ok {
		return fmt.Errorf("%s without a mutation: %s did not pass, and can kill nothing:\n%s", pkg, strings.Join(lost, ", "), seen.tail())
	}
	return nil
}

// all tries the mutants, some at a time, and tells their verdicts in the order of the table. It ends early with ctx.
func (r *runner) all(ctx context.Context, mutants []mutant, tell func(mutant, verdict)) {
	verdicts := make([]chan verdict, len(mutants))
	for i := range verdicts {
		verdicts[i] = make(chan verdict, 1)
	}
	work := make(chan int)
	var workers sync.WaitGroup
	for range r.parallel {
		workers.Go(func() {
			for i := range work {
				verdicts[i] <- r.try(ctx, mutants[i])
			}
		})
	}
	workers.Go(func() {
		defer close(work)
		for i := range mutants {
			work <- i
		}
	})
	for i, m := range mutants {
		tell(m, <-verdicts[i])
	}
	workers.Wait()
}

// try judges one mutant.
func (r *runner) try(ctx context.Context, m mutant) verdict {
	began := time.Now()
	v := r.judge(ctx, m)
	v.took = time.Since(began)
	return v
}

func (r *runner) judge(ctx context.Context, m mutant) verdict {
	if err := ctx.Err(); err != nil {
		return verdict{err: err}
	}
	text, err := m.broken(r.root)
	if err != nil {
		return verdict{err: err}
	}
	dir, err := os.MkdirTemp("", "stockpipe-mutant-")
	if err != nil {
		return verdict{err: err}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := writeOverlay(dir, filepath.Join(r.root, m.file), text)
	if err != nil {
		return verdict{err: err}
	}
	seen, err := r.ask(ctx, m.pkg, m.by, overlay, r.limit)
	switch {
	case err != nil:
		return verdict{err: err}
	case seen.unbuilt:
		return verdict{err: fmt.Errorf("it does not compile:\n%s", seen.tail())}
	case seen.timeout && !m.hang:
		return verdict{err: fmt.Errorf("the tests did not end within %s", r.limit)}
	}
	for _, name := range m.by {
		if slices.Contains(seen.failed, name) || seen.timeout && !slices.Contains(seen.passed, name) {
			return verdict{by: m.pkg[strings.LastIndexByte(m.pkg, '/')+1:] + "." + name}
		}
	}
	if lost := seen.wanting(m.by); len(lost) > 0 || !seen.ok {
		return verdict{err: fmt.Errorf("%s neither passed nor failed:\n%s", strings.Join(lost, ", "), seen.tail())}
	}
	return verdict{}
}

// writeOverlay makes the two files that the go command needs to read text in place of a file.
func writeOverlay(dir, file, text string) (string, error) {
	broken := filepath.Join(dir, "broken"+filepath.Ext(file))
	if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write the broken copy: %w", err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {file: broken}})
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return path, nil
}
