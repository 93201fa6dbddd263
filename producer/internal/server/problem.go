package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A kind is what a problem code means in HTTP.
type kind struct {
	status int
	title  string
}

// kinds maps every code to its status. Nothing else in the server names the status of a problem.
var kinds = map[string]kind{
	api.CodeMalformed:    {http.StatusBadRequest, "Not JSON"},
	api.CodeUnauthorized: {http.StatusUnauthorized, "No valid token"},
	api.CodeForbidden:    {http.StatusForbidden, "Token lacks a scope"},
	api.CodeNotFound:     {http.StatusNotFound, "No such path"},
	api.CodeUnknownSKU:   {http.StatusNotFound, "Unknown SKU"},
	api.CodeUnknownOrder: {http.StatusNotFound, "Unknown order"},
	api.CodeMethod:       {http.StatusMethodNotAllowed, "Method not offered"},
	api.CodeSoldOut:      {http.StatusConflict, "Sold out"},
	api.CodeConflict:     {http.StatusConflict, "Stands otherwise"},
	api.CodeShortfall:    {http.StatusConflict, "Confirmed too late"},
	api.CodeReleased:     {http.StatusConflict, "Order was released"},
	api.CodeConfirmed:    {http.StatusConflict, "Order is confirmed"},
	api.CodeCancelled:    {http.StatusConflict, "Order was cancelled"},
	api.CodeState:        {http.StatusConflict, "Order stands otherwise"},
	api.CodeInsufficient: {http.StatusConflict, "Not enough for the document"},
	api.CodeCountBusy:    {http.StatusConflict, "Another count is in flight"},
	api.CodeCountOld:     {http.StatusConflict, "A later count is posted"},
	api.CodeHeld:         {http.StatusConflict, "Units are promised"},
	api.CodeRefused:      {http.StatusConflict, "Document refused"},
	api.CodeNotForSale:   {http.StatusConflict, "SKU closed for sale"},
	api.CodeNotOpenYet:   {http.StatusConflict, "SKU not on sale yet"},
	api.CodeTooLarge:     {http.StatusRequestEntityTooLarge, "Body too large"},
	api.CodeMediaType:    {http.StatusUnsupportedMediaType, "Not application/json"},
	api.CodeInvalid:      {http.StatusUnprocessableEntity, "Not acceptable"},
	api.CodeShards:       {http.StatusUnprocessableEntity, "Lines in several shards"},
	api.CodeBuyer:        {http.StatusUnprocessableEntity, "Buyer required"},
	api.CodeBounds:       {http.StatusUnprocessableEntity, "Out of bounds"},
	api.CodeLimit:        {http.StatusTooManyRequests, "Limit per buyer reached"},
	api.CodeInternal:     {http.StatusInternalServerError, "Internal error"},
	api.CodeClosed:       {http.StatusServiceUnavailable, "Closed"},
	api.CodeUncounted:    {http.StatusServiceUnavailable, "Limit not counted yet"},
	api.CodeUnknown:      {http.StatusGatewayTimeout, "Outcome unknown"},
}

// closedAdvice says what a reason of 503 means and what to do; others are answered with the general sentence.
var closedAdvice = map[string]string{
	"memory":      "Redis is at its memory bound: raise maxmemory; confirms and releases go on",
	"disk":        "Redis cannot write to its disk: free space, or mend the disk",
	"access":      "Redis refuses our credentials: check the user's rights",
	"halted":      "the shard is halted on an entry that cannot be applied: an operator has to decide (reconciler --plan)",
	"ledger":      "Postgres cannot be asked: check that it runs",
	"stale":       "Postgres has not been reached for longer than --epoch-max-age: check that it runs",
	"unreachable": "Redis cannot be reached: check that it runs",
	"frozen":      "the SKU's stock is in doubt: an operator has to look",
	"behind":      "Postgres has not heard of the order's last change yet: check that the consumers run",
	"missing":     "the stock is not in Redis (just created, flushed, or being rebuilt)",
}

