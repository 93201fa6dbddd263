package repair

import (
	"testing"
	"time"

	"github.com/stockpipe/stockpipe/pkg/takeover"
)

func TestTheWorstOfAllShardsIsTheExitCode(t *testing.T) {
	t.Parallel()
	of := func(states ...State) Report {
		var r Report
		for _, s := range states {
			r.Acts = append(r.Acts, Act{State: s})
		}
		return r
	}
	for _, c := range []struct {
		reports []Report
		want    int
	}{
		{nil, ExitClean},
		{[]Report{{Expired: 5, Documents: 3}}, ExitClean},
		{[]Report{of(Done), of()}, ExitRepaired},
		{[]Report{of(Proposed)}, ExitRepaired},
		{[]Report{of(Done, Failed), of(Done)}, ExitUnchecked},
		{[]Report{of(Left)}, ExitUnchecked},
		{[]Report{of(Failed), of(Done, Operator)}, ExitOperator},
		{[]Report{of(Operator), of(Failed)}, ExitOperator},
		{[]Report{of(Failed, Done, Operator)}, ExitOperator},
	} {
		if got := Exit(c.reports); got != c.want {
			t.Errorf("%+v: exit %d, want %d", c.reports, got, c.want)
		}
	}
}

func TestKnowledgeOfAnEpochGrowsStaleAndNeverGoesBack(t *testing.T) {
	t.Parallel()
	e := NewEpochs("ledger")
	if got := e.Epoch(0); got.Open || got.Reason != "stale" {
		t.Errorf("unknown: %+v", got)
	}
	now := time.Now()
	open := takeover.Shard{Writer: "redis", State: takeover.StateOpen, Epoch: 7, Applied: 3}
	e.learn(open, now)
	open.Epoch = 6
	e.learn(open, now.Add(time.Second)) // read before the takeover, heard after it
	if got := e.Epoch(0); !got.Open || got.Epoch != 7 || got.Applied != 3 || got.Token() != "ledger.7" {
		t.Errorf("%+v", got)
	}
	e.learn(takeover.Shard{Writer: "redis", State: takeover.StateHalted, Epoch: 7}, now.Add(time.Second))
	if got := e.Epoch(0); got.Open || got.Reason != takeover.StateHalted {
		t.Errorf("halted: %+v", got)
	}
	open.Epoch = 8
	e.learn(open, now.Add(-time.Minute))
	if got := e.Epoch(0); got.Open || got.Reason != "stale" {
		t.Errorf("old: %+v", got)
	}
}

func TestClocksThatAreApartAreToldAndNothingElseIsDone(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	for by, told := range map[time.Duration]bool{0: false, time.Second: false, -2 * time.Second: false, 3 * time.Second: true, -time.Hour: true} {
		f := takeover.Finding{Status: takeover.Status{AtMillis: now.Add(by).UnixMilli()}, Row: takeover.Shard{Now: now}}
		act, is := skewAct(f)
		if is != told || is && (act.State != Operator || act.Class != "skew") {
			t.Errorf("%v: %v %+v", by, is, act)
		}
	}
}
