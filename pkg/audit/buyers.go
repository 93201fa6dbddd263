package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// buyerFields are the marks of all SKUs with a limit, and the counts of the ledger's page.
func (c *comparison) buyerFields() []string {
	var fields []string
	for sku, field := range c.snap.Stock {
		if field.Limit > 0 {
			fields = append(fields, takeover.MarkField(sku))
		}
	}
	for key := range c.bought {
		fields = append(fields, takeover.BuyerField(key))
	}
	slices.Sort(fields)
	return fields
}

// openBuyers asks the snapshot for the counts that are on Redis' page only, and puts all into the book.
func (c *comparison) openBuyers(ctx context.Context) error {
	var more []event.BuyerKey
	for field := range c.sample.BuyersPage {
		key, is := parseBuyer(field)
		if _, there := c.bought[key]; is && !there {
			more = append(more, key)
		}
	}
	if len(more) > 0 {
		slices.SortFunc(more, compareKeys)
		found, err := c.view.BoughtOf(ctx, more)
		if err != nil {
			return fmt.Errorf("read what %d buyers have from the snapshot: %w", len(more), err)
		}
		c.bought = maps.Clone(c.bought)
		if c.bought == nil {
			c.bought = map[event.BuyerKey]int64{}
		}
		for _, key := range more {
			c.bought[key] = found[key]
		}
	}
	c.book.Bought = maps.Clone(c.bought)
	if c.book.Bought == nil {
		c.book.Bought = map[event.BuyerKey]int64{}
	}
	return nil
}

func compareKeys(a, b event.BuyerKey) int {
	return cmp.Or(cmp.Compare(a.SKU, b.SKU), cmp.Compare(a.Buyer, b.Buyer))
}

// parseBuyer reads the field of a count; false for anything else that stands in the hash.
func parseBuyer(field string) (event.BuyerKey, bool) {
	number, buyer, is := strings.Cut(field, ":")
	sku, err := strconv.ParseInt(number, 10, 64)
	key := event.BuyerKey{SKU: sku, Buyer: buyer}
	return key, is && err == nil && buyer != "" && stock.CheckBuyer("buyer", buyer) == nil && takeover.BuyerField(key) == field
}

// compareBuyers compares what buyers have of the SKUs that have a limit. Counts mean something only where Redis says
// that it counted in full, and it may say so only of SKUs with a limit.
func (c *comparison) compareBuyers() {
	have := maps.Clone(c.sample.Buyers)
	if have == nil {
		have = map[string]string{}
	}
	maps.Copy(have, c.sample.BuyersPage)
	counted := c.compareMarks(have)
	for _, key := range slices.SortedFunc(maps.Keys(c.bought), compareKeys) {
		if !counted[key.SKU] {
			continue // nobody counts, or began to: what is left of earlier times means nothing, and goes with the next takeover
		}
		c.report.Buyers++
		c.compareBuyer(key, have[takeover.BuyerField(key)])
	}
	c.strangeFields()
}

// compareMarks looks at the mark of every SKU of which the snapshot or the page tells one, and answers which SKUs are
// counted.
func (c *comparison) compareMarks(have map[string]string) map[int64]bool {
	counted := map[int64]bool{}
	for _, sku := range slices.Sorted(maps.Keys(c.book.Stock)) {
		text, there := have[takeover.MarkField(sku)]
		limit := c.book.Settings[sku].Limit
		drift := Drift{Class: Tampered, Key: takeover.TargetBuyers, SKU: sku, Redis: text}
		switch {
		case there && limit == 0:
			drift.Text = "Redis counts what buyers have of it, and it has no limit"
		case there && text != takeover.Counted:
			drift.Postgres, drift.Text = takeover.Counted, "its mark that buyers are counted was written by somebody else"
		case there:
			counted[sku] = true
			continue
		case limit > 0 && c.snap.Stock[sku].Limit > 0:
			drift.Class = takeover.Uncounted
			drift.Postgres, drift.Text = takeover.Counted, fmt.Sprintf("it has a limit of %d a buyer, and nobody has counted yet what buyers have: its orders are refused", limit)
		default:
			continue // no limit, or one that the snapshot has not heard of: the mark was not asked for
		}
		c.raise(drift)
	}
	return counted
}

func (c *comparison) compareBuyer(key event.BuyerKey, text string) {
	want := c.book.Bought[key]
	have, err := strconv.ParseInt("0"+text, 10, 64) // no field is no units
	canonical := text == "" || strconv.FormatInt(have, 10) == text
	drift := Drift{Class: Tampered, Key: takeover.TargetBuyers, SKU: key.SKU, Buyer: key.Buyer, Redis: text, Postgres: strconv.FormatInt(want, 10)}
	switch {
	case err != nil || !canonical:
		drift.Text = "what the buyer has of it cannot be read in Redis"
	case have != want:
		drift.Text = "what the buyer has of it differs"
	default:
		return
	}
	c.raise(drift)
}

// strangeFields looks for what no library writes.
func (c *comparison) strangeFields() {
	for _, field := range slices.Sorted(maps.Keys(c.sample.BuyersPage)) {
		number, _, _ := strings.Cut(field, ":")
		sku, err := strconv.ParseInt(number, 10, 64)
		_, known := c.book.Stock[sku]
		_, isCount := parseBuyer(field)
		isMark := err == nil && takeover.MarkField(sku) == field
		if field == sentinel || known && (isCount || isMark) {
			continue
		}
		if !known {
			sku = 0
		}
		c.raise(Drift{Class: Tampered, Key: takeover.TargetBuyers, SKU: sku, Redis: c.sample.BuyersPage[field],
			Text: fmt.Sprintf("Redis has a field %+q beside the counts of buyers that nobody writes", field)})
	}
}
