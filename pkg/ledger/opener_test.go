package ledger

import (
	"context"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// The only consumer is stopped inside a COPY, with the shard's row in its hands: nobody but the takeover is left.
func TestATakeoverEndsAStalledHolder(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(context.Context, *Opener, takeover.Seal, event.Raw) error{
		"claim": func(ctx context.Context, o *Opener, _ takeover.Seal, _ event.Raw) error {
			_, err := o.Claim(ctx, 0, 0, false)
			return err
		},
		"drain": func(ctx context.Context, o *Opener, s takeover.Seal, raw event.Raw) error {
			_, err := o.Drain(ctx, s, []event.Raw{raw})
			return err
		},
		"close": func(ctx context.Context, o *Opener, s takeover.Seal, _ event.Raw) error {
			_, err := o.CloseEpoch(ctx, s, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			w := newTeller(t, open(t, 1), 0)
			raw := w.entry(reserve("o1", 1, lines(w.sku(10), 1)))
			o := NewOpener(w.l)
			seal, err := o.Claim(ctx, 0, 0, false)
			check(t, err)
			holder, err := pgx.ConnectConfig(ctx, w.l.pool.Config().ConnConfig.Copy())
			check(t, err)
			defer holder.Close(ctx)
			_, err = holder.Exec(ctx, `begin`)
			check(t, err)
			_, err = holder.Exec(ctx, lockShard, 0)
			check(t, err)
			r, wr := io.Pipe()
			copied := make(chan error, 1)
			go func() {
				_, err := holder.PgConn().CopyFrom(ctx, r, "copy event from stdin")
				copied <- err
			}()
			if err := step(ctx, o, seal, raw); err != nil {
				t.Error(err)
			}
			check(t, wr.Close())
			if err := <-copied; err == nil {
				t.Error("the holder went on")
			}
		})
	}
}
