package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/keep"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/progress"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/verdict"
	"github.com/stockpipe/stockpipe/pkg/config"
)

// Run carries the demo out. Whatever happens, also a panic, what it started is taken down before it returns.
func Run(ctx context.Context, s Settings, panel *progress.Panel) (err error) {
	began := time.Now()
	var file *orderfile.File
	if s.Orders != "" {
		// Before anything is started: a malformed file costs a second, and nothing of it is replayed.
		if file, err = orderfile.Open(s.Orders); err != nil {
			return err
		}
	}
	p, err := pipeline.Open(ctx, pipeline.Config{
		Dir: s.Keep, RedisURL: s.RedisURL.Reveal(), PostgresURL: s.PostgresURL.Reveal(), Programs: s.Programs, Say: panel.Say,
	})
	if err != nil {
		return err
	}
	defer func() {
		if closing := p.Close(); closing != nil && err == nil {
			err = fmt.Errorf("take everything down: %w", closing)
		}
	}()
	state, err := keep.Begin(p.Dir(), asked(s, file))
	if err != nil {
		return err
	}
	panel.Say("starting %s", parts(s))
	if err := p.Start(s.shape(state.Prefix, state.Database)); err != nil {
		return fmt.Errorf("start the stack: %w", causeOf(p, err))
	}
	since, err := p.Now(p.Context())
	if err != nil {
		return err
	}
	panel.Say("ready after %.1f s. To look in while it runs:", time.Since(began).Seconds())
	for _, line := range p.Visit() {
		panel.Say("  %s", line)
	}
	show := &show{settings: s, state: state, panel: panel, pipeline: p, since: since, began: time.Now()}
	judged, err := show.play(p.Context(), file)
	if err != nil {
		return causeOf(p, err)
	}
	panel.Say("\n%s\n", judged)
	if !judged.Kept() {
		panel.Say("A promise was BROKEN. %.1f s in all.", time.Since(began).Seconds())
		return errBroken
	}
	panel.Say("Every promise was kept. %.1f s in all.", time.Since(began).Seconds())
	return nil
}

// causeOf puts why the pipeline can not go on in the place of the cancelled calls that come of it.
func causeOf(p *pipeline.Pipeline, err error) error {
	cause := context.Cause(p.Context())
	if cause == nil || errors.Is(cause, context.Canceled) {
		if p.Context().Err() != nil {
			return errors.Join(context.Canceled, err)
		}
		return err
	}
	return cause
}

func asked(s Settings, file *orderfile.File) keep.State {
	state := keep.State{Shards: s.Shards, Redis: address(s.RedisURL), Postgres: address(s.PostgresURL)}
	if file != nil {
		state.Orders, state.File = file.Hash, filepath.Base(s.Orders)
	}
	return state
}

// address is the host and port of a URL, without its secrets.
func address(u config.URL) string {
	parsed, err := url.Parse(u.Reveal())
	if err != nil {
		return ""
	}
	return parsed.Host
}

func parts(s Settings) string {
	return fmt.Sprintf("Redis, Postgres, a reconciler, %s and %s, %s",
		several(s.Consumers, "consumer"), several(s.Producers, "producer"), several(s.Shards, "shard"))
}

func several(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", verdict.Count(n), noun)
}

// A show is one sale or one replay on a running pipeline.
type show struct {
	settings Settings
	state    keep.State
	panel    *progress.Panel
	pipeline *pipeline.Pipeline
	since    time.Time // by Postgres' clock
	began    time.Time
}

func (w *show) play(ctx context.Context, file *orderfile.File) (verdict.Verdict, error) {
	if file != nil {
		return w.replay(ctx, file)
	}
	return w.sale(ctx)
}

// live shows the line while work runs. It ends work early when a shard is halted: nothing more is persisted then, and
// the verdict has to say why.
func (w *show) live(ctx context.Context, line func() string, work func(context.Context) error) error {
	working, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	showing, done := context.WithCancel(ctx)
	defer done()
	lag := &lagMeter{pipeline: w.pipeline, halt: halt}
	var wait sync.WaitGroup
	wait.Go(func() { lag.run(showing) })
	wait.Go(func() {
		w.panel.Run(showing, func() string {
			return fmt.Sprintf("%5.1f s  %s  lag %s", time.Since(w.began).Seconds(), line(), lag)
		})
	})
	err := work(working)
	done()
	wait.Wait()
	if ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	if err != nil && ctx.Err() == nil {
		w.panel.Say("ended early: %v", err)
		return nil
	}
	return err
}

// settle waits until Postgres has everything, and lets the reconciler audit.
func (w *show) settle(ctx context.Context) (verdict.Health, error) {
	var h verdict.Health
	// Consumers that get nowhere are for the verdict to tell, which has more to say.
	if err := w.pipeline.Drain(ctx); err != nil {
		if ctx.Err() != nil {
			return h, err
		}
		w.panel.Say("%v", err)
	}
	w.reach(ctx)
	w.panel.Say("auditing: reconciler --once --json")
	var err error
	if h.Audit, err = w.pipeline.Audit(ctx); err != nil {
		return h, fmt.Errorf("audit: %w", err)
	}
	h.Lag = w.pipeline.Lag(ctx)
	if h.Repairs, err = w.pipeline.Repairs(ctx, w.since); err != nil {
		return h, err
	}
	return h, nil
}

// reach tells, when there are several shards, how far each got and who reads it.
func (w *show) reach(ctx context.Context) {
	reached, err := w.pipeline.Reach(ctx)
	if err != nil || len(reached) < 2 {
		return
	}
	for _, r := range reached {
		w.panel.Say("shard %d: Redis at %v, Postgres at %v, read by %s", r.Shard, r.Redis, r.Postgres, orNobody(r.Consumer))
	}
}

// sharing tells who reads what, as soon as every consumer has its share.
func (w *show) sharing(ctx context.Context) error {
	if w.settings.Shards == 1 {
		return nil
	}
	reached, err := w.pipeline.AwaitSharing(ctx)
	if err != nil {
		return err
	}
	shards := map[string][]string{}
	for _, r := range reached {
		name := orNobody(r.Consumer)
		shards[name] = append(shards[name], fmt.Sprint(r.Shard))
	}
	for _, name := range slices.Sorted(maps.Keys(shards)) {
		w.panel.Say("%s reads shard %s", name, strings.Join(shards[name], ", "))
	}
	return nil
}

func orNobody(consumer string) string {
	if consumer == "" {
		return "nobody"
	}
	return consumer
}
