package reconcilerapp

import (
	"errors"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

func TestATroubleThatLastsIsOneLineAndEveryRepairIsWritten(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zapcore.DebugLevel)
	v := newVoice(zap.New(core))
	for range 100 {
		v.tell(0, "probe", nil, errors.New("connection refused"))
		v.tell(1, "halted", &repair.Act{Class: "halted", Verb: "wait", State: repair.Operator}, nil)
	}
	for i := range 5 {
		v.tell(0, "takeover", &repair.Act{Class: "missing", Verb: "takeover", State: repair.Done, Repair: int64(i + 1), Takeover: &repair.Takeover{Epoch: 7}}, nil)
	}
	counts := map[string]int{}
	for _, line := range lines.All() {
		counts[line.Message]++
	}
	if counts["probe"] != 1 || counts["halted"] != 1 || counts["takeover"] != 5 {
		t.Errorf("lines %v", counts)
	}
	if fields := lines.FilterMessage("takeover").All()[0].ContextMap(); fields["epoch"] != int64(7) || fields["class"] != "missing" {
		t.Errorf("fields %v", fields)
	}
}
