package verdict

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/sale"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// goodSale is a sale of 2 espresso machines and a cup in which everything went well.
func goodSale() *SaleFacts {
	order := func(id string, told sale.Told, accepted bool, sku string) *sale.Order {
		return &sale.Order{ID: id, Told: told, Accepted: accepted, Receipt: "0.1.1.0", Lines: []api.Line{{SKU: sku, Quantity: 1}}}
	}
	row := func(state stock.State, sku int64) stock.Reservation {
		return stock.Reservation{State: state, Lines: stock.Lines{{SKU: sku, Asked: 1, Now: 1}}}
	}
	return &SaleFacts{
		Orders: []*sale.Order{
			order("a", sale.Confirmed, true, "machine"), order("b", sale.Confirmed, true, "machine"), order("c", sale.Released, true, "machine"),
			order("d", sale.Held, true, "machine"), order("e", sale.Refused, false, "machine"), order("f", sale.Confirmed, true, "cup"),
			order("g", sale.Refused, true, "machine"), // it expired before it was paid
		},
		Articles: []sale.Article{{SKU: "machine", Opening: 2}, {SKU: "cup", Opening: 9}},
		Ledger: map[string]stock.Reservation{
			"a": row(stock.Confirmed, 1), "b": row(stock.Confirmed, 1), "c": row(stock.Released, 1), "d": row(stock.Expired, 1),
			"f": row(stock.Confirmed, 2), "g": row(stock.Expired, 1),
		},
		Lost: map[string]bool{},
		Stock: map[string]pipeline.Figure{
			"machine": figure(1, 2, stock.Quantities{Committed: 2}),
			"cup":     figure(2, 9, stock.Quantities{Available: 8, Committed: 1}),
		},
		Health: goodHealth(),
	}
}

func goodHealth() Health {
	return Health{Audit: pipeline.Audit{Compared: true, SKUs: 2, Orders: 6}}
}

// figure is a SKU that both stores agree on.
func figure(number, opening int64, q stock.Quantities) pipeline.Figure {
	return pipeline.Figure{Number: number, Opening: opening, Redis: &event.Field{Quantities: q}, Postgres: &event.Field{Quantities: q}}
}

func TestAGoodSaleKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	if v := Sale(*goodSale()); !v.Kept() {
		t.Errorf("got\n%v", v)
	}
}

