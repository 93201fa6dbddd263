package apply

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stockpipe/stockpipe/pkg/ledger"
	"github.com/stockpipe/stockpipe/pkg/metrics"
)

// Metrics are the consumer's own. Safe for concurrent use.
type Metrics struct {
	entries    prometheus.Counter
	ops        prometheus.Counter
	orphans    prometheus.Counter
	mismatches prometheus.Counter
	batches    prometheus.Observer
	sizes      prometheus.Observer
	assigned   prometheus.Gauge
	errors     *prometheus.CounterVec
	lags       *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(r *metrics.Registry) *Metrics {
	m := &Metrics{
		entries:    r.Counter("consumer_entries_total", "Log entries persisted.").WithLabelValues(),
		ops:        r.Counter("consumer_operations_total", "Operations persisted.").WithLabelValues(),
		orphans:    r.Counter("consumer_orphans_total", "Entries of closed epochs beyond their end, recorded as lost.").WithLabelValues(),
		mismatches: r.Counter("consumer_mismatches_total", "After-images that disagreed with the ledger; the SKU is frozen.").WithLabelValues(),
		batches:    r.Histogram("consumer_batch_seconds", "Duration of one batch, commit included.", metrics.Seconds).WithLabelValues(),
		sizes:      r.Histogram("consumer_batch_entries", "New entries in one batch.", metrics.Sizes).WithLabelValues(),
		assigned:   r.Gauge("consumer_shards", "Shards that this consumer follows.").WithLabelValues(),
		errors:     r.Counter("consumer_errors_total", "Troubles, by class.", "class"),
		lags:       r.Gauge("consumer_lag_entries", "Log entries beyond the ledger's position, for the shards of this consumer.", "shard"),
	}
	for _, c := range classes {
		m.errors.WithLabelValues(c) // shown as 0 before the first
	}
	return m
}

func (m *Metrics) applied(a ledger.Applied, took time.Duration) {
	m.entries.Add(float64(a.Entries))
	m.ops.Add(float64(a.Ops))
	m.orphans.Add(float64(a.Orphans))
	m.mismatches.Add(float64(len(a.Mismatches)))
	m.batches.Observe(took.Seconds())
	m.sizes.Observe(float64(a.Entries))
}

func (m *Metrics) failed(class string) { m.errors.WithLabelValues(class).Inc() }

func (m *Metrics) lag(shard int, entries int64) {
	m.lags.WithLabelValues(strconv.Itoa(shard)).Set(float64(entries))
}

// forget takes the lag of a shard away that another consumer follows now.
func (m *Metrics) forget(shard int) {
	m.lags.DeleteLabelValues(strconv.Itoa(shard))
}
