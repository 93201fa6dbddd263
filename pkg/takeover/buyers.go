package takeover

import (
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/event"
)

// Counted is the value of a mark: what buyers have of the SKU is counted in full.
const Counted = "1"

// MarkField is the field of the buyers hash that says so of a SKU. Only a takeover writes it, together with the
// counts; switching the limit off deletes it.
func MarkField(sku int64) string { return strconv.FormatInt(sku, 10) }

// BuyerField is the field of the buyers hash that counts what one buyer has of one SKU.
func BuyerField(k event.BuyerKey) string { return strconv.FormatInt(k.SKU, 10) + ":" + k.Buyer }

func (b Bought) field() Record {
	return Record{ID: BuyerField(b.BuyerKey), Text: strconv.FormatInt(b.Units, 10)}
}
