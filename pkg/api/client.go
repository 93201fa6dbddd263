package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of the client, each of one call.
const (
	DefaultTries  = 8                      // how often a call is sent at most
	firstWait     = 25 * time.Millisecond  // upper end of the first random wait
	mostWait      = 2 * time.Second        // upper end of any random wait
	mostAnswer    = 16 << 20               // bytes of an answer that are read
	standingPause = 100 * time.Millisecond // between two looks of Await
)

// ErrUnknown means that a call may or may not have been carried out: no answer came within the tries and the
// context. Send it again with the same order id and attempt, or ask with Order.
var ErrUnknown = errors.New("outcome unknown: send the same order id and attempt again, or look the order up")

// A Client calls one producer. It is safe for concurrent use; the zero HTTP client is http.DefaultClient.
//
// Every call is idempotent by its order or document id, so a call whose answer is 503, 504 or missing is sent
// again, with full jitter between the tries, until the context ends or Tries are used up. A refusal comes back as
// a *Problem at once; no answer at all as ErrUnknown.
type Client struct {
	Base  string       // for example http://127.0.0.1:8080
	HTTP  *http.Client // nil: http.DefaultClient
	Tries int          // 0: DefaultTries
	Token Token        // sent with every call; "": none. It needs the scopes of the calls, see the description
}

// NewClient is a client of the producer at base, for example http://127.0.0.1:8080.
func NewClient(base string) *Client { return &Client{Base: strings.TrimRight(base, "/")} }

// Reserve asks for a reservation. An empty OrderID is filled in, in the caller's own value, before anything is
// sent: so the id is known whatever happens. When IsPersisted of the answer is false, ask later with its receipt.
func (c *Client) Reserve(ctx context.Context, request *ReserveRequest) (Reservation, error) {
	fill(&request.OrderID)
	return send[Reservation](ctx, c, http.MethodPost, "/v1/reservations", request)
}

// ReserveAll asks for many reservations at once; empty order ids are filled in. Results stand in the order asked.
func (c *Client) ReserveAll(ctx context.Context, requests []ReserveRequest) ([]BatchResult, error) {
	for i := range requests {
		fill(&requests[i].OrderID)
	}
	answer, err := send[BatchAnswer](ctx, c, http.MethodPost, "/v1/reservations:batch", BatchRequest{Reservations: requests})
	if err == nil && len(answer.Results) != len(requests) {
		err = fmt.Errorf("reserve %d orders: %d results came back: %w", len(requests), len(answer.Results), ErrUnknown)
	}
	return answer.Results, err
}

// Confirm confirms an order, or with Lines what shall stand of it; the rest goes back. Unless the request says memory,
// an answer that IsPersisted is final; one that is not was accepted by Redis and not seen in Postgres in time: Await its
// receipt, or confirm again.
func (c *Client) Confirm(ctx context.Context, order string, request AttemptRequest) (Reservation, error) {
	return send[Reservation](ctx, c, http.MethodPost, orderPath(order, "/confirm"), request)
}

// Release gives the units of a hold back, or with Lines what is more than shall stand of them. Releasing what is already
// released or expired changes nothing.
func (c *Client) Release(ctx context.Context, order string, request AttemptRequest) (Reservation, error) {
	return send[Reservation](ctx, c, http.MethodPost, orderPath(order, "/release"), request)
}

// Replace gives a hold other lines, all of them or none.
func (c *Client) Replace(ctx context.Context, order string, request ReplaceRequest) (Reservation, error) {
	return send[Reservation](ctx, c, http.MethodPut, orderPath(order, ""), request)
}

// Extend makes a hold last longer, never shorter. With TTL a try that is repeated may count from a later moment; with
// Until it does not.
func (c *Client) Extend(ctx context.Context, order string, request ExtendRequest) (Reservation, error) {
	return send[Reservation](ctx, c, http.MethodPost, orderPath(order, "/extend"), request)
}

// Fulfil ships units of a confirmed order. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Fulfil(ctx context.Context, order string, request *AmendRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, orderPath(order, "/fulfil"), request)
}

// Cancel takes the sale of units of a confirmed order back. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Cancel(ctx context.Context, order string, request *AmendRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, orderPath(order, "/cancel"), request)
}

// Return takes shipped units of an order back. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Return(ctx context.Context, order string, request *ReturnRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, orderPath(order, "/return"), request)
}

// Order asks what both stores know of an order, and how the receipt stands; an empty receipt means that of the
// newest match.
func (c *Client) Order(ctx context.Context, order, receipt string) (Order, error) {
	path := orderPath(order, "")
	if receipt != "" {
		path += "?receipt=" + url.QueryEscape(receipt)
	}
	return send[Order](ctx, c, http.MethodGet, path, nil)
}

// Await asks until a receipt stands as persisted or lost, and answers which; the error is the context's, or that
// of a call which was refused.
func (c *Client) Await(ctx context.Context, order, receipt string) (string, error) {
	for {
		o, err := c.Order(ctx, order, receipt)
		if err != nil {
			return "", err
		}
		if o.Standing == StandingPersisted || o.Standing == StandingLost {
			return o.Standing, nil
		}
		if err := pause(ctx, standingPause); err != nil {
			return o.Standing, fmt.Errorf("await receipt %s of order %s, which stands as %s: %w", receipt, order, o.Standing, err)
		}
	}
}

// orderPath and stockPath carry any order id and any SKU.
func orderPath(order, rest string) string { return "/v1/reservations/" + url.PathEscape(order) + rest }
func stockPath(sku, rest string) string   { return "/v1/stock/" + url.PathEscape(sku) + rest }

// fill makes an id, so that every try has the same.
func fill(id *string) {
	if *id == "" {
		*id = NewOrderID()
	}
}

func send[T any](ctx context.Context, c *Client, method, path string, request any) (T, error) {
	var answer T
	err := c.call(ctx, method, path, request, &answer)
	return answer, err
}

// call sends one request until it is answered for good.
func (c *Client) call(ctx context.Context, method, path string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("write the body of %s %s: %w", method, path, err)
		}
	}
	tries := c.Tries
	if tries <= 0 {
		tries = DefaultTries
	}
	var last error
	unsure := false // one of the tries may have been carried out
	for n := range tries {
		err := c.once(ctx, method, path, body, answer)
		var p *Problem
		if err == nil || errors.As(err, &p) && p.Status != http.StatusServiceUnavailable && p.Status != http.StatusGatewayTimeout {
			return err
		}
		last = err
		unsure = unsure || p == nil || p.Code != CodeClosed && p.Code != CodeUncounted
		var floor time.Duration
		if p != nil {
			floor = p.RetryAfter()
		}
		if n+1 == tries || pause(ctx, min(floor, mostWait)+jitter(n)) != nil {
			break
		}
	}
	if unsure && method != http.MethodGet {
		return fmt.Errorf("%s %s: %w (%w)", method, path, ErrUnknown, last)
	}
	return fmt.Errorf("%s %s: %w", method, path, last)
}

// once sends one request and reads its answer; a refusal comes back as *Problem.
func (c *Client) once(ctx context.Context, method, path string, body []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.Base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token.Reveal())
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode < 300 {
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("understand the answer: %w", err)
		}
		return nil
	}
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Code == "" {
		// Not ours: a proxy between, or another server.
		p = &Problem{Code: CodeInternal, Detail: "the answer is not from a producer: check the address, and any proxy between"}
	}
	p.Status = response.StatusCode
	return p
}

// jitter is a random wait whose upper end doubles with each try ("full jitter").
func jitter(n int) time.Duration {
	return rand.N(min(firstWait<<min(n, 10), mostWait))
}

func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
