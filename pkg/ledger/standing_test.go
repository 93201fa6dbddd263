package ledger

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A history is the truth about one shard: how long each epoch's log became, how much of it the ledger took
// before the epoch was closed, and how far it is in the newest.
type history struct {
	numbers []int64         // epochs that were opened, in order; takeovers skip numbers
	kept    map[int64]int64 // what the ledger took of each
	rows    map[int64]bool  // epochs that left a row in epoch_end
}

// standing follows protocol J word by word, from the truth.
func (h history) standing(epoch, seq int64) stock.Standing {
	newest := h.numbers[len(h.numbers)-1]
	switch {
	case epoch < 1 || seq < 1 || epoch > newest:
		return stock.StandingUnknown
	case seq <= h.kept[epoch]:
		return stock.StandingPersisted
	case epoch == newest:
		return stock.StandingAccepted
	}
	return stock.StandingLost
}

func TestStandingFollowsTheHistoryOfTheShard(t *testing.T) {
	t.Parallel()
	l := open(t, 2)
	rapid.Check(t, func(r *rapid.T) {
		h := history{kept: map[int64]int64{}, rows: map[int64]bool{}}
		epoch := int64(0)
		for range rapid.IntRange(1, 5).Draw(r, "epochs") {
			epoch += rapid.Int64Range(1, 4).Draw(r, "step")
			h.numbers = append(h.numbers, epoch)
			h.kept[epoch] = rapid.Int64Range(0, 6).Draw(r, "kept")
			// An epoch that kept nothing may have been claimed and fenced by an attempt that closed nothing.
			h.rows[epoch] = h.kept[epoch] > 0 || rapid.Bool().Draw(r, "row")
		}
		exec(t, l, `delete from epoch_end where shard = 1`)
		for _, e := range h.numbers[:len(h.numbers)-1] {
			if h.rows[e] {
				exec(t, l, `insert into epoch_end (shard, epoch, last_seq) values (1, $1, $2)`, e, h.kept[e])
			}
		}
		exec(t, l, `update shard set epoch = $1, applied = $2 where number = 1`, epoch, h.kept[epoch])
		for e := int64(0); e <= epoch+1; e++ {
			for _, seq := range []int64{0, 1, h.kept[e], h.kept[e] + 1, 8} {
				got, err := l.Standing(context.Background(), stock.Receipt{Shard: 1, Position: stock.Position{Epoch: e, Seq: seq}})
				if want := h.standing(e, seq); err != nil || got != want {
					r.Fatalf("%d-%d is %s (%v), want %s: %+v", e, seq, got, err, want, h)
				}
			}
		}
	})
}

func TestReceiptOfNoShardIsUnknown(t *testing.T) {
	t.Parallel()
	l := open(t, 1)
	got, err := l.Standing(context.Background(), stock.Receipt{Shard: 9, Position: stock.Position{Epoch: 1, Seq: 1}})
	if err != nil || got != stock.StandingUnknown {
		t.Errorf("%s, %v", got, err)
	}
}
