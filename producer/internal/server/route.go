package server

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/api"
)

// A route is one method on one path, and what the description says of it.
type route struct {
	method string
	path   string // a segment in braces is the one argument
	name   string // operationId, and the label of its metrics
	scope  access.Scope
	handle func(s *Server, w http.ResponseWriter, r *http.Request, arg string) int

	summary string
	detail  string
	request any // zero value of the body's type; nil: no body
	answer  any
	status  []int    // of success, with answer as the body
	codes   []string // of problems, besides those that every route has
}

const (
	reservePath = "/v1/reservations"
	batchPath   = "/v1/reservations:batch"
)

var routes []route

func init() { // not a literal: a handler that reads the table would be an initialisation cycle
	routes = []route{
		{"POST", reservePath, "reserve", access.Order, (*Server).reserve,
			"Reserve units", "Takes all lines or none; with policy partial what is there of each line, told in the answer (quantity beside asked). 201: taken now; 200: it stood before (look at state); 202: accepted, and the level asked for was not reached within 2 s: ask later with the receipt. A sale from memory is 202, too.",
			api.ReserveRequest{}, api.Reservation{}, []int{201, 200, 202},
			[]string{api.CodeUnknownSKU, api.CodeSoldOut, api.CodeConflict, api.CodeNotForSale, api.CodeNotOpenYet, api.CodeBuyer, api.CodeUncounted, api.CodeLimit, api.CodeShards, api.CodeClosed, api.CodeUnknown}},
		{"POST", batchPath, "reserveBatch", access.Order, (*Server).reserveBatch,
			"Reserve many orders", "Each order is decided for itself, as the single call would have; the answer has one result per order. Bodies up to 4 MiB.",
			api.BatchRequest{}, api.BatchAnswer{}, []int{200}, nil},
		{"GET", "/v1/reservations/{order}", "order", access.Read, (*Server).lookup,
			"Look an order up", "What both stores know of the order, and how a receipt stands: exactly one of persisted, accepted, lost, unknown.",
			nil, api.Order{}, []int{200}, []string{api.CodeUnknownOrder}},
		{"POST", "/v1/reservations/{order}/confirm", "confirm", access.Order, (*Server).confirm,
			"Confirm a hold", "200: this confirm is committed in Postgres; 202: accepted and not (yet) seen there: confirm again, or ask with the receipt. With lines, what shall stand of them; the rest goes back. After expiry the units are taken again as the next attempt, if they are there.",
			api.AttemptRequest{}, api.Reservation{}, []int{200, 202},
			[]string{api.CodeUnknownOrder, api.CodeUnknownSKU, api.CodeConflict, api.CodeShortfall, api.CodeReleased, api.CodeCancelled, api.CodeNotForSale, api.CodeNotOpenYet, api.CodeBuyer, api.CodeUncounted, api.CodeLimit, api.CodeClosed, api.CodeUnknown}},
		{"POST", "/v1/reservations/{order}/release", "release", access.Order, (*Server).release,
			"Release a hold", "With lines, what shall stand of them; the others stay. 200 also for what has already ended: nothing changes then. 202: accepted, and the level asked for was not reached within 2 s.",
			api.AttemptRequest{}, api.Reservation{}, []int{200, 202},
			[]string{api.CodeUnknownOrder, api.CodeUnknownSKU, api.CodeConflict, api.CodeConfirmed, api.CodeClosed, api.CodeUnknown}},
		{"POST", "/v1/reservations/{order}/extend", "extend", access.Order, (*Server).extend,
			"Lengthen a hold", "By a time from now or until a moment, at most 24 h from now, and never shorter: a hold that lasts that long already is answered as it stands.",
			api.ExtendRequest{}, api.Reservation{}, []int{200, 202}, append(ofHolds(), api.CodeBounds)},
		{"PUT", "/v1/reservations/{order}", "replace", access.Order, (*Server).replace,
			"Replace the lines of a hold", "All of the new lines or none. The order's own units count as available, so the last unit can be kept. How long the hold lasts does not change.",
			api.ReplaceRequest{}, api.Reservation{}, []int{200, 202},
			append(ofHolds(), api.CodeUnknownSKU, api.CodeSoldOut, api.CodeNotForSale, api.CodeNotOpenYet, api.CodeBuyer, api.CodeUncounted, api.CodeLimit, api.CodeBounds, api.CodeShards)},
		{"POST", "/v1/reservations/{order}/fulfil", "fulfil", access.Order, (*Server).fulfil,
			"Ship units of a confirmed order", ofOrder, api.AmendRequest{}, api.Document{}, []int{201, 200, 202}, ofAmendments()},
		{"POST", "/v1/reservations/{order}/cancel", "cancel", access.Order, (*Server).cancel,
			"Cancel units of a confirmed order", ofOrder, api.AmendRequest{}, api.Document{}, []int{201, 200, 202}, ofAmendments()},
		{"POST", "/v1/reservations/{order}/return", "return", access.Order, (*Server).giveBack,
			"Take shipped units of an order back", ofOrder, api.ReturnRequest{}, api.Document{}, []int{201, 200, 202}, ofAmendments()},
		{"PUT", "/v1/stock/{sku}", "createStock", access.Stock, (*Server).create,
			"Create a SKU", "201: created; 200: it stood with this opening; 202: written, and its outcome is not persisted yet: send it again to see.",
			api.OpeningRequest{}, api.Document{}, []int{201, 200, 202}, []string{api.CodeConflict, api.CodeClosed, api.CodeUnknown}},
		{"GET", "/v1/stock/{sku}", "stock", access.Read, (*Server).stock,
			"Ask for a SKU", "The live quantities of Redis and the persisted ones of Postgres, each with its position.",
			nil, api.Stock{}, []int{200}, []string{api.CodeUnknownSKU, api.CodeClosed}},
		{"POST", "/v1/stock/{sku}/receive", "receive", access.Stock, (*Server).receive,
			"Goods in", "Written in Postgres first, then decided. 201: applied; 200: the outcome of the same document before; 202: written, and its outcome is not persisted yet: send it again to see.",
			api.ReceiveRequest{}, api.Document{}, []int{201, 200, 202}, []string{api.CodeUnknownSKU, api.CodeConflict, api.CodeRefused, api.CodeClosed, api.CodeUnknown}},
		{"POST", "/v1/stock/{sku}/adjust", "adjust", access.Stock, (*Server).adjust,
			"Correct the available units", "As goods in, with a signed quantity. 409 refused, for good, when available would go below 0.",
			api.AdjustRequest{}, api.Document{}, []int{201, 200, 202}, []string{api.CodeUnknownSKU, api.CodeConflict, api.CodeRefused, api.CodeClosed, api.CodeUnknown}},
		{"POST", "/v1/stock/{sku}/count", "count", access.Stock, (*Server).count,
			"Post a stocktake", "As goods in. The difference is what was counted less what the books had on hand at that moment; what moved since stays moved. One count of a SKU at a time, and none older than the last.",
			api.CountRequest{}, api.Document{}, []int{201, 200, 202},
			[]string{api.CodeUnknownSKU, api.CodeConflict, api.CodeCountBusy, api.CodeCountOld, api.CodeInsufficient, api.CodeRefused, api.CodeClosed, api.CodeUnknown}},
		{"POST", "/v1/stock/{sku}/return", "takeBack", access.Stock, (*Server).takeBack,
			"Take units back that belong to no known order", "As goods in; scrapped units are recorded and move nothing.",
			api.StockReturnRequest{}, api.Document{}, []int{201, 200, 202}, []string{api.CodeUnknownSKU, api.CodeConflict, api.CodeRefused, api.CodeClosed, api.CodeUnknown}},
		{"PATCH", "/v1/stock/{sku}", "configure", access.Stock, (*Server).configure,
			"Change settings of a SKU", "Opening time, limit per buyer, freeze, closed for sale; what is absent stays. 202: the level asked for was not reached within 2 s, or a limit was switched on and what buyers have is not counted yet (see hint).",
			api.SettingsRequest{}, api.SettingsAnswer{}, []int{200, 202}, []string{api.CodeUnknownSKU, api.CodeClosed, api.CodeUnknown}},
		{"DELETE", "/v1/stock/{sku}", "deleteStock", access.Stock, (*Server).remove,
			"Delete a SKU", "It is closed for sale, and once that is persisted its text is free: created again it is another SKU. Refused while units are held. 200 also when it was deleted before; 202: closed, and not deleted yet: send it again.",
			nil, api.DeleteAnswer{}, []int{200, 202}, []string{api.CodeUnknownSKU, api.CodeHeld, api.CodeClosed, api.CodeUnknown}},
		{"GET", "/v1/openapi.json", "openapi", access.Read, (*Server).openapi,
			"This description", "OpenAPI 3.1.", nil, nil, []int{200}, nil},
	}
}

