package redisstock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
	"github.com/stockpipe/stockpipe/pkg/stock"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// The grammar has two parsers: package event, and the library's. These tests hold them against each other on a
// real server. What Go may send, the library must read; what Go could not read back from the log, it must refuse.

// grounds are shards of one server without a Desk: the tests speak to the functions themselves.
type grounds struct {
	rdb    *redis.Client
	prefix string
	count  atomic.Int64
}

func openGrounds(t *testing.T) *grounds {
	t.Helper()
	rdb := connect(t, sandboxtest.SharedRedis(t))
	if err := LoadLibrary(t.Context(), rdb, LibraryVersion); err != nil {
		t.Fatal(err)
	}
	return &grounds{rdb: rdb, prefix: sandboxtest.Prefix(t)}
}

// shard fences a fresh shard, puts what a rebuild would put, and opens it under epoch 5.
func (g *grounds) shard(state, orders map[string]string, buyers ...map[string]string) (*Shard, error) {
	ctx := context.Background()
	s := NewShard(g.rdb, fmt.Sprintf("%s:%d", g.prefix, g.count.Add(1)), 0)
	opener := NewOpener(s, Unsafe{})
	seal := takeover.Seal{Ledger: testLedger, Epoch: 5, Nonce: "nonce"}
	if err := opener.Fence(ctx, seal, false); err != nil {
		return nil, err
	}
	seq := int64(0)
	targets := map[string]map[string]string{"state": state, "orders": orders}
	for _, counts := range buyers {
		targets["buyers"] = counts
	}
	for target, fields := range targets {
		var args []string
		for field, text := range fields {
			args = append(args, field, text)
		}
		if len(args) == 0 {
			continue
		}
		var err error
		if seq, err = opener.Put(ctx, seal, seq, takeover.Put{Target: target, Verb: takeover.VerbSet, Args: args}); err != nil {
			return nil, err
		}
	}
	return s, opener.Open(ctx, seal, seq, stock.Position{Epoch: 4, Seq: 17})
}

// refused sends texts under a token of another epoch, so that nothing is ever written: the answer is BAD when the
// library cannot read the text, and EPOCH when it can.
func (g *grounds) refused(s *Shard, texts []string) ([]bool, error) {
	ctx := context.Background()
	pipe := g.rdb.Pipeline()
	for _, text := range texts {
		pipe.FCall(ctx, fnApply, s.keys.list(), token(testLedger, 4), 0, int64(farAway), text)
	}
	answers, err := pipe.Exec(ctx)
	if err != nil {
		return nil, err
	}
	bad := make([]bool, len(texts))
	for i, a := range answers {
		text, err := a.(*redis.Cmd).Text()
		switch {
		case err != nil:
			return nil, err
		case strings.HasPrefix(text, "BAD "):
			bad[i] = true
		case !strings.HasPrefix(text, "EPOCH "):
			return nil, fmt.Errorf("%q answered %q", texts[i], text)
		}
	}
	return bad, nil
}

// maySend is Go's word on the text of a call.
func maySend(text string) bool {
	ops, err := event.ParseOperations(text)
	for i := range ops {
		if err == nil {
			err = event.CheckOperation(&ops[i])
		}
	}
	return err == nil
}

func (g *grounds) compare(s *Shard, texts []string) error {
	bad, err := g.refused(s, texts)
	if err != nil {
		return err
	}
	for i, text := range texts {
		if maySend(text) == bad[i] {
			return fmt.Errorf("%.300q (%d bytes): Go would send it: %v, the library refuses it: %v", text, len(text), maySend(text), bad[i])
		}
	}
	return nil
}

