package config

import (
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/service"
)

// Listen is one address to serve on. Embed it with a default of the role's own:
// `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8082"`.
type Listen struct {
	Addr string `name:"listen" default:"${listen}" help:"Address to serve on, host:port, loopback only."`
}

// Validate refuses an address that other machines could reach, and names the remedy.
func (l Listen) Validate() error {
	if err := service.CheckLoopback(l.Addr); err != nil {
		return fmt.Errorf("--…listen: %w", err)
	}
	return nil
}
