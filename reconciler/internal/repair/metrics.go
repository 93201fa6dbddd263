package repair

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stockpipe/stockpipe/pkg/audit"
	"github.com/stockpipe/stockpipe/pkg/metrics"
	"github.com/stockpipe/stockpipe/pkg/takeover"
)

// lateness are the buckets of how late holds end, in seconds; 5 is what is promised.
var lateness = []float64{.05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300}

// Metrics are the reconciler's own. Safe for concurrent use.
type Metrics struct {
	takeovers, drifts, repairs, failures, audits *prometheus.CounterVec
	restarts, expiries, papers, forgottens       prometheus.Counter
	holds                                        *prometheus.CounterVec
	latenesses, closed                           prometheus.Observer
	states, skews, turns, struggles              *prometheus.GaugeVec
	backlogs, uncounted, compared                *prometheus.GaugeVec

	mu  sync.Mutex
	was map[int]string // class last shown
}

// NewMetrics registers them.
func NewMetrics(r *metrics.Registry) *Metrics {
	m := &Metrics{
		takeovers:  r.Counter("reconciler_takeovers_total", "Attempts to open a shard, by the class that asked for them and their result.", "class", "result"),
		closed:     r.Histogram("reconciler_takeover_closed_seconds", "How long a shard was closed by a takeover that opened it.", metrics.Seconds).WithLabelValues(),
		audits:     r.Counter("reconciler_audits_total", "Audits, by result: completed, unfit (the shard was not open), failed.", "result"),
		restarts:   r.Counter("reconciler_audit_restarts_total", "Times that an audit began again because the shard moved.").WithLabelValues(),
		drifts:     r.Counter("reconciler_drifts_total", "Differences that audits found, by class; one that stays counts in every audit.", "class"),
		expiries:   r.Counter("reconciler_expiries_total", "Holds ended because their time was over.").WithLabelValues(),
		holds:      r.Counter("reconciler_expiry_answers_total", "Other answers to holds that Postgres calls due: already, not_due, odd.", "answer"),
		latenesses: r.Histogram("reconciler_expiry_lateness_seconds", "How long after they were due holds ended.", lateness).WithLabelValues(),
		papers:     r.Counter("reconciler_documents_total", "Documents finished that were written and not moved.").WithLabelValues(),
		repairs:    r.Counter("reconciler_repairs_total", "Repairs, by class and verb; each has a row in the table repair.", "class", "verb"),
		failures:   r.Counter("reconciler_failures_total", "Rounds of a duty that failed: probe, expiry, documents, audit, digests, forget, producers.", "duty"),
		forgottens: r.Counter("reconciler_forgotten_total", "Records that Redis dropped because their retention is over.").WithLabelValues(),
		backlogs:   r.Gauge("reconciler_forget_backlog_seconds", "How much longer than the retention Redis keeps records; about 0 while forgetting keeps up.", "shard"),
		uncounted:  r.Gauge("reconciler_uncounted_skus", "SKUs with a limit per buyer that nobody counts yet, by the last audit: their orders are refused.", "shard"),
		compared:   r.Gauge("reconciler_audit_compared", "What the last audit compared: skus, orders, ended (orders that hold and promise nothing any more), buyers.", "shard", "what"),
		states:     r.Gauge("reconciler_shard_state", "1 for the class that the last probe found the shard in.", "shard", "class"),
		skews:      r.Gauge("reconciler_clock_skew_seconds", "Redis' clock minus Postgres'; beyond 2 s holds end late.", "shard"),
		turns:      r.Gauge("reconciler_turn", "1 while this process has the shard's turn.", "shard"),
		struggles:  r.Gauge("reconciler_struggling", "1 while takeovers of the shard do not last.", "shard"),
		was:        map[int]string{},
	}
	for _, result := range []string{"completed", "unfit", "failed"} {
		m.audits.WithLabelValues(result)
	}
	for _, duty := range []string{"probe", "expiry", "documents", "audit", "digests", "forget", "producers"} {
		m.failures.WithLabelValues(duty)
	}
	return m
}