func TestWhatGoesWrongInASaleBreaksItsPromise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(*SaleFacts)
		want []string // promises that break
	}{
		{"no answer", func(f *SaleFacts) { f.Orders[4].Told = sale.Unknown }, []string{"every buyer got an answer"}},
		{"shop closed", func(f *SaleFacts) { f.Orders[4].Told = sale.Closed }, []string{"every buyer got an answer"}},
		{"one unit too many, everywhere", func(f *SaleFacts) {
			f.Orders[4].Told, f.Orders[4].Accepted = sale.Confirmed, true
			f.Ledger["e"] = f.Ledger["a"]
			f.Stock["machine"] = figure(1, 2, stock.Quantities{Available: -1, Committed: 3})
		}, []string{"nothing was oversold", "sold = units"}},
		{"oversold in Redis alone", func(f *SaleFacts) { f.Stock["machine"].Redis.Held++ },
			[]string{"nothing was oversold", "the callers' lists, Redis and Postgres agree on every SKU"}},
		{"refused too early", func(f *SaleFacts) {
			f.Orders[1].Told, f.Orders[1].Accepted = sale.Refused, false
			delete(f.Ledger, "b")
			f.Stock["machine"] = figure(1, 2, stock.Quantities{Available: 1, Committed: 1})
		}, []string{"sold = units"}},
		{"confirmed and not persisted", func(f *SaleFacts) { delete(f.Ledger, "a") }, []string{"every acceptance is in Postgres exactly once"}},
		{"confirmed, lost and reported", func(f *SaleFacts) { delete(f.Ledger, "a"); f.Lost["a"] = true }, []string{"every acceptance is in Postgres exactly once"}},
		{"held and vanished", func(f *SaleFacts) { delete(f.Ledger, "d") }, []string{"every acceptance is in Postgres exactly once"}},
		{"held, lost and reported", func(f *SaleFacts) { delete(f.Ledger, "d"); f.Lost["d"] = true }, nil},
		{"an order that nobody made", func(f *SaleFacts) { f.Ledger["x"] = f.Ledger["d"] }, []string{"every acceptance is in Postgres exactly once"}},
		{"refused and persisted", func(f *SaleFacts) { f.Ledger["e"] = f.Ledger["d"] }, []string{"every acceptance is in Postgres exactly once"}},
		{"other lines", func(f *SaleFacts) {
			f.Ledger["a"] = stock.Reservation{State: stock.Confirmed, Lines: stock.Lines{{SKU: 1, Asked: 2}}}
		},
			[]string{"every acceptance is in Postgres exactly once"}},
		{"confirmed, in Postgres expired", func(f *SaleFacts) { f.Ledger["a"] = f.Ledger["d"] }, []string{"every order ended as its buyer was told"}},
		{"released, in Postgres confirmed", func(f *SaleFacts) { f.Ledger["c"] = f.Ledger["a"] }, []string{"every order ended as its buyer was told"}},
		{"a hold that never ends", func(f *SaleFacts) { r := f.Ledger["d"]; r.State = stock.Held; f.Ledger["d"] = r },
			[]string{"every order ended as its buyer was told", "every hold ended"}},
		{"taken twice", func(f *SaleFacts) { f.Orders[0].Twice = "answered with two receipts" }, []string{"repeated requests moved nothing"}},
		{"twice in the list", func(f *SaleFacts) { f.Orders = append(f.Orders, f.Orders[4]) }, []string{"repeated requests moved nothing"}},
		{"a field changed by hand in Redis", func(f *SaleFacts) { f.Stock["cup"].Redis.Available++ }, []string{"the callers' lists, Redis and Postgres agree on every SKU"}},
		{"a row changed by hand in Postgres", func(f *SaleFacts) { f.Stock["cup"].Postgres.Available-- }, []string{"the callers' lists, Redis and Postgres agree on every SKU"}},
		{"gone from Redis", func(f *SaleFacts) { s := f.Stock["cup"]; s.Redis = nil; f.Stock["cup"] = s }, []string{"the callers' lists, Redis and Postgres agree on every SKU"}},
		{"gone from Postgres", func(f *SaleFacts) { s := f.Stock["cup"]; s.Postgres = nil; f.Stock["cup"] = s }, []string{"the callers' lists, Redis and Postgres agree on every SKU"}},
		{"behind", func(f *SaleFacts) { f.Health.Lag = 3 }, []string{"Postgres has everything that Redis has"}},
		{"drift", func(f *SaleFacts) { f.Health.Audit.Exit, f.Health.Audit.Findings = 2, []string{"tampered"} }, []string{"the audit finds no difference"}},
		{"exit code without a reason", func(f *SaleFacts) { f.Health.Audit.Exit = 3 }, []string{"the audit finds no difference"}},
		{"not compared", func(f *SaleFacts) { f.Health.Audit.Compared = false }, []string{"the audit finds no difference"}},
		{"frozen meanwhile", func(f *SaleFacts) { f.Stock["cup"].Redis.Frozen = true }, []string{"no store was doubted while it ran"}},
		{"doubted meanwhile", func(f *SaleFacts) { s := f.Stock["cup"]; s.Doubt = "8 and 9"; f.Stock["cup"] = s }, []string{"no store was doubted while it ran"}},
		{"mended meanwhile", func(f *SaleFacts) { f.Health.Repairs = []ledger.Repair{{Class: "tampered", Verb: "takeover"}} }, []string{"no store was doubted while it ran"}},
	} {
		f := goodSale()
		c.do(f)
		if diff := cmp.Diff(c.want, broken(Sale(*f))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// goodReplay is a file of two sales, a credit and an adjustment that was replayed without a fault.
func goodReplay(t *testing.T) *ReplayFacts {
	file, err := orderfile.Read(strings.NewReader("InvoiceNo,StockCode,Quantity\n1,a,5\n1,b,2\n2,a,1\nC3,a,-2\n4,b,-1\n"))
	if err != nil {
		t.Fatal(err)
	}
	return &ReplayFacts{
		File: file, Sold: 2, Shipped: 2, Credited: 1, Adjusted: 1,
		Ledger: map[string]stock.Reservation{
			"1": {State: stock.Fulfilled, Lines: stock.Lines{{SKU: 1, Asked: 5, Fulfilled: 5}, {SKU: 2, Asked: 2, Fulfilled: 2}}},
			"2": {State: stock.Fulfilled, Lines: stock.Lines{{SKU: 1, Asked: 1, Fulfilled: 1}}},
		},
		Stock: map[string]pipeline.Figure{
			"a": figure(1, 6, stock.Quantities{Available: 2}),
			"b": figure(2, 2, stock.Quantities{Available: 1}),
		},
		Health: goodHealth(),
	}
}

func TestAGoodReplayKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	if v := Replay(*goodReplay(t)); !v.Kept() {
		t.Errorf("got\n%v", v)
	}
}

func TestWhatGoesWrongInAReplayBreaksItsPromise(t *testing.T) {
	t.Parallel()
	const (
		taken     = "the whole file was taken"
		persisted = "every sale is in Postgres, line by line"
		left      = "every SKU's on_hand and available are opening minus net"
		net       = "net of all units"
		shipped   = "fulfilled = units sold, nothing was oversold"
		audited   = "the audit finds no difference"
	)
	for _, c := range []struct {
		name string
		do   func(*ReplayFacts)
		want []string
	}{
		{"refused", func(f *ReplayFacts) { f.Refusals = []string{"sell order 1: sold out"} }, []string{taken}},
		{"a sale not answered", func(f *ReplayFacts) { f.Sold-- }, []string{taken}},
		{"a credit not answered", func(f *ReplayFacts) { f.Credited-- }, []string{taken}},
		{"an adjustment not answered", func(f *ReplayFacts) { f.Adjusted-- }, []string{taken}},
		{"a sale not shipped", func(f *ReplayFacts) { f.Shipped-- }, []string{taken}},
		{"a sale not persisted", func(f *ReplayFacts) { delete(f.Ledger, "2") }, []string{persisted, shipped}},
		{"a sale not fulfilled", func(f *ReplayFacts) { r := f.Ledger["2"]; r.State = stock.Confirmed; f.Ledger["2"] = r }, []string{persisted}},
		{"a parcel twice", func(f *ReplayFacts) { f.Ledger["2"].Lines[0].Fulfilled = 2 }, []string{persisted, shipped}},
		{"still committed", func(f *ReplayFacts) { f.Stock["a"].Redis.Committed = 1 }, []string{left, shipped}},
		{"another quantity", func(f *ReplayFacts) { f.Ledger["2"].Lines[0].Asked = 2 }, []string{persisted}},
		{"a line missing", func(f *ReplayFacts) { r := f.Ledger["1"]; r.Lines = r.Lines[:1]; f.Ledger["1"] = r }, []string{persisted, shipped}},
		{"one more in Redis", func(f *ReplayFacts) { f.Stock["a"].Redis.Available++ }, []string{left, net}},
		{"one less in Postgres", func(f *ReplayFacts) { f.Stock["a"].Postgres.Available-- }, []string{left, net}},
		{"two mistakes that cancel out", func(f *ReplayFacts) { f.Stock["a"].Redis.Available++; f.Stock["b"].Redis.Available-- }, []string{left}},
		{"still held", func(f *ReplayFacts) { f.Stock["a"].Redis.Held = 1 }, []string{left}},
		{"sold twice", func(f *ReplayFacts) { f.Stock["b"] = figure(2, 2, stock.Quantities{Available: -1, Committed: 4}) }, []string{left, net, shipped}},
		{"not in Redis", func(f *ReplayFacts) { s := f.Stock["b"]; s.Redis = nil; f.Stock["b"] = s }, []string{left, net}},
		{"not in Postgres", func(f *ReplayFacts) { s := f.Stock["b"]; s.Postgres = nil; f.Stock["b"] = s }, []string{left, net}},
		{"unknown SKU", func(f *ReplayFacts) { delete(f.Stock, "b") }, []string{persisted, left, net}},
		{"another opening", func(f *ReplayFacts) { s := f.Stock["b"]; s.Opening++; f.Stock["b"] = s }, []string{left, net}},
		{"drift", func(f *ReplayFacts) { f.Health.Audit.Findings = []string{"tampered"} }, []string{audited}},
	} {
		f := goodReplay(t)
		c.do(f)
		if diff := cmp.Diff(c.want, broken(Replay(*f))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestABrokenPromiseNamesAFewCasesAndCountsTheRest(t *testing.T) {
	t.Parallel()
	f := goodSale()
	f.Ledger = maps.Clone(f.Ledger)
	for _, id := range []string{"a", "b", "c", "d", "f"} {
		delete(f.Ledger, id)
	}
	p := f.persisted()
	if p.Kept || len(p.Examples) != mostExamples+1 || p.Examples[mostExamples] != "and 2 more" {
		t.Errorf("got %v", p)
	}
	if !strings.HasPrefix(p.String(), "✗ every acceptance is in Postgres exactly once: 6 accepted, 5 missing,") {
		t.Errorf("got %v", p)
	}
}

func TestNumbersAreWrittenInThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 302956: "302,956", 1234567: "1,234,567", -18942: "-18,942", -100: "-100"} {
		if got := Count(n); got != want {
			t.Errorf("%d is written %s, want %s", n, got, want)
		}
	}
}

// broken lists the promises that were not kept.
func broken(v Verdict) []string {
	var names []string
	for _, p := range v {
		if !p.Kept {
			names = append(names, p.Name)
		}
	}
	return names
}
