package consumerapp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// opened makes Redis say that this ledger opened the shard under the present epoch.
func (s *shelf) opened() {
	s.t.Helper()
	token := fmt.Sprintf("%s.%d", s.ledger.ID(), s.claim.Epoch)
	check(s.t, s.rdb.HSet(s.t.Context(), redisstock.NewKeys(s.prefix, s.number).State, "e", token).Err())
}

func (s *shelf) length() int64 {
	s.t.Helper()
	n, err := s.rdb.XLen(s.t.Context(), s.key()).Result()
	check(s.t, err)
	return n
}

// oldest is the position at which the log begins.
func (s *shelf) oldest() stock.Position {
	s.t.Helper()
	first, err := s.rdb.XRangeN(s.t.Context(), s.key(), "-", "+", 1).Result()
	check(s.t, err)
	if len(first) == 0 {
		s.t.Fatal("the log is empty")
	}
	p, err := stock.ParsePosition(first[0].ID)
	check(s.t, err)
	return p
}

// cutBelow waits until the log is shorter than that.
func (s *shelf) cutBelow(entries int64) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, 30*time.Second, func() error {
		if n := s.length(); n >= entries {
			return fmt.Errorf("the log has %d entries, want fewer than %d", n, entries)
		}
		return nil
	})
}

func TestTheLogIsTrimmedBehindTheLedgerAndNothingIsLostByAKill(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	shelf := s.shelves[0]
	shelf.opened()
	archive := redisstock.NewKeys(s.prefix, 0).Archive(1)
	check(t, s.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: archive, ID: "0-1", Values: []string{"v", "1"}}).Err())
	for round := range 3 {
		c := s.consume(fmt.Sprint("round-", round), "--log-keep", "1s")
		shelf.sell(1000)
		shelf.cutBelow(500)
		c.Kill() // amid trimming, as likely as not
		shelf.sell(300)
		if row, err := s.ledger.Shard(t.Context(), 0); err != nil || row.Position().Epoch != shelf.oldest().Epoch || row.Applied < shelf.oldest().Seq {
			t.Fatalf("the log begins at %v, the ledger has %+v, %v", shelf.oldest(), row, err)
		}
	}
	last := s.consume("last", "--log-keep", "1s")
	s.persisted(20 * time.Second)
	shelf.cutBelow(200) // a block's worth stays
	if n := s.rdb.XLen(t.Context(), archive).Val(); n != 1 {
		t.Error("the evidence of a takeover is gone")
	}
	sandboxtest.Eventually(t, 20*time.Second, func() error {
		_, body := last.get("/metrics")
		for _, want := range []string{
			`stockpipe_consumer_log_entries{`, `stockpipe_consumer_log_bytes{`, `stockpipe_consumer_redis_memory_share{`, "stockpipe_consumer_trim_failures_total",
		} {
			if !strings.Contains(body, want) {
				return fmt.Errorf("no %s in\n%s", want, body)
			}
		}
		return nil
	})
}

func TestWithLogKeepZeroNothingIsTrimmed(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 2)
	for _, shelf := range s.shelves {
		shelf.opened()
		shelf.sell(500)
	}
	never := s.shelves[0].length()
	c := s.consume("never", "--log-keep", "0")
	s.persisted(20 * time.Second)
	// It was thought of: the log is measured in the same step.
	sandboxtest.Eventually(t, 20*time.Second, func() error {
		if _, body := c.get("/metrics"); strings.Count(body, "\nstockpipe_consumer_log_entries{") != len(s.shelves) {
			return fmt.Errorf("not measured yet:\n%s", body)
		}
		return nil
	})
	if n := s.shelves[0].length(); n != never {
		t.Errorf("%d entries became %d", never, n)
	}
}

func TestARedisThatIsNotOfThisLedgerKeepsItsLog(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	shelf := s.shelves[0]
	check(t, s.rdb.HSet(t.Context(), redisstock.NewKeys(s.prefix, 0).State, "e", fmt.Sprintf("another.%d", shelf.claim.Epoch)).Err())
	shelf.sell(500)
	all := shelf.length()
	s.consume("a", "--log-keep", "1s")
	s.persisted(20 * time.Second)
	gone := time.Now().Add(8 * time.Second) // longer than a round of trimming and what is kept
	sandboxtest.Eventually(t, 20*time.Second, func() error {
		if n := shelf.length(); n != all {
			t.Fatalf("%d entries became %d", all, n)
		}
		if time.Now().Before(gone) {
			return fmt.Errorf("too early to tell")
		}
		return nil
	})
	shelf.opened()
	shelf.cutBelow(all)
}

func TestAConsumerThatWakesAfterATakeoverTrimsNothingUnapplied(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	shelf := s.shelves[0]
	shelf.opened()
	zombie := s.consume("zombie", "--log-keep", "1s")
	shelf.sell(1000)
	s.persisted(20 * time.Second)
	check(t, zombie.Pause())
	shelf.takeover(nil) // and the log goes on in place
	shelf.opened()
	shelf.sell(1000)
	check(t, zombie.Resume())
	s.persisted(20 * time.Second)
	shelf.cutBelow(900) // its old positions remove the old epoch alone, its new ones what it applied
	if shelf.oldest().Epoch != shelf.claim.Epoch {
		t.Errorf("the log begins at %v", shelf.oldest())
	}
}

func TestMemoryOfTheLogStaysFlatOverManyEntries(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	s := newShop(t, server.URL(), 1)
	shelf := s.shelves[0]
	shelf.opened()
	// A limit of which a tenth holds some thousand entries: the share cuts long before the time would.
	check(t, s.rdb.ConfigSet(t.Context(), "maxmemory", "8mb").Err())
	s.consume("a", "--log-keep", "1h")
	const share = 8 << 20 / 10
	var most int64
	for range 12 {
		shelf.sell(2500)
		s.persisted(20 * time.Second)
		sandboxtest.Eventually(t, 20*time.Second, func() error {
			used, err := s.rdb.MemoryUsage(t.Context(), shelf.key(), 0).Result()
			if err != nil || used > share {
				return fmt.Errorf("the log takes %d bytes, more than %d, %w", used, share, err)
			}
			most = max(most, shelf.length())
			return nil
		})
	}
	if most > 20_000 || most < 1000 {
		t.Errorf("%d entries were left of 30,000", most)
	}
}

func TestAProcessIsAskedForItsHealth(t *testing.T) {
	t.Parallel()
	s := newShop(t, sharedRedis(t), 1)
	c := s.consume("a")
	c.ready()
	var url string
	for _, line := range c.said("consumer starts") {
		url, _ = line["ops"].(string)
	}
	ask := func() error {
		var settings Config
		_, err := config.ParseArgs(Name, Description, &settings, []string{"--healthcheck", "--ops-listen", strings.TrimPrefix(url, "http://")}, nil)
		check(t, err)
		return Run(t.Context(), settings)
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
	c.Kill()
	if err := ask(); err == nil {
		t.Error("a dead process is ready")
	}
}
