// Package replay sends an order file through the HTTP API: an opening for each SKU, then its sales, each shipped as soon
// as it is sold, its credits as returned goods, and its adjustments. Everything has an id that comes from the file, so all of it may be sent again after an interruption:
// what was taken already is recognised and moves nothing.
package replay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stockpipe/stockpipe/deploy/demo/internal/orderfile"
	"github.com/stockpipe/stockpipe/pkg/api"
)

const (
	atOnce       = 32               // requests under way
	answerTime   = 20 * time.Second // for one answer, beyond which it is asked again
	stepTime     = 2 * time.Minute  // for one opening, sale or document, with all its tries
	tries        = 20               // of one request: a store may be away for some seconds
	looks        = 120              // at a document that is written and not applied yet
	lookPause    = 250 * time.Millisecond
	shipLines    = 256 // of one fulfilment, which is one call of Redis
	mostRefusals = 20  // after which the rest is not sent
)

// A Replay is one that is run once. Its counters may be read meanwhile.
type Replay struct {
	file    *orderfile.File
	clients []*api.Client
	resumed bool

	Openings atomic.Int64 // SKUs stocked
	Sales    atomic.Int64 // orders confirmed, in Postgres
	Shipped  atomic.Int64 // orders fulfilled, in Postgres
	Credits  atomic.Int64 // return documents applied, in Postgres
	Adjusts  atomic.Int64 // adjust documents applied, in Postgres
	Units    atomic.Int64 // of the sales
	Known    atomic.Int64 // of all these: already so before this run
	Refused  atomic.Int64

	doubt atomic.Bool // a SKU is frozen: nothing good can come of the rest

	mu       sync.Mutex
	refusals []string
}

// New prepares the replay of a file at producers. A resumed one asks what became of a sale before it sends it.
func New(file *orderfile.File, producers []string, resumed bool) *Replay {
	r := &Replay{file: file, resumed: resumed}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxIdleConns = atOnce, 0
	for _, url := range producers {
		c := api.NewClient(url)
		c.HTTP, c.Tries = &http.Client{Transport: transport, Timeout: answerTime}, tries
		r.clients = append(r.clients, c)
	}
	return r
}

// Close gives the connections back.
func (r *Replay) Close() { r.clients[0].HTTP.CloseIdleConnections() }

// Refusals are what was not taken, with the reason; at most a few more than make the replay give up.
func (r *Replay) Refusals() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusals
}

// Run sends the openings, then all the rest, many at once and in no order. A refusal is kept for the verdict; the
// error is the context's.
func (r *Replay) Run(ctx context.Context) error {
	skus := r.file.SKUs
	r.each(ctx, len(skus), func(ctx context.Context, c *api.Client, n int) error { return r.open(ctx, c, skus[n]) })
	sales, movements := r.file.Sales, r.file.Movements
	r.each(ctx, len(sales)+len(movements), func(ctx context.Context, c *api.Client, n int) error {
		if n < len(sales) {
			return r.sell(ctx, c, sales[n])
		}
		return r.move(ctx, c, movements[n-len(sales)])
	})
	return ctx.Err()
}

// each does n things with a bounded number at once. It stops early when it gives up.
func (r *Replay) each(ctx context.Context, n int, do func(ctx context.Context, c *api.Client, n int) error) {
	var (
		wait sync.WaitGroup
		next atomic.Int64
	)
	for worker := range atOnce {
		c := r.clients[worker%len(r.clients)]
		wait.Go(func() {
			for ctx.Err() == nil && !r.doubt.Load() && r.Refused.Load() < mostRefusals {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				step, cancel := context.WithTimeout(ctx, stepTime)
				err := do(step, c, i)
				cancel()
				if err != nil && ctx.Err() == nil {
					r.refuse(err)
				}
			}
		})
	}
	wait.Wait()
}

func (r *Replay) refuse(err error) {
	var p *api.Problem
	if errors.As(err, &p) && p.Code == api.CodeClosed && p.Reason == "frozen" {
		r.doubt.Store(true)
	}
	r.Refused.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals = append(r.refusals, err.Error())
}

// open stocks a SKU with all that the file sells of it.
func (r *Replay) open(ctx context.Context, c *api.Client, sku orderfile.SKU) error {
	known, err := settled(ctx, func() (api.Document, error) {
		return c.Create(ctx, sku.Text, api.OpeningRequest{Opening: sku.Opening})
	})
	if err != nil {
		return fmt.Errorf("open the SKU %q with %d units: %w", sku.Text, sku.Opening, err)
	}
	r.count(&r.Openings, known)
	return nil
}

