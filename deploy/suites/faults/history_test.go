package faults

import (
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

func TestAHistoryThatNoShelfExplainsIsCondemned(t *testing.T) {
	t.Parallel()
	shoptest.ProveHistories(t)
}

// TestAHistoryInWhichARepeatActsAgainIsCondemned: the judge of the histories below rejects a shop without idempotency.
func TestAHistoryInWhichARepeatActsAgainIsCondemned(t *testing.T) {
	t.Parallel()
	shoptest.ProveOrderHistories(t)
}
