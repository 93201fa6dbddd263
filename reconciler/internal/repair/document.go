package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

const (
	// documentGrace is how long whoever wrote a document has to move it itself.
	documentGrace = 2 * time.Second
	documentPage  = 200
	maxDocuments  = 10_000 // of one round
)

// Papers counts one round of documents.
type Papers struct {
	Finished int // moved, or refused by an entry
	Waiting  int // Redis has them, Postgres will learn
	Renewed  int // of those finished, the ones that needed a new deadline
	Stuck    []Act
}

// documents sends the movements of documents that were written and not settled once more. Their ids make repeats
// recognisable, so it does not matter who else does.
func (w *ward) documents(ctx context.Context) (Papers, error) {
	var sum Papers
	for after, seen := "", 0; seen < maxDocuments; {
		page, err := within(ctx, statementTime, func(ctx context.Context) ([]ledger.Document, error) {
			return w.Ledger.PendingDocuments(ctx, w.number, documentGrace, after, documentPage)
		})
		if err != nil {
			return sum, err
		}
		for _, doc := range page {
			if err := w.move(ctx, doc, &sum); err != nil {
				return sum, err
			}
			after = doc.ID
		}
		if seen += len(page); len(page) < documentPage {
			break
		}
	}
	return sum, nil
}

// move sends one document's movement. An error is about the shard, not about the document.
func (w *ward) move(ctx context.Context, doc ledger.Document, sum *Papers) error {
	failpoint.Hit(failpoint.FinishingRead)
	out, err := w.Desk.Do(ctx, w.number, doc.Operation())
	renewed := false
	if err == nil && out.Code == stock.Overdue {
		if doc, renewed, err = w.renewDocument(ctx, doc); err != nil {
			return err
		}
		if !renewed {
			sum.Waiting++
			return nil
		}
		failpoint.Hit(failpoint.FinishingRenewed)
		out, err = w.Desk.Do(ctx, w.number, doc.Operation())
	}
	failpoint.Hit(failpoint.FinishingDecided)
	switch {
	case errors.Is(err, stock.ErrUnknown):
		return nil // the next round asks again
	case err != nil:
		return err
	case out.Code == stock.Replayed:
		sum.Waiting++
		return nil
	case out.Code == stock.MissingSKU:
		// Its SKU's opening is on its way, or the SKU is gone from Redis, which an audit tells.
		sum.Waiting++
		return nil
	case out.Code == stock.Accepted || out.Code == stock.NotAllowed:
		sum.Finished++
		if renewed {
			sum.Renewed++
		}
		return w.moved(ctx, doc, out, renewed)
	}
	sum.Stuck = append(sum.Stuck, Act{Shard: w.number, Class: "document", Verb: "apply", State: Operator, Order: doc.ID,
		Text:   fmt.Sprintf("the document was written at %s and Redis answers %q to its movement", doc.Written.UTC().Format(time.RFC3339), out.Code),
		Remedy: "compare the tables stock_document and event, and the SKU in Redis"})
	return nil
}

// moved writes the repair down; it is one act already, so begin and end are told together.
func (w *ward) moved(ctx context.Context, doc ledger.Document, out stock.Outcome, renewed bool) error {
	w.Metrics.document()
	id, err := w.begin(ctx, "document", "apply", doc)
	if err != nil {
		return err
	}
	after := outcome{Code: out.Code, At: out.Receipt.String()}
	if renewed {
		after.Text = "with a new deadline"
	}
	return w.finish(ctx, id, "document", "apply", after)
}

// renewDocument gives a new deadline to a document whose own has passed, if its movement is nowhere. Redis has just
// said that it has no record of it and that its deadline is over by Redis' clock, so no copy of the old call can
// move it any more. What may still be is that an earlier call did, and that its entry is in the log, whose record
// was tampered with, or on its way into the table. So, in this order: where the ledger stands; the log beyond that;
// and the table again, in the very statement that renews. An entry at or before the position is in the table by
// then, one behind it is in the log, or was trimmed from it because the table has it. [model]
func (w *ward) renewDocument(ctx context.Context, doc ledger.Document) (ledger.Document, bool, error) {
	row, err := w.opener.Shard(ctx, w.number)
	if err != nil {
		return doc, false, err
	}
	there, err := w.inLog(ctx, row.Position(), stock.DocumentID(doc.ID))
	if err != nil || there {
		return doc, false, err
	}
	status, err := w.redis.Status(ctx)
	if err != nil {
		return doc, false, err
	}
	if status.Epoch != row.Epoch || status.AtMillis <= doc.DeadlineMillis {
		return doc, false, nil // a takeover came in between, or the clock went back: another round will tell
	}
	deadline := w.Ledger.Deadline(status.AtMillis)
	renewed, err := w.Ledger.RenewDocument(ctx, doc.ID, doc.DeadlineMillis, deadline)
	if err != nil || !renewed {
		return doc, false, err
	}
	doc.DeadlineMillis = deadline
	return doc, true, nil
}

// inLog looks for an operation with the id behind a position. An entry that cannot be read may be it.
func (w *ward) inLog(ctx context.Context, at stock.Position, id string) (bool, error) {
	for {
		page, err := w.redis.Range(ctx, at, takeover.DefaultPage)
		if err != nil {
			return false, err
		}
		for _, raw := range page {
			entry, err := raw.Parse()
			if err != nil {
				return false, fmt.Errorf("look for document %s in the log: %w", id, err)
			}
			for i := range entry.Ops {
				if entry.Ops[i].ID == id {
					return true, nil
				}
			}
			at = entry.Position
		}
		if len(page) == 0 {
			return false, nil
		}
	}
}
