package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

var errLost = errors.New("the reply was lost")

// A lossy pair of stores does what it is told, loses the reply to one kind of call, and counts them.
type lossy struct {
	takeover.Redis
	takeover.Ledger
	loses string
	sent  int
}

func (l *lossy) lost(call string, err error) error {
	if call != l.loses {
		return err
	}
	l.sent++
	if err == nil {
		err = errLost
	}
	return err
}

type lossyRedis struct {
	takeover.Redis
	*lossy
}

func (r lossyRedis) Fence(ctx context.Context, s takeover.Seal, adopt bool) error {
	return r.lost("fence", r.Redis.Fence(ctx, s, adopt))
}

func (r lossyRedis) Put(ctx context.Context, s takeover.Seal, seq int64, p takeover.Put) (int64, error) {
	next, err := r.Redis.Put(ctx, s, seq, p)
	return next, r.lost("put", err)
}

func (r lossyRedis) Open(ctx context.Context, s takeover.Seal, seq int64, continues stock.Position) error {
	return r.lost("open", r.Redis.Open(ctx, s, seq, continues))
}

type lossyLedger struct {
	takeover.Ledger
	*lossy
}

func (l lossyLedger) Claim(ctx context.Context, shard int, redisEpoch int64, operator bool) (takeover.Seal, error) {
	s, err := l.Ledger.Claim(ctx, shard, redisEpoch, operator)
	return s, l.lost("claim", err)
}

func (l lossyLedger) CloseEpoch(ctx context.Context, s takeover.Seal, beyond []event.Raw) (takeover.Closed, error) {
	c, err := l.Ledger.CloseEpoch(ctx, s, beyond)
	return c, l.lost("close", err)
}

func (l lossyLedger) SayOpen(ctx context.Context, s takeover.Seal) error {
	return l.lost("say", l.Ledger.SayOpen(ctx, s))
}

// A call whose reply was lost may be executed now or in an hour. A second copy of it could meet a shard that has
// moved on, so the attempt ends there, and the next one has an epoch of its own.
func TestNothingOfAnAttemptIsSentTwice(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"claim", "fence", "close", "put", "open", "say"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			s := newShop(t).stocked()
			late := s.reserve("late", 3)
			s.must(s.rdb.Del(ctx, s.shard.Keys().Orders).Err()) // so that there is something to put
			l := &lossy{loses: call}
			_, err := takeover.Run(ctx, lossyRedis{s.opener, l}, lossyLedger{s.seals, l}, takeover.Options{})
			if !errors.Is(err, errLost) || l.sent != 1 {
				t.Errorf("%s was sent %d times, and the attempt ended with %v", call, l.sent, err)
			}
			s.takeover(takeover.Options{})
			if s.standing(late) != stock.StandingPersisted {
				t.Errorf("late is %s", s.standing(late))
			}
			s.sells("after")
		})
	}
}

// Until the fence the shop goes on selling, and all of that counts.
func TestWhatIsSoldUntilTheFenceIsDrained(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	sold := map[takeover.Step]stock.Receipt{}
	_, err := takeover.Run(ctx, s.opener, s.seals, takeover.Options{At: func(at takeover.Step) error {
		switch at {
		case takeover.StepClaim, takeover.StepCheck, takeover.StepFence:
			sold[at] = s.reserve(string(at), 1)
		case takeover.StepDone:
		default:
			s.refuses(string(at))
		}
		return nil
	}})
	s.must(err)
	for step, r := range sold {
		if s.standing(r) != stock.StandingPersisted {
			t.Errorf("what was sold before the step %s is %s", step, s.standing(r))
		}
	}
	s.sells("after")
}

