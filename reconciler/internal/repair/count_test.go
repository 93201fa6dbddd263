package repair

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestAnAnswerToAnExpiryCountsAsWhatItIs(t *testing.T) {
	t.Parallel()
	closed := &stock.ClosedError{Reason: "fenced"}
	for _, row := range []struct {
		code stock.Code
		err  error
		want Ended
	}{
		{stock.Accepted, nil, Ended{Expired: 1}},
		{stock.Replayed, nil, Ended{Already: 1}},
		{stock.NotDue, nil, Ended{NotDue: 1}},
		{stock.NoRecord, nil, Ended{Odd: 1}},
		{stock.Conflict, nil, Ended{Odd: 1}},
		{stock.Inconsistent, nil, Ended{Odd: 1}},
		{"", stock.ErrUnknown, Ended{}}, // it is sent again
		{"", fmt.Errorf("expire: %w", closed), Ended{Error: closed}},
	} {
		var got Ended
		got.count(row.code, row.err)
		if diff := cmp.Diff(row.want, got, cmpopts.IgnoreFields(Ended{}, "Error")); diff != "" || !errors.Is(got.Error, row.want.Error) {
			t.Errorf("%q, %v: %+v", row.code, row.err, got)
		}
	}
}
