package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// Everything that a shop does, as the shipped users, and neither server refuses anything.
func TestTheShippedUsersCanDoTheWholeWork(t *testing.T) {
	r := shoptest.Begin(t, "users of deploy/access: the whole work")
	k := found(r, shoptest.Plan{
		Producers: 1, Consumers: 2, Reconcilers: 1,
		// Trimming takes whole blocks of the stream.
		Redis:        sandbox.RedisOptions{ExtraArgs: []string{"--stream-node-max-entries", "1"}},
		ConsumerArgs: []string{"--log-keep", "1s"}, ReconcilerArgs: []string{"--audit-every", "200ms"},
	})
	k.StartAll()
	k.AwaitReady()
	k.Supply(100, "tea")

	for _, order := range []string{"paid", "left", "late"} {
		hold(k.Shop, order, 600)
	}
	hold(k.Shop, "slow", 1)
	confirm(k.Shop, "paid")
	if _, err := k.Patient(0).Release(t.Context(), "left", api.AttemptRequest{}); err != nil {
		t.Error(err)
	}
	state(k.Shop, "paid", "confirmed")
	state(k.Shop, "left", "released")
	state(k.Shop, "slow", "expired")
	confirm(k.Shop, "slow") // late: taken again
	documents(t, k)
	lifecycle(t, k)
	shortfall(t, k)

	// The owner of the shard dies, and another applies on.
	k.Owner(0).Kill()
	confirm(k.Shop, "late")
	// The log is trimmed by whoever owns it now.
	keys := k.Keys("tea")
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if length := k.RDB.XLen(t.Context(), keys.Log).Val(); length > 3 {
			return fmt.Errorf("the log has %d entries", length)
		}
		return nil
	})
	// A restart is taken over, an operator takes over by hand, and all is proven.
	epoch := k.Epoch(0)
	shoptest.Need(t, k.Redis.Kill())
	shoptest.Need(t, k.Redis.Restart(t.Context()))
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if now := k.Epoch(0); now == epoch {
			return fmt.Errorf("epoch %d is not over", now)
		}
		return nil
	})
	k.AwaitReady()
	hold(k.Shop, "after", 600)
	confirm(k.Shop, "after")
	k.command("takeover", "--shard", "0")
	k.AwaitReady()
	k.Drain()
	k.command("audit", "--every-order")
	k.command("verify")
	k.command("explain", "paid")
	k.command("prune", "--older-than", "48h")
	k.command("status")
	k.command("--once")
	k.noRefusals()
}

func documents(t *testing.T, k *keptShop) {
	t.Helper()
	for range 2 { // repeated, it moves nothing
		doc, err := k.Patient(0).Receive(t.Context(), "tea", &api.ReceiveRequest{DocumentID: "in-1", Quantity: 5, Reason: "delivery"})
		if err != nil || doc.State != "applied" {
			t.Errorf("goods in: %+v %v", doc, err)
		}
	}
	_, err := k.Patient(0).Adjust(t.Context(), "tea", &api.AdjustRequest{DocumentID: "out-1", Quantity: -5000, Reason: "broken"})
	if p := new(api.Problem); !errors.As(err, &p) || p.Code != api.CodeRefused {
		t.Errorf("more out than there is: %v", err)
	}
}

