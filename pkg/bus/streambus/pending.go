package streambus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// Bounds of the tidying.
const (
	tidyEvery = 10 * time.Second
	// deadAfter is how long a reader without pending entries must have been silent before its name is removed. One
	// that is alive after all gets its name back with its next read.
	deadAfter = 10 * time.Second
	// ackPage is how many ids one acknowledgement carries.
	ackPage = 1000
	// maxAckPages bounds one round; what is left is found by the next.
	maxAckPages = 100
)

// acknowledge tells the group about what Next brought and the ledger has reached since, and tidies when it is time.
func (s *Source) acknowledge(ctx context.Context) error {
	reached, ids := 0, s.unacked
	for reached < len(ids) && covered(ids[reached], s.applied) {
		reached++
	}
	for page := ids[:reached]; len(page) > 0; page = page[min(ackPage, len(page)):] {
		if err := s.ack(ctx, page[:min(ackPage, len(page))]); err != nil {
			return err
		}
	}
	s.unacked = append(s.unacked[:0], ids[reached:]...)
	if time.Since(s.tidied) < tidyEvery {
		return nil
	}
	return s.tidy(ctx)
}

// covered: a stream's ids are ordered as pairs, and an entry of an older epoch that was read is either applied or an
// orphan, which the ledger has recorded.
func covered(id string, applied stock.Position) bool {
	p, err := stock.ParsePosition(id)
	return err == nil && (p.Epoch < applied.Epoch || p.Epoch == applied.Epoch && p.Seq <= applied.Seq)
}

func (s *Source) ack(ctx context.Context, ids []string) error {
	if err := s.Redis.XAck(ctx, s.Log, Group, ids...).Err(); err != nil {
		return fmt.Errorf("acknowledge %d entries of log %s: %w", len(ids), s.Log, err)
	}
	failpoint.Hit(failpoint.ConsumerAcked)
	return nil
}

// tidy acknowledges what any reader left pending at or below the ledger's position, and removes the names of readers
// that are gone: a name is made by every start of a process, so names would pile up in memory for ever.
func (s *Source) tidy(ctx context.Context) error {
	readers, err := s.Redis.XInfoConsumers(ctx, s.Log, Group).Result()
	if err != nil {
		return s.lostOr(err, "look at the readers")
	}
	s.tidied = time.Now()
	for _, r := range readers {
		if r.Pending > 0 {
			if err := s.ackPending(ctx, r.Name); err != nil {
				return err
			}
			continue // its name goes in a later round, when nothing pends: deleting it would drop what it claimed
		}
		if r.Name != s.Consumer && r.Idle >= deadAfter {
			if err := s.Redis.XGroupDelConsumer(ctx, s.Log, Group, r.Name).Err(); err != nil {
				return s.lostOr(err, "remove reader "+r.Name)
			}
		}
	}
	return nil
}

func (s *Source) ackPending(ctx context.Context, reader string) error {
	for range maxAckPages {
		pending, err := s.Redis.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: s.Log, Group: Group, Start: "-", End: s.applied.String(), Count: ackPage, Consumer: reader,
		}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return s.lostOr(err, "look at what is pending")
		}
		if len(pending) == 0 {
			return nil
		}
		ids := make([]string, len(pending))
		for i, p := range pending {
			ids[i] = p.ID
		}
		if err := s.ack(ctx, ids); err != nil {
			return err
		}
		if len(pending) < ackPage {
			return nil
		}
	}
	return nil
}

// Pending is how many delivered entries of the log wait for their acknowledgement, over all readers.
func (s *Source) Pending(ctx context.Context) (int64, error) {
	p, err := s.Redis.XPending(ctx, s.Log, Group).Result()
	if err != nil {
		return 0, s.lostOr(err, "look at what is pending")
	}
	return p.Count, nil
}

// Last is the id of the newest entry, empty when there is none.
func (s *Source) Last(ctx context.Context) (string, error) {
	last, err := s.Redis.XRevRangeN(ctx, s.Log, "+", "-", 1).Result()
	if err != nil {
		return "", fmt.Errorf("read the end of log %s: %w", s.Log, err)
	}
	if len(last) == 0 {
		return "", nil
	}
	return last[0].ID, nil
}

// Leave removes this reader's name from the group, for a process that ends or gives the shard up. What it has
// pending is no loss: the next reader starts from the ledger's position. Call it after the last read has returned.
func (s *Source) Leave(ctx context.Context) error {
	err := s.Redis.XGroupDelConsumer(ctx, s.Log, Group, s.Consumer).Err()
	if err != nil && !isLost(err) && firstWord(err) != "ERR" { // ERR: there is no stream, so there is no name either
		return fmt.Errorf("leave group %s of log %s: %w", Group, s.Log, err)
	}
	return nil
}
