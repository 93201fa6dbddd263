package verdict

import (
	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/deploy/demo/internal/pipeline"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// ReplayFacts is what is known when an order file was replayed.
type ReplayFacts struct {
	File     *orderfile.File
	Sold     int64    // orders that were answered as confirmed and persisted, in this run
	Shipped  int64    // of those, orders that were answered as fulfilled and persisted
	Credited int64    // return documents that were answered as applied and persisted
	Adjusted int64    // adjust documents
	Refusals []string // what was not taken

	Ledger map[string]stock.Reservation // the file's orders in Postgres, by id
	Stock  map[string]pipeline.Figure   // by SKU
	Health Health
}

// Replay judges the replay of an order file.
func Replay(f ReplayFacts) Verdict {
	return append(Verdict{f.taken(), f.persisted(), f.left(), f.net(), f.shipped()}, f.Health.promises(f.Stock)...)
}

// taken: everything in the file was sent and answered for good.
func (f *ReplayFacts) taken() Promise {
	var b breaches
	for _, r := range f.Refusals {
		b.add("%s", r)
	}
	credits, adjusts := f.documents()
	if f.Sold != int64(len(f.File.Sales)) || f.Shipped != f.Sold || f.Credited != credits || f.Adjusted != adjusts {
		b.add("not everything was sent, or answered")
	}
	return b.promise("the whole file was taken", "%s of %s sales, %s shipped, %s of %s return documents (%s credits), %s of %s adjust documents",
		Count(f.Sold), Count(len(f.File.Sales)), Count(f.Shipped), Count(f.Credited), Count(credits), Count(f.File.Credits), Count(f.Adjusted), Count(adjusts))
}

func (f *ReplayFacts) documents() (credits, adjusts int64) {
	for _, m := range f.File.Movements {
		if m.Credit {
			credits++
		} else {
			adjusts++
		}
	}
	return credits, adjusts
}

// persisted: each sale is in Postgres, fulfilled, with the lines of the file.
func (f *ReplayFacts) persisted() Promise {
	var b breaches
	right := 0
	for _, sale := range f.File.Sales {
		row, there := f.Ledger[sale.Order]
		switch {
		case !there:
			b.add("order %s is not in Postgres", sale.Order)
		case row.State != stock.Fulfilled:
			b.add("order %s is %s in Postgres", sale.Order, row.State)
		case !f.sameLines(sale.Lines, row.Lines):
			b.add("order %s has other lines in Postgres than in the file", sale.Order)
		default:
			right++
		}
	}
	return b.promise("every sale is in Postgres, line by line", "%s of %s", Count(right), Count(len(f.File.Sales)))
}

func (f *ReplayFacts) sameLines(asked []orderfile.Line, lines stock.Lines) bool {
	if len(asked) != len(lines) {
		return false
	}
	units := map[int64]int64{}
	for _, l := range asked {
		units[f.Stock[l.SKU].Number] += l.Quantity
	}
	for _, l := range lines {
		if units[l.SKU] != l.Asked || l.Fulfilled != l.Asked || l.Now != 0 {
			return false
		}
	}
	return true
}

// left: each SKU ends at its opening minus its net, in both stores; all of it is free, since what was sold is shipped.
func (f *ReplayFacts) left() Promise {
	var b breaches
	redis, postgres := 0, 0
	for _, sku := range f.File.SKUs {
		figure := f.Stock[sku.Text]
		want := stock.Quantities{Available: sku.Available()}
		if figure.Redis != nil && figure.Redis.Available == want.Available {
			redis++
		}
		if figure.Postgres != nil && figure.Postgres.Available == want.Available {
			postgres++
		}
		compare(&b, sku.Text, want, figure)
		if figure.Number != 0 && figure.Opening != sku.Opening {
			b.add("%s was opened with %s units, the file needs %s", sku.Text, Count(figure.Opening), Count(sku.Opening))
		}
	}
	all := Count(len(f.File.SKUs))
	return b.promise("every SKU's on_hand and available are opening minus net", "%s of %s in Redis, %s of %s in Postgres", Count(redis), all, Count(postgres), all)
}

// net: all units together, so that two mistakes can not hide each other in a sum of SKUs that nobody listed.
func (f *ReplayFacts) net() Promise {
	var b breaches
	var redis, postgres int64
	for _, sku := range f.File.SKUs {
		figure := f.Stock[sku.Text]
		if figure.Redis != nil {
			redis += figure.Opening - figure.Redis.Available
		}
		if figure.Postgres != nil {
			postgres += figure.Opening - figure.Postgres.Available
		}
	}
	if redis != f.File.Net() || postgres != f.File.Net() {
		b.add("the file says %s", Count(f.File.Net()))
	}
	return b.promise("net of all units", "%s out, %s back, net %s; %s in Redis, %s in Postgres",
		Count(f.File.UnitsOut), Count(f.File.UnitsIn), Count(f.File.Net()), Count(redis), Count(postgres))
}

// shipped: what was sold is fulfilled, no more and no less, and nothing of it is committed any more.
func (f *ReplayFacts) shipped() Promise {
	var b breaches
	var units int64
	for _, row := range f.Ledger {
		for _, l := range row.Lines {
			units += l.Fulfilled
		}
	}
	for _, sku := range f.File.SKUs {
		for _, q := range quantities(f.Stock[sku.Text]) {
			if q.Committed != 0 {
				b.add("%s: %s units are still committed", sku.Text, Count(q.Committed))
			}
		}
	}
	if units != f.File.UnitsOut {
		b.add("the file sells %s", Count(f.File.UnitsOut))
	}
	return b.promise("fulfilled = units sold, nothing was oversold", "%s units shipped", Count(units))
}
