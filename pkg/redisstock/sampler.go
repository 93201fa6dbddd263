package redisstock

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/audit"
)

var _ audit.Redis = (*Sampler)(nil)

// A Sampler is a shard as an audit sees it. It only reads.
type Sampler struct {
	*Shard
}

// NewSampler binds a shard.
func NewSampler(s *Shard) *Sampler { return &Sampler{Shard: s} }

// Sample reads everything that an audit compares in one MULTI: nothing comes in between.
func (s *Sampler) Sample(ctx context.Context, ids []string, cursor uint64, count int) (audit.Sample, error) {
	pipe := s.rdb.TxPipeline()
	state := pipe.HGetAll(ctx, s.keys.State)
	var records *redis.SliceCmd
	if len(ids) > 0 {
		records = pipe.HMGet(ctx, s.keys.Orders, ids...)
	}
	page := pipe.HScan(ctx, s.keys.Orders, cursor, "", int64(count))
	status := pipe.FCallRO(ctx, fnStatus, s.keys.list())
	plain := s.askPlain(ctx, pipe)
	// An error of Exec that is a key of another type or a missing library is the reply to one command only.
	if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) && !isNoFunction(err) {
		return audit.Sample{}, fmt.Errorf("sample shard %d: %w", s.number, err)
	}
	for _, cmd := range []redis.Cmder{state, page} {
		if err := cmd.Err(); err != nil && !isWrongType(err) {
			return audit.Sample{}, fmt.Errorf("sample shard %d: %s: %w", s.number, cmd.Name(), err)
		}
	}
	if err := plain.err(); err != nil {
		return audit.Sample{}, fmt.Errorf("sample shard %d: %w", s.number, err)
	}
	out := audit.Sample{State: state.Val(), Records: map[string]string{}, Page: map[string]string{}}
	if records != nil {
		if err := records.Err(); err != nil && !isWrongType(err) {
			return out, fmt.Errorf("sample shard %d: records: %w", s.number, err)
		}
		for i, value := range records.Val() {
			if text, ok := value.(string); ok {
				out.Records[ids[i]] = text
			}
		}
	}
	pairs, next := page.Val()
	for i := 0; i+1 < len(pairs); i += 2 {
		out.Page[pairs[i]] = pairs[i+1]
	}
	out.Next = next
	text, err := status.Text()
	switch {
	case err == nil:
		out.Status, err = parseStatus(text)
		return out, err
	case isNoFunction(err):
		out.Status = plain.status()
		return out, nil
	}
	return out, fmt.Errorf("sample shard %d: status: %w", s.number, err)
}
