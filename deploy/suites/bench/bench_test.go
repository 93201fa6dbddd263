package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func TestEveryMeasurementRunsInATinySize(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	if code := run(t.Context(), []string{"-short", "-json"}, &out, &progress, nil); code != exitRight {
		t.Fatalf("exit code %d:\n%s%s", code, progress.String(), out.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	for _, name := range names() {
		if !slices.ContainsFunc(r.Lines, func(l line) bool { return strings.HasPrefix(l.Figure, name) && len(l.Rounds) == tiny.rounds }) {
			t.Errorf("%s brought no figure", name)
		}
	}
	var table bytes.Buffer
	r.writeTable(&table)
	for row := range strings.Lines(table.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(row, " \n")); n > 110 {
			t.Errorf("a row of the table has %d columns: %s", n, row)
		}
	}
}

func TestAWrongAnswerFailsTheRunAndIsNamed(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	code := run(t.Context(), []string{"-short", "-run", "^hot$"}, &out, &progress, plants["a unit too many"].falsify)
	if code != exitWrong {
		t.Errorf("exit code %d", code)
	}
	for _, text := range []string{out.String(), progress.String()} {
		if !strings.Contains(text, "hot: 1 callers, round 1: wrong answer: by the callers' lists SKU 1 of shard 0") {
			t.Errorf("the figure and the SKU are not named in:\n%s", text)
		}
	}
}

// plants are falsifications of a shop whose callers are done, and what must be said of each.
var plants = map[string]struct {
	falsify func(context.Context, *shop) error
	says    string
}{
	"a unit too many": {func(ctx context.Context, s *shop) error {
		field, _, err := s.shards[0].Field(ctx, 1)
		field.Available++
		return errors.Join(err, s.rdb.HSet(ctx, s.shards[0].Keys().State, "1", field.String()).Err())
	}, "the audit of shard 0 found 1 differences"},
	"an order is gone": {func(ctx context.Context, s *shop) error {
		return s.rdb.HDel(ctx, s.shards[0].Keys().Orders, firstOrder).Err()
	}, "the caller of order " + firstOrder + ` was told held, Redis has ""`},
	"an order that nobody made": {func(ctx context.Context, s *shop) error {
		return s.do(ctx, &ticket{}, stock.Operation{Kind: stock.Reserve, ID: "stranger", Attempt: 1, TTL: 60_000,
			Lines: stock.Lines{{SKU: s.skus[0][0], Asked: 1, Now: 1}}}, stock.Held)
	}, "Redis has 1 orders that no caller was told of, among them stranger (held)"},
	"a shop that confirmed what was only reserved": {func(ctx context.Context, s *shop) error {
		return s.move(ctx, &ticket{id: firstOrder}, stock.Confirm, stock.Confirmed)
	}, "the caller of order " + firstOrder + ` was told held, Postgres has "confirmed"`},
	"another state in Postgres": {func(ctx context.Context, s *shop) error {
		return errors.Join(s.catchUp(ctx), s.exec(ctx, "update reservation set state = 'released' where order_id = '"+firstOrder+"'"))
	}, "the caller of order " + firstOrder + ` was told held, Postgres has "released"`},
	"another time in Redis": {func(ctx context.Context, s *shop) error {
		record, _, err := s.shards[0].Record(ctx, firstOrder)
		record.ExpiresMillis++
		return errors.Join(err, s.rdb.HSet(ctx, s.shards[0].Keys().Orders, firstOrder, event.FormatRecord(&record)).Err())
	}, "the audit of shard 0 found 1 differences"},
	"other stock in Postgres": {func(ctx context.Context, s *shop) error {
		return errors.Join(s.catchUp(ctx), s.exec(ctx, "update stock set held = held + 1 where sku = 1"))
	}, "the audit of shard 0 found"},
	"an error that no rule knows": {func(_ context.Context, s *shop) error {
		s.desk.Stats().Unclassified.Add(1)
		return nil
	}, "1 errors that no rule knows"},
}

const firstOrder = "order-100000001"

func (s *shop) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

func TestWhatIsFalsifiedIsFound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, plant := range plants {
		b.plant = plant.falsify
		if err := b.sale(t); !errors.Is(err, errWrong) || !strings.Contains(err.Error(), plant.says) {
			t.Errorf("%s: want %q, got: %v", name, plant.says, err)
		}
	}
	b.plant = nil
	if err := b.sale(t); err != nil {
		t.Errorf("nothing was falsified: %v", err)
	}
}

func TestTheReferenceOfTheConsumerHasToWriteTheSameRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	err := b.withRedis(t.Context(), func(_ *sandbox.Redis, rdb *redis.Client) error {
		return b.withShop(t.Context(), rdb, 1, 5, func(s *shop) error {
			row, err := s.ledger.Shard(t.Context(), 0)
			if err != nil {
				return err
			}
			if _, err := s.reserveSome(t.Context()); err != nil {
				return err
			}
			raws, err := s.readLog(t.Context(), 0, row.Position())
			if err != nil {
				return err
			}
			if err := s.catchUp(t.Context()); err != nil {
				return err
			}
			if _, err := s.copyRows(t.Context(), row.Position(), raws, some); err != nil {
				t.Error(err)
			}
			_, err = s.copyRows(t.Context(), row.Position(), raws[:len(raws)-1], some)
			return err
		})
	})
	if !errors.Is(err, errWrong) || !strings.Contains(err.Error(), "raw COPY") {
		t.Errorf("the last entry was left out: %v", err)
	}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{options: options{rounds: 1, size: tiny, aof: "everysec"}, progress: io.Discard, stack: sandboxtest.Stack(t)}
	if err := b.startPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.postgres.Close() })
	return b
}

// some is how many orders a short sale has.
const some = 100

func (s *shop) reserveSome(ctx context.Context) ([]ticket, error) {
	c, err := s.gather(ctx, hotLoad, some)
	if err != nil {
		return nil, err
	}
	_, told, err := c.run(ctx, 8, some)
	return told, err
}

// sale is a short one, with its ending audit.
func (b *bench) sale(t *testing.T) error {
	t.Helper()
	return b.withRedis(t.Context(), func(_ *sandbox.Redis, rdb *redis.Client) error {
		return b.withShop(t.Context(), rdb, 1, 2, func(s *shop) error {
			told, err := s.reserveSome(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.verify(t.Context(), told)
		})
	})
}

func TestFlagsOutOfBoundsAreNamed(t *testing.T) {
	t.Parallel()
	for flag, args := range map[string][]string{
		"-rounds": {"-rounds", "101"}, "-aof": {"-aof", "sometimes"}, "-run": {"-run", "nothing"}, "extra": {"extra"},
	} {
		var said bytes.Buffer
		if code := run(t.Context(), args, io.Discard, &said, nil); code != exitUsage || !strings.Contains(said.String(), flag) {
			t.Errorf("%v: exit code %d, %s", args, code, said.String())
		}
	}
}
