package redisstock

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// nextText is the library under the next number, as a later build would carry it.
func nextText() string {
	return strings.NewReplacer(libraryName(LibraryVersion), libraryName(LibraryVersion+1),
		fmt.Sprintf("local VERSION = '%d'", LibraryVersion), fmt.Sprintf("local VERSION = '%d'", LibraryVersion+1)).Replace(Library())
}

func TestShardIsAskedByTheVersionInForce(t *testing.T) {
	t.Parallel()
	s, ctx := openShop(t, sandboxtest.Redis(t).Addr(), ""), t.Context()
	if err := s.rdb.FunctionLoad(ctx, nextText()).Err(); err != nil {
		t.Fatal(err)
	}
	opener := NewOpener(s.shard, Unsafe{})
	seal := takeover.Seal{Ledger: testLedger, Epoch: 90, Nonce: "next", Library: LibraryVersion + 1}
	if err := opener.Fence(ctx, seal, false); err != nil {
		t.Fatal(err)
	}
	if err := opener.Open(ctx, seal, 0, stock.Position{}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(LibraryVersion + 1)
	for _, fresh := range []bool{true, false} { // the second time it is known
		status, err := s.shard.Status(ctx)
		if err != nil || !status.Open() || status.Version != want {
			t.Errorf("asked afresh %v: %+v, %v", fresh, status, err)
		}
	}
	sampler := NewSampler(NewShard(s.rdb, s.desk.prefix, 0))
	sample, err := sampler.Sample(ctx, audit.Question{Page: 10})
	if err != nil || !sample.Status.Open() {
		t.Errorf("a sample says %+v, %v", sample.Status, err)
	}
	if status, there, err := NewSampler(NewShard(s.rdb, s.desk.prefix, 0)).Entry(ctx, stock.Position{Epoch: 90, Seq: 1}); err != nil || !there || !status.Open() {
		t.Errorf("the entry is there: %v, %+v, %v", there, status, err)
	}
	// Whoever closes a halted shard names no version: it stays as it is.
	if err := opener.Fence(ctx, takeover.Seal{Ledger: testLedger, Epoch: 91, Nonce: "halt"}, false); err != nil {
		t.Fatal(err)
	}
	if status, err := s.shard.Status(ctx); err != nil || status.Version != want || status.Mode != takeover.ModeClosed {
		t.Errorf("after a fence that names no version: %+v, %v", status, err)
	}
}

func TestVersionThatIsNotCarriedIsRefused(t *testing.T) {
	t.Parallel()
	s, ctx := openShop(t, sandboxtest.Redis(t).Addr(), ""), t.Context()
	var library *LibraryError
	if err := LoadLibrary(ctx, s.rdb, LibraryVersion+1); !errors.As(err, &library) || !library.Unknown {
		t.Errorf("loaded: %v", err)
	}
	if _, carried := LibraryText(LibraryVersion + 1); carried {
		t.Error("it is carried")
	}
	desk := NewDesk(s.rdb, s.desk.prefix, strangers{epoch: stock.Epoch{Ledger: testLedger, Epoch: s.epoch.Load(), Library: LibraryVersion + 1, Open: true}})
	defer desk.Close()
	_, err := desk.Do(ctx, 0, stock.Operation{Kind: stock.Release, ID: "any", Attempt: 1})
	if !IsClosed(err, "version") {
		t.Errorf("an order under a version that is not carried: %v", err)
	}
}

// strangers names an epoch under a library that this build does not have.
type strangers struct{ epoch stock.Epoch }

func (s strangers) Epoch(int) stock.Epoch { return s.epoch }
func (strangers) Doubt(int, string)       {}
