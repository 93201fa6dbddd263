package audit

import (
	"context"
	"testing"
)

// busy is a world in which orders and consumers go on the moment Redis was sampled.
type busy struct {
	*world
	goOn func()
}

func (b busy) Sample(ctx context.Context, q Question) (Sample, error) {
	s, err := b.world.Sample(ctx, q)
	b.goOn()
	return s, err
}

// Redis is always at or beyond the ledger, and the log leads from the one to the other, only if the ledger is read
// first. The other way round, a consumer that is quick makes a healthy Redis look rewound.
func TestAnAuditReadsTheLedgerBeforeRedis(t *testing.T) {
	t.Parallel()
	w := newWorld()
	now := *w
	early := newWorldAt(7)
	w.status.Seq, w.status.Last = 7, "7-7"
	w.state, w.records, w.buyers = early.state, early.records, early.buyers
	r, err := Run(ctx, w, busy{w, func() {
		w.status, w.state, w.records, w.buyers = now.status, now.state, now.records, now.buyers
		w.persist(9)
	}}, Options{})
	if err != nil || len(r.Drifts) > 0 || !r.Compared || r.Restarts != 0 {
		t.Errorf("%d restarts, compared %v, found %v, %v", r.Restarts, r.Compared, r.Drifts, err)
	}
	if r.Ledger.Seq != 5 || r.Redis.Seq != 7 || r.Entries != 2 {
		t.Errorf("compared the ledger at %s with Redis at %s over %d entries", r.Ledger, r.Redis, r.Entries)
	}
}
