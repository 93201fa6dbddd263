package consumerapp

import (
	"time"

	"github.com/stockpipe/stockpipe/pkg/config"
)

// Name and Description head the help.
const (
	Name        = "stockpipe-consumer"
	Description = "Persists the log of every shard to Postgres, in order. Several consumers share the shards; one that dies or stops is replaced within 5 s."
)

// Config is every setting of a consumer; the defaults work against the local stack.
type Config struct {
	Redis    config.Redis     `embed:"" prefix:"redis-"`
	Postgres config.Postgres  `embed:"" prefix:"postgres-"`
	Ops      config.Listen    `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8082"`
	Log      config.Log       `embed:"" prefix:"log-"`
	Access   config.Access    `embed:""`
	Keep     config.Retention `embed:""`

	ConsumerID string        `name:"consumer-id" placeholder:"NAME" help:"Name of this process among the consumers, 1 to 64 of A-Z a-z 0-9 . _ : - and nobody else's. By default made of host, process id and chance."`
	Block      time.Duration `name:"block" default:"1s" help:"How long one read of the log waits for something new, 10ms to 5s."`
	Batch      int           `name:"batch" default:"1000" help:"Log entries of one batch at most, 1 to 10000."`
	LogKeep    time.Duration `name:"log-keep" default:"60s" help:"How long entries that Postgres has stay in the log, 1s to 24h; 0 never trims. They go earlier where the logs take more than a tenth of maxmemory."`

	Healthcheck bool `name:"healthcheck" help:"Ask the process that listens on --ops-listen whether it is ready, and exit with 0 or 1; for images without a shell."`
}

// Validate names the flag, its value and what would be accepted.
func (c Config) Validate() error {
	if err := config.CheckID("consumer-id", c.ConsumerID); err != nil {
		return err
	}
	switch {
	case c.Block < 10*time.Millisecond || c.Block > 5*time.Second:
		return config.Bound("block", c.Block, "use 10ms to 5s")
	case c.LogKeep != 0 && (c.LogKeep < time.Second || c.LogKeep > 24*time.Hour):
		return config.Bound("log-keep", c.LogKeep, "use 1s to 24h, or 0 to never trim")
	case c.Batch < 1 || c.Batch > 10_000:
		return config.Bound("batch", c.Batch, "use 1 to 10000")
	}
	return c.Access.Check("ops-listen", c.Ops)
}

// id is the name of this process: never one that an earlier process had, whose assignments and group name may
// still be around.
func (c Config) id() string {
	return config.ProcessID(c.ConsumerID)
}
