package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

const (
	// speakPatience is how long a role may take until it says where it listens.
	speakPatience = 20 * time.Second
	// stopGrace is longer than any role takes to finish what it has in hand.
	stopGrace = 20 * time.Second
)

// The kinds of roles, which are also the names of their programs.
const (
	producer   = "producer"
	consumer   = "consumer"
	reconciler = "reconciler"
)

// A role is one of our processes.
type role struct {
	kind    string
	name    string // for people: consumer-2
	process *sandbox.Process
	journal *journal
	log     *os.File
	place   place
	dismiss bool // it was told to stop; under the pipeline's lock
}

// prepare brings the database to its schema, makes the shards, and connects.
func (p *Pipeline) prepare() error {
	if err := p.must(p.ctx, "migrate"); err != nil {
		return err
	}
	if err := p.must(p.ctx, "init", "--shards", strconv.Itoa(p.shape.Shards)); err != nil {
		return err
	}
	var err error
	if p.ledger, err = ledger.Open(p.ctx, ledger.Config{URL: p.database, Name: "stockpipe-demo", MaxConns: 4}); err != nil {
		return err
	}
	p.rdb, err = redisstock.Connect(redisstock.Options{URL: p.redis.URL(), Name: "stockpipe-demo", PoolSize: 4, Timeout: 10 * time.Second})
	return err
}

func (p *Pipeline) startRoles() error {
	if err := p.startRole(reconciler, reconciler, "serve"); err != nil {
		return err
	}
	for n := range p.shape.Consumers {
		name := fmt.Sprintf("%s-%d", consumer, n+1)
		if err := p.startRole(consumer, name, "--consumer-id", fmt.Sprintf("%s-%d", name, os.Getpid())); err != nil {
			return err
		}
	}
	for n := range p.shape.Producers {
		arguments := []string{"--listen", "127.0.0.1:0"}
		if p.shape.MaxLines > 0 {
			arguments = append(arguments, "--max-lines", strconv.Itoa(p.shape.MaxLines))
		}
		if err := p.startRole(producer, fmt.Sprintf("%s-%d", producer, n+1), arguments...); err != nil {
			return err
		}
	}
	return nil
}

// startRole starts a process on ports that it finds itself and waits until it says which.
func (p *Pipeline) startRole(kind, name string, arguments ...string) error {
	file, err := os.OpenFile(p.logPath(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", name, err)
	}
	r := &role{kind: kind, name: name, journal: newJournal(file), log: file}
	r.process, err = sandbox.StartProcess(p.ctx, sandbox.ProcessOptions{
		Path: filepath.Join(p.programs, kind), Args: append(arguments, "--ops-listen", "127.0.0.1:0"),
		Env: p.environment(), Stdout: r.journal, Stderr: r.journal,
	})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	p.mu.Lock()
	p.roles = append(p.roles, r)
	p.mu.Unlock()

	timer := time.NewTimer(speakPatience)
	defer timer.Stop()
	select {
	case r.place = <-r.journal.placed:
	case <-r.process.Done():
		return fmt.Errorf("%s ended at its start: %s", name, r.journal.tail())
	case <-timer.C:
		return fmt.Errorf("%s did not say within %v where it listens: %s", name, speakPatience, r.journal.tail())
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	p.watch.Go(func() { p.guardRole(r) })
	return nil
}

func (p *Pipeline) logPath(name string) string { return filepath.Join(p.Dir(), "logs", name+".log") }

// guardRole tells when a process ends that nobody asked to. A consumer is replaced by the others, so the demo goes
// on without it; without its reconciler or its last producer it can not.
func (p *Pipeline) guardRole(r *role) {
	select {
	case <-r.process.Done():
	case <-p.ctx.Done():
		return
	}
	p.mu.Lock()
	dismissed := r.dismiss
	left := 0
	for _, other := range p.roles {
		if other.kind == r.kind && !other.ended() {
			left++
		}
	}
	p.mu.Unlock()
	switch {
	case dismissed:
	case left == 0:
		p.cancel(fmt.Errorf("%s ended (%w) and there is no other %s: %s", r.name, orDone(r.process.Err()), r.kind, r.journal.tail()))
	default:
		p.config.Say("%s ended (%v); %d %s left", r.name, orDone(r.process.Err()), left, r.kind)
	}
}

var errDone = errors.New("exit code 0")

func orDone(err error) error {
	if err == nil {
		return errDone
	}
	return err
}

func (r *role) ended() bool {
	select {
	case <-r.process.Done():
		return true
	default:
		return false
	}
}

// stopRoles stops kind after kind.
func (p *Pipeline) stopRoles() []error {
	var errs []error
	for _, kind := range []string{producer, consumer, reconciler} {
		errs = append(errs, p.stopKind(kind)...)
	}
	return errs
}

// stopKind stops all roles of a kind at once. Those that have ended are skipped.
func (p *Pipeline) stopKind(kind string) []error {
	roles := p.ofKind(kind)
	errs := make([]error, len(roles))
	var wait sync.WaitGroup
	for i, r := range roles {
		p.mu.Lock()
		r.dismiss = true
		p.mu.Unlock()
		if r.ended() {
			continue
		}
		wait.Go(func() {
			if err := r.process.Stop(stopGrace); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w: %s", r.name, err, r.journal.tail())
			}
		})
	}
	wait.Wait()
	return errs
}

// APIs are the addresses of the producers, for clients.
func (p *Pipeline) APIs() []string {
	var urls []string
	for _, r := range p.ofKind(producer) {
		urls = append(urls, r.place.API)
	}
	return urls
}

func (p *Pipeline) ofKind(kind string) []*role {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*role
	for _, r := range p.roles {
		if r.kind == kind {
			found = append(found, r)
		}
	}
	return found
}

// consumerName is the name for people of a consumer that the ledger knows by its id.
func consumerName(id string) string {
	if i := strings.LastIndex(id, "-"); i > 0 {
		return id[:i]
	}
	return id
}