// sell sends one order as a sale and waits until Postgres has it.
func (r *Replay) sell(ctx context.Context, c *api.Client, sale orderfile.Sale) error {
	known, err := r.sold(ctx, c, sale)
	if err == nil && !known {
		known, err = order(ctx, c, sale)
	}
	if err != nil {
		return fmt.Errorf("sell order %s (%d lines): %w", sale.Order, len(sale.Lines), err)
	}
	r.count(&r.Sales, known)
	r.Units.Add(sale.Units())
	return r.ship(ctx, c, sale)
}

// ship fulfils a sale: in one document, or in several where it has more lines than one takes.
func (r *Replay) ship(ctx context.Context, c *api.Client, sale orderfile.Sale) error {
	known := true
	n := 0
	for lines := range slices.Chunk(perSKU(sale.Lines), shipLines) {
		n++
		document := fmt.Sprintf("%s.ship%d", sale.Order, n)
		before, err := settled(ctx, func() (api.Document, error) {
			return c.Fulfil(ctx, sale.Order, &api.AmendRequest{DocumentID: document, Lines: lines})
		})
		if err != nil {
			return fmt.Errorf("ship order %s by document %s (%d lines): %w", sale.Order, document, len(lines), err)
		}
		known = known && before
	}
	r.count(&r.Shipped, known)
	return nil
}

// perSKU sums the lines of one SKU, in the order in which the SKUs first stand.
func perSKU(lines []orderfile.Line) []api.Line {
	at := make(map[string]int, len(lines))
	var out []api.Line
	for _, l := range lines {
		if i, there := at[l.SKU]; there {
			out[i].Quantity += l.Quantity
			continue
		}
		at[l.SKU] = len(out)
		out = append(out, api.Line{SKU: l.SKU, Quantity: l.Quantity})
	}
	return out
}

// sold asks, in a resumed replay, whether Postgres has the sale. Sending it again would do for as long as the shop
// remembers order ids, which is a day; a folder may be kept for longer.
func (r *Replay) sold(ctx context.Context, c *api.Client, sale orderfile.Sale) (bool, error) {
	if !r.resumed {
		return false, nil
	}
	answer, err := c.Order(ctx, sale.Order, "")
	var p *api.Problem
	if errors.As(err, &p) && p.Code == api.CodeUnknownOrder {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, m := range answer.Matches {
		if m.Ledger != nil && (m.Ledger.State == "confirmed" || m.Ledger.State == "fulfilled") {
			return true, nil
		}
	}
	return false, nil
}

func order(ctx context.Context, c *api.Client, sale orderfile.Sale) (known bool, err error) {
	request := api.ReserveRequest{OrderID: sale.Order, Sale: true, Ack: api.Persisted}
	for _, l := range sale.Lines {
		request.Lines = append(request.Lines, api.Line{SKU: l.SKU, Quantity: l.Quantity})
	}
	answer, err := c.Reserve(ctx, &request)
	if err != nil || answer.IsPersisted() {
		return answer.Replayed, err
	}
	standing, err := c.Await(ctx, sale.Order, answer.Receipt)
	if err == nil && standing != api.StandingPersisted {
		err = fmt.Errorf("receipt %s stands as %s", answer.Receipt, standing)
	}
	return answer.Replayed, err
}

// move sends the units that come back: goods returned for a credit, whose order the file does not name, an adjustment
// otherwise.
func (r *Replay) move(ctx context.Context, c *api.Client, m orderfile.Movement) error {
	counter, kind := &r.Adjusts, "adjust"
	send := func() (api.Document, error) {
		return c.Adjust(ctx, m.SKU, &api.AdjustRequest{DocumentID: m.Document, Quantity: m.Units, Reason: "correction"})
	}
	if m.Credit {
		counter, kind = &r.Credits, "return"
		send = func() (api.Document, error) {
			return c.TakeBack(ctx, m.SKU, &api.StockReturnRequest{DocumentID: m.Document, Quantity: m.Units, Reason: "credit"})
		}
	}
	known, err := settled(ctx, send)
	if err != nil {
		return fmt.Errorf("%s document %s (%d of %q): %w", kind, m.Document, m.Units, m.SKU, err)
	}
	r.count(counter, known)
	return nil
}

func (r *Replay) count(counter *atomic.Int64, known bool) {
	counter.Add(1)
	if known {
		r.Known.Add(1)
	}
}

// settled sends a document, which is idempotent, until Postgres has it applied. Known means that it had before.
func settled(ctx context.Context, send func() (api.Document, error)) (known bool, err error) {
	var d api.Document
	for look := range looks {
		if d, err = send(); err != nil {
			return false, err
		}
		if d.State == "applied" && d.Level == api.Persisted {
			return d.Replayed && look == 0, nil
		}
		if d.State == "refused" {
			return false, errors.New("refused")
		}
		if !pause(ctx, lookPause) {
			return false, ctx.Err()
		}
	}
	return false, fmt.Errorf("it is still %s after %d looks", d.State, looks)
}

// pause waits, and says whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
