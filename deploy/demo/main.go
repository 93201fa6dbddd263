// Command demo shows stockpipe on this machine: it starts a private stack, plays a sale or replays an order file
// through the HTTP API, audits, and says in figures whether the promises were kept.
//
// Exit codes: 0 every promise was kept; 1 one was not; 2 the demo could not be carried out; 130 it was interrupted;
// 64 a flag can not be used.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/progress"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/service"
)

// Exit codes beside 0.
const (
	exitBroken      = 1
	exitFailed      = 2
	exitInterrupted = 130
)

func main() {
	var settings Settings
	config.Parse("demo", description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	code := conclude(ctx, settings, Run(ctx, settings, progress.New(os.Stdout)))
	stop()
	os.Exit(code)
}

// errBroken says that the verdict is against us; it stands on the screen already.
var errBroken = errors.New("a promise was broken")

// conclude says how it ended and what to do next.
func conclude(ctx context.Context, s Settings, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errBroken):
		return exitBroken
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, interrupted(s))
		return exitInterrupted
	}
	fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	return exitFailed
}

// interrupted says how to go on.
func interrupted(s Settings) string {
	switch {
	case s.Keep != "" && s.Orders != "":
		return fmt.Sprintf("demo: interrupted; everything was stopped in order. Resume it with the same --orders %s --keep %s.", s.Orders, s.Keep)
	case s.Keep != "":
		return fmt.Sprintf("demo: interrupted; everything was stopped in order. The stores are kept: --keep %s plays another sale on them.", s.Keep)
	}
	return "demo: interrupted; everything was stopped and removed. With --keep FOLDER a replay can be resumed."
}