func problem(code, detail string) *api.Problem {
	k := kinds[code]
	return &api.Problem{Code: code, Title: k.title, Status: k.status, Detail: detail}
}

// problemOf turns an error of the Clerk, or of reading a request, into what is told to the caller. What is not
// expected becomes 500, without its text: that could name addresses.
func problemOf(err error) *api.Problem {
	var refused *refusedBody
	if errors.As(err, &refused) {
		return problem(refused.code, refused.detail)
	}
	if p := inputProblem(err); p != nil {
		return p
	}
	if p := orderProblem(err); p != nil {
		return p
	}
	if p := skuProblem(err); p != nil {
		return p
	}
	if p := limitProblem(err); p != nil {
		return p
	}
	if p := documentProblem(err); p != nil {
		return p
	}
	var closed *stock.ClosedError
	switch {
	// Unknown first: whoever may have written must never be told that nothing was.
	case errors.Is(err, stock.ErrUnknown):
		return problem(api.CodeUnknown, "it may or may not have happened: send the same id and attempt again, or look it up")
	case errors.As(err, &closed):
		return closedProblem(closed.Reason, closed.RetryAfter)
	}
	return problem(api.CodeInternal, "something went wrong on our side: send the same again, or look the order up")
}

func closedProblem(reason string, after time.Duration) *api.Problem {
	detail := closedAdvice[reason]
	if detail == "" {
		detail = "the shard is being checked or rebuilt and opens again without you"
	}
	p := problem(api.CodeClosed, "nothing was written; "+detail+". Send the same again after Retry-After")
	p.Reason = reason
	p.RetryAfterMillis = max(after.Milliseconds(), 1)
	return p
}

func inputProblem(err error) *api.Problem {
	var field *stock.FieldError
	var unknown *order.UnknownSKUError
	var shards *order.ShardsError
	switch {
	case errors.As(err, &field):
		p := problem(api.CodeInvalid, fmt.Sprintf("%s is not acceptable, nothing was written: %s", field.Field, field.Remedy))
		p.Errors = fieldProblems(*field)
		return p
	case errors.As(err, &unknown):
		p := problem(api.CodeUnknownSKU, unknown.Error())
		p.Errors = fieldProblems(unknown.Fields...)
		return p
	case errors.As(err, &shards):
		return problem(api.CodeShards, shards.Error())
	}
	return nil
}

func fieldProblems(fields ...stock.FieldError) []api.FieldProblem {
	out := make([]api.FieldProblem, len(fields))
	for i, f := range fields {
		out[i] = api.FieldProblem{Field: f.Field, Value: f.Value, Remedy: f.Remedy}
	}
	return out
}

// stateCodes are the codes of orders whose state ends the matter; the others are answered with api.CodeState.
var stateCodes = map[stock.State]string{
	stock.Released: api.CodeReleased, stock.Cancelled: api.CodeCancelled,
	stock.Confirmed: api.CodeConfirmed, stock.Fulfilled: api.CodeConfirmed,
}

func orderProblem(err error) *api.Problem {
	var unknown *order.UnknownOrderError
	var soldOut *order.SoldOutError
	var shortfall *order.ShortfallError
	var conflict *order.ConflictError
	var state *order.StateError
	switch {
	case errors.As(err, &unknown):
		p := problem(api.CodeUnknownOrder, unknown.Error())
		p.OrderID = unknown.ID
		return p
	case errors.As(err, &soldOut):
		p := problem(api.CodeSoldOut, soldOut.Error())
		p.Lines = shortLines(soldOut.Lines)
		return p
	case errors.As(err, &shortfall):
		p := problem(api.CodeShortfall, shortfall.Error())
		p.Lines, p.OrderID = shortLines(shortfall.Lines), shortfall.ID
		return p
	case errors.As(err, &conflict):
		p := problem(api.CodeConflict, conflict.Error())
		p.Order, p.OrderID = record(&conflict.Order), conflict.Order.ID
		return p
	case errors.As(err, &state):
		code, ok := stateCodes[state.Order.State]
		if !ok {
			code = api.CodeState
		}
		p := problem(code, state.Error())
		p.Order, p.OrderID = record(&state.Order), state.Order.ID
		return p
	}
	return nil
}

