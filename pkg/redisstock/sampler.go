package redisstock

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var _ audit.Redis = (*Sampler)(nil)

// A Sampler is a shard as an audit sees it. It only reads.
type Sampler struct {
	*Shard
}

// NewSampler binds a shard.
func NewSampler(s *Shard) *Sampler { return &Sampler{Shard: s} }

// Sample reads everything that an audit compares in one MULTI: nothing comes in between.
func (s *Sampler) Sample(ctx context.Context, q audit.Question) (sample audit.Sample, err error) {
	err = s.asked(func() (string, error) {
		sample, err = s.sample(ctx, q)
		return sample.State["v"], err
	})
	return sample, err
}

func (s *Sampler) sample(ctx context.Context, q audit.Question) (audit.Sample, error) {
	pipe := s.rdb.TxPipeline()
	state := pipe.HGetAll(ctx, s.keys.State)
	records := fieldsOf(ctx, pipe, s.keys.Orders, q.Records)
	page := pipe.HScan(ctx, s.keys.Orders, q.Orders, "", int64(q.Page))
	buyers := fieldsOf(ctx, pipe, s.keys.Buyers, q.Buyers)
	counts := pipe.HScan(ctx, s.keys.Buyers, q.Counts, "", int64(q.Page))
	status := s.askStatus(ctx, pipe)
	// An error of Exec that is a key of another type or a missing library is the reply to one command only.
	if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) && !isNoFunction(err) {
		return audit.Sample{}, fmt.Errorf("sample shard %d: %w", s.number, err)
	}
	for _, cmd := range []redis.Cmder{state, records, page, buyers, counts} {
		if err := cmd.Err(); err != nil && !isWrongType(err) {
			return audit.Sample{}, fmt.Errorf("sample shard %d: %s: %w", s.number, cmd.Name(), err)
		}
	}
	out := audit.Sample{State: state.Val(), Records: present(q.Records, records), Buyers: present(q.Buyers, buyers)}
	out.Page, out.Next = paired(page)
	out.BuyersPage, out.BuyersNext = paired(counts)
	var err error
	if out.Status, err = status.status(); err != nil {
		return out, fmt.Errorf("sample shard %d: %w", s.number, err)
	}
	return out, nil
}

// fieldsOf asks for some fields; for none it asks nothing and answers nothing.
func fieldsOf(ctx context.Context, pipe redis.Pipeliner, key string, fields []string) *redis.SliceCmd {
	if len(fields) == 0 {
		return redis.NewSliceCmd(ctx)
	}
	return pipe.HMGet(ctx, key, fields...)
}

// present are the values of the fields that are there.
func present(fields []string, values *redis.SliceCmd) map[string]string {
	out := make(map[string]string, len(fields))
	for i, value := range values.Val() {
		if text, ok := value.(string); ok {
			out[fields[i]] = text
		}
	}
	return out
}

func paired(scan *redis.ScanCmd) (map[string]string, uint64) {
	pairs, next := scan.Val()
	out := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out, next
}

// Entry reads in one MULTI how the process stands and whether its log has the entry at a position. Without the
// library the status is what the keys say; a key of another type has no entry.
func (s *Sampler) Entry(ctx context.Context, at stock.Position) (status takeover.Status, there bool, err error) {
	err = s.asked(func() (string, error) {
		status, there, err = s.entry(ctx, at)
		return status.Version, err
	})
	if err != nil {
		err = fmt.Errorf("look for entry %s of shard %d: %w", at, s.number, err)
	}
	return status, there, err
}

func (s *Sampler) entry(ctx context.Context, at stock.Position) (status takeover.Status, there bool, err error) {
	pipe := s.rdb.TxPipeline()
	entry := pipe.XRangeN(ctx, s.keys.Log, at.String(), at.String(), 1)
	asked := s.askStatus(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) && !isNoFunction(err) {
		return status, false, err
	}
	if err := entry.Err(); err != nil && !isWrongType(err) {
		return status, false, err
	}
	status, err = asked.status()
	return status, len(entry.Val()) > 0, err
}
