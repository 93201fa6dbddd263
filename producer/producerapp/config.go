package producerapp

import (
	"errors"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Name and Description head the help.
const (
	Name        = "stockpipe-producer"
	Description = "Serves the HTTP API of reservations: decides them in Redis, and answers at the level of acknowledgement that was asked for. /v1/openapi.json describes the API."
)

// Config is every setting of a producer; the defaults work against the local stack.
type Config struct {
	API      config.Listen    `embed:"" set:"listen=127.0.0.1:8080"`
	Ops      config.Listen    `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8081"`
	Redis    config.Redis     `embed:"" prefix:"redis-"`
	Postgres config.Postgres  `embed:"" prefix:"postgres-"`
	Log      config.Log       `embed:"" prefix:"log-"`
	Access   config.Access    `embed:""`
	Keep     config.Retention `embed:""`

	RedisConns  int           `name:"redis-conns" default:"16" help:"Connections to Redis at most, 4 to 256. Calls are shared by many orders: a few connections carry a full load."`
	MaxLines    int           `name:"max-lines" default:"500" help:"Lines of one order at most, 1 to 1500. It bounds the bodies, too: 64 KiB and 128 bytes a line."`
	EpochMaxAge time.Duration `name:"epoch-max-age" default:"10s" help:"How long orders are taken after the last exchange with Postgres, 1s to 24h. Longer sells on through an outage of Postgres; what an isolated old Redis sold meanwhile is reported lost."`
	ReserveAck  string        `name:"reserve-ack" default:"memory" enum:"memory,persisted" help:"Level that a reservation waits for when it names none: memory or persisted."`
	ConfirmAck  string        `name:"confirm-ack" default:"persisted" enum:"memory,persisted" help:"Level that a confirm or a sale waits for when it names none; from memory it is answered 202."`
	ProducerID  string        `name:"producer-id" placeholder:"NAME" help:"Name of this process among the producers, 1 to 64 of A-Z a-z 0-9 . _ : - and nobody else's. By default made of host, process id and chance."`

	Healthcheck bool `name:"healthcheck" help:"Ask the process that listens on --ops-listen whether it is ready, and exit with 0 or 1; for images without a shell."`

	Unsafe Unsafe `embed:"" prefix:"unsafe-"`
}

// Unsafe are checks of the Redis server that an operator does without, each at the price that its help names.
type Unsafe struct {
	Eviction  bool `name:"eviction" help:"Start although Redis may evict keys: stock and orders may vanish one by one."`
	Memory    bool `name:"memory" help:"Start although Redis has no maxmemory: the system may end it in place of a refusal."`
	AOF       bool `name:"aof" help:"Start although Redis keeps no append-only file: every restart costs what Postgres has not got."`
	Replicas  bool `name:"replicas" help:"Start although Redis has replicas and no min-replicas-to-write: a failover costs more."`
	OldServer bool `name:"old-server" help:"Start although Redis is older than 7."`
}

// Validate names the flag, its value and what would be accepted.
func (c Config) Validate() error {
	switch {
	case c.RedisConns < 4 || c.RedisConns > 256:
		return config.Bound("redis-conns", c.RedisConns, "use 4 to 256")
	case c.MaxLines < 1 || c.MaxLines > stock.MaxOrderLines:
		return config.Bound("max-lines", c.MaxLines, fmt.Sprintf("use 1 to %d", stock.MaxOrderLines))
	case c.EpochMaxAge < time.Second || c.EpochMaxAge > 24*time.Hour:
		return config.Bound("epoch-max-age", c.EpochMaxAge, "use 1s to 24h")
	}
	return errors.Join(c.Access.Check("listen", c.API), c.Access.Check("ops-listen", c.Ops), config.CheckID("producer-id", c.ProducerID))
}

// id is the name of this process in the table of producers.
func (c Config) id() string {
	return config.ProcessID(c.ProducerID)
}

func (u Unsafe) checks() redisstock.Unsafe {
	return redisstock.Unsafe{Eviction: u.Eviction, Memory: u.Memory, AOF: u.AOF, Replicas: u.Replicas, OldServer: u.OldServer}
}
