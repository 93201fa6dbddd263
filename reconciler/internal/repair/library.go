package repair

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// producerLives is how long ago a producer that may still sell wrote its row at most: it does so twice a second, and
// one that was held up for longer finds the version changed before it sells again.
const producerLives = 30 * time.Second

// mostNamed bounds the producers that a refusal names.
const mostNamed = 5

// TakeOverTo takes a shard over as TakeOver does, giving up what cannot be applied, and changes the version of the
// function library that is in force there. It is refused while a producer lives that does not carry that version: it
// would sell nothing more.
func (w *Warden) TakeOverTo(ctx context.Context, shard, library int, adopt bool) (Report, error) {
	if err := w.MayTakeTo(ctx, library); err != nil {
		return Report{}, err
	}
	return w.takeOverBy(ctx, shard, takeover.Options{Operator: true, GiveUp: true, Adopt: adopt, Library: library})
}

// MayTakeTo reports whether all producers that live carry a version of the function library; else the error names
// some that do not.
func (w *Warden) MayTakeTo(ctx context.Context, library int) error {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	producers, err := w.Ledger.Producers(asking, producerLives)
	if err != nil {
		return err
	}
	var lacking []string
	for _, p := range producers {
		if !p.Carries(library) {
			lacking = append(lacking, fmt.Sprintf("%s (carries %v)", p.ID, p.Libraries))
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d producers do not carry version %d of the function library, and would sell nothing more: %s: upgrade or stop them; one that is gone is forgotten %v after it was last seen",
		len(lacking), len(producers), library, strings.Join(lacking[:min(len(lacking), mostNamed)], ", "), producerLives)
}
