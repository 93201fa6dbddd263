package streambus

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/bus/bustest"
)

// What is acknowledged is what the ledger has committed, however much was delivered: an epoch's later entries are
// not covered by its earlier ones, and another epoch's not by this one's.
func TestNothingIsAcknowledgedBeforeTheLedgerHasIt(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.Append(t, bustest.Entry(5, 1), bustest.Entry(5, 2), bustest.Entry(5, 3), bustest.Entry(6, 1), bustest.Entry(6, 2))
	reader := s.source("a")
	if found, err := reader.Next(t.Context(), at(5, 0)); err != nil || len(found) != 5 {
		t.Fatalf("Next: %v, %v", found, err)
	}
	for _, row := range []struct {
		applied [2]int64
		pending int64
	}{{[2]int64{5, 0}, 5}, {[2]int64{5, 1}, 4}, {[2]int64{5, 3}, 2}, {[2]int64{6, 0}, 2}, {[2]int64{6, 1}, 1}, {[2]int64{6, 2}, 0}} {
		if found, err := reader.Next(t.Context(), at(row.applied[0], row.applied[1])); err != nil || len(found) != 0 {
			t.Fatalf("Next: %v, %v", found, err)
		}
		if diff := cmp.Diff(map[string]int64{"a": row.pending}, s.readers(t)); diff != "" {
			t.Errorf("the ledger is at %v: (-want +pending)\n%s", row.applied, diff)
		}
	}
}
