package faults

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A poison is an entry that Postgres cannot apply, and how an operator mends the cause.
type poison struct {
	name string
	give func(*shoptest.Victim)
	mend func(*shoptest.Victim)
	// behind: the shop sold on until the entry was met, so there are orders behind it.
	behind bool
}

// forged is an entry that the library did not write, in the place of the next one.
func forged(name string, op stock.Operation, spoil func(*event.Raw)) poison {
	var id string
	return poison{
		name: name,
		give: func(v *shoptest.Victim) {
			if op.Lines != nil && op.Lines[0].SKU == 0 {
				op.Lines[0].SKU = v.Numbers["tea"]
			}
			// The next sequence number may be taken while this is written: then Redis refuses the id.
			sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
				status, err := v.Shard(0).Status(v.T.Context())
				if err != nil {
					return err
				}
				entry := event.Entry{Position: stock.Position{Epoch: status.Epoch, Seq: status.Seq + 1}, AtMillis: status.AtMillis, Ops: []stock.Operation{op}}
				raw := entry.Raw()
				if spoil != nil {
					spoil(&raw)
				}
				id = raw.ID
				return v.RDB.XAdd(v.T.Context(), &redis.XAddArgs{Stream: redisstock.NewKeys(shoptest.Prefix, 0).Log, ID: raw.ID,
					Values: []string{"v", raw.Version, "t", raw.At, "o", raw.Ops, "a", raw.After}}).Err()
			})
		},
		mend: func(v *shoptest.Victim) {
			if n := v.RDB.XDel(v.T.Context(), redisstock.NewKeys(shoptest.Prefix, 0).Log, id).Val(); n != 1 {
				v.T.Errorf("the forged entry %s is not in the log", id)
			}
		},
	}
}

// poisons makes them anew, for each carries what it forged.
func poisons() map[string]poison {
	all := []poison{
		forged("an unknown kind", hold("forged", 0, 1), func(r *event.Raw) { r.Ops = "Z" + r.Ops[1:] }),
		forged("an unknown SKU", hold("forged", 9_999_999, 1), nil),
		forged("more units than there are", hold("forged", 0, stock.MaxLineQuantity), nil),
		{name: "a rule of Postgres that the shop breaks", behind: true,
			give: func(v *shoptest.Victim) {
				v.Exec(fmt.Sprintf(`alter table stock add constraint mistake check (held < %d)`,
					shoptest.One[int64](v.Shop, `select max(held) from stock`)+20))
			},
			mend: func(v *shoptest.Victim) { v.Exec(`alter table stock drop constraint mistake`) }},
	}
	found := map[string]poison{}
	for _, p := range all {
		found[p.name] = p
	}
	return found
}

func hold(id string, sku, units int64) stock.Operation {
	return stock.Operation{Kind: stock.Reserve, ID: id, Attempt: 1, TTL: 900_000, Lines: stock.Lines{{SKU: sku, Asked: units, Now: units}}}
}

