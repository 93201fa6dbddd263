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

Exit codes of once and plan: 0 nothing was wrong (holds that ended and documents that were finished are no wrong); 1 something was repaired, the first opening of a shard included (plan: would be); 2 something needs an operator; 3 something could not be checked. The worst of all shards counts: 2 before 3 before 1. takeover, retry, repair and gapfill exit alike, with 0 when what was asked for was done, and with --plan like a plan. audit and verify repair nothing: 0 nothing differs, 2 something does, 3 could not be checked. explain exits with 0, or 3 when a store did not answer; prune with 0, or 3. The other commands exit with 0, or 1 after an error; 64 means a setting that cannot be used.`
)

// Config is every setting of a reconciler; the defaults work against the local stack.
type Config struct {
	Once        bool `name:"once" help:"Make one pass over all shards and exit, for cron; the same as the command once."`
	Plan        bool `name:"plan" help:"Say what one pass would do, or the command takeover, retry, repair, gapfill or prune that stands beside it, with the evidence and what it would give up, and change nothing."`
	Healthcheck bool `name:"healthcheck" help:"Ask the process that listens on --ops-listen whether it is ready, and exit with 0 or 1; for images without a shell."`
	JSON        bool `name:"json" help:"Write the result of a command other than serve, migrate and init as one JSON document to stdout."`

	Redis    config.Redis     `embed:"" prefix:"redis-"`
	Postgres config.Postgres  `embed:"" prefix:"postgres-"`
	Keep     config.Retention `embed:""`
	Ops      config.Listen    `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8083"`
	Log      config.Log       `embed:"" prefix:"log-"`
	Access   config.Access    `embed:""`

	ReconcilerID string        `name:"reconciler-id" placeholder:"NAME" help:"Name of this process among the reconcilers, 1 to 64 of A-Z a-z 0-9 . _ : - and nobody else's. By default made of host, process id and chance."`
	OnTampered   string        `name:"on-tampered" default:"freeze" enum:"freeze,ledger-wins" help:"What becomes of a SKU or order on which Redis and Postgres differ at the same position: freeze stops the SKU until an operator decides, ledger-wins takes the shard over, which puts what Postgres and the log say."`
	AuditEvery   time.Duration `name:"audit-every" default:"5s" help:"Time between two rolling audits of a shard that is served, 100ms to 24h; each compares all SKUs and one page of orders."`
	StuckAfter   time.Duration `name:"stuck-after" default:"30s" help:"How long Postgres may stand still although the log goes on before the reconciler applies the log itself, 1s to 24h; 0 never."`
	RedisConns   int           `name:"redis-conns" default:"16" help:"Connections to Redis at most, 4 to 256."`

	Unsafe Unsafe `embed:"" prefix:"unsafe-"`

	Serve    struct{}        `cmd:"" default:"1" help:"Keep all shards well until told to stop. This is what happens without a command."`
	Pass     struct{}        `cmd:"" name:"once" help:"Make one pass over all shards and exit."`
	Migrate  struct{}        `cmd:"" help:"Bring the database to the schema of this build. Safe from several processes at once."`
	Init     InitCommand     `cmd:"" help:"Write the rows of the shards, once. Repeated with the same number it changes nothing."`
	Audit    AuditCommand    `cmd:"" help:"Compare Redis and Postgres and repair nothing: every difference with both figures and the command that mends it."`
	Repair   OneShard        `cmd:"" help:"Audit a shard and make every repair that is safe; where Redis and Postgres differ at one position, Postgres and the log win. What is given up is said. SKUs that were frozen for it sell again."`
	Takeover TakeoverCommand `cmd:"" help:"Rebuild a shard from Postgres and open it, a halted one, too. What the log has and Postgres cannot apply is given up, and said."`
	Retry    OneShard        `cmd:"" help:"Try again what halted a shard, after its cause was mended. Nothing is given up."`
	Gapfill  GapfillCommand  `cmd:"" help:"Put back entries of the log that were lost before Postgres had them, from Redis' own records, if that comes out to the last unit; then open the shard."`
	Verify   VerifyCommand   `cmd:"" help:"Read the history in Postgres through from its first event and prove that nothing was made or lost, and that closed epochs are what they were."`
	Retain   RetainCommand   `cmd:"" help:"Change how long Redis remembers what came to rest, to --retention, while no producer and no consumer runs."`
	Prune    PruneCommand    `cmd:"" help:"Delete orders from Postgres that ended, or were shipped, long ago. Documents, outcomes and the history of events stay, and so do orders of SKUs that have a limit per buyer."`
	Explain  ExplainCommand  `cmd:"" help:"Tell all that both stores know of an order, a document or a SKU."`
	Status   struct{}        `cmd:"" help:"Show every shard: epoch, positions, state, and what Redis says of itself."`
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

// OneShard is the shard that a command is about.
type OneShard struct {
	Shard int `name:"shard" required:"" help:"Number of the shard."`
}

// Validate names the bound.
func (c OneShard) Validate() error { return checkShard(c.Shard, 0) }

// checkShard refuses what can be no shard; from -1 on where that means all.
func checkShard(shard, low int) error {
	if shard < low || shard >= stock.MaxShards {
		return config.Bound("shard", shard, fmt.Sprintf("use 0 to %d", stock.MaxShards-1))
	}
	return nil
}

// AuditCommand is what is compared.
type AuditCommand struct {
	Shard      int  `name:"shard" default:"-1" help:"Number of the shard; -1 means all."`
	EveryOrder bool `name:"every-order" help:"Compare every order of both sides; without it all SKUs and one page of orders of each side."`
}

