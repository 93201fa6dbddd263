package repair

import (
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// maxAge is how old the knowledge of a shard may be before the desk sends nothing by it.
const maxAge = 10 * time.Second

// Epochs tells the desk what the last reading of each shard's row said. Nobody is let in by it: it carries ends of
// holds and documents, which any epoch recognises. Safe for concurrent use.
type Epochs struct {
	ledger string
	doubt  func(shard int) // set before the first use

	mu    sync.Mutex
	known map[int]known
}

type known struct {
	epoch stock.Epoch
	at    time.Time
}

var _ stock.Epochs = (*Epochs)(nil)

// NewEpochs knows nothing yet; ledgerID is the ledger's own id.
func NewEpochs(ledgerID string) *Epochs { return &Epochs{ledger: ledgerID, known: map[int]known{}} }

// Epoch implements stock.Epochs.
func (e *Epochs) Epoch(shard int) stock.Epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	k, there := e.known[shard]
	if !there || time.Since(k.at) > maxAge {
		return stock.Epoch{Shard: shard, Ledger: e.ledger, Epoch: k.epoch.Epoch, Reason: "stale"}
	}
	return k.epoch
}

// Doubt implements stock.Epochs: the shard is probed at once.
func (e *Epochs) Doubt(shard int, _ string) {
	if e.doubt != nil {
		e.doubt(shard)
	}
}

// learn takes a row that was read after began.
func (e *Epochs) learn(row takeover.Shard, began time.Time) {
	epoch := stock.Epoch{
		Shard: row.Number, Ledger: e.ledger, Epoch: row.Epoch, Applied: row.Applied, Library: row.Library,
		Open: row.State == ledger.StateOpen && row.Writer == "redis",
	}
	if !epoch.Open {
		epoch.Reason = row.State
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.known[row.Number]; old.epoch.Epoch > epoch.Epoch || old.epoch.Epoch == epoch.Epoch && old.at.After(began) {
		return
	}
	e.known[row.Number] = known{epoch, began}
}
