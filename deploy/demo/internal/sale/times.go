package sale

import (
	"slices"
	"sync"
	"time"
)

// Times are durations of calls, all of them kept: a sale has a bounded number of buyers. It is safe for concurrent
// use.
type Times struct {
	mu  sync.Mutex
	all []time.Duration
}

func (t *Times) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d)
}

// Quantile is the duration within which a share of the calls (0 to 1) was answered; 0 when there were none.
func (t *Times) Quantile(share float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == 0 {
		return 0
	}
	sorted := slices.Clone(t.all)
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}
