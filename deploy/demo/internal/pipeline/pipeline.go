// Package pipeline runs a whole stockpipe on this machine: private servers, and the three roles as real processes
// built from the sources. It starts them in order, tells where they listen, reads both stores for the verdict, and
// takes everything down again. It sells nothing itself.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
)

// Config says where a pipeline lives.
type Config struct {
	Dir         string // kept folder; empty: a temporary one
	RedisURL    string // servers of the user instead of private ones; empty: private
	PostgresURL string
	Programs    string // folder with producer, consumer and reconciler; empty: built from the sources

	Say func(format string, arguments ...any) // tells the user something; safe for concurrent use
}

// Shape is what runs in it. The names matter only on servers of the user: private ones hold nothing else.
type Shape struct {
	Shards    int
	Producers int
	Consumers int
	MaxLines  int // of one order; 0: the producer's own bound

	Prefix   string // of the keys in Redis
	Database string // in Postgres
	Forget   bool   // remove keys and database from servers of the user at the end
}

// A Pipeline is one running stack. Its methods are safe for concurrent use once Start has returned.
type Pipeline struct {
	config   Config
	shape    Shape
	stack    *sandbox.Stack
	programs string // folder

	redis    *sandbox.Redis
	postgres *sandbox.Postgres
	rdb      *redis.Client
	ledger   *ledger.Ledger
	database string // its URL, a secret

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	roles []*role // in order of start
	watch sync.WaitGroup
}

// Open takes the folder, and starts nothing yet. Close it.
func Open(ctx context.Context, config Config) (*Pipeline, error) {
	stack, err := sandbox.Open(ctx, sandbox.Config{Dir: config.Dir, RedisURL: config.RedisURL, PostgresURL: config.PostgresURL})
	if err != nil {
		return nil, err
	}
	p := &Pipeline{config: config, stack: stack, programs: config.Programs}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	return p, nil
}

// Dir is the folder.
func (p *Pipeline) Dir() string { return p.stack.Dir() }

// Context ends when the pipeline can not go on, or with the context it was opened with; its cause says why.
func (p *Pipeline) Context() context.Context { return p.ctx }

// Start brings everything up and returns when the producers would sell:
//
//	programs ┐
//	redis    ├─► database ─► reconciler migrate, init ─► reconciler serve ─► consumers ─► producers ─► ready
//	postgres ┘
func (p *Pipeline) Start(shape Shape) error {
	p.shape = shape
	if err := os.MkdirAll(filepath.Join(p.Dir(), "logs"), 0o755); err != nil {
		return fmt.Errorf("make the folder of logs: %w", err)
	}
	if err := p.startServers(); err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		return err
	}
	if err := p.startRoles(); err != nil {
		return err
	}
	return p.awaitReady()
}

// startServers builds the programs meanwhile: both take seconds, on different cores.
func (p *Pipeline) startServers() error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	errs := make([]error, 3)
	var wait sync.WaitGroup
	for i, start := range []func(context.Context) error{p.build, p.startRedis, p.startPostgres} {
		wait.Go(func() {
			if errs[i] = start(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	return firstCause(errs)
}

// firstCause leaves out what failed only because something else had.
func firstCause(errs []error) error {
	var rest error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		rest = errors.Join(rest, err)
	}
	return rest
}

func (p *Pipeline) startRedis(ctx context.Context) (err error) {
	p.redis, err = p.stack.StartRedis(ctx, sandbox.RedisOptions{MaxMemory: "2gb"})
	if err == nil {
		p.guardServer("redis-server", p.redis.Server)
	}
	return err
}

func (p *Pipeline) startPostgres(ctx context.Context) (err error) {
	if p.postgres, err = p.stack.StartPostgres(ctx, sandbox.PostgresOptions{}); err != nil {
		return err
	}
	p.guardServer("postgres", p.postgres.Server)
	if p.database, err = p.postgres.CreateDatabase(ctx, p.shape.Database); err != nil {
		return fmt.Errorf("make the database %s: %w", p.shape.Database, err)
	}
	return p.writePassword()
}

// guardServer ends the context when a server ends by itself.
func (p *Pipeline) guardServer(name string, server *sandbox.Server) {
	p.watch.Go(func() {
		select {
		case <-server.Done():
			if err := server.Err(); err != nil {
				p.cancel(fmt.Errorf("%s ended: %w", name, err))
			}
		case <-p.ctx.Done():
		}
	})
}

// Close stops the roles in the order of their shutdown (producers, consumers, reconciler), then the servers, and
// removes the folder unless it is kept. What was never started is skipped.
func (p *Pipeline) Close() error {
	errs := p.stopRoles()
	p.cancel(context.Canceled)
	p.watch.Wait()
	for _, r := range p.roles {
		_ = r.log.Close() // only a copy of what was said
	}
	if p.shape.Forget {
		errs = append(errs, p.forget())
	}
	if p.ledger != nil {
		p.ledger.Close()
	}
	if p.rdb != nil {
		errs = append(errs, p.rdb.Close())
	}
	return errors.Join(append(errs, p.stack.Close())...)
}
