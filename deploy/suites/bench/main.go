// Command bench measures the product on a private stack, against references that run beside it: group-commit
// reserves against redis-benchmark with the leanest single script, the consumer against raw COPY of the same rows,
// and by the clock what has no reference (takeovers, expiry, audits). Rounds are interleaved, because machines are
// shared and noisy: trust the ratios and their spread, not the absolutes. Each measurement ends with an audit and
// with the callers' own lists, so a wrong answer fails the run (exit code 1), however fast it was. A missed goal is
// said in the table and fails nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, nil)
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitRight = 0 // everything was measured, and every answer was right
	exitWrong = 1 // a wrong answer, or something that could not be measured
	exitUsage = 64
)

// options are what the flags say.
type options struct {
	rounds int
	aof    string
	json   bool
	only   *regexp.Regexp
	size   size
}

// run measures, writes the report to stdout and how far it is to stderr, and answers the exit code. plant, if set,
// is called before each ending audit: it exists for tests, which falsify something there and see it found.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, plant func(context.Context, *shop) error) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitRight
	case err != nil:
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	began := time.Now()
	b := &bench{options: o, plant: plant, progress: stderr}
	err = b.measure(ctx)
	b.report.Seconds = time.Since(began).Seconds()
	b.report.describe(o)
	if o.json {
		err = errors.Join(err, b.report.writeJSON(stdout))
	} else {
		b.report.writeTable(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitWrong
	}
	return exitRight
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var short bool
	var only string
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&o.rounds, "rounds", 0, "interleaved rounds of each measurement, 1 to 100; 0 means 5, or 1 with -short")
	set.StringVar(&only, "run", "", "measure only what this regular expression matches: "+strings.Join(names(), ", "))
	set.BoolVar(&short, "short", false, "tiny sizes, to see that everything works: the figures mean nothing")
	set.BoolVar(&o.json, "json", false, "write one JSON document with every round in place of the table")
	set.StringVar(&o.aof, "aof", "everysec", "append-only file on both sides: everysec, always or off")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag: see -help", set.Arg(0))
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	o.size = whole
	if short {
		o.size = tiny
	}
	if o.rounds == 0 {
		o.rounds = o.size.rounds
	}
	switch {
	case o.rounds < 1 || o.rounds > 100:
		return o, fmt.Errorf("-rounds: %d is not between 1 and 100", o.rounds)
	case o.aof != "everysec" && o.aof != "always" && o.aof != "off":
		return o, fmt.Errorf("-aof: %q is not everysec, always or off", o.aof)
	case len(chosen(o.only)) == 0:
		return o, fmt.Errorf("-run: nothing matches %q; there are %s", only, strings.Join(names(), ", "))
	}
	return o, nil
}

// measure makes every chosen measurement. One that fails is named, and the others go on.
func (b *bench) measure(ctx context.Context) (err error) {
	if b.stack, err = sandbox.Open(ctx, sandbox.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stack.Close()) }()
	if err := b.startPostgres(ctx); err != nil {
		return err
	}
	var failed []error
	for _, e := range chosen(b.only) {
		b.say("%s: %s", e.name, e.about)
		began := time.Now()
		err := e.run(ctx, b)
		b.say("%s took %.1f s", e.name, time.Since(began).Seconds())
		if ctx.Err() != nil {
			return errors.Join(append(failed, context.Cause(ctx))...)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", e.name, err))
			b.report.Failed = append(b.report.Failed, fmt.Sprintf("%s: %v", e.name, err))
		}
	}
	return errors.Join(failed...)
}
