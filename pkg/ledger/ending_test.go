package ledger

import (
	"context"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestWhereAnOlderEpochEndedIsAskedOnceInAnEpoch(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, 1)
	exec(t, l, `update shard set epoch = 5, applied = 1, state = 'open'`)
	exec(t, l, `insert into epoch_end (shard, epoch, last_seq) values (0, 3, 10)`)
	w := NewWatch(l, WatchConfig{})
	check(t, w.exchange(ctx))
	want := func(seq int64, standing stock.Standing) {
		t.Helper()
		r := stock.Receipt{Position: stock.Position{Epoch: 3, Seq: seq}}
		for name, ask := range map[string]func(context.Context, stock.Receipt) (stock.Standing, error){"resolve": w.Resolve, "wait": w.Wait} {
			if got, err := ask(ctx, r); got != standing || err != nil {
				t.Errorf("%s of 3-%d is %s, %v; want %s", name, seq, got, err, standing)
			}
		}
	}
	want(10, stock.StandingPersisted)
	want(11, stock.StandingLost)
	// Memory answers: the row may say what it likes, until the shard is in another epoch.
	exec(t, l, `update epoch_end set last_seq = 4`)
	want(10, stock.StandingPersisted)
	exec(t, l, `update shard set epoch = 1 << 25`)
	check(t, w.exchange(ctx))
	want(10, stock.StandingLost)
	want(4, stock.StandingPersisted)
}