func TestBothParsersAgreeOnHostileCalls(t *testing.T) {
	t.Parallel()
	g := openGrounds(t)
	s, err := g.shard(map[string]string{"1": "100|0|0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const r = "R900000|1|1=1"
	texts := []string{
		"", " ", ";", r, r + " ", r + " a", r + "  a", r + " a ", " " + r + " a", r + " a  b", r + " a;", ";" + r + " a", r + " a;;C1 b", r + " a;C1 b", r + " a; C1 b",
		r + " a;" + r + " b", "C1 a;C1 b", "C1 a;X1 a;C1 a", r + " ~~~x", r + " ~~x", r + " ~x", r + " ~", r + " ~~", r + " ~ a", r + " a ~", r + " a~b", r + " a~", r + " ~a~b", r + " ~a,u", r + " ~~~a,u", r + " a~,u",
		r + " a,b", r + " a,b,c", r + " a,,b", r + " a,", r + " ,b", r + " ,", r + " a,~b", "C1 a,b", "S|1|1=1 a,b", "M9|adjust|x|1=+1 ~a,b", "M9|adjust|x|1=+1 ~a", "T1|0|+f|0 ~~t", "T1|0|+f|0 ~~t,u",
		r + " a\x00b", r + "\x00 a", "\x00" + r + " a", r + " a\x00", r + " a,u\x00", r + " \x00", r + " a/b", r + " a@b", r + " a,a@b+c", r + " é", r + " a,é", r + " a\tb", r + "\ta", r + " a\n", r + " a\n;C1 b", r + " a\u00a0b",
		r + " " + strings.Repeat("i", 64), r + " " + strings.Repeat("i", 65), r + " ~~" + strings.Repeat("i", 64), r + " ~" + strings.Repeat("i", 65), r + " ~~" + strings.Repeat("i", 65), r + " " + strings.Repeat("i", 65) + ",u",
		r + " a," + strings.Repeat("u", 64), r + " a," + strings.Repeat("u", 65), r + strings.Repeat(" a", 256), r + strings.Repeat(" a", 257), r + strings.Repeat(" a,u", 257), r + strings.Repeat(" a", 255) + ";C1 b", r + strings.Repeat(" a", 256) + ";C1 b",
		"R999|1|1=1 a", "R1000|1|1=1 a", "R86400000|1|1=1 a", "R86400001|1|1=1 a", "R|1|1=1 a", "S900000|1|1=1 a", "R900000|1|1=1|k a", "R900000|1|1=1| a", "R900000|1|1=1k a", "R900000|1|1=1|k|k a", "R900000|1|k a", "R900000|1||k a", "S|1|1=1|k a,u", "S||1=1 a",
		"S|1|1=1,2=1 a", "S|1|2=1,1=1 a", "S|1|1=1,1=1 a", "S|1|1=1, a", "S|1|,1=1 a", "S|1|1=1,,2=1 a", "S|1|1=1:1 a", "S|1|1=2:1 a", "S|1|1=1: a", "S|1|1==1 a", "S|1|=1 a", "S|1|1= a", "S|1|1=1=1 a", "S|1|1=+1 a", "S|1|1=0 a", "S|1|0=1 a", "S|1|1=1000000 a", "S|1|1=1000001 a",
		"C0 a", "C1 a", "C999999999 a", "C1000000000 a", "C a", "C1| a", "c1 a", "L999999998 a", "L999999999 a", "O0-0 ~~open", "O5-1 ~~open", "m9|adjust|x|1=-1 ~a", "U1|9 a", "P1|1=1 a", "V1=1 a", "K1 a", "G1 a", "Z1 a", "? a", "( a", "% a",
		"M9|adjust|x|1=-0 ~a", "M9|adjust|x|1=+0 ~a", "M9|adjust|x|1=+999999999 ~a", "M9|adjust|x|1=-1000000000 ~a", "M9|adjust|x|1=+1:1 ~a", "M9||x|1=+1 ~a", "M9|adjust||1=+1 ~a", "M9|adjust|x:y|1=+1 ~a", "M9|adjust|x|1=++1 ~a", "M9|adjust|x|1=+1| ~a",
		"M9|" + strings.Repeat("r", 32) + "|x|1=+1 ~a", "M9|opening|x|1=+1 ~a", "M9|" + strings.Repeat("r", 33) + "|x|1=+1 ~a", "M9|adjust|" + strings.Repeat("r", 33) + "|1=+1 ~a",
		"N9|1=1|tea ~~o", "N9|1=0|tea ~~o", "N9|1=1| ~~o", "N9|1=1|%41 ~~o", "N9|1=1|%2f ~~o", "N9|1=1|%2F ~~o", "N9|1=1|%2 ~~o", "N9|1=1|% ~~o", "N9|1=1|%%20 ~~o", "N9|1=1|%GG ~~o", "N9|1=1|a%00b ~~o", "N9|1=1|%FF ~~o", "N9|1=1|%C3 ~~o", "N9|1=1|%C3%A9 ~~o",
		"N9|1=1|%ED%A0%80 ~~o", "N9|1=1|%ED%9F%BF ~~o", "N9|1=1|%F5%80%80%80 ~~o", "N9|1=1|%F4%90%80%80 ~~o", "N9|1=1|%F4%8F%BF%BF ~~o", "N9|1=1|%C0%80 ~~o", "N9|1=1|%E0%80%80 ~~o", "N9|1=1|%F0%9F%AB%96 ~~o", "N9|1=1|%F0%9F%AB ~~o", "N9|1=1|%9F ~~o", "N9|1=1|%C3a%A9 ~~o",
		"N9|1=1|" + strings.Repeat("s", 64) + " ~~o", "N9|1=1|" + strings.Repeat("s", 65) + " ~~o", "N9|1=1|" + strings.Repeat("%20", 64) + " ~~o", "N9|1=1|" + strings.Repeat("%20", 65) + " ~~o", "N9|1=1|" + strings.Repeat("%F0%9F%AB%96", 16) + " ~~o",
		"N9|0=1|a ~~o", "N9|1=1000000000|a ~~o", "N9|1=+1|a ~~o", "N9|1|a ~~o", "N9|1=1 ~~o", "N9|1=1|a| ~~o", "N9|1=1,2=1|a ~~o",
		"T1|0||0 ~~t", "T1|0|+c+f|0 ~~t", "T1|0|+f+f|0 ~~t", "T1|0|+f-c|0 ~~t", "T1|0||1 ~~t", "T0|0||0 ~~t", "T1|0|0 ~~t", "T1|0||0| ~~t", "T1|||0 ~~t", "T1|-||- ~~t", "T1|-|-f+c|- ~~t", "T1|0|f|0 ~~t", "T1|0|+|0 ~~t", "T1|0|-|0 ~~t",
		"T1|0|+f-|0 ~~t", "T1|--||0 ~~t", "T1|-1||0 ~~t", "T1|0||-1 ~~t", "T1|0||999999999 ~~t", "T1|0||1000000000 ~~t", "T1|0|c|0 ~~t", "T1|0|+x|0 ~~t", "T1|0||- ~~t", "T1|-||0 ~~t", "T1|-||| ~~t", "T1|-f||0 ~~t",
		"R900000|1|1=1|p a", "R900000|1|1=1|pk a", "R900000|1|1=1|kp a", "R900000|1|1=1|pp a", "R900000|1|1=2:1|p a", "S|1|1=1|p a,u", "S|1|1=1|| a", "S|1|1=1|x a",
		"C1|1=1 a", "C1|1=0 a", "C1|1=0,2=1000000 a", "C1|1=1000001 a", "C1|2=1,1=1 a", "C1|1=1,1=1 a", "C1|1=1:1 a", "C1|1=+1 a", "C1|1=1| a", "C1||1=1 a", "C1|1= a", "C1|0=1 a", "C1|1=01 a", "X1|1=0 a", "X1|" + strings.ReplaceAll(orderLines(1500), "=1", "=0") + " a", "X1|" + orderLines(1501) + " a", "E1|1=1 a", "L1|1=1 a", "L1|1=0 a", "L999999999|1=1 a", "C1|1=1 a,u",
		"U1|9 a", "U1| a", "U1 a", "U0|9 a", "U1|9|9 a", "U1|-9 a", "U1|09 a", "U1|9007199254740991 a", "U1|9007199254740992 a", "U1|9 a,u", "P1|1=1 a", "P1|1=1,2=1 a", "P1|1=0 a", "P1|1=1:1 a", "P1|0=1:2 a", "P1| a", "P1 a", "P0|1=1 a", "P1|1=1|k a", "P1|1=1 a,u", "P1|" + orderLines(1500) + " a", "P1|" + orderLines(1501) + " a",
		"M9|fulfil|x|1=-1|o|1|1 ~a", "M9|fulfil|x|1=+1|o|1|1 ~a", "M9|fulfil|x|1=+0|o|1|1 ~a", "M9|fulfil|x|1=-1 ~a", "M9|cancel|x|1=+1|o|1|1 ~a", "M9|cancel|x|1=-1|o|1|1 ~a", "M9|cancel|x|1=+1|o|1|1 ~a,u", "M9|fulfil|x|1=-1|o|1|1 ~a,u", "M9|return|x|1=+1 ~a", "M9|return|x|1=+0 ~a", "M9|return|x|1=-1 ~a", "M9|return|x|1=+1|o|1|0 ~a",
		"M9|receive|x|1=+1|o|1|1 ~a", "M9|count|x|1=+0 ~a", "M9|count|x|1=-3 ~a", "M9|cancel|x|1=+1|o|0|1 ~a", "M9|cancel|x|1=+1|o|1|1000000000 ~a", "M9|cancel|x|1=+1|o|01|1 ~a", "M9|cancel|x|1=+1|~o|1|1 ~a", "M9|cancel|x|1=+1||1|1 ~a", "M9|cancel|x|1=+1|o|1 ~a", "M9|cancel|x|1=+1|o|1|1| ~a", "M9|cancel|x|1=+1|" + strings.Repeat("o", 64) + "|1|1 ~a", "M9|cancel|x|1=+1|" + strings.Repeat("o", 65) + "|1|1 ~a", "M9|return|x|1=+1| ~a",
		"S|1|" + orderLines(1500) + " a", "S|1|" + orderLines(1501) + " a", "M9|adjust|x|" + strings.ReplaceAll(orderLines(1500), "=", "=+") + " ~a", "M9|adjust|x|" + strings.ReplaceAll(orderLines(1501), "=", "=+") + " ~a",
		strings.Repeat("x", 1<<20), r + " " + strings.Repeat("i", 1<<20), strings.Repeat(" ", 1<<16), strings.Repeat(";", 1<<16), r + strings.Repeat(" a", 1<<16),
	}
	for _, n := range []string{
		"", "-5", "+5", "01", "00", "0", "1e3", "1E3", "0x10", "nan", "inf", "1.0", "1_000", "9007199254740991", "9007199254740992", "12345678901234567", "99999999999999999999", "٣", "1\x00", "\x00", "1'",
	} {
		texts = append(texts, "R"+n+"|1|1=1 a", r[:8]+n+"|1=1 a", "R900000|1|"+n+"=1 a", "R900000|1|1="+n+" a", "C"+n+" a", "L"+n+" a", "X"+n+" a", "E"+n+" a", "M"+n+"|adjust|x|1=+1 ~a", "M9|adjust|x|"+n+"=+1 ~a",
			"M9|adjust|x|1=+"+n+" ~a", "M9|adjust|x|1=-"+n+" ~a", "N"+n+"|1=1|a ~~o", "N9|"+n+"=1|a ~~o", "N9|1="+n+"|a ~~o", "T"+n+"|0||0 ~~t", "T1|"+n+"||0 ~~t", "T1|0||"+n+" ~~t",
			"C1|1="+n+" a", "X1|"+n+"=1 a", "U1|"+n+" a", "U"+n+"|9 a", "P"+n+"|1=1 a", "P1|1="+n+" a", "M9|cancel|x|1=+1|o|"+n+"|1 ~a", "M9|cancel|x|1=+1|o|1|"+n+" ~a")
	}
	for i := range texts {
		if err := g.compare(s, texts[i:i+1]); err != nil {
			t.Error(err)
		}
	}
	if bad, err := g.refused(s, []string{r + " a"}); err != nil || bad[0] {
		t.Fatalf("the plainest call is refused: %v", err)
	}
}

func orderLines(n int) string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("%d=1", i+1)
	}
	return strings.Join(lines, ",")
}

