package event_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/event"
)

// Each line is an entry and what buyers have afterwards: "<sku>:<buyer>=<units> …", in any order.
func TestBuyersAreFollowedWhereThereIsALimit(t *testing.T) {
	t.Parallel()
	for name, scenario := range map[string]string{
		"only of SKUs with a limit, only for a buyer": `
			R900000|1|1=2,2=2 A,ann -> 1:ann=2
			R900000|1|1=2 B         -> 1:ann=2
			S|1|1=3 C,bob           -> 1:ann=2 1:bob=3`,
		"given back by release, expiry and a part of a confirm": `
			R900000|1|1=2 A,ann B,bob C,eve D,ann -> 1:ann=4 1:bob=2 1:eve=2
			X1 A                    -> 1:ann=2 1:bob=2 1:eve=2
			E1 B                    -> 1:ann=2 1:eve=2
			C1|1=1 C                -> 1:ann=2 1:eve=1
			C1 D                    -> 1:ann=2 1:eve=1
			L1|1=1 B                -> 1:ann=2 1:eve=1 1:bob=1`,
		"with the lines of a release and a replace": `
			R900000|1|1=4 A,ann     -> 1:ann=4
			X1|1=3 A                -> 1:ann=3
			P1|1=5,2=1 A            -> 1:ann=5
			P1|2=1 A                -> 
			U1|1790000900001 A      -> 
			P1|1=1 A                -> 1:ann=1`,
		"what was taken of a partial": `
			R900000|1|1=9:4|p A,ann -> 1:ann=4`,
		"a cancellation gives back, a parcel and a return do not": `
			S|1|1=5 A,ann                       -> 1:ann=5
			M1|fulfil|p|1=-2|A|1|1 ~f           -> 1:ann=5
			M1|cancel|p|1=+1|A|1|1 ~c,ann       -> 1:ann=4
			m1|cancel|p|1=+9|A|1|1 ~d,ann       -> 1:ann=4
			M1|return|p|1=+1|A|1|1 ~r           -> 1:ann=4
			M1|cancel|p|1=+1|A|7|0 ~e,ann       -> 1:ann=3
			M1|cancel|p|1=+1|A|1|1 ~g           -> 1:ann=3`,
		"the next attempt, and by somebody else": `
			R900000|1|1=2 A,ann;X1 A            -> 
			R900000|2|1=3 A,bob                 -> 1:bob=3`,
		"never below nothing, and not while there is no limit": `
			R900000|1|2=3 A,ann                 -> 
			T2|-||9 ~~t                         -> 
			R900000|1|2=1 B,ann                 -> 2:ann=1
			X1 A                                -> 
			T2|-||0 ~~t;R900000|1|2=1 C,ann     -> `,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			book := event.NewBook(0)
			book.Bought = map[event.BuyerKey]int64{}
			seq := int64(0)
			for line := range strings.Lines("N1|1=50|tea ~~o1;N1|2=50|cup ~~o2;T1|-||9 ~~t -> " + "\n" + scenario) {
				ops, text, ok := strings.Cut(line, "-> ")
				if !ok {
					continue
				}
				want := map[event.BuyerKey]int64{}
				for field := range strings.FieldsSeq(text) {
					var key event.BuyerKey
					var n int64
					if _, err := fmt.Sscanf(strings.NewReplacer(":", " ", "=", " ").Replace(field), "%d %s %d", &key.SKU, &key.Buyer, &n); err != nil {
						t.Fatal(field, err)
					}
					want[key] = n
				}
				seq++
				if _, err := book.Apply(entry(t, seq, strings.TrimSpace(ops)), nil); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				if diff := cmp.Diff(want, book.Bought); diff != "" {
					t.Fatalf("%s\n%s", line, diff)
				}
			}
		})
	}
}

// Nobody pays for what nobody asked.
func TestABookWithoutBuyersCountsNone(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	if _, err := book.Apply(entry(t, 1, "N1|1=50|tea ~~o1;T1|-||9 ~~t;S|1|1=5 A,ann"), nil); err != nil || book.Bought != nil {
		t.Error(err, book.Bought)
	}
}

func TestADocumentTellsWhatBecameOfItsOrder(t *testing.T) {
	t.Parallel()
	book := event.NewBook(0)
	var changes []event.Change
	for i, ops := range []string{"N1|1=10|tea ~~open:1;S|1|1=3 A", "M1|fulfil|p|1=-1|A|1|1 ~f;M1|return|p|1=+1|A|1|1 ~r;M1|cancel|p|1=+1|B|1|1 ~c"} {
		if _, err := book.Apply(entry(t, int64(i+1), ops), func(c event.Change) { changes = append(changes, c) }); err != nil {
			t.Fatal(err)
		}
	}
	sold, shipped, returned, stray := changes[1], changes[2], changes[3], changes[4]
	if shipped.OrderBefore != sold.After || shipped.After.ID != "~f" || event.FormatRecord(shipped.OrderAfter) != "c|5-2-0|1|0||1=3:2:1" {
		t.Errorf("%+v", shipped)
	}
	if event.FormatRecord(sold.After) != "c|5-1-1|1|0||1=3" || book.Orders["A"] != shipped.OrderAfter {
		t.Errorf("%+v", sold)
	}
	for _, c := range []event.Change{sold, returned, stray} {
		if c.OrderBefore != nil || c.OrderAfter != nil {
			t.Errorf("%+v", c)
		}
	}
}
