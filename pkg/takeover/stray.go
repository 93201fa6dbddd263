package takeover

import (
	"context"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// recordStrays finds entries of epochs that were closed before this attempt and lie beyond their ends: an old master
// that nobody told accepted them after its successor had been opened elsewhere, and now this is its log again. Their
// receipts are answered lost from the ends alone; recorded, they can also be listed, and compared with what buyers
// were promised.
//
// What lies beyond the epoch that this attempt closed was collected already. So a log that begins with that epoch, as
// one that is trimmed does, is not looked at; else each epoch in it costs one read, for all that is accounted for is
// jumped over. At most maxLost are recorded in one attempt, and the next goes on behind them.
func (a *attempt) recordStrays(ctx context.Context) error {
	first, err := stock.ParsePosition(a.report.Before.First)
	if err != nil || a.strange || first.Epoch >= a.drained.Epoch {
		return nil // no log, or one that has none
	}
	accounted, err := a.ledger.Accounted(ctx, a.options.Shard)
	if err != nil {
		return fmt.Errorf("read where earlier epochs ended: %w", err)
	}
	strays, err := a.strays(ctx, accounted)
	if err != nil || len(strays) == 0 {
		return err
	}
	a.report.Strays, err = a.ledger.RecordOrphans(ctx, a.options.Shard, strays)
	if err != nil {
		return fmt.Errorf("record %d entries beyond the ends of earlier epochs: %w", len(strays), err)
	}
	return nil
}

func (a *attempt) strays(ctx context.Context, accounted map[int64]int64) (found []event.Raw, err error) {
	at, count := stock.Position{}, 1
	for len(found) < maxLost {
		batch, err := a.redis.Range(ctx, at, count)
		if isNotLog(err) {
			a.strange = true
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the log after %s: %w", at, err)
		}
		if len(batch) == 0 {
			return found, nil
		}
		for _, raw := range batch {
			next, err := stock.ParsePosition(raw.ID)
			if err != nil {
				return nil, fmt.Errorf("entry of the log: %w", err)
			}
			if next.Epoch >= a.drained.Epoch {
				return found, nil
			}
			if end := accounted[next.Epoch]; next.Seq <= end {
				at, count = stock.Position{Epoch: next.Epoch, Seq: end}, 1
				break
			}
			found = append(found, raw)
			at, count = next, a.options.Page
		}
	}
	return found[:min(len(found), maxLost)], nil
}
