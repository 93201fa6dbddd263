package faults

import (
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

func TestMain(m *testing.M) { shoptest.Main(m) }

// play plays a table of trials.
func play(t *testing.T, what string, trials []shoptest.Trial) {
	for i := range trials {
		trial := &trials[i]
		if trial.Whole && !shoptest.Full {
			continue
		}
		t.Run(strings.ReplaceAll(trial.Name, " ", "_"), func(t *testing.T) {
			trial.Play(shoptest.Begin(t, what+": "+trial.Name))
		})
	}
}
