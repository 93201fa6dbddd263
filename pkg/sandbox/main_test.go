//go:build unix

package sandbox_test

import (
	"os"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(ownerRole); role != "" {
		beOwner(role)
		return
	}
	sandboxtest.Main(m)
}
