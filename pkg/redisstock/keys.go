package redisstock

import "fmt"

// Keys are the Redis keys of one shard. They all carry its hash tag, so that a call finds them on one node.
type Keys struct {
	State  string // hash: token, seq, mode, nonce, version, and a field per SKU number
	Orders string // hash: order or document id → record
	Buyers string // hash: a sentinel; units per buyer will stand here once a SKU can have a limit
	Log    string // stream, ids <epoch>-<seq>
}

// NewKeys names the keys of a shard under a prefix (the setting that is "sp" unless changed).
func NewKeys(prefix string, shard int) Keys {
	base := fmt.Sprintf("%s:{%d}:", prefix, shard)
	return Keys{State: base + "state", Orders: base + "orders", Buyers: base + "buyers", Log: base + "log"}
}

// Archive is where a takeover moves a log that stands in its way, as evidence.
func (k Keys) Archive(epoch int64) string { return fmt.Sprintf("%s:%d", k.Log, epoch) }

func (k Keys) list() []string { return []string{k.State, k.Orders, k.Buyers, k.Log} }
