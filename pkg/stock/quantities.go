package stock

import "fmt"

// Quantities are the units of one SKU. OnHand is their sum; an order moves units between the three, only a
// document changes the sum.
type Quantities struct {
	Available int64 // free to be promised
	Held      int64 // promised for a time, unpaid
	Committed int64 // sold, not shipped
}

// OnHand is available + held + committed.
func (q Quantities) OnHand() int64 { return q.Available + q.Held + q.Committed }

// Valid reports whether no quantity is negative and the sum fits MaxStockQuantity.
func (q Quantities) Valid() bool {
	// Each by itself first, so that the sum cannot wrap around.
	return inStock(q.Available) && inStock(q.Held) && inStock(q.Committed) && q.OnHand() <= MaxStockQuantity
}

func inStock(n int64) bool { return n >= 0 && n <= MaxStockQuantity }

func (q Quantities) String() string {
	return fmt.Sprintf("%d available, %d held, %d committed", q.Available, q.Held, q.Committed)
}

// Settings are what a SKU is told besides its quantities.
type Settings struct {
	OpensMillis int64 // no units are taken before this Redis time, milliseconds since 1970; 0 = at once
	Frozen      bool  // in doubt: no units are taken until it is lifted
	Closed      bool  // closed for sale by the shop
	Limit       int64 // units per buyer; 0 = none
}