// lifecycle is what else an order can go through, a limit that is counted without an operator, and a SKU that is deleted.
func lifecycle(t *testing.T, k *keptShop) {
	t.Helper()
	k.Supply(50, "cup", "gone")
	shop, ctx := k.Patient(0), t.Context()
	cups := func(units int64) []api.Line { return []api.Line{{SKU: "cup", Quantity: units}} }
	_, err := shop.Reserve(ctx, &api.ReserveRequest{OrderID: "cart", Buyer: "ann", Lines: cups(60), Policy: "partial", TTL: 600})
	shoptest.Need(t, err)
	_, err = shop.Replace(ctx, "cart", api.ReplaceRequest{Lines: append(cups(5), api.Line{SKU: "tea", Quantity: 1})})
	shoptest.Need(t, err)
	_, err = shop.Extend(ctx, "cart", api.ExtendRequest{TTL: 1200})
	shoptest.Need(t, err)
	_, err = shop.Release(ctx, "cart", api.AttemptRequest{Lines: []api.Result{{SKU: "tea", Quantity: 0}}})
	shoptest.Need(t, err)
	_, err = shop.Confirm(ctx, "cart", api.AttemptRequest{Lines: []api.Result{{SKU: "cup", Quantity: 4}}})
	shoptest.Need(t, err)
	_, err = shop.Fulfil(ctx, "cart", &api.AmendRequest{DocumentID: "ship", Lines: cups(2)})
	shoptest.Need(t, err)
	_, err = shop.Cancel(ctx, "cart", &api.AmendRequest{DocumentID: "less", Lines: cups(1)})
	shoptest.Need(t, err)
	_, err = shop.Return(ctx, "cart", &api.ReturnRequest{DocumentID: "back", Lines: cups(1)})
	shoptest.Need(t, err)
	_, err = shop.Count(ctx, "cup", &api.CountRequest{DocumentID: "shelf", Counted: 40})
	shoptest.Need(t, err)

	limit := int64(5)
	_, err = shop.Configure(ctx, "cup", api.SettingsRequest{BuyerLimit: &limit})
	shoptest.Need(t, err)
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		_, err := shop.Reserve(ctx, &api.ReserveRequest{OrderID: "more", Buyer: "ann", Lines: cups(2), TTL: 600})
		return err
	})
	_, err = shop.Reserve(ctx, &api.ReserveRequest{OrderID: "too-much", Buyer: "ann", Lines: cups(1), TTL: 600})
	if p := new(api.Problem); !errors.As(err, &p) || p.Code != api.CodeLimit {
		t.Errorf("beyond the limit: %v", err)
	}
	_, err = shop.Delete(ctx, "gone")
	shoptest.Need(t, err)
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		const want = "37 2 1"
		if got := shoptest.One[string](k.Shop, `select available || ' ' || held || ' ' || committed from stock where sku = $1`, k.Numbers["cup"]); got != want {
			return fmt.Errorf("cup stands at %s, want %s", got, want)
		}
		return nil
	})
}

// shortfall is a confirm after expiry for which the units are gone: the producer writes an outcome.
func shortfall(t *testing.T, k *keptShop) {
	t.Helper()
	k.Supply(2, "rare")
	line := []api.Line{{SKU: "rare", Quantity: 2}}
	_, err := k.Patient(0).Reserve(t.Context(), &api.ReserveRequest{OrderID: "first", Lines: line, TTL: 1})
	shoptest.Need(t, err)
	state(k.Shop, "first", "expired")
	_, err = k.Patient(0).Reserve(t.Context(), &api.ReserveRequest{OrderID: "second", Lines: line, TTL: 600})
	shoptest.Need(t, err)
	_, err = k.Patient(0).Confirm(t.Context(), "first", api.AttemptRequest{})
	if p := new(api.Problem); !errors.As(err, &p) || p.Code != api.CodeShortfall {
		t.Errorf("a confirm without units: %v", err)
	}
	if n := shoptest.One[int](k.Shop, `select count(*) from outcome where order_id = 'first' and code = 'shortfall'`); n != 1 {
		t.Errorf("%d outcomes of the shortfall", n)
	}
}

// The work that only faults bring: a foreign entry halts the shard, and Redis is closed behind it by the consumer.
func TestTheShippedUsersCanHaltAndMendAShard(t *testing.T) {
	r := shoptest.Begin(t, "users of deploy/access: halt, retry, tampering")
	k := found(r, shoptest.Plan{Producers: 1, Consumers: 1, Reconcilers: 1, ReconcilerArgs: []string{"--audit-every", "200ms"}})
	k.StartAll()
	k.AwaitReady()
	k.Supply(50, "tea")
	hold(k.Shop, "a", 600)
	k.Drain()

	// A field is edited: the SKU is frozen, in both stores, and mended by the operator's word.
	keys := k.Keys("tea")
	number := fmt.Sprint(k.Numbers["tea"])
	shoptest.Need(t, k.RDB.HSet(t.Context(), keys.State, number, "47|2|0").Err())
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if !shoptest.One[bool](k.Shop, `select frozen from stock where sku = $1`, k.Numbers["tea"]) {
			return errors.New("it is not frozen")
		}
		return nil
	})
	k.command("repair", "--shard", "0")
	k.AwaitReady()
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		_, err := k.Client(0).Reserve(t.Context(), &api.ReserveRequest{OrderID: "b", Lines: []api.Line{{SKU: "tea", Quantity: 1}}, TTL: 600})
		return err
	})
	k.Drain()

	status, err := k.Shard(0).Status(t.Context())
	shoptest.Need(t, err)
	next := fmt.Sprintf("%d-%d", status.Epoch, status.Seq+1)
	shoptest.Need(t, k.RDB.Do(t.Context(), "XADD", keys.Log, next, "o", "nonsense").Err())
	sandboxtest.Eventually(t, shoptest.Patience, func() error {
		if state := shoptest.One[string](k.Shop, `select state from shard`); state == "halted" {
			return nil
		}
		return errors.New("the shard is not halted")
	})
	k.command("takeover", "--shard", "0")
	k.AwaitReady()
	hold(k.Shop, "c", 600)
	k.noRefusals()
}

