package e2e

import (
	"testing"

	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
)

func TestMain(m *testing.M) { shoptest.Main(m) }
