// Command mutants breaks the product one line at a time and asks for each breakage whether a test notices. A
// promise whose line can be broken while every test passes is not tested, whatever the tests say of themselves.
//
// The tree is never touched: the go command is told to read a broken copy in place of one file (-overlay).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

// Bounds of a run.
const (
	mostParallel  = 16
	shortestLimit = 10 * time.Second
	longestLimit  = 10 * time.Minute
)

type options struct {
	only     *regexp.Regexp // which mutants, by "part: name"
	list     bool
	parallel int
	limit    time.Duration // of the tests of one mutant
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "mutants:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	var chosen []mutant
	for _, m := range table() {
		if o.only.MatchString(m.title()) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-run: no mutant is called %q: -list names all", o.only)
	}
	if o.list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%-70s %s\n", m.title(), m.harm)
		}
		return nil
	}
	began := time.Now()
	r := &runner{root: root, limit: o.limit, parallel: o.parallel}
	if err := r.baseline(ctx, chosen); err != nil {
		return err
	}
	fmt.Fprintf(out, "the tests pass without a mutation (%s)\n", rounded(time.Since(began)))
	var sum summary
	r.all(ctx, chosen, func(m mutant, v verdict) {
		if v.err != nil && ctx.Err() != nil {
			return // not its fault
		}
		sum.count(v)
		fmt.Fprintln(out, v.line(m))
	})
	fmt.Fprintf(out, "%s, in %s\n", sum, rounded(time.Since(began)))
	if left := len(chosen) - sum.judged(); ctx.Err() != nil && left > 0 {
		return fmt.Errorf("stopped with %d mutants left", left)
	}
	return sum.err()
}

func parse(args []string) (options, error) {
	var o options
	var only string
	set := flag.NewFlagSet("mutants", flag.ContinueOnError)
	set.StringVar(&only, "run", "", "mutants whose \"part: name\" matches this regular expression; empty runs all")
	set.BoolVar(&o.list, "list", false, "name the mutants and what each would do, and run none")
	set.IntVar(&o.parallel, "p", 2, "mutants at work at the same time, 1 to 16")
	set.DurationVar(&o.limit, "limit", 2*time.Minute, "longest that the tests of one mutant may take, 10s to 10m")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	switch {
	case set.NArg() > 0:
		return o, fmt.Errorf("%q is no flag: -run chooses mutants", set.Arg(0))
	case o.parallel < 1 || o.parallel > mostParallel:
		return o, fmt.Errorf("-p: %d is not between 1 and %d", o.parallel, mostParallel)
	case o.limit < shortestLimit || o.limit > longestLimit:
		return o, fmt.Errorf("-limit: %s is not between %s and %s", o.limit, shortestLimit, longestLimit)
	}
	return o, nil
}

// moduleRoot is the nearest folder upwards that has a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find the module: no go.mod here or above: run this inside the project")
		}
		dir = up
	}
}

func rounded(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
