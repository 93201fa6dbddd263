package producerapp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// retrySoon is when a shard that is being taken over is worth another look.
const retrySoon = 500 * time.Millisecond

// The types below say the words of the stores in those of package order, and nothing more.

// skus is the catalog.
type skus struct{ catalog *ledger.Catalog }

func (s *skus) SKU(ctx context.Context, text string) (order.SKU, error) {
	found, err := s.catalog.SKU(ctx, text)
	if errors.Is(err, ledger.ErrUnknownSKU) {
		return order.SKU{}, order.ErrUnknownSKU
	}
	return skuOf(found), err
}

func (s *skus) SKUs(ctx context.Context, texts []string) (map[string]order.SKU, error) {
	found, err := s.catalog.SKUs(ctx, texts)
	if err != nil {
		return nil, err
	}
	out := make(map[string]order.SKU, len(found))
	for text, sku := range found {
		out[text] = skuOf(sku)
	}
	return out, nil
}

func (s *skus) Names(ctx context.Context, numbers []int64) (map[int64]string, error) {
	return s.catalog.Names(ctx, numbers)
}

func (s *skus) Forget(text string) { s.catalog.Forget(text) }

func skuOf(s ledger.SKU) order.SKU {
	return order.SKU{Number: s.Number, Shard: s.Shard, Opening: s.Opening}
}

// receipts are known by the watch while they are young, and by the ledger.
type receipts struct {
	*ledger.Watch
	store *ledger.Ledger
}

func (r *receipts) Standing(ctx context.Context, receipt stock.Receipt) (stock.Standing, error) {
	return r.store.Standing(ctx, receipt)
}

// orders are the rows of reservations.
type orders struct{ store *ledger.Ledger }

func (o *orders) Lookup(ctx context.Context, id string) ([]stock.Reservation, error) {
	found, err := o.store.Lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	out := make([]stock.Reservation, len(found))
	for i := range found {
		out[i] = found[i].Reservation
	}
	return out, nil
}

func (o *orders) Attempt(ctx context.Context, shard int, id string, attempt int64) (stock.Reservation, bool, error) {
	found, ok, err := o.store.Attempt(ctx, shard, id, attempt)
	return found.Reservation, ok, err
}

func (o *orders) Shortfall(ctx context.Context, shard int, id string, attempt int64, short []stock.Short) error {
	type line struct {
		SKU       int64 `json:"sku"`
		Asked     int64 `json:"asked"`
		Available int64 `json:"available"`
	}
	lines := make([]line, len(short))
	for i, s := range short {
		lines[i] = line(s)
	}
	detail, err := json.Marshal(map[string]any{"lines": lines})
	if err != nil {
		return fmt.Errorf("write the lines of the shortfall: %w", err)
	}
	return o.store.RecordOutcome(ctx, ledger.Outcome{
		Shard: shard, OrderID: id, Attempt: attempt, Code: ledger.OutcomeShortfall, Detail: detail,
	})
}

// records are what Redis says beside the desk.
type records struct {
	rdb    *redis.Client
	epochs stock.Epochs
	shards []*redisstock.Shard
}

func newRecords(rdb *redis.Client, prefix string, shards int, epochs stock.Epochs) *records {
	r := &records{rdb: rdb, epochs: epochs}
	for n := range shards {
		r.shards = append(r.shards, redisstock.NewShard(rdb, prefix, n))
	}
	return r
}

// Record is followed by a look at the server's status: an emptied, restarted or promoted Redis knows nothing of
// an order, and must not be heard as if it did.
func (r *records) Record(ctx context.Context, shard int, id string) (stock.Reservation, bool, error) {
	found, ok, err := r.shards[shard].Record(ctx, id)
	if err != nil {
		return found, false, err
	}
	status, err := r.shards[shard].Status(ctx)
	if err != nil {
		return found, false, err
	}
	if e := r.epochs.Epoch(shard); !status.Open() || status.Token != e.Token() {
		return found, false, &stock.ClosedError{Shard: shard, Reason: "rebuilding", RetryAfter: retrySoon}
	}
	return found, ok, nil
}

// Field reads the SKU and the position in one command, so that they belong together.
func (r *records) Field(ctx context.Context, shard int, sku int64) (event.Field, stock.Position, bool, error) {
	v, err := r.rdb.HMGet(ctx, r.shards[shard].Keys().State, strconv.FormatInt(sku, 10), "e", "q").Result()
	if err != nil {
		return event.Field{}, stock.Position{}, false, fmt.Errorf("SKU number %d of shard %d: %w", sku, shard, err)
	}
	text, ok := v[0].(string)
	if !ok {
		return event.Field{}, stock.Position{}, false, nil
	}
	f, err := event.ParseField(text)
	token, _ := v[1].(string)
	seq, _ := v[2].(string)
	at, bad := stock.ParsePosition(token[strings.LastIndexByte(token, '.')+1:] + "-" + seq)
	return f, at, err == nil, errors.Join(err, bad)
}

// Counted is the mark that a takeover leaves beside what buyers have.
func (r *records) Counted(ctx context.Context, shard int, sku int64) (bool, error) {
	counted, err := r.rdb.HExists(ctx, r.shards[shard].Keys().Buyers, strconv.FormatInt(sku, 10)).Result()
	if err != nil {
		return false, fmt.Errorf("whether buyers of SKU number %d of shard %d are counted: %w", sku, shard, err)
	}
	return counted, nil
}

func (r *records) Now(ctx context.Context, shard int) (int64, error) {
	now, err := r.shards[shard].Time(ctx)
	return now.UnixMilli(), err
}

// figures are the ledger's quantities, at the position that the watch knows of it.
type figures struct {
	store *ledger.Ledger
	watch *ledger.Watch
}

func (f *figures) Figure(ctx context.Context, sku string) (event.Field, stock.Position, bool, error) {
	s, err := f.store.Stock(ctx, sku)
	if err != nil || !s.Exists {
		return event.Field{}, stock.Position{}, false, err
	}
	e := f.watch.Epoch(s.SKU.Shard)
	return event.Field{Quantities: s.Quantities, Settings: s.Settings}, stock.Position{Epoch: e.Epoch, Seq: e.Applied}, true, nil
}
