package ledger

import (
	"context"
	"net"
	"time"
)

// A host that died sends no goodbye, and a COMMIT has no deadline: without these bounds a statement would hang on
// it for as long as the system retransmits, a quarter of an hour. They end a connection whose other side is silent,
// never one whose Postgres is merely slow: its system acknowledges all the same.
const (
	silentAfter   = 5 * time.Second // idle time before the first probe
	silentEvery   = 2 * time.Second // between two probes
	silentProbes  = 3
	silentUnacked = 10 * time.Second // how long something sent may stay unacknowledged, where the system can tell
)

// dial connects to Postgres, bounded by ctx.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silentAfter, Interval: silentEvery, Count: silentProbes},
		Control:         boundUnacked,
	}
	return d.DialContext(ctx, network, address)
}
