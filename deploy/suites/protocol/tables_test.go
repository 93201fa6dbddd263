package protocol

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock/stocktest"
)

func TestTheTablesHoldOnRedisAndPostgres(t *testing.T) {
	t.Parallel()
	scripts, err := stocktest.Scripts()
	if err != nil {
		t.Fatal(err)
	}
	text := withClock(t, redisstock.Library())
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("on %d", shards), func(t *testing.T) {
			t.Parallel()
			s := openShop(t, text, shards)
			for _, script := range scripts {
				t.Run(script.Name, func(t *testing.T) {
					if err := s.begin(t.Context(), script.Carts()); err != nil {
						t.Fatal(err)
					}
					stocktest.Run(t, s, script)
					if err := s.settled(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// settled lets the ledger catch up and compares both stores.
func (s *shop) settled(ctx context.Context) error {
	if s.forgot {
		if err := s.takeOver(ctx); err != nil {
			return err
		}
	}
	if n := s.desk.Stats().Unclassified.Load(); n > 0 {
		return fmt.Errorf("the desk met %d errors that it does not know", n)
	}
	return s.each(func(shard int) error {
		return errors.Join(s.catchUp(ctx, shard), s.audited(ctx, shard))
	})
}

// The same road with the library as it is shipped: a second is a second.
func TestAHoldEndsByRedisOwnClock(t *testing.T) {
	t.Parallel()
	s := openShop(t, redisstock.Library(), 1)
	if err := s.begin(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	script, err := stocktest.ParseScript("clock", `# A hold of one second.
stock   tea 3
reserve A tea 2 ttl 1s -> held 2, available 1
expire  A              -> not due, available 1`)
	if err != nil {
		t.Fatal(err)
	}
	stocktest.Run(t, s, script)
	began := time.Now()
	expire := stocktest.Step{Verb: stocktest.Expire, ID: "A", Attempt: 1}
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		a, err := s.Do(t.Context(), expire)
		if err == nil && a.Word != stocktest.Expired {
			err = errors.New(string(a.Word))
		}
		return err
	})
	// The hold began before the first attempt to expire it, by less than the table took.
	if past := time.Since(began); past < 500*time.Millisecond {
		t.Errorf("it ended after %v", past)
	}
	if q, err := s.Look(t.Context(), "tea"); err != nil || q.Available != 3 {
		t.Error(q, err)
	}
	if err := s.settled(t.Context()); err != nil {
		t.Error(err)
	}
}
