package config

import "time"

// Bounds of a retention: shorter, documents could not be finished in half of it; longer, Redis would be an archive.
const (
	MinRetention = 10 * time.Second
	MaxRetention = 30 * 24 * time.Hour
)

// Retention is how long Redis remembers what came to rest; 0 is what the ledger has. All processes of one ledger need the same: who forgets
// earlier than another believes would let an order begin anew that the other still knows.
type Retention struct {
	For time.Duration `name:"retention" default:"0s" help:"How long Redis remembers orders that ended or were confirmed, and documents that were settled, 10s to 720h: so long a repeat is answered from Redis alone. One value rules a ledger: 0 is what it has, 24h unless the first reconciler said otherwise."`
}

// Validate names the bounds.
func (r Retention) Validate() error {
	if r.For != 0 && r.For < MinRetention || r.For > MaxRetention {
		return Bound("retention", r.For, "use 10s to 720h, or 0 for what the ledger has")
	}
	return nil
}
