package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// TestProducersOfTwoLibraryVersions: producers of the present and of the next version of the function library sell
// side by side, through takeovers that keep the version; it is changed by an operator once all carry the next one,
// and back again.
func TestProducersOfTwoLibraryVersions(t *testing.T) {
	r := shoptest.Begin(t, "producers of two library versions")
	next := shoptest.NextPrograms(t)
	v := shoptest.Suffering(r, shoptest.Plan{Producers: 1, Consumers: 2, Reconcilers: 1}, false)
	units := shoptest.Size(600, 5_000)
	v.Supply(int64(units), "tea")
	epoch := v.Epoch(0)
	old := v.Living(shoptest.Producer)[0]
	v.Plan.Folder = map[string]string{shoptest.Producer: next}
	fresh := v.Start(shoptest.Producer)
	v.AwaitReady()
	v.Load = v.Traffic(8, 100*time.Millisecond, true, "tea")
	inForce(v, redisstock.LibraryVersion, old, fresh)

	// A takeover by itself keeps the version, whichever build makes it.
	newest := takenOverByItself(v, epoch)
	inForce(v, redisstock.LibraryVersion, old, fresh)
	for _, other := range v.Living(shoptest.Reconciler) {
		other.Stop()
	}
	v.Plan.Folder[shoptest.Reconciler] = next
	v.Start(shoptest.Reconciler)
	newest = takenOverByItself(v, newest)
	inForce(v, redisstock.LibraryVersion, old, fresh)

	// The next version is refused while a producer lives that would sell nothing more.
	ask := []string{"takeover", "--shard", "0", "--library", fmt.Sprint(shoptest.NextLibrary)}
	if out, complaint, code := v.Command(ask...); code == 0 || !strings.Contains(out+complaint, "do not carry version") {
		t.Errorf("a version that a living producer lacks ended with %d: %s%s", code, out, complaint)
	}
	inForce(v, redisstock.LibraryVersion, old, fresh)

	old.Stop()
	second := v.Start(shoptest.Producer)
	v.AwaitReady()
	if out, complaint, code := v.Command(ask...); code != 0 {
		t.Fatalf("takeover to the next version ended with %d: %s%s", code, out, complaint)
	}
	v.AwaitSale(newest)
	inForce(v, shoptest.NextLibrary, fresh, second)
	newest = takenOverByItself(v, v.Epoch(0)) // keeps that one, too
	inForce(v, shoptest.NextLibrary, fresh, second)

	ask[len(ask)-1] = fmt.Sprint(redisstock.LibraryVersion)
	if out, complaint, code := v.Command(ask...); code != 0 {
		t.Fatalf("takeover back to the version before ended with %d: %s%s", code, out, complaint)
	}
	v.AwaitSale(newest)
	inForce(v, redisstock.LibraryVersion, fresh, second)

	v.Load.Stop()
	answers := append(v.Load.Answers(), v.SellOut(units)...)
	v.Drain()
	persisted, lost := v.Standings(answers)
	v.JudgeEnd(answers, persisted, lost, epoch, units)
	if len(lost) != 0 {
		t.Errorf("%d orders were lost", len(lost))
	}
	r.Note("both versions sold before and after 3 takeovers by themselves; to the next version and back by an operator; %d told 201, all persisted", len(persisted))
	v.Finish()
}

// inForce wants every one of these producers to sell by a version, and the shard to name it in both stores.
func inForce(v *shoptest.Victim, version int, sellers ...*shoptest.Role) {
	v.T.Helper()
	for i, seller := range sellers {
		client := &api.Client{Base: seller.API, HTTP: v.HTTP, Tries: 1}
		sandboxtest.Eventually(v.T, shoptest.Patience, func() error {
			order := fmt.Sprintf("by-%s-%d-%d", seller.Name, v.Epoch(0), time.Now().UnixNano())
			a := shoptest.Reserve(v.T.Context(), client, order, "tea", 1, 3600)
			v.Load.Mu.Lock()
			v.Load.Reserves = append(v.Load.Reserves, a)
			v.Load.Mu.Unlock()
			if !a.Accepted() {
				return fmt.Errorf("producer %d of %d: %s", i+1, len(sellers), a.String())
			}
			return nil
		})
	}
	row, err := v.Ledger.Shard(v.T.Context(), 0)
	shoptest.Need(v.T, err)
	status, err := v.Shard(0).Status(v.T.Context())
	shoptest.Need(v.T, err)
	if row.Library != version || status.Version != fmt.Sprint(version) {
		v.T.Errorf("version %d is in force in Postgres and %s in Redis, want %d", row.Library, status.Version, version)
	}
	names := v.RDB.Do(v.T.Context(), "FUNCTION", "LIST", "LIBRARYNAME", "stockpipe_*").String()
	if !strings.Contains(names, fmt.Sprintf("stockpipe_%d", version)) {
		v.T.Errorf("Redis has not that library: %s", names)
	}
}

// takenOverByItself makes a takeover necessary and waits until the shop sells again; it gives the newer epoch.
func takenOverByItself(v *shoptest.Victim, before int64) int64 {
	v.T.Helper()
	hit := time.Now()
	shoptest.Need(v.T, v.RDB.FunctionFlush(v.T.Context()).Err())
	v.Row.Opened(v.AwaitSale(before).Sub(hit))
	v.Row.Class = "unopened"
	return v.Epoch(0)
}
