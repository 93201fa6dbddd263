package apply

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stockpipe/stockpipe/pkg/bus"
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
	lengths    *prometheus.GaugeVec
	bytes      *prometheus.GaugeVec
	shares     *prometheus.GaugeVec
	cut        prometheus.Counter
	cutFailed  prometheus.Counter
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
		lengths:    r.Gauge("consumer_log_entries", "Entries in the log, those that Postgres has included, for the shards of this consumer.", "shard"),
		bytes:      r.Gauge("consumer_log_bytes", "Memory that the log takes in Redis, an estimate.", "shard"),
		shares:     r.Gauge("consumer_redis_memory_share", "Part of maxmemory that the Redis of the shard has in use: warn from 0.8, at 1 reserves are refused. 0 where no maxmemory is set.", "shard"),
		cut:        r.Counter("consumer_trimmed_entries_total", "Entries that Postgres has, removed from the log.").WithLabelValues(),
		cutFailed:  r.Counter("consumer_trim_failures_total", "Times that the log could not be measured or trimmed; it only takes memory.").WithLabelValues(),
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

func (m *Metrics) measured(shard int, size bus.Size) {
	label, share := strconv.Itoa(shard), 0.0
	if size.Limit > 0 {
		share = float64(size.Used) / float64(size.Limit)
	}
	m.lengths.WithLabelValues(label).Set(float64(size.Entries))
	m.bytes.WithLabelValues(label).Set(float64(size.Bytes))
	m.shares.WithLabelValues(label).Set(share)
}

func (m *Metrics) trimmed(entries int64) { m.cut.Add(float64(entries)) }

func (m *Metrics) trimFailed() { m.cutFailed.Inc() }

// forget takes the figures of a shard away that another consumer follows now.
func (m *Metrics) forget(shard int) {
	for _, g := range []*prometheus.GaugeVec{m.lags, m.lengths, m.bytes, m.shares} {
		g.DeleteLabelValues(strconv.Itoa(shard))
	}
}
