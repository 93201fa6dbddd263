package main

import (
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

const description = `Starts a private Redis, a private Postgres, a reconciler, consumers and producers on loopback, plays a sale through the HTTP API (or replays an order file), and says whether every promise was kept. What it started ends with it, and its folder is removed unless it is to be kept.

Exit codes: 0 every promise was kept; 1 one was broken; 2 it could not be carried out; 130 it was interrupted; 64 a flag cannot be used.`

// Bounds of the settings.
const (
	maxProducers = 8
	maxConsumers = 16
	maxBuyers    = 1_000_000
	maxSKUs      = 1_000
	maxShards    = 64
)

// Settings are the flags of the demo.
type Settings struct {
	Orders string `name:"orders" placeholder:"FILE" help:"Replay this order file (CSV with the columns InvoiceNo, StockCode, Quantity, as in Online Retail) instead of playing a sale."`
	Keep   string `name:"keep" placeholder:"FOLDER" help:"Keep the stack's data in this folder. Run again with the same one to resume an interrupted replay."`

	Shards    int `name:"shards" default:"1" help:"Shards, 1 to 64; the consumers share them. An order takes its lines from one shard, so a replay needs 1."`
	Producers int `name:"producers" default:"1" help:"Producers, 1 to 8; the callers use all of them."`
	Consumers int `name:"consumers" default:"2" help:"Consumers, 1 to 16."`

	Buyers int           `name:"buyers" default:"6000" help:"Orders of the sale, 1 to 1000000."`
	Units  int           `name:"units" default:"1000" help:"Units of the article that most of them want, 1 to 1000000."`
	SKUs   int           `name:"skus" default:"7" help:"Other articles, 0 to 1000."`
	Lasts  time.Duration `name:"lasts" default:"15s" help:"Time over which the buyers arrive, 0s to 1h; most come early."`

	RedisURL    config.URL `name:"redis-url" placeholder:"URL" help:"Use this Redis instead of a private one; what the demo writes there is removed at the end."`
	PostgresURL config.URL `name:"postgres-url" placeholder:"URL" help:"Use this Postgres instead of a private one, with a database of its own that is removed at the end."`
	Programs    string     `name:"programs" placeholder:"FOLDER" help:"Folder with the programs producer, consumer and reconciler; by default they are built from the sources."`
}

// Validate names the flag, its value and what would be accepted.
func (s Settings) Validate() error {
	for _, bound := range []struct {
		name             string
		value, low, high int
	}{
		{"shards", s.Shards, 1, maxShards},
		{"producers", s.Producers, 1, maxProducers},
		{"consumers", s.Consumers, 1, maxConsumers},
		{"buyers", s.Buyers, 1, maxBuyers},
		{"units", s.Units, 1, stock.MaxLineQuantity},
		{"skus", s.SKUs, 0, maxSKUs},
	} {
		if bound.value < bound.low || bound.value > bound.high {
			return config.Bound(bound.name, bound.value, fmt.Sprintf("use %d to %d", bound.low, bound.high))
		}
	}
	if s.Lasts < 0 || s.Lasts > time.Hour {
		return config.Bound("lasts", s.Lasts, "use 0s to 1h")
	}
	if s.Orders != "" && s.Shards != 1 {
		return config.Bound("shards", s.Shards, "an order takes its lines from one shard, and the orders of a file do not keep to one: leave out --shards with --orders")
	}
	return nil
}

// shape is what runs; the names of the stores come from the folder.
func (s Settings) shape(prefix, database string) pipeline.Shape {
	shape := pipeline.Shape{
		Shards: s.Shards, Producers: s.Producers, Consumers: s.Consumers,
		Prefix: prefix, Database: database, Forget: s.Keep == "",
	}
	if s.Orders != "" {
		shape.MaxLines = stock.MaxOrderLines
	}
	return shape
}