// Validate names the bound.
func (c AuditCommand) Validate() error { return checkShard(c.Shard, -1) }

// TakeoverCommand is the shard that an operator takes over, or all of them.
type TakeoverCommand struct {
	Shard int  `name:"shard" default:"-1" help:"Number of the shard; give this or --all."`
	All   bool `name:"all" help:"Take over all shards, a few at once; give this or --shard."`
	Adopt bool `name:"adopt" help:"Take over a Redis that another ledger wrote; all that it holds is given up."`

	Library int `name:"library" placeholder:"N" help:"Version of the function library that is in force from then on; without this it stays as it is. Refused while a producer lives that does not carry it."`
}

// Validate wants exactly one of both.
func (c TakeoverCommand) Validate() error {
	if c.All == (c.Shard >= 0) {
		return config.Bound("shard", c.Shard, "give exactly one of --shard N and --all")
	}
	if _, carried := redisstock.LibraryText(c.Library); c.Library != 0 && !carried {
		return config.Bound("library", c.Library, fmt.Sprintf("this build carries %v", redisstock.Libraries()))
	}
	return checkShard(c.Shard, -1)
}

// GapfillCommand is the shard whose log has a gap.
type GapfillCommand struct {
	Shard      int  `name:"shard" required:"" help:"Number of the shard."`
	AcceptLoss bool `name:"accept-loss" help:"Open the shard although what was lost cannot be put back: it goes on from where Postgres stands, and all beyond is given up and answered lost."`
}

// Validate names the bound.
func (c GapfillCommand) Validate() error { return checkShard(c.Shard, 0) }

// VerifyCommand is how far a history is read.
type VerifyCommand struct {
	Shard int    `name:"shard" default:"-1" help:"Number of the shard; -1 means all."`
	At    string `name:"at" placeholder:"EPOCH-SEQ" help:"Position to read to; without it to where Postgres stands, where stock and open orders are compared, too. Needs --shard."`
}

// Validate names the bound.
func (c VerifyCommand) Validate() error {
	if c.At == "" {
		return checkShard(c.Shard, -1)
	}
	if at, err := stock.ParsePosition(c.At); err != nil || at.Epoch < 1 {
		return config.Bound("at", c.At, "use <epoch>-<seq>, as status and receipts show them")
	}
	return checkShard(c.Shard, 0)
}

// RetainCommand has no flags of its own: --retention says it.
type RetainCommand struct{}

// PruneCommand is what may be deleted.
type PruneCommand struct {
	OlderThan time.Duration `name:"older-than" default:"2160h" help:"How long ago an order has to have moved last, above --retention and at most 87600h (ten years)."`
	Shard     int           `name:"shard" default:"-1" help:"Number of the shard; -1 means all."`
}

// Validate names the bound; the retention is compared where both are known.
func (c PruneCommand) Validate() error {
	if c.OlderThan <= 0 || c.OlderThan > 10*365*24*time.Hour {
		return config.Bound("older-than", c.OlderThan, "use an age above --retention, at most 87600h")
	}
	return checkShard(c.Shard, -1)
}

// ExplainCommand is what an operator wants to know about.
type ExplainCommand struct {
	Text  string `arg:"" name:"text" help:"Id of an order or a document, or a SKU. What is several of these is told as each."`
	Shard int    `name:"shard" default:"-1" help:"Number of the shard; -1 means all."`
	Limit int    `name:"limit" default:"20" help:"Lines of each kind at most, 1 to 1000."`
}

// Validate names the bound.
func (c ExplainCommand) Validate() error {
	if c.Limit < 1 || c.Limit > 1000 {
		return config.Bound("limit", c.Limit, "use 1 to 1000")
	}
	return checkShard(c.Shard, -1)
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
	if err := config.CheckID("reconciler-id", c.ReconcilerID); err != nil {
		return err
	}
	switch {
	case c.Prune.OlderThan <= c.Keep.For:
		return config.Bound("older-than", c.Prune.OlderThan, fmt.Sprintf("use an age above --retention, which is %v", c.Keep.For))
	case c.Postgres.Pooled():
		return config.Bound("postgres-mode", c.Postgres.Mode, "a reconciler listens, and locks while it migrates: give it --postgres-mode=direct and, in --postgres-url, the address of Postgres itself")
	case c.AuditEvery < 100*time.Millisecond || c.AuditEvery > 24*time.Hour:
		return config.Bound("audit-every", c.AuditEvery, "use 100ms to 24h")
	case c.StuckAfter != 0 && (c.StuckAfter < time.Second || c.StuckAfter > 24*time.Hour):
		return config.Bound("stuck-after", c.StuckAfter, "use 1s to 24h, or 0 for never")
	case c.Postgres.MaxConns < 4:
		return config.Bound("postgres-max-conns", c.Postgres.MaxConns, "use at least 4: an audit needs two connections, and the other duties go on")
	case c.RedisConns < 4 || c.RedisConns > 256:
		return config.Bound("redis-conns", c.RedisConns, "use 4 to 256")
	}
	return c.Access.Check("ops-listen", c.Ops)
}

func (c Config) policy() repair.Policy { return repair.Policy(c.OnTampered) }

// id is the name of this process: never one that an earlier process had, whose turn may still last.
func (c Config) id() string {
	return config.ProcessID(c.ReconcilerID)
}
