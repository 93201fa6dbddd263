package shoptest

import (
	"context"
	"fmt"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
)

const mixTTL = 3600 // seconds: such a hold does not end within a row

// visit is one order, or one document, from its beginning to where the caller leaves it. A step that is refused, or
// whose outcome is not known, is the last.
func (c *mixCaller) visit(ctx context.Context) {
	c.visits++
	if c.visits%c.every == int64(1+3*c.n)%c.every {
		c.papers()
		return
	}
	cup, jug := c.Skus[0], c.Skus[1]
	some := 1 + c.chance.Int64N(3)
	switch p := c.chance.IntN(100); {
	case p < 20: // bought as it was put
		s := c.begin("")
		_ = c.reserve(s, mixTTL, "", line(cup, some), line(jug, 1)) && c.confirm(s)
	case p < 36: // a cart that changes
		s := c.begin("")
		_ = c.reserve(s, mixTTL, "", line(cup, some)) && c.replace(s, line(cup, 2), line(jug, some)) &&
			c.extend(s, 2*time.Hour) && c.confirm(s, rest(jug, some), rest(cup, 1))
	case p < 50: // less and less
		s := c.begin("")
		if c.reserve(s, mixTTL, "", line(cup, 3), line(jug, some)) && c.release(s, rest(cup, 1)) {
			if c.chance.IntN(2) == 0 {
				c.release(s)
			} else {
				c.confirm(s)
			}
		}
	case p < 60: // what is there of the scarce
		s := c.begin("")
		_ = c.reserve(s, mixTTL, "partial", line(c.Scarce, mixScarce), line(cup, 1)) && c.release(s)
	case p < 64: // paid too late
		s := c.begin("")
		if c.reserve(s, 1, "", line(jug, some)) {
			c.awaitExpired(ctx, s)
			c.confirm(s)
		}
	case p < 84 && c.Limited != "":
		c.limited(some)
	case p < 92: // given back
		s := c.begin("")
		_ = c.reserve(s, mixTTL, "", line(jug, some)) && c.release(s)
	default: // left
		c.reserve(c.begin(""), mixTTL, "", line(cup, some))
	}
}

// buyer is who the caller is now. Each is several orders of his until the next comes.
func (c *mixCaller) buyer() string {
	if c.chance.IntN(8) == 0 {
		c.buyers++
	}
	return fmt.Sprintf("b%d-%d", c.n, c.buyers)
}

// limited is an order of what a buyer may have little of; sooner or later he is refused.
func (c *mixCaller) limited(units int64) {
	s := c.begin(c.buyer())
	if !c.reserve(s, mixTTL, "", line(c.Limited, units)) {
		return
	}
	switch p := c.chance.IntN(5); {
	case p == 0:
		c.release(s)
	case p == 1:
		c.confirm(s, rest(c.Limited, 1))
	case p == 2 && units > 1:
		c.release(s, rest(c.Limited, 1))
	case p == 3:
		c.replace(s, line(c.Limited, 2), line(c.Skus[0], 1))
	default:
		c.confirm(s)
	}
}

// papers is a visit with documents.
func (c *mixCaller) papers() {
	cup, jug := c.Skus[0], c.Skus[1]
	s := c.begin("")
	switch p := c.chance.IntN(10); {
	case p < 2: // two parcels, and a part comes back
		_ = c.reserve(s, 0, "", line(cup, 3), line(jug, 1)) && c.amend(s, "fulfil", line(cup, 1)) && c.amend(s, "fulfil") &&
			c.amend(s, "return", line(cup, 1)) && c.amend(s, "scrap", line(cup, 1), line(jug, 1))
	case p < 4: // cancelled in part, and then all of it
		_ = c.reserve(s, mixTTL, "", line(cup, 2), line(jug, 1)) && c.confirm(s) && c.amend(s, "cancel", line(cup, 1)) && c.amend(s, "cancel")
	case p < 5: // shipped in part, the rest is cancelled
		_ = c.reserve(s, 0, "", line(cup, 2), line(jug, 2)) && c.amend(s, "fulfil", line(jug, 1), line(cup, 1)) && c.amend(s, "cancel")
	case p < 7 && c.Limited != "": // what is cancelled may be had again
		s.Buyer = c.buyer()
		_ = c.reserve(s, 0, "", line(c.Limited, 2)) && c.amend(s, "cancel", line(c.Limited, 1)) && c.amend(s, "fulfil")
	case p < 8:
		c.move(s, []string{"receive", "back"}[c.chance.IntN(2)], cup, 5)
	case p < 9:
		c.move(s, "adjust", jug, -2)
	default:
		c.count(s, c.Skus[c.chance.IntN(2)], c.chance.Int64N(3)-1)
	}
}

func line(sku string, units int64) api.Line   { return api.Line{SKU: sku, Quantity: units} }
func rest(sku string, units int64) api.Result { return api.Result{SKU: sku, Quantity: units} }
