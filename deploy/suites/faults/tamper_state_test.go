package faults

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// keyTrials are edits of what a takeover wrote, and keys that vanish or come back older: the process finds out at its
// next call, and all that the log still had is persisted.
var keyTrials = []shoptest.Trial{
	{Name: "log deleted under blocked readers (B3)", Classes: []string{"missing"}, Workers: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { remove(v, keys().Log) }},
	{Name: "state deleted", Classes: []string{"missing"}, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { remove(v, keys().State) }, After: losesNothing},
	{Name: "orders deleted", Classes: torn, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { remove(v, keys().Orders) }, After: tornAndWhole},
	{Name: "buyers deleted", Classes: torn, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) { remove(v, keys().Buyers) }, After: tornAndWhole},
	{Name: "state replaced by a list", Classes: []string{"missing"}, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			remove(v, keys().State)
			shoptest.Need(v.T, v.RDB.LPush(v.T.Context(), keys().State, "x").Err())
		}, After: losesNothing},

	older("older state RESTOREd", func(k redisstock.Keys) string { return k.State }, false),
	{Name: "orders of an earlier epoch RESTOREd", Classes: []string{"healthy"}, Workers: true, Whole: true,
		Hit: restoreEarlierEpoch, After: tornAndOpened},

	edited("e, a later epoch", []string{"ahead"}, "e", func(v *shoptest.Victim, was string) string {
		return fmt.Sprintf("%s.%d", v.Ledger.ID(), v.Epoch(0)+1000)
	}, false),
	edited("e, an earlier epoch", []string{"rewound"}, "e", func(v *shoptest.Victim, was string) string {
		return fmt.Sprintf("%s.%d", v.Ledger.ID(), v.Epoch(0)-1)
	}, false),
	edited("q, more", torn, "q", func(_ *shoptest.Victim, was string) string { return plus(was, 1000) }, false),
	edited("q, one less", torn, "q", func(_ *shoptest.Victim, was string) string { return plus(was, -1) }, false),
	edited("q, no number", []string{"rewound"}, "q", func(*shoptest.Victim, string) string { return "1e3" }, false),
	edited("m, closed", torn, "m", func(*shoptest.Victim, string) string { return "closed" }, false),
	edited("m, no mode", torn, "m", func(*shoptest.Victim, string) string { return "ajar" }, false),
	edited("n", torn, "n", func(*shoptest.Victim, string) string { return "another" }, false),
	edited("v, another version of the library", torn, "v", func(*shoptest.Victim, string) string { return "2" }, true),
	{Name: "sentinel of orders edited", Classes: torn, Whole: true, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), keys().Orders, "~", "another").Err())
		}, After: losesNothing},
}

// TestTamperedKeysAreTakenOver edits, deletes and restores whole keys and the fields by which a process knows that it
// was opened.
func TestTamperedKeysAreTakenOver(t *testing.T) { play(t, "tampered", keyTrials) }

// torn is what a process finds that was opened and whose keys somebody changed. The call that finds it takes the
// process' right to sell away, so that a probe which comes after such a call sees it as unopened.
var torn = []string{"torn", "unopened"}

// tornAndWhole: the change was found for what it was, by the probe or by a call that was refused for it, and lost
// nothing.
func tornAndWhole(v *shoptest.Victim) {
	v.T.Helper()
	if shoptest.One[int64](v.Shop, `select count(*) from repair where class = 'torn'`) == 0 {
		// Whoever comes first is told; that may be a caller of the mix. One of a document is told "written", whatever its
		// movement was refused for: where there was such a one, it may have been the first, if the right to sell is gone
		// from a process that lives, which nothing else takes away.
		torn, version := refusedFor(v, 0, "torn"), refusedFor(v, 0, "version")
		gone := v.Mixed.Written() > 0 && v.Lives() && shoptest.One[int64](v.Shop, `select count(*) from repair where class = 'unopened'`) > 0
		if torn != nil && version != nil && v.Mixed.Refused("torn") == 0 && v.Mixed.Refused("version") == 0 && !gone {
			v.T.Errorf("the change was not found for what it was: %v, %v", torn, version)
		}
	}
	losesNothing(v)
}

// keys are those of the only shard.
func keys() redisstock.Keys { return redisstock.NewKeys(shoptest.Prefix, 0) }

func remove(v *shoptest.Victim, key string) {
	v.T.Helper()
	if n := v.RDB.Del(v.T.Context(), key).Val(); n != 1 {
		v.T.Errorf("there was no %s to delete", key)
	}
}

// older puts a key back to what it was 50 orders before.
func older(name string, of func(redisstock.Keys) string, smoke bool) shoptest.Trial {
	var dump string
	return shoptest.Trial{Name: name, Classes: torn, Whole: !smoke, Within: shoptest.AutoOpen,
		Before: func(v *shoptest.Victim) { dump = dumped(v, of(keys())) },
		Hit:    func(v *shoptest.Victim) { restore(v, of(keys()), dump) }, After: tornAndWhole}
}

func dumped(v *shoptest.Victim, key string) string {
	v.T.Helper()
	dump, err := v.RDB.Dump(v.T.Context(), key).Result()
	shoptest.Need(v.T, err)
	return dump
}

func restore(v *shoptest.Victim, key, dump string) {
	v.T.Helper()
	shoptest.Need(v.T, v.RDB.RestoreReplace(v.T.Context(), key, 0, dump).Err())
}

// restoreEarlierEpoch keeps the records of an epoch, lets an operator begin the next, and puts them back.
func restoreEarlierEpoch(v *shoptest.Victim) {
	v.T.Helper()
	dump := dumped(v, keys().Orders)
	operate(v, "takeover", "--shard", "0")
	restore(v, keys().Orders, dump)
}

func tornAndOpened(v *shoptest.Victim) {
	v.T.Helper()
	v.Row.Class = "torn"
	sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
		if n := shoptest.One[int64](v.Shop, `select count(*) from repair where class in ('torn', 'unopened') and verb = 'takeover'`); n == 0 {
			return errors.New("the older records were not found")
		}
		return nil
	})
	v.More(20)
	tornAndWhole(v)
}

// edited writes one of the fields by which the library knows its own state.
func edited(what string, classes []string, field string, to func(v *shoptest.Victim, was string) string, smoke bool) shoptest.Trial {
	return shoptest.Trial{Name: "state field edited: " + what, Classes: classes, Whole: !smoke, Within: shoptest.AutoOpen,
		Hit: func(v *shoptest.Victim) {
			was, err := v.RDB.HGet(v.T.Context(), keys().State, field).Result()
			shoptest.Need(v.T, err)
			before := len(v.Load.Answers())
			shoptest.Need(v.T, v.RDB.HSet(v.T.Context(), keys().State, field, to(v, was)).Err())
			for _, a := range v.Load.Answers()[before:] {
				if a.Status == http.StatusConflict {
					v.T.Errorf("on an edited field %s: %s", field, a.String())
				}
			}
		}, After: func(v *shoptest.Victim) {
			if slices.Contains(classes, "torn") {
				tornAndWhole(v)
			}
			losesNothing(v)
		}}
}

// plus changes a figure; "no number" stays what it is.
func plus(text string, n int64) string {
	figure, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return text
	}
	return strconv.FormatInt(figure+n, 10)
}
