package reconcilerapp

import (
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// Name and Description head the help.
const (
	Name        = "stockpipe-reconciler"
	Description = `Opens the shards in Redis, ends holds whose time is over, finishes documents, proves that Redis and Postgres agree, and repairs what differs. A new installation: migrate, init, serve. Without a command it serves; several may serve side by side, one at a time works on a shard.

Exit codes of once and plan: 0 nothing was wrong (holds that ended and documents that were finished are no wrong); 1 something was repaired, the first opening of a shard included (plan: would be); 2 something needs an operator; 3 something could not be checked. The worst of all shards counts: 2 before 3 before 1. takeover and retry exit alike, with 0 when the shard was opened. The other commands exit with 0, or 1 after an error; 64 means a setting that cannot be used.`
)

// Config is every setting of a reconciler; the defaults work against the local stack.
type Config struct {
	Once bool `name:"once" help:"Make one pass over all shards and exit, for cron; the same as the command once."`
	Plan bool `name:"plan" help:"Say what one pass would do, with the evidence and what it would give up, and change nothing."`
	JSON bool `name:"json" help:"Write the result of once, plan, takeover, retry and status as one JSON document to stdout."`

	Redis    config.Redis    `embed:"" prefix:"redis-"`
	Postgres config.Postgres `embed:"" prefix:"postgres-"`
	Ops      config.Listen   `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8083"`
	Log      config.Log      `embed:"" prefix:"log-"`

	ReconcilerID string        `name:"reconciler-id" placeholder:"NAME" help:"Name of this process among the reconcilers, 1 to 64 of A-Z a-z 0-9 . _ : - and nobody else's. By default made of host, process id and chance."`
	OnTampered   string        `name:"on-tampered" default:"freeze" enum:"freeze,ledger-wins" help:"What becomes of a SKU or order on which Redis and Postgres differ at the same position: freeze stops the SKU until an operator decides, ledger-wins takes the shard over, which puts what Postgres and the log say."`
	AuditEvery   time.Duration `name:"audit-every" default:"5s" help:"Time between two rolling audits of a shard that is served, 100ms to 24h; each compares all SKUs and one page of orders."`
	StuckAfter   time.Duration `name:"stuck-after" default:"30s" help:"How long Postgres may stand still although the log goes on before the reconciler applies the log itself, 1s to 24h; 0 never."`
	RedisConns   int           `name:"redis-conns" default:"16" help:"Connections to Redis at most, 4 to 256."`

	Unsafe Unsafe `embed:"" prefix:"unsafe-"`

	Serve    struct{}    `cmd:"" default:"1" help:"Keep all shards well until told to stop. This is what happens without a command."`
	Pass     struct{}    `cmd:"" name:"once" help:"Make one pass over all shards and exit."`
	Migrate  struct{}    `cmd:"" help:"Bring the database to the schema of this build. Safe from several processes at once."`
	Init     InitCommand `cmd:"" help:"Write the rows of the shards, once. Repeated with the same number it changes nothing."`
	Takeover OneShard    `cmd:"" help:"Rebuild a shard from Postgres and open it, a halted one, too. What the log has and Postgres cannot apply is given up, and said."`
	Retry    RetryShard  `cmd:"" help:"Try again what halted a shard, after its cause was mended. Nothing is given up."`
	Status   struct{}    `cmd:"" help:"Show every shard: epoch, positions, state, and what Redis says of itself."`
}

// InitCommand is how many shards there will be.
type InitCommand struct {
	Shards int `name:"shards" default:"1" help:"Shards of this ledger, 1 to 1024. It cannot be changed later."`
}

// Validate names the bound.
func (c InitCommand) Validate() error {
	if c.Shards < 1 || c.Shards > stock.MaxShards {
		return config.Bound("shards", c.Shards, fmt.Sprintf("use 1 to %d", stock.MaxShards))
	}
	return nil
}

// OneShard is the shard that an operator takes over.
type OneShard struct {
	Shard int  `name:"shard" required:"" help:"Number of the shard."`
	Adopt bool `name:"adopt" help:"Take over a Redis that another ledger wrote; all that it holds is given up."`
}

// RetryShard is the shard that an operator tries again.
type RetryShard struct {
	Shard int `name:"shard" required:"" help:"Number of the shard."`
}

// Unsafe are checks of the Redis server that an operator does without, each at the price that its help names.
type Unsafe struct {
	Eviction  bool `name:"eviction" help:"Start although Redis may evict keys: stock and orders may vanish one by one."`
	Memory    bool `name:"memory" help:"Start although Redis has no maxmemory: the system may end it in place of a refusal."`
	AOF       bool `name:"aof" help:"Start although Redis keeps no append-only file: every restart costs what Postgres has not got."`
	Replicas  bool `name:"replicas" help:"Start although Redis has replicas and no min-replicas-to-write: a failover costs more."`
	OldServer bool `name:"old-server" help:"Start although Redis is older than 7."`
}

func (u Unsafe) checks() redisstock.Unsafe {
	return redisstock.Unsafe{Eviction: u.Eviction, Memory: u.Memory, AOF: u.AOF, Replicas: u.Replicas, OldServer: u.OldServer}
}

// Validate names the flag, its value and what would be accepted.
func (c Config) Validate() error {
	switch {
	case config.CheckID("reconciler-id", c.ReconcilerID) != nil:
		return config.CheckID("reconciler-id", c.ReconcilerID)
	case c.AuditEvery < 100*time.Millisecond || c.AuditEvery > 24*time.Hour:
		return config.Bound("audit-every", c.AuditEvery, "use 100ms to 24h")
	case c.StuckAfter != 0 && (c.StuckAfter < time.Second || c.StuckAfter > 24*time.Hour):
		return config.Bound("stuck-after", c.StuckAfter, "use 1s to 24h, or 0 for never")
	case c.Postgres.MaxConns < 4:
		return config.Bound("postgres-max-conns", c.Postgres.MaxConns, "use at least 4: an audit needs two connections, and the other duties go on")
	case c.RedisConns < 4 || c.RedisConns > 256:
		return config.Bound("redis-conns", c.RedisConns, "use 4 to 256")
	}
	return nil
}

func (c Config) policy() repair.Policy { return repair.Policy(c.OnTampered) }

// id is the name of this process: never one that an earlier process had, whose turn may still last.
func (c Config) id() string {
	return config.ProcessID(c.ReconcilerID)
}
