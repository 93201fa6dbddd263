package verdict

import (
	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/sale"
	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// SaleFacts is what is known when a sale is over.
type SaleFacts struct {
	Orders   []*sale.Order                // the callers' own list
	Articles []sale.Article               // what was stocked, the hot one first
	Ledger   map[string]stock.Reservation // the orders of this sale in Postgres, by id
	Lost     map[string]bool              // orders whose receipt the shop calls lost
	Stock    map[string]pipeline.Figure   // by SKU
	Health   Health
}

// Sale judges a sale.
func Sale(f SaleFacts) Verdict {
	sold := f.sold()
	return append(Verdict{
		f.answered(), f.oversold(sold), f.soldOut(sold), f.persisted(), f.ended(), f.onceOnly(), f.addsUp(sold), f.released(),
	}, f.Health.promises(f.Stock)...)
}

// answered: nobody is left without a final answer.
func (f *SaleFacts) answered() Promise {
	var b breaches
	told := map[sale.Told]int{}
	for _, o := range f.Orders {
		told[o.Told]++
		if o.Told == sale.Unknown || o.Told == sale.Closed || o.Told == "" {
			b.add("order %s: %s", o.ID, o.Told)
		}
	}
	return b.promise("every buyer got an answer", "%s orders: %s confirmed, %s released, %s left to expire, %s refused, %s without",
		Count(len(f.Orders)), Count(told[sale.Confirmed]), Count(told[sale.Released]), Count(told[sale.Held]),
		Count(told[sale.Refused]), Count(b.count))
}

// sold sums up, by SKU, what the callers were told is theirs. Where no answer came, Postgres is asked: either is
// right, as long as all stores agree.
func (f *SaleFacts) sold() map[string]int64 {
	sold := map[string]int64{}
	for _, o := range f.Orders {
		unsure := (o.Told == sale.Unknown || o.Told == sale.Closed) && f.Ledger[o.ID].State == stock.Confirmed
		if o.Told == sale.Confirmed || unsure {
			for _, l := range o.Lines {
				sold[l.SKU] += l.Quantity
			}
		}
	}
	return sold
}

// oversold: neither by the callers' lists nor in a store is more sold and held than was stocked.
func (f *SaleFacts) oversold(sold map[string]int64) Promise {
	var b breaches
	var beyond int64
	for _, a := range f.Articles {
		most := sold[a.SKU]
		for _, q := range quantities(f.Stock[a.SKU]) {
			most = max(most, q.Held+q.Committed)
		}
		if most > a.Opening {
			beyond += most - a.Opening
			b.add("%s: %s units are promised, %s were stocked", a.SKU, Count(most), Count(a.Opening))
		}
	}
	return b.promise("nothing was oversold", "%s SKUs, %s units beyond their stock", Count(len(f.Articles)), Count(beyond))
}

// quantities of a SKU in the stores that have it.
func quantities(f pipeline.Figure) []stock.Quantities {
	var found []stock.Quantities
	if f.Redis != nil {
		found = append(found, f.Redis.Quantities)
	}
	if f.Postgres != nil {
		found = append(found, f.Postgres.Quantities)
	}
	return found
}

// soldOut: whoever was refused the hot article was refused because it was gone.
func (f *SaleFacts) soldOut(sold map[string]int64) Promise {
	var b breaches
	hot := f.Articles[0]
	refused := 0
	for _, o := range f.Orders {
		if o.Told == sale.Refused && !o.Accepted && o.Lines[0].SKU == hot.SKU {
			refused++
		}
	}
	if sold[hot.SKU] > hot.Opening {
		b.add("%s: %s units were sold, %s were stocked", hot.SKU, Count(sold[hot.SKU]), Count(hot.Opening))
	}
	if refused > 0 && sold[hot.SKU] < hot.Opening {
		b.add("%s: %s buyers were refused although only %s of %s units were sold", hot.SKU, Count(refused), Count(sold[hot.SKU]), Count(hot.Opening))
	}
	return b.promise("sold = units", "%s of %s units of %s, %s buyers refused", Count(sold[hot.SKU]), Count(hot.Opening), hot.SKU, Count(refused))
}

// persisted: the orders that callers were told are accepted and those in Postgres are the same, line by line.
func (f *SaleFacts) persisted() Promise {
	var b breaches
	accepted, missing, lost := 0, 0, 0
	listed := map[string]bool{}
	for _, o := range f.Orders {
		listed[o.ID] = true
		row, there := f.Ledger[o.ID]
		if !o.Accepted {
			if there && (o.Told == sale.Refused) {
				b.add("order %s was refused, and is %s in Postgres", o.ID, row.State)
			}
			continue
		}
		accepted++
		switch {
		case !there && f.Lost[o.ID] && o.Told != sale.Confirmed:
			lost++
		case !there:
			missing++
			b.add("order %s was accepted (receipt %s, then %s), and is not in Postgres", o.ID, o.Receipt, o.Told)
		case !f.sameLines(o.Lines, row.Lines):
			b.add("order %s: Postgres has other lines: %v", o.ID, row.Lines)
		}
	}
	extra := 0
	for id := range f.Ledger {
		if !listed[id] {
			extra++
			b.add("order %s is in Postgres, and nobody asked for it", id)
		}
	}
	return b.promise("every acceptance is in Postgres exactly once", "%s accepted, %s missing, %s extra, %s lost and reported",
		Count(accepted), Count(missing), Count(extra), Count(lost))
}

func (f *SaleFacts) sameLines(asked []api.Line, lines stock.Lines) bool {
	if len(asked) != len(lines) {
		return false
	}
	units := map[int64]int64{}
	for _, l := range asked {
		units[f.Stock[l.SKU].Number] += l.Quantity
	}
	for _, l := range lines {
		if units[l.SKU] != l.Asked {
			return false
		}
	}
	return true
}

// ended: a reservation ended as its buyer was told, and in Postgres too.
func (f *SaleFacts) ended() Promise {
	var b breaches
	states := map[stock.State]int{}
	for _, o := range f.Orders {
		row, there := f.Ledger[o.ID]
		if !o.Accepted || !there {
			continue
		}
		states[row.State]++
		if !fits(o.Told, row.State) && (!f.Lost[o.ID] || o.Told == sale.Confirmed) {
			b.add("order %s: told %s, in Postgres %s", o.ID, o.Told, row.State)
		}
	}
	return b.promise("every order ended as its buyer was told", "%s confirmed, %s released, %s expired in Postgres",
		Count(states[stock.Confirmed]), Count(states[stock.Released]), Count(states[stock.Expired]))
}

// fits says whether a state in Postgres is what the last answer allows once everything has ended.
func fits(told sale.Told, state stock.State) bool {
	switch told {
	case sale.Confirmed:
		return state == stock.Confirmed
	case sale.Released:
		return state == stock.Released
	case sale.Held, sale.Refused: // left alone, or too late to pay
		return state == stock.Expired
	case sale.Vanished:
		return false
	}
	return true // no answer came: any end is right
}

// onceOnly: a request that was sent again moved nothing.
func (f *SaleFacts) onceOnly() Promise {
	var b breaches
	repeats := 0
	seen := map[string]bool{}
	for _, o := range f.Orders {
		repeats += o.Repeats
		if o.Twice != "" {
			b.add("order %s %s", o.ID, o.Twice)
		}
		if seen[o.ID] {
			b.add("order %s stands twice in the callers' list", o.ID)
		}
		seen[o.ID] = true
	}
	return b.promise("repeated requests moved nothing", "%s repeats, %s taken twice", Count(repeats), Count(b.count))
}

// addsUp: opening minus what the callers bought is what both stores have.
func (f *SaleFacts) addsUp(sold map[string]int64) Promise {
	var b breaches
	for _, a := range f.Articles {
		want := stock.Quantities{Available: a.Opening - sold[a.SKU], Committed: sold[a.SKU]}
		compare(&b, a.SKU, want, f.Stock[a.SKU])
	}
	return b.promise("the callers' lists, Redis and Postgres agree on every SKU", "%s SKUs, %s differ", Count(len(f.Articles)), Count(b.count))
}

// compare holds a SKU in both stores against what the callers' lists say.
func compare(b *breaches, sku string, want stock.Quantities, f pipeline.Figure) {
	redis, postgres := "nothing", "nothing"
	if f.Foul != "" {
		redis = f.Foul
	}
	if f.Redis != nil {
		redis = f.Redis.Quantities.String()
	}
	if f.Postgres != nil {
		postgres = f.Postgres.Quantities.String()
	}
	same := f.Redis != nil && f.Redis.Quantities == want && f.Postgres != nil && f.Postgres.Quantities == want
	if !same {
		b.add("%s (number %d): %v expected, Redis %s, Postgres %s", sku, f.Number, want, redis, postgres)
	}
}

// released: nothing is held when everybody has gone.
func (f *SaleFacts) released() Promise {
	var b breaches
	for _, o := range f.Orders {
		if row := f.Ledger[o.ID]; row.State == stock.Held {
			b.add("order %s is still held", o.ID)
		}
	}
	return b.promise("every hold ended", "%s still held", Count(b.count))
}

// Differs says whether Postgres tells another story of an accepted order than its buyer was told, so that its
// receipt has to be asked about.
func Differs(o *sale.Order, ledger map[string]stock.Reservation) bool {
	row, there := ledger[o.ID]
	return !there || !fits(o.Told, row.State)
}