// Arguments other than the operations are numbers, too: nan compares as false with everything, so a guard that
// took it would guard nothing.
func TestOtherArgumentsOfACallAreBoundedToo(t *testing.T) {
	t.Parallel()
	g := openGrounds(t)
	s, err := g.shard(map[string]string{"1": "100|0|0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"nan", "-nan", "inf", "0x7fffffff", "1e18", "-1", "", "1.5", "01", "99999999999999999"} {
		for _, args := range [][]any{{token(testLedger, 5), n, "9007199254740991", "S|1|1=1 a"}, {token(testLedger, 5), "0", n, "S|1|1=1 a"}} {
			text, err := g.rdb.FCall(t.Context(), fnApply, s.keys.list(), args...).Text()
			if err != nil || !strings.HasPrefix(text, "BAD ") {
				t.Errorf("%v answered %q, %v", args, text, err)
			}
		}
	}
}

// pieces are what a damaged text is made of.
var pieces = []string{"|", "=", ",", ";", ":", " ", "~", "%", "+", "-", "k", "|k", "|p", "|pk", "|1=0", ":1", "|o|1|1", "U", "P", "-f", "+c", "|-|", "0", "1", "9", "=0", "00", "R", "S", "C", "L", "X", "E", "M", "N", "T", "O", "m", "f", "c", "a", "é", "\x00", "\xff", "\n", "%2F", "%2f", "%41", "%C3", "~~", ",u", ";C1 a", " a", "1000000", "9007199254740992"}

func damagedCall() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		text := string(event.AppendOperations(nil, rapid.SliceOfN(shopOperation(), 1, 5).Draw(t, "operations")))
		for range rapid.IntRange(0, 3).Draw(t, "damages") {
			at := rapid.IntRange(0, len(text)).Draw(t, "at")
			to := min(len(text), at+rapid.IntRange(0, 3).Draw(t, "length"))
			text = text[:at] + rapid.SampledFrom(append(pieces, "", text[at:to]+text[at:to])).Draw(t, "piece") + text[to:]
		}
		return text
	})
}