// What each user is refused. A command that runs inside a function is checked as one sent alone: so who may call the
// function that decides may write the same fields by hand, and only the audit sees it. What is not here is said in
// decision 0005.
func TestEachUserOfRedisIsRefusedWhatItDoesNotDo(t *testing.T) {
	r := shoptest.Begin(t, "users of deploy/access: refused by Redis")
	k := found(r, shoptest.Plan{})
	keys := redisstock.NewKeys(shoptest.Prefix, 0)
	all := []string{"FLUSHALL", "FLUSHDB", "SHUTDOWN NOSAVE", "CONFIG GET requirepass", "CONFIG SET maxmemory-policy allkeys-lru", "ACL LIST",
		"SWAPDB 0 1", "SELECT 1", "KEYS *", "SCRIPT LOAD x", "EVAL x 0", "FUNCTION FLUSH", "FUNCTION DELETE stockpipe_1", "REPLICAOF NO ONE",
		"MONITOR", "CLIENT LIST", "CLIENT KILL TYPE normal", "SUBSCRIBE x", "HGET other x", "HSET other x 1", "EXPIRE " + keys.Orders + " 1",
		"UNLINK " + keys.Orders, "RESTORE " + keys.Orders + " 0 x", "XSETID " + keys.Log + " 9-9", "XDEL " + keys.Log + " 1-1", "BGREWRITEAOF", "MIGRATE h 1 k 0 1"}
	refused := map[string][]string{
		shoptest.Producer: {"DEL " + keys.Orders, "HDEL " + keys.Orders + " a", "RENAME " + keys.Log + " sp:x", "XTRIM " + keys.Log + " MAXLEN 0",
			"FUNCTION LOAD x", "XREADGROUP GROUP g c STREAMS " + keys.Log + " >", "HSCAN " + keys.Orders + " 0", "MULTI"},
		shoptest.Consumer: {"DEL " + keys.Orders, "HDEL " + keys.Orders + " a", "RENAME " + keys.Log + " sp:x", "XADD " + keys.Log + " * a 1",
			"FUNCTION LOAD x", "XGROUP DESTROY " + keys.Log + " g", "HSCAN " + keys.Orders + " 0", "MULTI"},
		shoptest.Reconciler: {"XTRIM " + keys.Log + " MAXLEN 0", "XREADGROUP GROUP g c STREAMS " + keys.Log + " >"},
	}
	for _, kind := range kinds {
		rdb := k.client(kind)
		for _, text := range slices.Concat(all, refused[kind]) {
			var args []any
			for _, word := range strings.Fields(text) {
				args = append(args, word)
			}
			err := rdb.Do(t.Context(), args...).Err()
			if err == nil {
				err = errAllowed
			}
			if !strings.HasPrefix(err.Error(), "NOPERM") {
				t.Errorf("%s may %s: %v", kind, text, err)
			}
		}
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestEachRoleOfPostgresIsRefusedWhatItDoesNotDo(t *testing.T) {
	r := shoptest.Begin(t, "users of deploy/access: refused by Postgres")
	k := found(r, shoptest.Plan{})
	all := []string{
		"delete from event", "update event set body = 'X'", "update reservation_line set asked = 1", "delete from stock", "truncate event", "drop table orphan", "delete from repair",
		"create table mine (a int)", "alter table stock disable trigger all", "update ledger set id = 'x'", "delete from shard", "delete from epoch_end",
		"update epoch_end set last_seq = 0", "update goose_db_version set version_id = 1", "delete from stock_document", "update orphan set seq = 0",
		"update epoch_digest set digest = ''", "delete from dead_event", "update sku set opening = 1", "create role r", "set role stockpipe_owner", "copy shard to program 'cat'",
	}
	refused := map[string][]string{
		shoptest.Producer: {
			"update stock set available = 1", "insert into stock values (1, 0, 1, 0, 0)", "update reservation set state = 'held'", "delete from reservation",
			"update reservation_line set now = 1", "update forgetting set fence = now()",
			"select from bought", "insert into bought values (0, 1, 'x', 1)", "update bought set units = 9", "delete from bought",
			"insert into reservation (shard) values (0)", "insert into event (shard) values (0)", "update shard set epoch = 9", "update shard set applied = 9",
			"select from shard for no key update", "update stock_document set state = 'applied'", "select from event", "select from repair",
			"update turn set holder = 'x'", "update assignment set consumer = 'x'", "set role stockpipe_consumer",
		},
		shoptest.Consumer: {
			"delete from reservation", "update forgetting set fence = now()", "update bought set buyer = 'x'", "truncate bought",
			"update shard set epoch = 9", "update shard set library = 2", "insert into epoch_end values (0, 1, 1)", "insert into shard (number) values (9)",
			"update turn set holder = 'x'", "insert into repair (shard) values (0)", "insert into outcome (order_id, code) values ('a', 'b')",
			"update stock_document set lines = '[]'", "update stock_document set deadline_ms = 9", "delete from producer", "update sku set deleted = now()", "set role stockpipe_reconciler",
		},
		shoptest.Reconciler: {
			"insert into outcome (order_id, code) values ('a', 'b')", "update stock_document set lines = '[]'", "insert into producer (id, libraries) values ('a', '{}')",
			"update sku set deleted = now()", "delete from turn",
		},
	}
	for _, kind := range kinds {
		conn, err := pgx.Connect(t.Context(), k.Plan.PostgresOf(kind))
		shoptest.Need(t, err)
		for _, sql := range slices.Concat(all, refused[kind]) {
			_, err := conn.Exec(t.Context(), "begin; "+sql+"; rollback")
			_, _ = conn.Exec(t.Context(), "rollback")
			var answer *pgconn.PgError
			if !errors.As(err, &answer) || answer.Code != "42501" {
				t.Errorf("%s may %s: %v", kind, sql, err)
			}
		}
		shoptest.Need(t, conn.Close(t.Context()))
	}
}

// A table that a later migration makes is granted to somebody, or nobody could use it.
func TestEveryTableIsGranted(t *testing.T) {
	r := shoptest.Begin(t, "users of deploy/access: every table is granted")
	k := found(r, shoptest.Plan{})
	for _, kind := range kinds {
		for _, table := range tables(t, k) {
			if kind == shoptest.Reconciler && !shoptest.One[bool](k.Shop, `select has_table_privilege('stockpipe_reconciler', $1, 'select')`, table) {
				t.Errorf("the reconciler may not read %s", table)
			}
		}
	}
	text := string(shippedFile(t, "postgres.sql"))
	for _, table := range tables(t, k) {
		if !regexp.MustCompile(`(?m)^grant .*\b` + table + `\b.* to |^grant select on .*\b` + table + `\b`).MatchString(text) {
			t.Errorf("deploy/access/postgres.sql grants %s to nobody by name", table)
		}
	}
	psql(t, k.URL) // once more changes nothing
}

func tables(t *testing.T, k *keptShop) []string {
	t.Helper()
	rows, err := k.Pool.Query(t.Context(), `select tablename::text from pg_tables where schemaname = 'public' order by 1`)
	shoptest.Need(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	shoptest.Need(t, err)
	if len(found) < 18 {
		t.Fatalf("only the tables %v were found", found)
	}
	return found
}

var luaCall = regexp.MustCompile(`call\('([A-Z]+)'`)

// The library's own commands are checked as if its caller had sent them.
func TestTheLibrarysCommandsAreAllowedToWhoCallsIt(t *testing.T) {
	t.Parallel()
	granted := map[string]string{}
	for line := range strings.Lines(string(shippedFile(t, "redis.acl"))) {
		if words := strings.Fields(line); len(words) > 1 {
			granted[words[1]] = " " + strings.Join(words, " ") + " "
		}
	}
	for _, version := range redisstock.Libraries() {
		text, _ := redisstock.LibraryText(int(version))
		deciding, opening, ok := strings.Cut(text, "-- Part 6: ")
		if !ok {
			t.Fatal("the library has no part 6 any more: say here which of its commands producers need")
		}
		for user, part := range map[string]string{"stockpipe-producer": deciding, "stockpipe-reconciler": deciding + opening} {
			for _, found := range luaCall.FindAllStringSubmatch(part, -1) {
				if !strings.Contains(granted[user], " +"+strings.ToLower(found[1])+" ") {
					t.Errorf("%s may not %s, which version %d of the library does", user, found[1], version)
				}
			}
		}
	}
}

// A placeholder is nobody's password: a server does not start with one.
func TestTheShippedFilesHoldNoPassword(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/users.acl"
	shoptest.Need(t, os.WriteFile(path, shippedFile(t, "redis.acl"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := sandboxtest.Stack(t).StartRedis(ctx, sandbox.RedisOptions{ACLFile: path})
	if err == nil {
		server.Close()
		t.Fatal("a Redis starts with the placeholders")
	}
	if !strings.Contains(err.Error(), "ACL") {
		t.Errorf("it ends with %v", err)
	}
}
