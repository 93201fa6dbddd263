// Package service runs the parts of a process: started in order, stopped in reverse order, each with the
// time that it may take. It also holds the two parts that every role has, an HTTP listener and the
// handler for operators (Ops).
//
// It decides nothing about exit codes and logs nothing: the error of Run names the part and goes to the main.
package service

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// DefaultGrace is how long a part that names no grace may take to end after it was told to.
const DefaultGrace = 10 * time.Second

// A Part is one long piece of work.
//
//	waiting → starting → ready → stopping → ended
//
// Run blocks until its context ends, then finishes what is in hand (context.WithoutCancel and a timeout)
// and returns nil or the context's error. When it returns earlier the whole process stops: with nil because
// the work is done, with an error because it failed.
type Part struct {
	Name string // stands in every error
	Run  func(ctx context.Context) error
	// Ready is closed by the part once the next one may start; nil means at once.
	Ready <-chan struct{}
	// Grace is how long Run may take after its context ended, from the moment its turn to stop came;
	// 0 means DefaultGrace.
	Grace time.Duration
}

// running is a part whose Run was called; the goroutine leaves its result in ended and closes over.
type running struct {
	Part
	cancel context.CancelFunc
	over   chan struct{}
	ended  error
}

// Run reads the whole program into memory, starts the parts in order, each after the one before is ready, and waits for
// the first end of a part or of ctx. Then it stops what was started, the last first: a part's context is cancelled only when all parts after it
// have ended, so what others lean on goes last.
//
// The error joins what the parts returned, each as "part <name>: …"; it is nil when ctx ended or a part was done
// and every part ended well and in time. A part that outlives its grace is named and left behind: the caller is
// expected to exit.
func Run(ctx context.Context, parts ...Part) error {
	pageIn()
	first := make(chan struct{}, len(parts)) // one token for every part that ended: nobody blocks on it
	var started []*running
	for _, p := range parts {
		r := start(ctx, p, first)
		started = append(started, r)
		if !r.becomesReady(ctx, first) {
			return stop(started)
		}
	}
	select {
	case <-ctx.Done():
	case <-first:
	}
	return stop(started)
}

// start calls Run under a context that keeps the values of ctx, not its end: the end comes in order, by stop.
func start(ctx context.Context, p Part, first chan<- struct{}) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{Part: p, cancel: cancel, over: make(chan struct{})}
	go func() { // stop waits on over
		defer close(r.over)
		r.ended = p.Run(own)
		first <- struct{}{}
	}()
	return r
}

func (r *running) becomesReady(ctx context.Context, first chan struct{}) bool {
	if r.Ready == nil {
		return ctx.Err() == nil
	}
	select {
	case <-r.Ready:
		return true
	case <-ctx.Done():
	case <-first: // this part or an earlier one ended: stop finds out which
	}
	return false
}

func stop(started []*running) error {
	var errs []error
	for _, r := range slices.Backward(started) {
		early := r.isOver()
		r.cancel()
		if err := r.await(); err != nil {
			errs = append(errs, err)
		} else if r.ended != nil && (early || !errors.Is(r.ended, context.Canceled)) {
			errs = append(errs, fmt.Errorf("part %s: %w", r.Name, r.ended))
		}
	}
	return errors.Join(errs...)
}

func (r *running) isOver() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

func (r *running) await() error {
	grace := r.Grace
	if grace == 0 {
		grace = DefaultGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-r.over:
		return nil
	case <-timer.C:
		return fmt.Errorf("part %s: still running %v after it was told to stop", r.Name, grace)
	}
}

// WithSignals is a context that ends at SIGINT or SIGTERM. From then on the signals have their usual effect
// again, so a second one ends the process at once. The caller calls the function when it no longer waits.
func WithSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
