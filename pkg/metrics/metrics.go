// Package metrics is the registry of a process: its own, so that nothing is exported that was not asked for,
// and constructors that keep names and labels in bounds.
//
// A label is a small, closed set of words (a class, an answer, a shard number). SKUs, order ids and buyers are
// never labels: each of them would be a new time series.
package metrics

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// prefix stands before every name of ours.
const prefix = "stockpipe_"

// unbounded are names that no label may have: their values grow with the trade.
var unbounded = []string{"sku", "order", "order_id", "buyer", "document", "receipt", "position", "epoch", "seq"}

// Seconds are buckets for the duration of calls and transactions, in seconds: 0.25 ms to 10 s.
var Seconds = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Sizes are buckets for how many things travel together.
var Sizes = []float64{1, 2, 5, 10, 25, 50, 100, 256, 500, 1000, 2500, 5000, 10000}

// A Registry holds the metrics of one process. It is a prometheus.Registerer too. The constructors panic on a
// name that is taken or bad and on a forbidden label: both are mistakes of the program, found at its first start.
type Registry struct {
	*prometheus.Registry
}

// New makes a registry with the metrics of the Go runtime and the process, and stockpipe_info{role,version} 1.
func New(role string) *Registry {
	r := &Registry{prometheus.NewRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.Gauge("info", "What runs here; always 1.", "role", "version").WithLabelValues(role, version()).Set(1)
	return r
}

// Handler serves the metrics as text. An error of one collector does not hide the others.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Counter makes stockpipe_<name>; by custom the name ends in _total.
func (r *Registry) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, checked(name, labels))
	r.MustRegister(c)
	return c
}

// Gauge makes stockpipe_<name>.
func (r *Registry) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, checked(name, labels))
	r.MustRegister(g)
	return g
}

// GaugeFunc makes stockpipe_<name>, asked for at each scrape; f must be fast and safe for concurrent use.
func (r *Registry) GaugeFunc(name, help string, f func() float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, f))
}

// CounterFunc makes stockpipe_<name> out of a count kept elsewhere; f must never go down, be fast and safe for
// concurrent use.
func (r *Registry) CounterFunc(name, help string, f func() float64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: prefix + name, Help: help}, f))
}

// Histogram makes stockpipe_<name> with the buckets' upper bounds; durations are in seconds.
func (r *Registry) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, checked(name, labels))
	r.MustRegister(h)
	return h
}

func checked(name string, labels []string) []string {
	for _, l := range labels {
		if slices.Contains(unbounded, l) {
			panic(fmt.Sprintf("metric %s%s: %s may not be a label, its values are without number", prefix, name, l))
		}
	}
	return labels
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
