// Command bench measures the product against references that run beside it, on a private stack: group-commit
// reserves against redis-benchmark with the leanest single script, and the consumer against raw COPY of the
// same rows. Rounds are interleaved, because machines are shared and noisy: trust the ratios and their spread,
// not the absolutes. A wrong answer fails the run, however fast it was.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

type options struct {
	rounds  int
	orders  int
	callers []int
	aof     string
	only    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	stack, err := sandbox.Open(ctx, sandbox.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = stack.Close() }()
	if o.only != "consumer" {
		if err := benchReserve(ctx, stack, o); err != nil {
			return fmt.Errorf("reserve: %w", err)
		}
	}
	if o.only != "reserve" {
		if err := benchConsumer(ctx, stack, o); err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
	}
	return nil
}

func parse(args []string) (options, error) {
	var o options
	var callers string
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.IntVar(&o.rounds, "rounds", 5, "interleaved rounds of each measurement, 1 to 100")
	set.IntVar(&o.orders, "orders", 300_000, "orders per measurement at 64 and 256 callers (a lone caller does a twentieth)")
	set.StringVar(&callers, "callers", "1,64,256", "numbers of concurrent callers")
	set.StringVar(&o.aof, "aof", "everysec", "append-only file on both sides: everysec, always or off")
	set.StringVar(&o.only, "only", "", "reserve or consumer; empty does both")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(callers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 4096 {
			return o, fmt.Errorf("-callers: %q is not a number from 1 to 4096", text)
		}
		o.callers = append(o.callers, n)
	}
	switch {
	case o.rounds < 1 || o.rounds > 100:
		return o, fmt.Errorf("-rounds: %d is not between 1 and 100", o.rounds)
	case o.orders < 1000 || o.orders > 5_000_000:
		return o, fmt.Errorf("-orders: %d is not between 1000 and 5000000", o.orders)
	case o.aof != "everysec" && o.aof != "always" && o.aof != "off":
		return o, fmt.Errorf("-aof: %q is not everysec, always or off", o.aof)
	case o.only != "" && o.only != "reserve" && o.only != "consumer":
		return o, fmt.Errorf("-only: %q is not reserve or consumer", o.only)
	}
	return o, nil
}
