package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { shoptest.Main(m) }

// shipped is the folder of what operators load into their servers.
const shipped = "../../access"

// passwordOf is that of a user of the tests.
func passwordOf(user string) string { return "password-of-" + user }

// aclFile is the shipped file with passwords put in; the default user, which is off there, is the test's own.
func aclFile(t *testing.T) string {
	t.Helper()
	text := string(shippedFile(t, "redis.acl"))
	for _, kind := range kinds {
		word := strings.ToUpper(kind) + "_PASSWORD_SHA256"
		if strings.Count(text, word) != 1 {
			t.Fatalf("redis.acl does not name %s once", word)
		}
		text = strings.Replace(text, word, fmt.Sprintf("%x", sha256.Sum256([]byte(passwordOf(kind)))), 1)
	}
	off, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(off, "user default off ") {
		t.Fatalf("redis.acl begins with %q: the default user has to be off", off)
	}
	path := filepath.Join(t.TempDir(), "users.acl")
	shoptest.Need(t, os.WriteFile(path, []byte("user default on nopass ~* &* +@all\n"+rest), 0o600))
	return path
}

var kinds = []string{shoptest.Producer, shoptest.Consumer, shoptest.Reconciler}

func shippedFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, name))
	shoptest.Need(t, err)
	return text
}

// psql runs the shipped file of roles on a database, as an operator does.
func psql(t *testing.T, database string) {
	t.Helper()
	program, err := exec.LookPath("psql")
	if err != nil {
		t.Fatalf("psql runs deploy/access/postgres.sql: install the package postgresql-client: %v", err)
	}
	args := []string{"-X", "-q", "-f", filepath.Join(shipped, "postgres.sql")}
	for _, role := range []string{"owner", "producer", "consumer", "reconciler"} {
		args = append(args, "-v", role+"_password="+passwordOf(role))
	}
	command := exec.CommandContext(t.Context(), program, append(args, database)...)
	command.Env = append(os.Environ(), "PGOPTIONS=--client-min-messages=warning")
	if out, err := command.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// as is a URL with another user.
func as(t *testing.T, text, user, password string) string {
	t.Helper()
	u, err := url.Parse(text)
	shoptest.Need(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

// A keptShop is one whose roles are the shipped users of both servers.
type keptShop struct{ *shoptest.Shop }

// found makes one, migrated and granted, with no process yet. The plan may say more.
func found(r *shoptest.Row, p shoptest.Plan) *keptShop {
	r.T.Helper()
	k := &keptShop{}
	p.Redis.ACLFile, p.Bare = aclFile(r.T), true
	if p.Postgres == nil {
		p.Postgres = &sandbox.PostgresOptions{NoFsync: true}
	}
	if p.PostgresOf == nil {
		p.PostgresOf = func(kind string) string { return as(r.T, k.URL, "stockpipe_"+kind, passwordOf(kind)) }
	}
	if p.RedisOf == nil {
		p.RedisOf = func(kind string) string {
			return as(r.T, "redis://"+k.Address+"/0", "stockpipe-"+kind, passwordOf(kind))
		}
	}
	k.Shop = shoptest.Found(r, p)
	psql(r.T, k.URL)
	// The owner makes the tables; the same program, as another user.
	own := k.Plan.PostgresOf
	k.Plan.PostgresOf = func(string) string { return as(r.T, k.URL, "stockpipe_owner", passwordOf("owner")) }
	k.command("migrate")
	k.Plan.PostgresOf = own
	psql(r.T, k.URL)
	k.command("init", "--shards", fmt.Sprint(k.Plan.Shards))
	k.OpenLedger()
	return k
}

func (k *keptShop) command(arguments ...string) {
	k.T.Helper()
	if out, said, code := k.Command(arguments...); code != 0 {
		k.T.Fatalf("%v ends with %d: %s %s", arguments, code, out, said)
	}
}

// noRefusals wants that no server refused anything to the roles.
func (k *keptShop) noRefusals() {
	k.T.Helper()
	log, err := k.RDB.ACLLog(k.T.Context(), 20).Result()
	shoptest.Need(k.T, err)
	for _, entry := range log {
		k.T.Errorf("Redis refused %s %s: %s %s", entry.Username, entry.Reason, entry.Context, entry.Object)
	}
	said, err := os.ReadFile(k.Postgres.LogPath())
	shoptest.Need(k.T, err)
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, "permission denied") || strings.Contains(line, "must be") {
			k.T.Errorf("Postgres refused: %s", line)
		}
	}
}

// client calls Redis as a shipped user.
func (k *keptShop) client(kind string) *redis.Client {
	k.T.Helper()
	rdb, err := redisstock.Connect(redisstock.Options{URL: k.Plan.RedisOf(kind)})
	shoptest.Need(k.T, err)
	k.T.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func hold(s *shoptest.Shop, order string, ttl int64) api.Reservation {
	s.T.Helper()
	held, err := s.Patient(0).Reserve(s.T.Context(), &api.ReserveRequest{OrderID: order, Lines: []api.Line{{SKU: "tea", Quantity: 2}}, TTL: ttl})
	shoptest.Need(s.T, err)
	return held
}

func confirm(s *shoptest.Shop, order string) {
	s.T.Helper()
	paid, err := s.Patient(0).Confirm(s.T.Context(), order, api.AttemptRequest{})
	shoptest.Need(s.T, err)
	if !paid.IsPersisted() {
		standing, err := s.Patient(0).Await(s.T.Context(), order, paid.Receipt)
		if err != nil || standing != api.StandingPersisted {
			s.T.Errorf("%s is %s: %v", order, standing, err)
		}
	}
}

// state waits until both stores say so of an order.
func state(s *shoptest.Shop, order, want string) {
	s.T.Helper()
	sandboxtest.Eventually(s.T, shoptest.Patience, func() error {
		found, err := s.Patient(0).Order(s.T.Context(), order, "")
		if err != nil {
			return err
		}
		if len(found.Matches) != 1 || found.Matches[0].Ledger == nil || found.Matches[0].Ledger.State != want {
			return fmt.Errorf("%s is %+v, want %s", order, found, want)
		}
		return nil
	})
}

var errAllowed = errors.New("it is allowed")
