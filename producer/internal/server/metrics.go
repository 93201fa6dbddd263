package server

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/stockpipe/stockpipe/pkg/metrics"
)

// Metrics is the Observer of a real process. A crash of a handler is the one thing that is logged here: nobody
// above the handler can.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	outcomes *prometheus.CounterVec
	levels   *prometheus.CounterVec
	crashes  *prometheus.CounterVec
	log      *zap.Logger
}

var _ Observer = (*Metrics)(nil)

// NewMetrics registers the server's metrics.
func NewMetrics(r *metrics.Registry, log *zap.Logger) *Metrics {
	return &Metrics{
		requests: r.Counter("http_requests_total", "Requests by route and class of status.", "route", "class"),
		seconds:  r.Histogram("http_request_seconds", "How long requests took, waits for a level included, in seconds.", metrics.Seconds, "route"),
		outcomes: r.Counter("outcomes_total", "What became of orders and documents: the state, or the code of the problem.", "code"),
		levels:   r.Counter("acks_total", "Acceptances by the level that was reached before the answer.", "level"),
		crashes:  r.Counter("http_crashes_total", "Handlers that crashed: always a fault of ours."),
		log:      log,
	}
}

// Answered counts a request.
func (m *Metrics) Answered(route string, status int, took time.Duration) {
	class := "none"
	if status >= 100 && status < 600 {
		class = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[status/100-1]
	}
	m.requests.WithLabelValues(route, class).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}

// Outcome counts what became of an order or document.
func (m *Metrics) Outcome(code string) { m.outcomes.WithLabelValues(code).Inc() }

// Level counts an acceptance.
func (m *Metrics) Level(level string) {
	if level == "" {
		level = "none"
	}
	m.levels.WithLabelValues(level).Inc()
}

// Crashed counts and logs a handler that crashed.
func (m *Metrics) Crashed(what any, stack []byte) {
	m.crashes.WithLabelValues().Inc()
	m.log.Error("a handler crashed", zap.String("what", fmt.Sprint(what)), zap.ByteString("stack", stack))
}
