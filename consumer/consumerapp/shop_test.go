package consumerapp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/migrations"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/service"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// asConsumer makes this test binary a consumer, so that tests can kill and stop real processes.
const asConsumer = "STOCKPIPE_TEST_AS_CONSUMER"

func TestMain(m *testing.M) {
	if os.Getenv(asConsumer) == "" {
		sandboxtest.Main(m)
		return
	}
	var settings Config
	config.Parse(Name, Description, &settings)
	ctx, stop := service.WithSignals(context.Background())
	err := Run(ctx, settings)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// shop is a ledger and the Redis of its shards, with a hand that writes the logs as the library would.
type shop struct {
	t       testing.TB
	ledger  *ledger.Ledger
	rdb     *redis.Client
	prefix  string
	redis   string // URL
	base    string // URL of Postgres
	shelves []*shelf
}

// shelf is one shard with one SKU.
type shelf struct {
	*shop
	number int
	claim  ledger.Claim
	book   *event.Book
	at     stock.Position
	sku    int64
	orders int
}

func newShop(t testing.TB, redisURL string, shards int) *shop {
	t.Helper()
	s := &shop{t: t, prefix: sandboxtest.Prefix(t), redis: redisURL, base: sandboxtest.Database(t, migrations.Up)}
	var err error
	s.ledger, err = ledger.Open(t.Context(), ledger.Config{URL: s.base, Name: t.Name()})
	check(t, err)
	t.Cleanup(s.ledger.Close)
	check(t, s.ledger.Init(t.Context(), shards))
	s.rdb, err = redisstock.Connect(redisstock.Options{URL: redisURL, Timeout: 5 * time.Second})
	check(t, err)
	t.Cleanup(func() { s.rdb.Close() })
	for n := range shards {
		shelf := &shelf{shop: s, number: n, book: event.NewBook(n)}
		s.shelves = append(s.shelves, shelf)
		shelf.takeover(nil)
		doc, _, err := s.ledger.WriteOpening(t.Context(), fmt.Sprint("tea-", n), 1_000_000, n, time.Now().Add(time.Hour).UnixMilli())
		check(t, err)
		shelf.sku = doc.Lines[0].SKU
		shelf.write(doc.Operation())
	}
	return s
}

func sharedRedis(t testing.TB) string { return "redis://" + sandboxtest.SharedRedis(t) + "/0" }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shelf) key() string { return redisstock.NewKeys(s.prefix, s.number).Log }

// takeover opens the next epoch in a new log; between is what happens while the shard is closed.
func (s *shelf) takeover(between func()) {
	s.t.Helper()
	claim, err := s.ledger.Claim(s.t.Context(), s.number, 0, true)
	check(s.t, err)
	closed, err := s.ledger.CloseEpoch(s.t.Context(), claim)
	check(s.t, err)
	if between != nil {
		between()
	}
	s.claim, s.at = claim, stock.Position{Epoch: claim.Epoch}
	s.write(stock.Operation{Kind: stock.Opened, ID: "~~open", Continues: closed})
	check(s.t, s.ledger.SayOpen(s.t.Context(), claim))
}

// write folds operations into the book and appends them as one entry, with the fields in the library's order.
func (s *shelf) write(ops ...stock.Operation) {
	s.t.Helper()
	e := event.Entry{Position: stock.Position{Epoch: s.at.Epoch, Seq: s.at.Seq + 1}, AtMillis: time.Now().UnixMilli(), Ops: ops}
	touched := map[int64]bool{}
	_, err := s.book.Apply(&e, func(c event.Change) {
		if c.After != nil {
			for _, l := range c.After.Lines {
				touched[l.SKU] = true
			}
		}
	})
	check(s.t, err)
	for sku := range touched {
		e.After = append(e.After, event.After{SKU: sku, Quantities: s.book.Stock[sku]})
	}
	slices.SortFunc(e.After, func(a, b event.After) int { return cmp.Compare(a.SKU, b.SKU) })
	raw := e.Raw()
	check(s.t, s.rdb.XAdd(s.t.Context(), &redis.XAddArgs{
		Stream: s.key(), ID: raw.ID, Values: []string{"v", raw.Version, "t", raw.At, "o", raw.Ops, "a", raw.After},
	}).Err())
	s.at = e.Position
}

