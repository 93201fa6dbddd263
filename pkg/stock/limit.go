package stock

// Every bound of the core, with its unit. A request beyond one is refused with a FieldError that names it;
// nothing is cut down quietly.
const (
	MaxOrderIDBytes = 64 // bytes of an order or document id
	MaxBuyerBytes   = 64 // bytes of a buyer
	MaxSKUBytes     = 64 // bytes of a SKU's text
	MaxReasonBytes  = 32 // bytes of a document's reason code

	MaxLineQuantity     = 1_000_000   // units in one line of an order
	MaxMovementQuantity = 999_999_999 // units in one line of a document, in either direction
	// MaxStockQuantity is the largest count that Lua and JSON readers hold exactly (2^53 - 1 units).
	MaxStockQuantity = 1<<53 - 1

	MaxOrderLines   = 1500 // lines of one order, the hard bound of the core
	DefaultMaxLines = 500  // lines of one order that the API takes unless told otherwise
	MaxCallLines    = 256  // lines of one call of apply or settle, one single larger order excepted
	MaxCallOps      = 256  // operations of one call

	MinTTLMillis     = 1_000          // the shortest hold, in milliseconds
	MaxTTLMillis     = 24 * 3_600_000 // the longest hold, in milliseconds
	DefaultTTLMillis = 15 * 60_000    // the hold that is meant when none is named, in milliseconds

	MaxAttempt = 999_999_999
	MaxShards  = 1024
)
