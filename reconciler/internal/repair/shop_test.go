package repair

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shop is one open shard and the ward that looks after it, whose duties a test calls one by one.
type shop struct {
	t      testing.TB
	url    string // Postgres
	rdb    *redis.Client
	shard  *redisstock.Shard
	ledger *ledger.Ledger
	ward   *ward
	told   []Act
}

func openShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{t: t, url: sandboxtest.Database(t, migrations.Up)}
	var err error
	s.ledger, err = ledger.Open(t.Context(), ledger.Config{URL: s.url, Name: "test"})
	check(t, err)
	t.Cleanup(s.ledger.Close)
	check(t, s.ledger.Init(t.Context(), 1))
	s.rdb, err = redisstock.Connect(redisstock.Options{URL: sandboxtest.Redis(t).URL(), Name: "test", Timeout: 5 * time.Second})
	check(t, err)
	t.Cleanup(func() { s.rdb.Close() })
	s.shard = redisstock.NewShard(s.rdb, "sp", 0)
	epochs := NewEpochs(s.ledger.ID())
	desk := redisstock.NewDesk(s.rdb, "sp", epochs)
	t.Cleanup(desk.Close)
	w := New(Config{
		Ledger: s.ledger, Epochs: epochs, Desk: desk, Holder: "test",
		Opener: func(int) takeover.Redis { return redisstock.NewOpener(s.shard, redisstock.Unsafe{}) },
		Bind: func(int) (takeover.Redis, func()) {
			return redisstock.NewOpener(s.shard, redisstock.Unsafe{}), func() {}
		},
		Sampler:   func(int) audit.Redis { return redisstock.NewSampler(s.shard) },
		Forgetter: func(int) Forgetter { return s.shard },
		Key:       func(_ int, part string) string { return part },
		Metrics:   NewMetrics(metrics.New("test")),
		Tell: func(_ int, _ string, act *Act, err error) {
			if err != nil {
				t.Error(err)
			}
			if act != nil {
				s.told = append(s.told, *act)
			}
		},
	}, 1)
	s.ward = w.wards[0]
	check(t, s.ward.look(t.Context()))
	if row := s.row(); row.State != takeover.StateOpen {
		t.Fatalf("the shard did not open: %+v, %+v", row, s.told)
	}
	return s
}

func (s *shop) row() takeover.Shard {
	s.t.Helper()
	row, err := s.ward.opener.Shard(s.t.Context(), 0)
	check(s.t, err)
	return row
}

func (s *shop) probe() takeover.Finding {
	s.t.Helper()
	f, err := s.ward.probe(s.t.Context())
	check(s.t, err)
	return f
}

// sku makes a SKU with ten units, in both stores.
func (s *shop) sku(text string) int64 {
	s.t.Helper()
	now, err := s.rdb.Time(s.t.Context()).Result()
	check(s.t, err)
	doc, _, err := s.ledger.WriteOpening(s.t.Context(), text, 10, 0, s.ledger.Deadline(now.UnixMilli()))
	check(s.t, err)
	out, err := s.ward.Desk.Do(s.t.Context(), 0, doc.Operation())
	if err != nil || out.Code != stock.Accepted {
		s.t.Fatalf("open %s: %v, %v", text, out, err)
	}
	_, err = s.ward.replay(s.t.Context())
	check(s.t, err)
	return doc.Lines[0].SKU
}

func (s *shop) repairs() int {
	s.t.Helper()
	all, err := s.ledger.Repairs(s.t.Context(), -1, 1000)
	check(s.t, err)
	return len(all)
}

// edit is somebody's hand on a SKU in Redis.
func (s *shop) edit(sku int64, text string) {
	s.t.Helper()
	check(s.t, s.rdb.HSet(s.t.Context(), s.shard.Keys().State, fmt.Sprint(sku), text).Err())
}

// flushSettled empties the Redis of a shard that has been open for long, so that no takeover waits for its turn.
func (s *shop) flushSettled() {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.url)
	check(s.t, err)
	defer conn.Close(s.t.Context())
	_, err = conn.Exec(s.t.Context(), `update shard set opened = opened - interval '1 hour'`)
	check(s.t, err)
	check(s.t, s.rdb.FlushAll(s.t.Context()).Err())
	s.ward.backoff.Reset()
	s.ward.notBefore, s.told = time.Time{}, nil
}
