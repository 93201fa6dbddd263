package redisstock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

var _ audit.Redis = (*Sampler)(nil)

// A Sampler is a shard as an audit sees it. It only reads.
type Sampler struct {
	shard *Shard
}

// NewSampler binds a shard.
func NewSampler(s *Shard) *Sampler { return &Sampler{shard: s} }

// Range is up to count entries of the log after a position.
func (s *Sampler) Range(ctx context.Context, after stock.Position, count int) ([]event.Raw, error) {
	return s.shard.Range(ctx, after, count)
}

// Sample reads everything that an audit compares in one MULTI: nothing comes in between.
func (s *Sampler) Sample(ctx context.Context, ids []string, cursor uint64, count int) (audit.Sample, error) {
	keys := s.shard.keys
	pipe := s.shard.rdb.TxPipeline()
	state := pipe.HGetAll(ctx, keys.State)
	var records *redis.SliceCmd
	if len(ids) > 0 {
		records = pipe.HMGet(ctx, keys.Orders, ids...)
	}
	page := pipe.HScan(ctx, keys.Orders, cursor, "", int64(count))
	status := pipe.FCallRO(ctx, fnStatus, keys.list())
	first := pipe.XRangeN(ctx, keys.Log, "-", "+", 1)
	last := pipe.XRevRangeN(ctx, keys.Log, "+", "-", 1)
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil && !anyReply(err) {
		return audit.Sample{}, fmt.Errorf("sample shard %d: %w", s.shard.number, err)
	}
	out := audit.Sample{State: state.Val(), Records: map[string]string{}, Page: map[string]string{}}
	for _, cmd := range []redis.Cmder{state, page, first, last, now} {
		if err := cmd.Err(); err != nil && !isWrongType(err) {
			return out, fmt.Errorf("sample shard %d: %s: %w", s.shard.number, cmd.Name(), err)
		}
	}
	if records != nil {
		if err := records.Err(); err != nil && !isWrongType(err) {
			return out, fmt.Errorf("sample shard %d: records: %w", s.shard.number, err)
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
		parsed, err := parseStatus(text)
		out.Status = parsed.forTakeover()
		return out, err
	case isNoFunction(err):
		plain := Status{Token: out.State["e"], Mode: out.State["m"], Nonce: out.State["n"], Fence: "absent", TimeMillis: now.Val().UnixMilli()}
		plain.Seq, _ = strconv.ParseInt(out.State["q"], 10, 64) // unreadable is as good as missing
		plain.split()
		if messages := first.Val(); len(messages) > 0 {
			plain.First = messages[0].ID
		}
		if messages := last.Val(); len(messages) > 0 {
			plain.Last = messages[0].ID
		}
		out.Status = plain.forTakeover()
		return out, nil
	}
	return out, fmt.Errorf("sample shard %d: status: %w", s.shard.number, err)
}

// anyReply reports whether the transaction was executed and only a command in it was refused.
func anyReply(err error) bool { return isWrongType(err) || isNoFunction(err) }

func isNoFunction(err error) bool {
	var server redis.Error
	return errors.As(err, &server) && strings.Contains(server.Error(), "Function not found")
}