func TestBothParsersAgreeOnDamagedCalls(t *testing.T) {
	t.Parallel()
	g := openGrounds(t)
	s, err := g.shard(map[string]string{"1": "100|0|0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		if err := g.compare(s, rapid.SliceOfN(damagedCall(), 1, 50).Draw(t, "calls")); err != nil {
			t.Fatal(err)
		}
	})
}

// The library keeps lines parsed, and the same text is good in one form and bad in another.
func TestLinesThatAreGoodInOneFormAreNotTakenInAnother(t *testing.T) {
	t.Parallel()
	g := openGrounds(t)
	s, err := g.shard(map[string]string{"1": "100|0|0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	forms := []string{"R900000|1|%s o0", "C1|%s o0", "M9007199254740991|adjust|count|%s ~d0"}
	for _, lines := range []string{"1=1", "1=0", "1=+1", "=1=1", "=1=0", "~1=+1", "1=1:2", "=1=1:2", "~1=1"} {
		for _, good := range forms {
			for _, form := range forms {
				if err := g.compare(s, []string{fmt.Sprintf(good, lines), fmt.Sprintf(good, strings.TrimLeft(lines, "=~")), fmt.Sprintf(form, lines)}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// shopOperation is an operation of a small shop: few orders, few SKUs, so that they meet. A generator that
// parallel tests share is a data race inside rapid, so each makes its own.
func shopOperation() *rapid.Generator[stock.Operation] {
	return rapid.Custom(func(t *rapid.T) stock.Operation {
		op := stock.Operation{
			Kind: stock.Kind(rapid.SampledFrom([]byte("RRRRRRSSSCCXXEELLUUPPMMMMMNT")).Draw(t, "kind")),
			ID:   fmt.Sprintf("o%d", rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}).Draw(t, "order")),
		}
		sku := rapid.Int64Range(1, 4).Draw(t, "sku")
		switch op.Kind {
		case stock.Reserve, stock.Sale:
			op.Attempt, op.Known = rapid.Int64Range(1, 3).Draw(t, "attempt"), rapid.Bool().Draw(t, "known")
			op.Partial = rapid.Bool().Draw(t, "partial")
			op.Buyer = rapid.SampledFrom([]string{"", "u1", "m", "ann+tea@example.com"}).Draw(t, "buyer")
			op.Lines = stock.Lines{one(sku, rapid.Int64Range(1, 4).Draw(t, "quantity"))}
			if rapid.IntRange(0, 2).Draw(t, "second line") == 0 {
				op.Lines = append(op.Lines, one(sku+rapid.Int64Range(1, 3).Draw(t, "further"), 1))
			}
			if op.Kind == stock.Reserve {
				op.TTL = 900_000
			}
		case stock.Movement:
			op.ID = fmt.Sprintf("~d%d", rapid.IntRange(0, 7).Draw(t, "document"))
			op.Deadline = rapid.SampledFrom([]int64{farAway, farAway, farAway, 1}).Draw(t, "deadline")
			op.Document, op.Reason = stock.DocumentAdjust, "count"
			op.Lines = stock.Lines{one(sku, rapid.Int64Range(-20, 10).Draw(t, "units")), one(sku+1, rapid.Int64Range(-3, 3).Draw(t, "units"))}
			if rapid.Bool().Draw(t, "of an order") {
				ofOrder(t, &op, sku)
			}
		case stock.NewSKU:
			sku = rapid.Int64Range(4, 7).Draw(t, "new sku")
			op.ID, op.SKU, op.Deadline = fmt.Sprintf("~~open:%d", sku), "té 🫖", farAway
			op.Lines = stock.Lines{one(sku, rapid.Int64Range(0, 20).Draw(t, "opening"))}
		case stock.Configure:
			op.ID, op.Lines = "~~settings", stock.Lines{{SKU: sku}}
			op.Change = stock.Change{
				Frozen: rapid.SampledFrom(switches).Draw(t, "frozen"), Closed: rapid.SampledFrom(switches).Draw(t, "closed"),
				Opens: rapid.SampledFrom([]int64{stock.Keep, 0, 0, 0, 1, farAway}).Draw(t, "opens"),
				Limit: rapid.SampledFrom([]int64{stock.Keep, stock.Keep, 0, 2, 5}).Draw(t, "limit"),
			}
		case stock.Extend:
			op.Attempt = rapid.Int64Range(1, 2).Draw(t, "attempt")
			op.Until = rapid.SampledFrom([]int64{2, 9, time.Now().UnixMilli() + 100_000, time.Now().UnixMilli() + 2_000_000, farAway}).Draw(t, "until")
		case stock.Replace:
			op.Attempt = rapid.Int64Range(1, 2).Draw(t, "attempt")
			op.Lines = stock.Lines{one(sku, rapid.Int64Range(1, 4).Draw(t, "quantity"))}
			if rapid.Bool().Draw(t, "second line") {
				op.Lines = append(op.Lines, one(sku+rapid.Int64Range(1, 2).Draw(t, "further"), 1))
			}
		case stock.Confirm, stock.LateConfirm, stock.Release:
			op.Attempt = rapid.Int64Range(1, 2).Draw(t, "attempt")
			if rapid.Bool().Draw(t, "with results") {
				op.Lines = stock.Lines{result(sku, rapid.Int64Range(0, 3).Draw(t, "stands"))}
			}
		default:
			op.Attempt = rapid.Int64Range(1, 2).Draw(t, "attempt")
		}
		return op
	})
}

// Off more often than on, or soon nothing would be sold any more.
var switches = []stock.Switch{stock.KeepIt, stock.KeepIt, stock.Off, stock.Off, stock.Off, stock.On}

func result(sku, units int64) stock.Line { return stock.Line{SKU: sku, Asked: units, Now: units} }

// ofOrder makes a document of an operation that is about an order.
func ofOrder(t *rapid.T, op *stock.Operation, sku int64) {
	op.Document = rapid.SampledFrom([]string{stock.DocumentFulfil, stock.DocumentFulfil, stock.DocumentCancel, stock.DocumentCancel, stock.DocumentReturn}).Draw(t, "document kind")
	// Mostly one that is confirmed, and fits.
	n := rapid.SampledFrom([]int64{0, 3, 5, 5, 5, 6, 6, 6, 7}).Draw(t, "order")
	op.Order = stock.OrderRef{ID: fmt.Sprintf("o%d", n), Key: 1, Asked: rapid.SampledFrom([]int64{0, 1, n - 4, n - 4, n - 4}).Draw(t, "asked")}
	if op.Order.Asked < 0 {
		op.Order.Asked = 2
	}
	sku = rapid.SampledFrom([]int64{sku, 7 - n, 7 - n, 7 - n}).Draw(t, "sku of the order")
	if sku < 1 {
		sku = 1
	}
	units := rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(t, "units")
	if op.Document == stock.DocumentFulfil {
		units = -units
	}
	if op.Document == stock.DocumentCancel {
		op.Buyer = rapid.SampledFrom([]string{"", "u1"}).Draw(t, "buyer")
	}
	op.Lines = stock.Lines{one(sku, units)}
}

// A shard that a rebuild filled with holds, some of them long due, is sold from at random. Then the log must tell
// in Go, word for word, what Redis holds.
func TestTheLogFoldsToWhatRedisHolds(t *testing.T) {
	t.Parallel()
	g := openGrounds(t)
	kinds := map[string]int{}
	history := func(t *rapid.T) {
		book := event.NewBook(0)
		orders := map[string]string{}
		book.Stock[1], book.Stock[2], book.Stock[3] = stock.Quantities{Available: 6, Held: 6, Committed: 4}, stock.Quantities{Available: 12, Held: 3, Committed: 2}, stock.Quantities{Available: 2}
		// What buyers have of SKU 2 is counted, and there is more of it elsewhere; of SKU 3 it is not counted yet.
		book.Settings[2], book.Settings[3] = stock.Settings{Limit: 5}, stock.Settings{Limit: 2}
		book.Bought = map[event.BuyerKey]int64{{SKU: 2, Buyer: "u1"}: 2}
		buyers := map[string]string{"2": "1", "2:u1": "2"}
		for id, text := range map[string]string{"o0": "h|4-9-0|1|1|u1|1=3,2=1", "o1": "h|4-10-7|1|1||1=2:1,2=2", "o2": "h|4-11-0|2|9000000000000||1=2", "o3": "e|4-12-0|1|1|u1|1=4", "o4": "r|4-13-0|1|1||3=1", "o5": "c|4-14-1|1|0|u1|2=1", "o6": "c|4-14-2|2|0||1=4:1:2,2=0:1", "~d7": "n|4-14-0|0|0||1=-500"} {
			record, err := event.ParseRecord(0, id, text)
			if err != nil {
				t.Fatal(err)
			}
			book.Orders[id], orders[id] = &record, text
		}
		state := map[string]string{}
		for sku, q := range book.Stock {
			state[fmt.Sprint(sku)] = event.Field{Quantities: q, Settings: book.Settings[sku]}.String()
		}
		s, err := g.shard(state, orders, buyers)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.SampledFrom([]int{1, 3, 6, 9, 12}).Draw(t, "calls") {
			ops := rapid.SliceOfN(shopOperation(), rapid.SampledFrom([]int{1, 4, 8}).Draw(t, "least"), 12).Draw(t, "operations")
			function := rapid.SampledFrom([]string{fnApply, fnApply, fnApply, fnSettle}).Draw(t, "function")
			reply, err := g.rdb.FCall(context.Background(), function, s.keys.list(), token(testLedger, 5), 1, int64(farAway), string(event.AppendOperations(nil, ops))).Text()
			if err != nil || !strings.HasPrefix(reply, "OK ") {
				t.Fatalf("%s %q answered %q, %v", function, event.AppendOperations(nil, ops), reply, err)
			}
		}
		if err := foldsTo(s, book, kinds); err != nil {
			t.Fatal(err)
		}
		_ = g.rdb.Unlink(context.Background(), s.keys.list()...)
	}
	// Chance decides what happens: go on until everything did.
	var missing []string
	for range 20 {
		rapid.Check(t, history)
		missing = slices.DeleteFunc([]string{
			"R", "S", "C", "X", "E", "L", "U", "P", "M", "m", "N", "T", "O",
			"partial", "with results", "fulfil", "cancel", "of a record", "fulfilled", "cancelled", "counted",
		}, func(kind string) bool { return kinds[kind] > 0 })
		if t.Failed() || len(missing) == 0 {
			break
		}
	}
	if len(missing) > 0 {
		t.Errorf("never accepted: %v of %v", missing, kinds)
	}
	t.Logf("accepted: %v", kinds)
}

// foldsTo folds the log of the shard into the book and compares it with Redis, in both directions.
func foldsTo(s *Shard, book *event.Book, kinds map[string]int) error {
	ctx := context.Background()
	raws, err := s.Range(ctx, stock.Position{}, 1000)
	if err != nil {
		return err
	}
	for i, raw := range raws {
		e, err := raw.Parse()
		if err != nil {
			return err
		}
		if want := (stock.Position{Epoch: 5, Seq: int64(i + 1)}); e.Position != want || e.Raw() != raw {
			return fmt.Errorf("entry %+v at %s, want %s", raw, e.Position, want)
		}
		// An after-image is of what the entry changed, and of nothing that it is not about.
		changed, about := maps.Clone(book.Stock), map[int64]bool{}
		off, err := book.Apply(&e, func(c event.Change) {
			kinds[string(event.AppendBody(nil, c.Op)[:1])]++
			note(kinds, c)
			for _, r := range []*stock.Reservation{c.Before, c.After} {
				if r != nil {
					for _, l := range r.Lines {
						about[l.SKU] = true
					}
				}
			}
		})
		if err != nil || len(off) > 0 {
			return fmt.Errorf("%+v: %v %w", raw, off, err)
		}
		maps.DeleteFunc(changed, func(sku int64, was stock.Quantities) bool { return book.Stock[sku] == was })
		for _, a := range e.After {
			if !about[a.SKU] {
				return fmt.Errorf("%+v has an after-image of SKU number %d, which it does not touch", raw, a.SKU)
			}
			delete(changed, a.SKU)
		}
		if len(changed) > 0 {
			return fmt.Errorf("%+v lacks the after-image of %v", raw, changed)
		}
	}
	wantOrders, wantState := map[string]string{"~": fmt.Sprintf("nonce.%d", len(raws))}, map[string]string{"e": "led.5", "q": fmt.Sprint(len(raws)), "m": "open", "n": "nonce", "v": "1"}
	for id, r := range book.Orders {
		wantOrders[id] = event.FormatRecord(r)
	}
	for sku, q := range book.Stock {
		wantState[fmt.Sprint(sku)] = event.Field{Quantities: q, Settings: book.Settings[sku]}.String()
	}
	if err := boughtIs(ctx, s, book, kinds); err != nil {
		return err
	}
	orders, err := s.rdb.HGetAll(ctx, s.keys.Orders).Result()
	if err != nil {
		return err
	}
	state, err := s.rdb.HGetAll(ctx, s.keys.State).Result()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(wantOrders, orders) + cmp.Diff(wantState, state); diff != "" {
		return fmt.Errorf("the log (-) and Redis (+) differ:\n%s", diff)
	}
	return nil
}

// note counts the interesting things that happened.
func note(kinds map[string]int, c event.Change) {
	for what, happened := range map[string]bool{
		"partial":      (c.Op.Kind == stock.Reserve || c.Op.Kind == stock.Sale) && c.Op.Lines[0].Now < c.Op.Lines[0].Asked,
		"with results": c.Op.Kind != stock.Replace && c.Op.Attempt > 0 && c.After != nil && c.Before != nil && len(c.Op.Lines) > 0,
		"fulfil":       c.Op.Document == stock.DocumentFulfil && !c.Op.Refused,
		"cancel":       c.Op.Document == stock.DocumentCancel && !c.Op.Refused,
		"of a record":  c.OrderAfter != nil,
		"fulfilled":    c.OrderAfter != nil && c.OrderAfter.State == stock.Fulfilled,
		"cancelled":    c.OrderAfter != nil && c.OrderAfter.State == stock.Cancelled,
	} {
		if happened {
			kinds[what]++
		}
	}
}

// boughtIs compares what buyers have of the SKUs whose limit is counted in full.
func boughtIs(ctx context.Context, s *Shard, book *event.Book, kinds map[string]int) error {
	all, err := s.rdb.HGetAll(ctx, s.keys.Buyers).Result()
	if err != nil {
		return err
	}
	want, have := map[string]string{}, map[string]string{}
	for key, units := range book.Bought {
		if all[fmt.Sprint(key.SKU)] == "1" && book.Settings[key.SKU].Limit > 0 {
			want[fmt.Sprintf("%d:%s", key.SKU, key.Buyer)] = fmt.Sprint(units)
			kinds["counted"]++
		}
	}
	for field, units := range all {
		if sku, _, found := strings.Cut(field, ":"); found && all[sku] == "1" {
			have[field] = units
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		return fmt.Errorf("what buyers have by the log (-) and by Redis (+) differs:\n%s", diff)
	}
	return nil
}
