package faults

import (
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

func TestAHistoryThatNoShelfExplainsIsCondemned(t *testing.T) {
	t.Parallel()
	shoptest.ProveHistories(t)
}