// ofOrder is what all documents of an order have in common.
const ofOrder = "Written in Postgres first, with the order locked, then decided; an order that is confirmed in Redis only is waited for. Lines are the units of this document; absent, all that is left. 201: applied; 200: the outcome of the same document before; 202: written, and its outcome is not persisted yet: send it again to see."

// ofHolds and ofAmendments are the problems of what changes a hold, and of documents of orders.
func ofHolds() []string {
	return []string{api.CodeUnknownOrder, api.CodeConflict, api.CodeState, api.CodeReleased, api.CodeConfirmed, api.CodeCancelled, api.CodeClosed, api.CodeUnknown}
}

func ofAmendments() []string { return append(ofHolds(), api.CodeInsufficient, api.CodeRefused) }

// match finds the route of a request, or the problem with it; of a wrong method, Reason has the methods allowed.
func match(r *http.Request) (*route, string, *api.Problem) {
	segments, err := pathSegments(r.URL.EscapedPath())
	if err != nil {
		return nil, "", problem(api.CodeNotFound, "the path is not percent-encoded as it should be: "+err.Error())
	}
	var allowed []string
	for i := range routes {
		rt := &routes[i]
		arg, ok := fits(rt.path, segments)
		if ok && rt.method == r.Method {
			return rt, arg, nil
		}
		if ok {
			allowed = append(allowed, rt.method)
		}
	}
	if allowed == nil {
		return nil, "", problem(api.CodeNotFound, "there is nothing at this path: /v1/openapi.json names every path (a slash within a SKU is written %2F)")
	}
	slices.Sort(allowed)
	p := problem(api.CodeMethod, fmt.Sprintf("%.20s is not offered here: use %s", r.Method, strings.Join(allowed, " or ")))
	p.Reason = strings.Join(allowed, ", ")
	return nil, "", p
}

// pathSegments splits before it decodes, so that %2F stays a part of its segment.
func pathSegments(escaped string) ([]string, error) {
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return nil, err
		}
	}
	return segments, nil
}

func fits(pattern string, segments []string) (arg string, ok bool) {
	i := 0
	for want := range strings.SplitSeq(pattern, "/") {
		if i == len(segments) {
			return "", false
		}
		have := segments[i]
		i++
		if strings.HasPrefix(want, "{") {
			if have == "" {
				return "", false
			}
			arg = have
		} else if want != have {
			return "", false
		}
	}
	return arg, i == len(segments)
}

// bodyType is the type of a route's body, for its description.
func bodyType(value any) reflect.Type { return reflect.TypeOf(value) }
