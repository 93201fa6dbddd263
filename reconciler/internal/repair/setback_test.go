package repair

import (
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// TestALedgerThatHasLessThanBeforeIsWrittenDown: only within one epoch; a new one begins anew.
func TestALedgerThatHasLessThanBeforeIsWrittenDown(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	one := s.ward
	look := func(epoch, applied int64) {
		t.Helper()
		if err := one.noticeSetback(t.Context(), takeover.Finding{Row: takeover.Shard{Epoch: epoch, Applied: applied}}); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		t.Helper()
		repairs, err := s.ledger.Repairs(t.Context(), 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range repairs {
			if r.Class == classBehind {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		epoch, applied int64
		want           int
	}{{5, 10, 0}, {5, 12, 0}, {5, 12, 0}, {6, 0, 0}, {6, 9, 0}, {6, 7, 1}, {6, 8, 1}, {5, 3, 1}} {
		if look(step.epoch, step.applied); count() != step.want {
			t.Fatalf("at %d-%d there are %d repairs, want %d", step.epoch, step.applied, count(), step.want)
		}
	}
	if want := (stock.Position{Epoch: 5, Seq: 3}); one.reached != want {
		t.Errorf("it remembers %v", one.reached)
	}
}
