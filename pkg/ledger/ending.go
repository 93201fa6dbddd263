package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// maxEnds bounds how many older epochs of a shard are remembered; one more, and all are asked for again.
const maxEnds = 64

// standing asks the ledger for a receipt that memory cannot answer, and remembers where its epoch ended: replays of old
// orders must not queue before the exchange, one query each.
func (w *Watch) standing(ctx context.Context, r stock.Receipt) (stock.Standing, error) {
	v, err := w.ledger.viewEpoch(ctx, r.Shard, r.Epoch)
	if errors.Is(err, ErrUnknownShard) {
		return stock.StandingUnknown, nil
	}
	if err != nil {
		return stock.StandingUnknown, fmt.Errorf("ask for the standing of receipt %s: %w", r, err)
	}
	if s := w.shard(r.Shard); s != nil {
		s.remember(v)
	}
	return v.standing(r.Seq), nil
}

// remember keeps the end of an older epoch, if the ledger was asked in the epoch that is known here.
func (s *watchedShard) remember(v epochView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.epoch < 1 || v.epoch >= v.current || v.current != s.epoch.Epoch {
		return
	}
	if s.ends == nil || len(s.ends) >= maxEnds {
		s.ends = map[int64]int64{}
	}
	s.ends[v.epoch] = v.last
}
