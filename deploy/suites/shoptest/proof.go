package shoptest

import "maps"

// A spoiling is what the judge of a mix must see: one thing in Postgres that is not as it was told.
type spoiling struct {
	name  string
	spoil func(*Books) bool // false: there was nothing to spoil
}

var spoilings = []spoiling{
	{"a document applied twice", func(b *Books) bool {
		return b.spoilPaper(func(p *paper) bool { p.applied++; return p.state == "applied" })
	}},
	{"a document applied and refused", func(b *Books) bool {
		return b.spoilPaper(func(p *paper) bool { p.refused++; return p.state == "applied" })
	}},
	{"a document that is gone", func(b *Books) bool {
		for id := range b.papers {
			delete(b.papers, id)
			return true
		}
		return false
	}},
	{"a document of which nobody was told", func(b *Books) bool {
		b.papers[b.Run+"-stranger"] = paper{state: "applied", applied: 1}
		return true
	}},
	{"an order that is gone", func(b *Books) bool {
		for order := range b.orders {
			delete(b.orders, order)
			return true
		}
		return false
	}},
	{"an order of which nobody was told", func(b *Books) bool {
		b.orders[b.Run+"-stranger"] = standing{state: "held", attempt: 1}
		return true
	}},
	{"a part that was released and is held", func(b *Books) bool {
		return b.spoilOrder(func(at *standing, _ string, l *units) bool { l.now++; return at.state == "held" })
	}},
	{"a part that was released and came back to nobody", func(b *Books) bool {
		b.stock[b.Skus[0]]++
		return true
	}},
	{"a sale that is not paid", func(b *Books) bool {
		return b.spoilOrder(func(at *standing, _ string, _ *units) bool {
			was := at.state
			at.state = "held"
			return was == "confirmed"
		})
	}},
	{"a parcel that left and is not known", func(b *Books) bool {
		return b.spoilOrder(func(at *standing, _ string, l *units) bool {
			l.now, l.fulfilled = l.now+1, l.fulfilled-1
			return l.fulfilled >= 0 && at.state == "fulfilled"
		})
	}},
	{"a buyer beyond his limit", func(b *Books) bool {
		return b.spoilOrder(func(at *standing, sku string, l *units) bool {
			l.now += mixLimit
			return sku == b.Limited && at.state == "confirmed" && l.now > mixLimit
		})
	}},
}

// spoilPaper changes the first document that it fits.
func (b *Books) spoilPaper(change func(*paper) bool) bool {
	for id, p := range b.papers {
		if change(&p) {
			b.papers[id] = p
			return true
		}
	}
	return false
}

// spoilOrder changes the first line that it fits.
func (b *Books) spoilOrder(change func(*standing, string, *units) bool) bool {
	for order, was := range b.orders {
		for sku := range was.lines {
			at := was.clone()
			l := at.lines[sku]
			if change(&at, sku, &l) {
				at.lines[sku] = l
				b.orders[order] = at
				return true
			}
		}
	}
	return false
}

// Prove shows that the judge condemns what it should: books that were found right, of a mix with limits, are spoiled in
// one place at a time.
func (b *Books) Prove() {
	t := b.Shop.T
	t.Helper()
	for _, one := range spoilings {
		copied := &Books{Mix: b.Mix, stock: maps.Clone(b.stock), orders: maps.Clone(b.orders), papers: maps.Clone(b.papers), Done: map[string]int{}}
		if !one.spoil(copied) {
			t.Errorf("the mix has nothing to show %s by", one.name)
			continue
		}
		copied.compare()
		if len(copied.faults) == 0 {
			t.Errorf("the judge of a mix does not see %s", one.name)
		}
	}
}