// TestPoisonHaltsTheShard: an entry that cannot be applied is never skipped. Nothing is accepted behind it once it was
// met; an operator mends the cause and tries again, and nothing is lost, or gives up what lies beyond, which is named.
func TestPoisonHaltsTheShard(t *testing.T) {
	for _, row := range []struct {
		poison string
		down   bool // no consumer lives: a reconciler meets it
		killed bool // the consumer that halts the shard dies before it has fenced Redis
		giveUp bool
		whole  bool
	}{
		{poison: "an unknown kind", whole: true},
		{poison: "an unknown kind", down: true, giveUp: true, whole: true},
		{poison: "an unknown SKU", down: true, whole: true},
		{poison: "an unknown SKU", giveUp: true, whole: true},
		{poison: "more units than there are"},
		{poison: "a rule of Postgres that the shop breaks", whole: true},
		{poison: "a rule of Postgres that the shop breaks", giveUp: true, whole: true},
		{poison: "a rule of Postgres that the shop breaks", killed: true},
	} {
		if row.whole && !shoptest.Full {
			continue
		}
		name := row.poison
		for _, more := range []struct {
			is   bool
			text string
		}{{row.down, "no consumer"}, {row.killed, "killed before the fence"}, {row.giveUp, "given up"}} {
			if more.is {
				name += ", " + more.text
			}
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := shoptest.Begin(t, "poison: "+name)
			r.Class = "halted"
			v := shoptest.Suffering(r, shoptest.Plan{Producers: 2, Consumers: 1, Reconcilers: 1, Failing: row.killed}, false)
			units := shoptest.Size(400, 3_000)
			v.Supply(int64(units), "tea")
			epoch := v.Epoch(0)
			v.Load = v.Traffic(8, 100*time.Millisecond, true, "tea")
			v.More(50)
			if row.down {
				v.KillAll(shoptest.Consumer)
			}
			if row.killed {
				v.Living(shoptest.Consumer)[0].Arm(failpoint.ConsumerHalted, shoptest.Kill)
			}
			p := poisons()[row.poison]
			p.give(v)
			last := awaitHalt(v)
			if row.killed {
				fencedByProber(v)
			}
			if row.killed || row.down {
				v.Start(shoptest.Consumer)
			}
			if _, complaint, code := v.Command("retry", "--shard", "0"); code != 2 {
				t.Errorf("a retry before anything was mended ended with %d: %s", code, complaint)
			}
			verb := "retry"
			if row.giveUp {
				verb = "takeover"
			}
			if !row.giveUp || p.behind { // what breaks every order is mended before it is opened, or the next order breaks on it
				p.mend(v)
			}
			asked := time.Now()
			did := v.Reconcile(verb, "--shard", "0")
			if did.Exit != 0 {
				t.Errorf("%s ended with %d: %s %+v", verb, did.Exit, did.Error, did.Acts())
			}
			if row.giveUp {
				if !slices.ContainsFunc(did.Acts(), func(a shoptest.Act) bool { return strings.Contains(a.GivesUp, last) }) {
					t.Errorf("what was given up is not named (to %s): %+v", last, did.Acts())
				}
			}
			r.Opened(v.AwaitSale(epoch).Sub(asked))
			v.Load.Stop()
			answers := append(v.Load.Answers(), v.SellOut(units)...)
			v.Drain()
			persisted, lost := v.Standings(answers)
			if (len(lost) > 0) != (row.giveUp && p.behind) {
				t.Errorf("%d orders were lost", len(lost))
			}
			v.JudgeEnd(answers, persisted, lost, epoch, units)
			r.Note("halted at %s, opened by %s; %d told 201: %d persisted, %d reported lost", last, verb, len(persisted)+len(lost), len(persisted), len(lost))
			v.Finish()
		})
	}
}

// awaitHalt waits until the shard is halted and closed, and callers are told so; it gives the last entry of the log.
// From then on the log stands still.
func awaitHalt(v *shoptest.Victim) string {
	v.T.Helper()
	sandboxtest.Eventually(v.T, 2*shoptest.Patience, func() error {
		row, err := v.Ledger.Shard(v.T.Context(), 0)
		if err != nil {
			return err
		}
		status, err := v.Shard(0).Status(v.T.Context())
		if err == nil && (row.State != ledger.StateHalted || status.Open()) {
			err = fmt.Errorf("the shard is %s, and Redis sells: %v", row.State, status.Open())
		}
		return err
	})
	last, accepted := v.Newest(v.RDB), v.Load.Reserved.Load()
	seen := len(v.Load.Answers())
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		told := 0
		for _, a := range v.Load.Answers()[seen:] {
			if a.Status == http.StatusServiceUnavailable && a.Problem != nil && a.Problem.Reason == "halted" {
				told++
			}
		}
		if told < 20 {
			return errors.New("callers are not told that the shard is halted")
		}
		return nil
	})
	if now := v.Newest(v.RDB); now != last {
		v.T.Errorf("entry %s was accepted behind the halt at %s", now, last)
	}
	if more := v.Load.Reserved.Load() - accepted; more > 16 { // those under way
		v.T.Errorf("%d orders were told 201 after the halt", more)
	}
	if n := shoptest.One[int64](v.Shop, `select count(*) from dead_event`); n == 0 {
		v.T.Error("the entry is not kept as evidence")
	}
	return last
}

// fencedByProber: the consumer died between halt and fence, and the reconciler closed Redis.
func fencedByProber(v *shoptest.Victim) {
	v.T.Helper()
	if n := len(v.Living(shoptest.Consumer)); n != 0 {
		v.T.Errorf("%d consumers live: the one that halts was to die", n)
	}
	if n := shoptest.One[int64](v.Shop, `select count(*) from repair where verb = 'fence' and class = 'unfenced'`); n == 0 {
		v.T.Error("the reconciler did not fence the halted shard")
	}
}
