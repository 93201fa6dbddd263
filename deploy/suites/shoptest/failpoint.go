package shoptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stockpipe/stockpipe/pkg/failpoint"
	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

// failpoints is the environment variable that package failpoint reads in a build with its tag.
const failpoints = "STOCKPIPE_FAILPOINTS"

// The ways in which a role fails at a point.
const (
	Kill = "kill"
	Stop = "stop" // until Resume
)

// Arm makes a role fail, once, when it next comes to a point. The shop's Plan says Failing.
func (r *Role) Arm(at failpoint.Point, how string) {
	r.Shop.T.Helper()
	if !r.Shop.Plan.Failing {
		r.Shop.T.Fatal("the roles of this shop are built without failpoints: say Failing in its plan")
	}
	draft := filepath.Join(r.failpoints, "draft")
	Need(r.Shop.T, os.WriteFile(draft, []byte(how), 0o644))
	Need(r.Shop.T, os.Rename(draft, r.armed(at))) // whole, or not there
}

// Failed reports whether an armed point was met.
func (r *Role) Failed(at failpoint.Point) bool {
	_, err := os.Stat(r.armed(at) + ".hit")
	return err == nil
}

// AwaitFailure waits until the role met the point, and is dead or stopped.
func (r *Role) AwaitFailure(at failpoint.Point) {
	r.Shop.T.Helper()
	sandboxtest.Eventually(r.Shop.T, Patience, func() error {
		switch {
		case !r.Failed(at):
			return fmt.Errorf("%s did not come to %s", r.Name, at)
		case r.Alive() && r.State() != "T":
			return errors.New("its signal is on the way")
		}
		return nil
	})
}

// Disarm takes an armed failure back, and says whether it was still waiting.
func (r *Role) Disarm(at failpoint.Point) bool { return os.Remove(r.armed(at)) == nil }

func (r *Role) armed(at failpoint.Point) string { return filepath.Join(r.failpoints, string(at)) }
