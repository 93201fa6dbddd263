package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMetricsAreServedFromTheOwnRegistry(t *testing.T) {
	t.Parallel()
	r := New("consumer")
	r.Counter("entries_total", "Entries.").WithLabelValues().Add(3)
	r.Gauge("lag", "Lag.", "shard").WithLabelValues("0").Set(7)
	r.GaugeFunc("alive", "Alive.", func() float64 { return 1 })
	r.CounterFunc("seen_total", "Seen.", func() float64 { return 5 })
	r.Histogram("batch_seconds", "Batch.", Seconds).WithLabelValues().Observe(.003)
	answer := httptest.NewRecorder()
	r.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"stockpipe_entries_total 3", `stockpipe_lag{shard="0"} 7`, "stockpipe_alive 1", "stockpipe_seen_total 5",
		`stockpipe_batch_seconds_bucket{le="0.005"} 1`, "go_goroutines", "process_open_fds", `stockpipe_info{role="consumer"`} {
		if !strings.Contains(answer.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, answer.Body.String())
		}
	}
}

func TestUnboundedLabelsAreRefused(t *testing.T) {
	t.Parallel()
	for _, label := range unbounded {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("label %s is accepted", label)
				}
			}()
			New("x").Counter("orders_total", "Orders.", label)
		}()
	}
}