func TestWhatSomebodyEditedIsPutBack(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	s.reserve("held", 2)
	s.consume()
	keys := s.shard.Keys()
	s.must(s.rdb.HSet(ctx, keys.State, "1", "77|0|0").Err())
	record, err := s.rdb.HGet(ctx, keys.Orders, "held").Result()
	s.must(err)
	s.must(s.rdb.HSet(ctx, keys.Orders, "held", "x"+record[1:], "ghost", record).Err())
	r := s.takeover(takeover.Options{})
	if r.Put != 2 || r.Deleted != 1 {
		t.Errorf("put %d, deleted %d: %+v", r.Put, r.Deleted, r)
	}
	s.sells("after")
}

// movingRow is a ledger whose row is another one at the second look.
type movingRow struct {
	rows []takeover.Shard
}

func (*movingRow) ID() string { return "ours" }

func (m *movingRow) Shard(context.Context, int) (takeover.Shard, error) {
	row := m.rows[0]
	m.rows = m.rows[1:]
	return row, nil
}

type fixedStatus takeover.Status

func (f fixedStatus) Status(context.Context) (takeover.Status, error) { return takeover.Status(f), nil }

func TestAProbeDoesNotJudgeAShardThatMoves(t *testing.T) {
	t.Parallel()
	was := takeover.Shard{Writer: "redis", Epoch: 5, Claim: 5, State: takeover.StateOpen}
	status := fixedStatus{Loaded: true, Token: "ours.6", Ledger: "ours", Epoch: 6, Mode: takeover.ModeClosed, Fence: takeover.FenceSame}
	for name, move := range map[string]func(*takeover.Shard){
		"a claim":       func(s *takeover.Shard) { s.Claim = 6 },
		"another epoch": func(s *takeover.Shard) { s.Epoch = 6 },
		"a halt":        func(s *takeover.Shard) { s.State = takeover.StateHalted },
	} {
		is := was
		move(&is)
		f, err := takeover.Probe(ctx, status, &movingRow{[]takeover.Shard{was, is}}, 0)
		if err != nil || f.Class != takeover.Changing {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	if f, err := takeover.Probe(ctx, status, &movingRow{[]takeover.Shard{was, was}}, 0); err != nil || f.Class != takeover.Ahead {
		t.Errorf("a row that stays: %v, %v", f, err)
	}
}

// The settings of a server are looked at before anything of it is changed, whoever asked for the takeover.
func TestAServerThatEvictsIsNotOpened(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	before, err := s.opener.Status(ctx)
	s.must(err)
	s.must(s.rdb.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	_, err = takeover.Run(ctx, s.opener, s.seals, takeover.Options{Operator: true})
	var setting *redisstock.SettingError
	var ended *takeover.StepError
	if !errors.As(err, &setting) || setting.Setting != "maxmemory-policy" || !errors.As(err, &ended) || ended.Step != takeover.StepCheck {
		t.Errorf("the attempt ended with %v", err)
	}
	if after, err := s.opener.Status(ctx); err != nil || after.Token != before.Token || after.Mode != before.Mode {
		t.Errorf("the shard was %s (%s) and is %s (%s), %v", before.Token, before.Mode, after.Token, after.Mode, err)
	}
	s.must(s.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	s.takeover(takeover.Options{})
	s.sells("after")
}

// A ledger that lost its newest claims in a failover meets a Redis with an epoch that it never gave out. It has to
// go above it, however far that is: a Redis refuses every fence below its own epoch.
func TestALedgerThatLostItsClaimsGoesAboveRedisEpoch(t *testing.T) {
	t.Parallel()
	s := newShop(t).stocked()
	row, err := s.ledger.Shard(ctx, 0)
	s.must(err)
	ahead := row.Epoch + 1_000_000
	s.must(s.rdb.HSet(ctx, s.shard.Keys().State, "e", fmt.Sprintf("%s.%d", s.ledger.ID(), ahead)).Err())
	if f := s.probe(); f.Class != takeover.Ahead {
		t.Fatal(f)
	}
	if r := s.takeover(takeover.Options{}); r.Epoch <= ahead {
		t.Errorf("epoch %d, Redis had %d", r.Epoch, ahead)
	}
	s.sells("after")
}
