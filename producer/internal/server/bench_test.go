package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/order/ordertest"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// sink is a ResponseWriter that keeps nothing, so that only the handler is measured.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

type silent struct{}

func (silent) Answered(string, int, time.Duration) {}
func (silent) Outcome(string)                      {}
func (silent) Level(string)                        {}
func (silent) Crashed(any, []byte)                 {}

// BenchmarkReserve is the hot handler without network and stores: what the API itself costs an order.
func BenchmarkReserve(b *testing.B) {
	w := ordertest.New(1)
	w.Stock("tea", 1<<40, 0)
	parts := w.Parts()
	parts.Desk = yes{}
	c, err := order.NewClerk(parts)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(c, silent{}, Config{})
	if err != nil {
		b.Fatal(err)
	}
	text := body("", "")
	r, err := http.NewRequestWithContext(b.Context(), "POST", "http://x/v1/reservations", nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = int64(len(text))
	out := &sink{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		r.Body = io.NopCloser(strings.NewReader(text))
		s.ServeHTTP(out, r)
		if out.status != http.StatusCreated {
			b.Fatal(out.status)
		}
	}
}

// yes is a Desk that accepts everything at once.
type yes struct{ stock.Desk }

func (yes) Do(_ context.Context, shard int, op stock.Operation) (stock.Outcome, error) {
	receipt := stock.Receipt{Shard: shard, Position: stock.Position{Epoch: 1, Seq: 0}}
	return stock.Outcome{Code: stock.Accepted, Receipt: receipt, Reservation: stock.Reservation{
		ID: op.ID, State: stock.Held, Receipt: receipt, Attempt: op.Attempt, ExpiresMillis: ordertest.Now + op.TTL, Lines: op.Lines,
	}}, nil
}
