package api

import (
	"fmt"
	"strings"
	"time"
)

// The codes of problems. They are stable: programs decide by them, never by title or detail.
const (
	CodeMalformed    = "malformed"       // 400: not JSON
	CodeUnauthorized = "unauthorized"    // 401: no token, or none that is known
	CodeForbidden    = "forbidden"       // 403: Scope is what the token lacks
	CodeNotFound     = "not_found"       // 404: no such path
	CodeUnknownSKU   = "unknown_sku"     // 404
	CodeUnknownOrder = "unknown_order"   // 404
	CodeMethod       = "method"          // 405
	CodeSoldOut      = "sold_out"        // 409: Lines has what is available
	CodeConflict     = "conflict"        // 409: the id stands with other content or another attempt
	CodeShortfall    = "shortfall"       // 409: confirmed after expiry, and the units are gone
	CodeReleased     = "released"        // 409: the order was released
	CodeConfirmed    = "confirmed"       // 409: the order is confirmed and cannot be released
	CodeCancelled    = "cancelled"       // 409: the order was cancelled
	CodeState        = "state"           // 409: the order stands where this cannot be done; Order has it
	CodeInsufficient = "insufficient"    // 409: a document asks for more than the order has, or a count is below what is promised
	CodeCountBusy    = "count_in_flight" // 409: another count of the SKU is not settled yet
	CodeCountOld     = "count_outdated"  // 409: a count of a later moment was posted
	CodeHeld         = "held"            // 409: units of the SKU are promised, so it cannot be deleted
	CodeRefused      = "refused"         // 409: a document for which there are not enough units
	CodeNotForSale   = "closed_for_sale" // 409: the shop closed the SKU
	CodeNotOpenYet   = "not_open_yet"    // 409: the SKU's opening time has not come
	CodeTooLarge     = "too_large"       // 413
	CodeMediaType    = "media_type"      // 415
	CodeInvalid      = "invalid"         // 422: Errors names the fields
	CodeShards       = "shards"          // 422: the lines live in more than one shard
	CodeBuyer        = "buyer_required"  // 422: the SKU has a limit per buyer, and the order names none
	CodeBounds       = "out_of_bounds"   // 422: the hold would last, or the order have more lines, than is allowed
	CodeLimit        = "limit_reached"   // 429: the buyer would have more of SKU than Limit; Have is what he has
	CodeInternal     = "internal"        // 500
	CodeClosed       = "closed"          // 503: Reason says why; nothing was written
	CodeUncounted    = "uncounted"       // 503: a limit per buyer was switched on and is not counted yet; nothing was written
	CodeUnknown      = "unknown"         // 504: it may have happened; send the same again
)

// A Problem is a refusal as RFC 9457 describes it (application/problem+json), and the error of the client.
type Problem struct {
	Code   string `json:"code" doc:"Stable: programs decide by it."`
	Title  string `json:"title" doc:"The code in words."`
	Status int    `json:"status" doc:"The HTTP status."`
	Detail string `json:"detail" doc:"What happened here, and what to do next."`
	Reason string `json:"reason,omitempty" doc:"With closed: why, in one word (fenced, missing, stale, rebuilding, halted, frozen, ...)."`

	Scope string `json:"scope,omitempty" doc:"With unauthorized and forbidden: the scope that the call asks for (read, order, stock, admin)."`

	RetryAfterMillis int64 `json:"retry_after_ms,omitempty" doc:"With closed and uncounted: when it is worth asking again."`

	Errors  []FieldProblem `json:"errors,omitempty" doc:"The fields that are not acceptable."`
	Lines   []ShortLine    `json:"lines,omitempty" doc:"With sold_out, shortfall, refused and insufficient: what was asked, and what is there."`
	Order   *Record        `json:"order,omitempty" doc:"How the order stands, where that is why."`
	OrderID string         `json:"order_id,omitempty" doc:"The order that this is about."`

	SKU   string `json:"sku,omitempty" doc:"The SKU that a limit per buyer, a setting or a deletion is about."`
	Have  *int64 `json:"have,omitempty" doc:"With limit_reached: what the buyer has of the SKU, over all orders."`
	Limit int64  `json:"limit,omitempty" doc:"With limit_reached: units per buyer."`
	Holds []Hold `json:"holds,omitempty" doc:"Orders that have the units, at most 100."`
}

// A Hold is an order that has units of a SKU which are not shipped.
type Hold struct {
	OrderID  string `json:"order_id"`
	Attempt  int64  `json:"attempt"`
	State    string `json:"state" enum:"held,confirmed"`
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// A FieldProblem names a field as the caller wrote it, what stood there, and what would be accepted.
type FieldProblem struct {
	Field  string `json:"field" doc:"Path of the field, for example lines[2].quantity."`
	Value  string `json:"value" doc:"The value, quoted and cut to about 80 bytes."`
	Remedy string `json:"remedy" doc:"What would be accepted."`
}

// A ShortLine is one line of an order or document that could not be had.
type ShortLine struct {
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity" doc:"What was asked."`
	Available int64  `json:"available" doc:"What is there."`
}

func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s: %s", p.Status, p.Code, p.Detail)
	for _, f := range p.Errors {
		fmt.Fprintf(&b, "; %s %s: %s", f.Field, f.Value, f.Remedy)
	}
	return b.String()
}

// RetryAfter is when it is worth asking again; 0 when the server did not say.
func (p *Problem) RetryAfter() time.Duration {
	return time.Duration(p.RetryAfterMillis) * time.Millisecond
}
