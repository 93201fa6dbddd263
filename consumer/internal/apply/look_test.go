package apply

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// noted keeps the positions from which a log was read.
type noted struct {
	*world
	from []stock.Position
}

func (n *noted) From(ctx context.Context, after stock.Position) ([]event.Raw, error) {
	n.mu.Lock()
	n.from = append(n.from, after)
	n.mu.Unlock()
	return n.world.From(ctx, after)
}

func (n *noted) loop() *Loop {
	c := n.config()
	c.Open = func(int) Reader { return n }
	return newLoop(c, 0)
}

// A loop that was stopped for an hour goes on where the ledger is: others were at the shard meanwhile.
func TestALoopReadsFromWhereTheLedgerIs(t *testing.T) {
	t.Parallel()
	n := &noted{world: newWorld(t)}
	for seq := int64(1); seq <= 6; seq++ {
		n.append(raw(5, seq))
	}
	l := n.loop()
	for _, at := range []stock.Position{{Epoch: 5, Seq: 3}, {Epoch: 5, Seq: 6}, {Epoch: 4, Seq: 9}} {
		n.at = at
		if err := l.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.from = nil
		_ = l.catchUp(t.Context()) // an epoch ahead is an error, of which others tell
		if diff := cmp.Diff(at, n.from[0]); diff != "" {
			t.Errorf("(-ledger +read from)\n%s", diff)
		}
	}
}

func TestAShardThatIsNotOpenIsNotRead(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"new", "rebuilding", ledger.StateHalted} {
		n := &noted{world: newWorld(t)}
		n.append(raw(5, 1))
		n.state = state
		var closed *closedError
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // who reads it would go on
		if err := n.loop().round(ctx); !errors.As(err, &closed) || closed.state != state {
			t.Errorf("%s: the round ended with %v", state, err)
		}
		cancel()
		if len(n.from) > 0 || n.calls > 0 {
			t.Errorf("%s: read from %v, and %d times applied", state, n.from, n.calls)
		}
	}
}
