package takeover

import "time"

// Bounds of the wait between takeovers of one shard.
const (
	firstWait = time.Second
	longest   = 60 * time.Second
	// SettledAfter is how long a shard must have been open to count as healthy again.
	SettledAfter = 10 * time.Second
)

// A Backoff says how long to wait before the next takeover of one shard: nothing while takeovers last, then 1,
// 2, 4 … 60 seconds. The rate alone never halts a shard: it may be the network that comes and goes. The zero
// value is ready. Not safe for concurrent use.
type Backoff struct {
	strikes int
}

// Next is the wait before the takeover that is due now. Say how long the shard had been open before it needed
// this one, or 0 when the last attempt failed. Ten seconds open reset it. A shard that is new needs no wait.
func (b *Backoff) Next(open time.Duration) time.Duration {
	if open >= SettledAfter {
		b.strikes = 0
		return 0
	}
	wait := min(firstWait<<min(b.strikes, 6), longest)
	b.strikes++
	return wait
}

// Struggling reports whether takeovers do not last: alert.
func (b *Backoff) Struggling() bool { return b.strikes > 1 }

// Reset forgets the past: for a shard that is seen for the first time or was settled by hand.
func (b *Backoff) Reset() { b.strikes = 0 }