func skuProblem(err error) *api.Problem {
	var sku *order.SKUError
	var held *order.HeldError
	switch {
	case errors.As(err, &sku) && sku.Code == stock.ClosedSKU:
		return problem(api.CodeNotForSale, sku.Error())
	case errors.As(err, &sku) && sku.Code == stock.UnopenedSKU:
		return problem(api.CodeNotOpenYet, sku.Error())
	case errors.As(err, &sku):
		p := closedProblem(string(sku.Code), sku.RetryAfter)
		p.Detail = "nothing was written; " + sku.Error()
		return p
	case errors.As(err, &held):
		p := problem(api.CodeHeld, held.Error())
		p.SKU, p.Holds = held.SKU, holds(held.Holds)
		return p
	}
	return nil
}

// limitProblem is what a limit per buyer, or a bound of holds, stands against.
func limitProblem(err error) *api.Problem {
	var limit *order.LimitError
	var buyer *order.BuyerRequiredError
	var uncounted *order.UncountedError
	var bounds *order.OutOfBoundsError
	switch {
	case errors.As(err, &limit):
		p := problem(api.CodeLimit, limit.Error())
		p.SKU, p.Have, p.Limit = limit.SKU, &limit.Have, limit.Limit
		return p
	case errors.As(err, &buyer):
		p := problem(api.CodeBuyer, buyer.Error())
		p.SKU = buyer.SKU
		return p
	case errors.As(err, &uncounted):
		p := problem(api.CodeUncounted, "nothing was written; "+uncounted.Error())
		p.SKU, p.RetryAfterMillis = uncounted.SKU, max(uncounted.RetryAfter.Milliseconds(), 1)
		return p
	case errors.As(err, &bounds):
		return problem(api.CodeBounds, bounds.Error())
	}
	return nil
}

func documentProblem(err error) *api.Problem {
	var conflict *order.DocumentConflictError
	var refused *order.RefusedError
	var insufficient *order.InsufficientError
	var count *order.CountError
	switch {
	case errors.As(err, &conflict):
		return problem(api.CodeConflict, conflict.Error())
	case errors.As(err, &refused):
		p := problem(api.CodeRefused, refused.Error())
		p.Lines, p.Holds = shortLines(refused.Lines), holds(refused.Holds)
		return p
	case errors.As(err, &insufficient):
		p := problem(api.CodeInsufficient, insufficient.Error())
		p.Lines, p.Holds = shortLines(insufficient.Lines), holds(insufficient.Holds)
		return p
	case errors.As(err, &count) && count.InFlight:
		return problem(api.CodeCountBusy, count.Error())
	case errors.As(err, &count):
		return problem(api.CodeCountOld, count.Error())
	}
	return nil
}

func holds(of []order.Hold) []api.Hold {
	var out []api.Hold
	for _, h := range of {
		out = append(out, api.Hold{OrderID: h.Order, Attempt: h.Attempt, State: string(h.State), SKU: h.SKU, Quantity: h.Quantity})
	}
	return out
}

func shortLines(lines []order.ShortLine) []api.ShortLine {
	out := make([]api.ShortLine, len(lines))
	for i, l := range lines {
		out[i] = api.ShortLine{SKU: l.SKU, Quantity: l.Asked, Available: l.Available}
	}
	return out
}

// writeProblem answers with a problem and returns its status.
func writeProblem(w http.ResponseWriter, p *api.Problem) int {
	if p.RetryAfterMillis > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMillis+999)/1000, 10))
	}
	return writeJSON(w, p.Status, "application/problem+json", p)
}
