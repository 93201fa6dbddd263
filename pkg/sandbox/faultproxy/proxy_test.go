package faultproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// impatient is a client of one connection that never asks twice by itself.
func impatient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, PoolSize: 1, DialerRetries: 1,
		ReadTimeout: 200 * time.Millisecond, WriteTimeout: 5 * time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

func happened(t *testing.T, fault *faultproxy.Fault) {
	t.Helper()
	select {
	case <-fault.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the fault did not happen")
	}
}

func TestSwallowedReplyLeavesTheCommandExecutedOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	key := sandboxtest.Prefix(t)
	direct := impatient(t, sandboxtest.SharedRedis(t))
	rdb := impatient(t, proxy.Addr())

	// Armed before the first connection: HELLO and the like must not be hit.
	fault := proxy.SwallowReply(nil)
	err := rdb.Incr(ctx, key).Err()
	var network net.Error
	if !errors.As(err, &network) || !network.Timeout() {
		t.Errorf("INCR = %v, want a timeout", err)
	}
	happened(t, fault)
	if got := direct.Get(ctx, key).Val(); got != "1" {
		t.Errorf("the counter is %q, want 1", got)
	}
	if got, err := rdb.Incr(ctx, key).Result(); err != nil || got != 2 {
		t.Errorf("the next INCR = %d, %v", got, err)
	}
	if proxy.Fired() != 1 {
		t.Errorf("fired %d", proxy.Fired())
	}
}

func TestConnectionStaysOpenAfterASwallowedReply(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	conn := dial(t, proxy.Addr())
	fault := proxy.SwallowReply(faultproxy.Contains("echo"))
	send(t, conn, "ECHO one\r\nPING\r\n")
	happened(t, fault)
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, want silence", n, err)
	}
}

func TestCutAfterExecutionClosesWithoutTheReply(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	key := sandboxtest.Prefix(t)
	rdb := impatient(t, proxy.Addr())
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	fault := proxy.CutAfterExecution(faultproxy.Contains("INCR"))
	err := rdb.Incr(ctx, key).Err()
	if !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("INCR = %v, want a closed connection", err)
	}
	happened(t, fault)
	if got, err := rdb.Get(ctx, key).Result(); err != nil || got != "1" {
		t.Errorf("the counter is %q, %v, want 1", got, err)
	}
}

func TestFaultInAPipelineHitsItsOwnReply(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	key := sandboxtest.Prefix(t)
	conn := dial(t, proxy.Addr())
	fault := proxy.CutAfterExecution(faultproxy.Contains("third"))
	send(t, conn, "ECHO first\r\nECHO second\r\nSET "+key+" third\r\nECHO fourth\r\n")
	happened(t, fault)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got, _ := io.ReadAll(conn)
	if diff := cmp.Diff("$5\r\nfirst\r\n$6\r\nsecond\r\n", string(got)); diff != "" {
		t.Error(diff)
	}
	if got := impatient(t, sandboxtest.SharedRedis(t)).Get(context.Background(), key).Val(); got != "third" {
		t.Errorf("the key holds %q", got)
	}
}

func TestRequestInPiecesIsKnown(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	conn := dial(t, proxy.Addr())
	fault := proxy.CutAfterExecution(faultproxy.Contains("needle"))
	for _, piece := range []string{"*2\r\n$4\r", "\nECHO\r\n$6\r\nnee", "dle\r\n"} {
		send(t, conn, piece)
	}
	happened(t, fault)
}

func TestDisarmedFaultDoesNotHappen(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	fault := proxy.CutAfterExecution(nil)
	if !fault.Disarm() || fault.Disarm() {
		t.Error("Disarm")
	}
	if err := impatient(t, proxy.Addr()).Ping(context.Background()).Err(); err != nil || proxy.Fired() != 0 {
		t.Errorf("%v, fired %d", err, proxy.Fired())
	}
}

