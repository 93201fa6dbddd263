package faults

import (
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

// smoke is one row of each kind, for every run of the tests.
var smoke = []string{
	"redis: FLUSHALL", "redis: kill -9 and restart, AOF everysec",
	"tampered: log: an entry that Postgres has not is deleted", "tamper: ",
	"replies: reply of a takeover's open cut",
	"consumer killed: ledger inside",
	"postgres: restarted, fast", "commit of a batch of the consumer done, its reply cut",
	"takeover: killed before open", "poison: more units than there are",
	"H3 producer killed at order.decided",
	"soak: ", "1000 callers",
	"mix with limits: FLUSHALL", "histories: ",
	"documents: producer killed at document.written", "documents: consumer killed at ledger.inside",
	"documents: reconciler killed at finishing.decided", "documents: sender wakes too late: stopped before it sends, nobody finished it",
}

func TestMain(m *testing.M) {
	shoptest.Smoke = smoke
	shoptest.Main(m)
}

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
