package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// halt stops shard 0 where it stands.
func halt(t testing.TB, l *Ledger, reason string) Claim {
	t.Helper()
	row, err := l.Shard(context.Background(), 0)
	check(t, err)
	claim, err := l.Halt(context.Background(), Verdict{Position: row.Position(), Claim: row.Claim, Reason: reason})
	check(t, err)
	return claim
}

// TestAVerdictOfAnotherEpochPositionOrClaimHaltsNothing is a judge who was held up before the statement.
func TestAVerdictOfAnotherEpochPositionOrClaimHaltsNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newTeller(t, open(t, 1), 0)
	row, err := w.l.Shard(ctx, 0)
	check(t, err)
	at := row.Position()
	for name, v := range map[string]Verdict{
		"an older epoch":   {Position: stock.Position{Epoch: at.Epoch - 1, Seq: at.Seq}, Claim: row.Claim},
		"another position": {Position: stock.Position{Epoch: at.Epoch, Seq: at.Seq + 1}, Claim: row.Claim},
		"an older claim":   {Position: at, Claim: row.Claim - 1},
	} {
		v.Reason = name
		if _, err := w.l.Halt(ctx, v); !errors.Is(err, ErrMoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := w.l.Shard(ctx, 0); err != nil || now.State != StateOpen || now.Claim != row.Claim || now.Reason != "" {
		t.Errorf("%+v, %v", now, err)
	}
	if _, err := w.l.Halt(ctx, Verdict{Shard: 99}); !errors.Is(err, ErrUnknownShard) {
		t.Errorf("an unknown shard: %v", err)
	}
	halt(t, w.l, "as judged")
	if now, err := w.l.Shard(ctx, 0); err != nil || now.State != StateHalted || now.Reason != "as judged" {
		t.Errorf("%+v, %v", now, err)
	}
}