// sell writes that many entries of one reserve each.
func (s *shelf) sell(entries int) {
	s.t.Helper()
	for range entries {
		s.orders++
		s.write(stock.Operation{
			Kind: stock.Reserve, ID: fmt.Sprintf("o%d-%d", s.number, s.orders), Attempt: 1, TTL: 60_000,
			Lines: stock.Lines{{SKU: s.sku, Asked: 1, Now: 1}},
		})
	}
}

// persisted waits until the ledger has reached the log's end on every shard, and compares the stock.
func (s *shop) persisted(within time.Duration) {
	s.t.Helper()
	for _, shelf := range s.shelves {
		sandboxtest.Eventually(s.t, within, func() error {
			row, err := s.ledger.Shard(s.t.Context(), shelf.number)
			if err != nil {
				return err
			}
			if row.Position() != shelf.at {
				return fmt.Errorf("shard %d: the ledger is at %v (%s), the log at %v", shelf.number, row.Position(), row.State, shelf.at)
			}
			return nil
		})
		got, err := s.ledger.Stock(s.t.Context(), fmt.Sprint("tea-", shelf.number))
		check(s.t, err)
		if got.Quantities != shelf.book.Stock[shelf.sku] || got.Frozen {
			s.t.Errorf("shard %d: the ledger has %v, the log folds to %v", shelf.number, got.Quantities, shelf.book.Stock[shelf.sku])
		}
	}
}

// owners is who reads which shard.
func (s *shop) owners() map[int]string {
	s.t.Helper()
	all, err := s.ledger.Assignments(s.t.Context())
	check(s.t, err)
	owners := map[int]string{}
	for _, a := range all {
		owners[a.Shard] = a.Consumer
	}
	return owners
}

func (s *shop) owns(consumer string, shards int, within time.Duration) {
	s.t.Helper()
	sandboxtest.Eventually(s.t, within, func() error {
		owners, count := s.owners(), 0
		for _, c := range owners {
			if c == consumer {
				count++
			}
		}
		if count != shards {
			return fmt.Errorf("%s owns %d shards, want %d: %v", consumer, count, shards, owners)
		}
		return nil
	})
}

// consumer is a running process.
type consumer struct {
	*sandbox.Process
	t    testing.TB
	name string
	err  *lines
}

// lines keeps what a process wrote.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (s *shop) args(name string) []string {
	return []string{
		"--consumer-id", name, "--redis-url", s.redis, "--redis-prefix", s.prefix, "--postgres-url", s.base,
		"--ops-listen", "127.0.0.1:0", "--block", "200ms",
	}
}

// consume starts a process; it is killed at the test's end.
func (s *shop) consume(name string, more ...string) *consumer {
	s.t.Helper()
	path, err := os.Executable()
	check(s.t, err)
	c := &consumer{t: s.t, name: name, err: &lines{}}
	c.Process, err = sandbox.StartProcess(s.t.Context(), sandbox.ProcessOptions{
		Path: path, Args: append(s.args(name), more...), Env: append(os.Environ(), asConsumer+"=1"), Stderr: c.err,
	})
	check(s.t, err)
	s.t.Cleanup(func() {
		c.Kill()
		<-c.Done()
		if s.t.Failed() {
			s.t.Logf("%s wrote:\n%s", name, c.err.text())
		}
	})
	return c
}

// said are the lines with a message.
func (c *consumer) said(message string) (found []map[string]any) {
	scan := bufio.NewScanner(strings.NewReader(c.err.text()))
	for scan.Scan() {
		var line map[string]any
		if json.Unmarshal(scan.Bytes(), &line) == nil && (message == "" || line["msg"] == message) {
			found = append(found, line)
		}
	}
	return found
}

// get asks the ops listener.
func (c *consumer) get(path string) (status int, body string) {
	c.t.Helper()
	var url string
	sandboxtest.Eventually(c.t, 20*time.Second, func() error {
		for _, line := range c.said("consumer starts") {
			url, _ = line["ops"].(string)
		}
		if url == "" {
			return fmt.Errorf("%s does not say where it listens: %s", c.name, c.err.text())
		}
		return nil
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url + path)
	check(c.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(c.t, err)
	return answer.StatusCode, string(text)
}

func (c *consumer) ready() {
	c.t.Helper()
	sandboxtest.Eventually(c.t, 20*time.Second, func() error {
		if status, body := c.get("/readyz"); status != http.StatusOK {
			return fmt.Errorf("%s: %d %s", c.name, status, body)
		}
		return nil
	})
}