func (m *Metrics) tookOver(class string, r takeover.Report, err error) {
	result := "opened"
	if err != nil {
		result = "failed"
	} else {
		m.closed.Observe(r.Closed.Seconds())
	}
	m.drifts.WithLabelValues(classOrphan).Add(float64(r.Orphans + r.Strays))
	if r.Followed > 0 {
		m.drifts.WithLabelValues(classBehind).Inc()
	}
	m.takeovers.WithLabelValues(class, result).Inc()
}

func (m *Metrics) audited(r audit.Report, err error) {
	result := "completed"
	switch {
	case err != nil:
		result = "failed"
	case !r.Compared:
		result = "unfit"
	}
	m.audits.WithLabelValues(result).Inc()
	m.restarts.Add(float64(r.Restarts))
	for _, d := range r.Drifts {
		m.drifts.WithLabelValues(string(d.Class)).Inc()
	}
	for class, n := range r.Unlisted {
		m.drifts.WithLabelValues(string(class)).Add(float64(n))
	}
	if err != nil || !r.Compared {
		return
	}
	number, uncounted := strconv.Itoa(r.Shard), r.Unlisted[takeover.Uncounted]
	for _, d := range r.Drifts {
		if d.Class == takeover.Uncounted {
			uncounted++
		}
	}
	m.uncounted.WithLabelValues(number).Set(float64(uncounted))
	for what, n := range map[string]int{"skus": r.SKUs, "orders": r.Orders, "ended": r.Ended, "buyers": r.Buyers} {
		m.compared.WithLabelValues(number, what).Set(float64(n))
	}
}

func (m *Metrics) forgot(records int) { m.forgottens.Add(float64(records)) }

func (m *Metrics) backlog(shard int, age time.Duration) {
	m.backlogs.WithLabelValues(strconv.Itoa(shard)).Set(age.Seconds())
}

func (m *Metrics) ended(e Ended) {
	m.expiries.Add(float64(e.Expired))
	m.holds.WithLabelValues("already").Add(float64(e.Already))
	m.holds.WithLabelValues("not_due").Add(float64(e.NotDue))
	m.holds.WithLabelValues("odd").Add(float64(e.Odd))
}

func (m *Metrics) late(by time.Duration) { m.latenesses.Observe(by.Seconds()) }

func (m *Metrics) document() { m.papers.Inc() }

func (m *Metrics) repaired(class, verb string) { m.repairs.WithLabelValues(class, verb).Inc() }

func (m *Metrics) failed(duty string) { m.failures.WithLabelValues(duty).Inc() }

func (m *Metrics) state(shard int, f takeover.Finding) {
	number := strconv.Itoa(shard)
	m.skews.WithLabelValues(number).Set(skew(f).Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.was[shard]; was != "" && was != string(f.Class) {
		m.states.DeleteLabelValues(number, was)
	}
	m.was[shard] = string(f.Class)
	m.states.WithLabelValues(number, string(f.Class)).Set(1)
}

func (m *Metrics) turn(shard int, has bool) {
	value := 0.0
	if has {
		value = 1
	}
	m.turns.WithLabelValues(strconv.Itoa(shard)).Set(value)
}

func (m *Metrics) struggle(shard int, is bool) {
	value := 0.0
	if is {
		value = 1
	}
	m.struggles.WithLabelValues(strconv.Itoa(shard)).Set(value)
}

// forget takes away what only the holder of the turn knows.
func (m *Metrics) forget(shard int) {
	number := strconv.Itoa(shard)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states.DeleteLabelValues(number, m.was[shard])
	m.skews.DeleteLabelValues(number)
	m.struggles.DeleteLabelValues(number)
	m.backlogs.DeleteLabelValues(number)
	m.uncounted.DeleteLabelValues(number)
	m.compared.DeletePartialMatch(prometheus.Labels{"shard": number})
	delete(m.was, shard)
}
