package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The types below give a Clerk the stores of a house.

type catalog struct{ *ledger.Catalog }

func (c catalog) SKU(ctx context.Context, text string) (order.SKU, error) {
	s, err := c.Catalog.SKU(ctx, text)
	if errors.Is(err, ledger.ErrUnknownSKU) {
		err = order.ErrUnknownSKU
	}
	return order.SKU{Number: s.Number, Shard: s.Shard, Opening: s.Opening}, err
}

func (c catalog) SKUs(ctx context.Context, texts []string) (map[string]order.SKU, error) {
	found, err := c.Catalog.SKUs(ctx, texts)
	out := map[string]order.SKU{}
	for text, s := range found {
		out[text] = order.SKU{Number: s.Number, Shard: s.Shard, Opening: s.Opening}
	}
	return out, err
}

type receipts struct{ *ledger.Ledger }

func (r receipts) Resolve(ctx context.Context, at stock.Receipt) (stock.Standing, error) {
	return r.Standing(ctx, at)
}

// Wait does not wait: the tables ask for no level that needs it.
func (r receipts) Wait(ctx context.Context, at stock.Receipt) (stock.Standing, error) {
	return r.Standing(ctx, at)
}

type orders struct{ *ledger.Ledger }

func (o orders) Lookup(ctx context.Context, id string) ([]stock.Reservation, error) {
	found, err := o.Ledger.Lookup(ctx, id)
	var out []stock.Reservation
	for _, f := range found {
		out = append(out, f.Reservation)
	}
	return out, err
}

func (o orders) Attempt(ctx context.Context, shard int, id string, attempt int64) (stock.Reservation, bool, error) {
	found, ok, err := o.Ledger.Attempt(ctx, shard, id, attempt)
	return found.Reservation, ok, err
}

func (o orders) Shortfall(ctx context.Context, shard int, id string, attempt int64, short []stock.Short) error {
	detail, err := json.Marshal(short)
	if err != nil {
		return err
	}
	return o.RecordOutcome(ctx, ledger.Outcome{Shard: shard, OrderID: id, Attempt: attempt, Code: ledger.OutcomeShortfall, Detail: detail})
}

type records struct{ *house }

func (r records) Record(ctx context.Context, shard int, id string) (stock.Reservation, bool, error) {
	return r.shards[shard].Record(ctx, id)
}

func (r records) Field(ctx context.Context, shard int, sku int64) (event.Field, stock.Position, bool, error) {
	f, ok, err := r.shards[shard].Field(ctx, sku)
	return f, stock.Position{}, ok, err
}

func (r records) Counted(ctx context.Context, shard int, sku int64) (bool, error) {
	return r.rdb.HExists(ctx, r.shards[shard].Keys().Buyers, strconv.FormatInt(sku, 10)).Result()
}

func (r records) Now(ctx context.Context, shard int) (int64, error) { return r.now(ctx, shard) }

type figures struct{ *ledger.Ledger }

func (f figures) Figure(ctx context.Context, sku string) (event.Field, stock.Position, bool, error) {
	s, err := f.Stock(ctx, sku)
	return event.Field{Quantities: s.Quantities, Settings: s.Settings}, stock.Position{}, err == nil && s.Exists, err
}

// clerk wires a Clerk to the house; oneShard keeps all new SKUs in the last shard.
func (h *house) clerk(oneShard bool) (*order.Clerk, error) {
	home := -1
	if oneShard {
		home = len(h.shards) - 1
	}
	papers := documents{h.ledger, home}
	clerk, err := order.NewClerk(order.Parts{
		Desk: h.desk, Epochs: h, Catalog: catalog{ledger.NewCatalog(h.ledger, 0)}, Receipts: receipts{h.ledger},
		Orders: orders{h.ledger}, Records: records{h}, Documents: papers, Papers: papers, Counts: papers, Shelves: shelves{h.ledger},
		Figures: figures{h.ledger}, Shards: len(h.shards),
	})
	if err != nil {
		return nil, fmt.Errorf("wire the clerk: %w", err)
	}
	return clerk, nil
}
