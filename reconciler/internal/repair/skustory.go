package repair

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func (w *ward) tellSKU(ctx context.Context, text string, limit int, story *Story) error {
	all, err := w.Ledger.SKUEver(ctx, text)
	if err != nil {
		return err
	}
	for _, sku := range all {
		if sku.Shard != w.number {
			continue
		}
		t, err := w.skuStory(ctx, sku, limit)
		if err != nil {
			return err
		}
		story.SKUs = append(story.SKUs, t)
	}
	return nil
}

func (w *ward) skuStory(ctx context.Context, sku ledger.SKU, limit int) (t SKUStory, err error) {
	t = SKUStory{Shard: w.number, SKU: sku.Number, Name: sku.Text}
	row, err := w.Ledger.Shard(ctx, w.number)
	if err != nil {
		return t, err
	}
	known, err := w.Ledger.Stocks(ctx, []int64{sku.Number})
	if err != nil {
		return t, err
	}
	have := known[sku.Number]
	t.Doubt = have.Doubt
	t.Postgres = fmt.Sprintf("%s at %s", event.Field{Quantities: have.Quantities, Settings: have.Settings}, row.Position())
	if !have.Exists {
		t.Postgres = fmt.Sprintf("not opened yet at %s", row.Position())
	}
	mark := takeover.MarkField(sku.Number)
	sample, err := (boundedRedis{w.sample}).Sample(ctx, audit.Question{Buyers: []string{mark}, Page: 1})
	if limit := have.Settings.Limit; limit > 0 {
		t.Limit = fmt.Sprintf("%d a buyer; Redis counts what buyers have", limit)
		if err == nil && sample.Buyers[mark] != takeover.Counted {
			t.Limit = fmt.Sprintf("%d a buyer; nobody has counted yet what buyers have, so orders are refused as uncounted until the next takeover", limit)
		}
	}
	switch field, there := sample.State[strconv.FormatInt(sku.Number, 10)]; {
	case err != nil:
		t.Redis = "does not answer: " + err.Error()
	case !there:
		t.Redis = "nothing"
	case !sample.Status.Open():
		t.Redis = field + ", of a shard that is closed"
	default:
		t.Redis = fmt.Sprintf("%s at %d-%d", field, sample.Status.Epoch, sample.Status.Seq)
	}
	if t.Movements, err = w.movementLines(ctx, sku.Number, limit); err != nil {
		return t, err
	}
	holds, err := w.Ledger.OpenHolds(ctx, w.number, sku.Number, limit)
	if err != nil {
		return t, err
	}
	for _, h := range holds {
		t.Holds = append(t.Holds, fmt.Sprintf("%s, attempt %d, due %s", h.OrderID, h.Attempt, clockText(h.Due)))
	}
	documents, err := w.Ledger.DocumentsOfSKU(ctx, w.number, sku.Number, limit)
	if err != nil {
		return t, err
	}
	for i := range documents {
		t.Documents = append(t.Documents, documentLine(&documents[i]))
	}
	t.Repairs, err = w.repairLines(ctx, nil, sku.Number, limit)
	return t, err
}

// movementLines are the entries that moved a SKU, each with the figures after it and what it changed.
func (w *ward) movementLines(ctx context.Context, sku int64, limit int) ([]string, error) {
	entries, err := w.Ledger.EventsOfSKU(ctx, w.number, sku, min(limit+1, ledger.MaxStory)) // one more, for the oldest one's difference
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for i, e := range entries {
		if i == limit {
			break
		}
		now, _ := imageFigure(e.After, sku)
		line := fmt.Sprintf("%s at %s: %s", e.Receipt.Position, millisText(e.AtMillis), now)
		if i+1 < len(entries) {
			before, _ := imageFigure(entries[i+1].After, sku)
			line += fmt.Sprintf(" (%+d %+d %+d)", now.Available-before.Available, now.Held-before.Held, now.Committed-before.Committed)
		}
		ops, err := w.Ledger.EntryOf(ctx, w.number, e.Receipt.Position)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line+" by "+opsText(ops))
	}
	return lines, nil
}

func imageFigure(after string, sku int64) (stock.Quantities, bool) {
	prefix := strconv.FormatInt(sku, 10) + "="
	for part := range strings.SplitSeq(after, " ") {
		if text, is := strings.CutPrefix(part, prefix); is {
			field, err := event.ParseField(text)
			return field.Quantities, err == nil
		}
	}
	return stock.Quantities{}, false
}

func opsText(ops []ledger.Told) string {
	const most = 3
	var parts []string
	for i, op := range ops {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(ops)-most))
			break
		}
		parts = append(parts, op.Body[:1]+" "+op.ID)
	}
	return strings.Join(parts, ", ")
}