func TestLostReplyOfACommitLeavesItCommitted(t *testing.T) {
	t.Parallel()
	for name, arm := range map[string]func(*faultproxy.Proxy) *faultproxy.Fault{
		"cut":     func(p *faultproxy.Proxy) *faultproxy.Fault { return p.CutAfterExecution(faultproxy.Contains("COMMIT")) },
		"swallow": func(p *faultproxy.Proxy) *faultproxy.Fault { return p.SwallowReply(faultproxy.Contains("COMMIT")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			database := sandboxtest.NamedDatabase(t, "orders", func(ctx context.Context, url string) error {
				conn, err := pgx.Connect(ctx, url)
				if err != nil {
					return err
				}
				defer conn.Close(ctx)
				_, err = conn.Exec(ctx, "CREATE TABLE orders (id int)")
				return err
			})
			proxy, through := proxied(t, database)
			fault := arm(proxy)
			conn, err := pgx.Connect(ctx, through)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(ctx)
			tx, err := conn.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", 7); err != nil {
				t.Fatal(err)
			}
			limit, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if err := tx.Commit(limit); err == nil {
				t.Error("the commit was confirmed")
			}
			happened(t, fault)
			if got := countOrders(t, database); got != 1 {
				t.Errorf("%d rows are committed, want 1", got)
			}
		})
	}
}

func TestPreparedStatementIsMatchedByItsArguments(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	proxy, through := proxied(t, sandboxtest.Database(t, nil))
	conn, err := pgx.Connect(ctx, through)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	fault := proxy.CutAfterExecution(faultproxy.Contains("needle"))
	for _, word := range []string{"hay", "needle"} {
		var got string
		err := conn.QueryRow(ctx, "SELECT $1::text", word).Scan(&got)
		if hit := err != nil; hit != (word == "needle") {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
	happened(t, fault)
}

func TestDelayHoldsRepliesBack(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	conn := dial(t, proxy.Addr())
	proxy.Delay(80 * time.Millisecond)
	begin := time.Now()
	ping(t, conn)
	if took := time.Since(begin); took < 80*time.Millisecond {
		t.Errorf("took %v", took)
	}
	proxy.Delay(0)
	ping(t, conn)
}

func TestBlackHoleHealsWithoutLoss(t *testing.T) {
	t.Parallel()
	proxy := sandboxtest.Proxy(t, sandboxtest.SharedRedis(t))
	old := dial(t, proxy.Addr())
	ping(t, old)
	proxy.BlackHole(true)
	fresh := dial(t, proxy.Addr())
	for _, conn := range []net.Conn{old, fresh} {
		send(t, conn, "PING\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		if n, err := conn.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes, %v, through a black hole", n, err)
		}
	}
	proxy.BlackHole(false)
	for _, conn := range []net.Conn{old, fresh} {
		pong(t, conn)
	}
}

func TestRetargetMovesNewConnectionsOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	first, second := sandboxtest.Redis(t), sandboxtest.Redis(t)
	proxy := sandboxtest.Proxy(t, first.Addr())
	old := impatient(t, proxy.Addr())
	if err := old.Set(ctx, "who", "first", 0).Err(); err != nil {
		t.Fatal(err)
	}
	proxy.Retarget(second.Addr())
	fresh := impatient(t, proxy.Addr())
	if err := fresh.Set(ctx, "who", "second", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := old.Get(ctx, "who").Val(); got != "first" {
		t.Errorf("the old connection is with %q", got)
	}
	if open := proxy.CloseAll(); open != 2 {
		t.Errorf("CloseAll closed %d", open)
	}
	sandboxtest.Eventually(t, 10*time.Second, func() error {
		if got, err := old.Get(ctx, "who").Result(); got != "second" {
			return fmt.Errorf("after CloseAll it is with %q, %s", got, fmt.Sprint(err))
		}
		return nil
	})
}

func TestCloseEndsConnectionsThatAreHeldBack(t *testing.T) {
	t.Parallel()
	proxy, err := faultproxy.Listen(sandboxtest.SharedRedis(t))
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, proxy.Addr())
	ping(t, conn)
	proxy.BlackHole(true)
	dial(t, proxy.Addr())
	send(t, conn, "PING\r\n")
	for range 2 {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open after Close")
	}
}

func TestServerThatIsGoneClosesTheConnection(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	proxy := sandboxtest.Proxy(t, server.Addr())
	conn := dial(t, proxy.Addr())
	ping(t, conn)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{conn, dial(t, proxy.Addr())} {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func ping(t *testing.T, conn net.Conn) {
	t.Helper()
	send(t, conn, "PING\r\n")
	pong(t, conn)
}

func pong(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer := make([]byte, len("+PONG\r\n"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Fatalf("PING = %q, %v", answer, err)
	}
}

// proxied puts a proxy in front of a database and returns its URL through it.
func proxied(t *testing.T, database string) (*faultproxy.Proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	proxy := sandboxtest.Proxy(t, u.Host)
	u.Host = proxy.Addr()
	return proxy, u.String()
}

func countOrders(t *testing.T, database string) (rows int) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}
